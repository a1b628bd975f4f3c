"""The training loop of everything that learns from the target's answers, and what it learns from.

Muon and AdamW, a rate that falls linearly, a checkpoint every two minutes and on SIGTERM. Knows
nothing of what is trained: a step is a function that adds up a gradient and says what it saw.
"""

import json
import os
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random

import torch
from torch import nn

from engines.demo.train.corpus.split import KINDS
from engines.demo.train.generate import Answers

MUON_RATE, ADAM_RATE = 4e-3, 2e-3
WARMUP_STEPS = 30
CHECKPOINT_EVERY_S = 120.0
LOG_EVERY_STEPS = 10
Seen = dict[str, object]  # what a step saw, as it is logged


def load_answers(work: Path) -> list[list[Answers]]:
    """The batches of answers of each kind."""
    return [
        [
            answers
            for path in sorted(work.glob(f"answers_{kind}.*.pt"))
            for answers in torch.load(path, weights_only=False, mmap=True)
        ]
        for kind in KINDS
    ]


def optimisers(model: nn.Module) -> tuple[torch.optim.Optimizer, torch.optim.Optimizer]:
    """Muon for the hidden matrices, AdamW for everything else."""
    named = list(model.named_parameters())
    hidden = [p for name, p in named if p.dim() == 2 and "codebook" not in name]
    rest = [p for name, p in named if p.dim() != 2 or "codebook" in name]
    return (
        torch.optim.Muon(hidden, lr=MUON_RATE, weight_decay=0.05, adjust_lr_fn="match_rms_adamw"),
        torch.optim.AdamW(rest, lr=ADAM_RATE, betas=(0.9, 0.95), weight_decay=0.0, fused=True),
    )


def rate(step: int, steps: int) -> float:
    """Up over the warm-up, then linearly down to a fiftieth."""
    return min((step + 1) / WARMUP_STEPS, max(0.02, 1 - step / steps))


def train(
    model: nn.Module,
    gradient: Callable[[int], Seen],
    path: Path,
    steps: int,
) -> Iterator[Seen]:
    """Train, or go on from `path`; yields what is worth a line in the log.

    gradient: adds up the gradient of the step whose number it is given.
    """
    both, done = optimisers(model), 0
    if path.exists():
        saved = torch.load(path)
        model.load_state_dict(saved["model"])
        for optimiser, state in zip(both, saved["optimisers"], strict=True):
            optimiser.load_state_dict(state)
        done = saved["step"]
    began_s = saved_s = time.monotonic()
    stop: list[int] = []
    signal.signal(signal.SIGTERM, lambda number, frame: stop.append(number))
    for step in range(done, steps):
        seen = gradient(step)
        norm = nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        for optimiser, full in zip(both, (MUON_RATE, ADAM_RATE), strict=True):
            optimiser.param_groups[0]["lr"] = full * rate(step, steps)
            optimiser.step()
            optimiser.zero_grad()
        if (step + 1) % LOG_EVERY_STEPS == 0:
            seconds = round(time.monotonic() - began_s, 1)
            yield {"step": step + 1, "seconds": seconds, **seen, "norm": round(float(norm), 3)}
        if stop or time.monotonic() - saved_s > CHECKPOINT_EVERY_S or step + 1 == steps:
            saved_s = time.monotonic()
            state = {"model": model.state_dict(), "step": step + 1,
                     "optimisers": [optimiser.state_dict() for optimiser in both]}  # fmt: skip
            torch.save(state, path.with_suffix(".new"))
            os.replace(path.with_suffix(".new"), path)
        if stop:
            return


def run(
    model: nn.Module, gradient: Callable[[int], Seen], work: Path, name: str, steps: int
) -> None:
    """Train in `work`: the state goes to `<name>.pt`, the log to `<name>.jsonl` and the screen."""
    log = work / f"{name}.jsonl"
    for values in train(model, gradient, work / f"{name}.pt", steps):
        line = json.dumps(values)
        print(line, flush=True)
        with log.open("a", encoding="utf-8") as file:
            file.write(line + "\n")


def by_kind(kinds: list[list[Answers]], random: Random) -> Iterator[Answers]:
    """A batch of answers of every kind, large batches more often."""
    for answers in kinds:
        yield random.choices(answers, [len(each.tokens) for each in answers])[0]
