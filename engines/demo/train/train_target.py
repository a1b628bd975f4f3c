"""Trains a demo target on the packed windows: bfloat16, float32 masters, a process per core.

Each process has one thread and half of every batch: they meet once a step to add their gradients,
so a busy neighbour costs its share and no more (threads of one process would meet at every matrix
product). Muon moves the hidden matrices (each process owns half of them), AdamW the rest. SIGTERM
writes a checkpoint and stops; `--resume` goes on from the last one.

    python -m engines.demo.train.train_target --work build/demo --steps 1000 --cooldown-steps 300
    python -m engines.demo.train.train_target --pair hybrid --work build/demo-hybrid --steps 600 \
        --cooldown-steps 200 --data build/demo
"""

import argparse
import json
import os
import shutil
import signal
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
import torch.distributed as dist
import torch.multiprocessing as multiprocessing
import torch.nn.functional as F
from torch import Tensor, nn

from engines.demo.train.pack import ANSWER, PADDING, QUESTION
from engines.demo.train.pairs import Pair, add_pair

SEED = 1
QUESTION_WEIGHT = 0.25  # a question's loss: worth learning to read, not worth learning to write
CHECKPOINT_EVERY_S = 180.0
MOMENTUM = 0.95


@dataclass(frozen=True, kw_only=True)
class Settings:
    pair: Pair
    work: Path
    data: Path  # where `pack` wrote the windows
    workers: int
    compile: bool
    windows: str  # the file's name: windows_<this>.npz
    batch_windows: int  # of all workers together
    steps: int
    warmup_steps: int
    cooldown_steps: int
    muon_rate: float
    adam_rate: float
    log_every: int
    evaluate_every: int
    resume: bool
    first_window: int | None

    def rate(self, step: int) -> float:
        """The trapezoid: up, level, and linearly down to a fiftieth at the last step."""
        up = min(1.0, (step + 1) / self.warmup_steps)
        down = min(1.0, (self.steps - step) / self.cooldown_steps)
        return min(up, max(down, 0.02))


class Windows:
    """The training windows in their stored order, from any window on, again and again."""

    def __init__(self, path: Path) -> None:
        with np.load(path) as file:
            self.tokens, self.roles = file["tokens"], file["roles"]

    def batch(self, first: int, count: int) -> tuple[Tensor, Tensor]:
        rows = np.arange(first, first + count) % len(self.tokens)
        return as_tensors(self.tokens[rows], self.roles[rows])

    @property
    def length(self) -> int:
        """Predicted tokens of a window."""
        return int(self.tokens.shape[1]) - 1


def as_tensors(tokens: np.ndarray, roles: np.ndarray) -> tuple[Tensor, Tensor]:
    """Token ids [batch, length + 1] and each predicted token's weight [batch, length]."""
    weight_of = torch.zeros(3)
    weight_of[QUESTION], weight_of[ANSWER], weight_of[PADDING] = QUESTION_WEIGHT, 1.0, 0.0
    ids = torch.from_numpy(tokens.astype(np.int64))
    return ids, weight_of[torch.from_numpy(roles[:, 1:].astype(np.int64))]


def weighted_loss(model: nn.Module, ids: Tensor, weights: Tensor) -> Tensor:
    with torch.autocast("cpu", dtype=torch.bfloat16):
        logits = model(ids[:, :-1])
    losses = F.cross_entropy(logits.flatten(0, 1).float(), ids[:, 1:].flatten(), reduction="none")
    return (losses * weights.flatten()).sum() / weights.sum()


@torch.no_grad()
def held_out_losses(model: nn.Module, path: Path) -> dict[str, float]:
    """Mean loss of the answers' tokens, by kind."""
    losses = {}
    with np.load(path) as file:
        for kind in sorted({name.split(".")[0] for name in file.files}):
            tokens, roles = file[f"{kind}.tokens"][:16], file[f"{kind}.roles"][:16]
            ids, _ = as_tensors(tokens, roles)
            answers = torch.from_numpy((roles[:, 1:] == ANSWER).astype(np.float32))
            losses[kind] = round(float(weighted_loss(model, ids, answers)), 4)
    return losses


class Optimisers:
    """Muon for this worker's hidden matrices, AdamW for everything else (on every worker alike)."""

    def __init__(self, model: nn.Module, settings: Settings, rank: int) -> None:
        self.settings = settings
        named = list(model.named_parameters())
        hidden = [p for name, p in named if p.dim() == 2 and "embed" not in name]
        self.owned = [hidden[owner :: settings.workers] for owner in range(settings.workers)]
        rest = [p for name, p in named if p.dim() != 2 or "embed" in name]
        self.muon = torch.optim.Muon(
            self.owned[rank],
            lr=settings.muon_rate,
            momentum=MOMENTUM,
            weight_decay=0.05,
            adjust_lr_fn="match_rms_adamw",
        )
        self.adam = torch.optim.AdamW(
            rest, lr=settings.adam_rate, betas=(0.9, 0.95), weight_decay=0.0, fused=True
        )

    def step(self, scale: float) -> None:
        self.muon.param_groups[0]["lr"] = self.settings.muon_rate * scale
        self.adam.param_groups[0]["lr"] = self.settings.adam_rate * scale
        self.muon.step()
        self.adam.step()
        for owner, parameters in enumerate(self.owned):
            flat = torch.cat([p.detach().flatten() for p in parameters])
            dist.broadcast(flat, owner)
            copy_flat(flat, parameters)


def copy_flat(flat: Tensor, parameters: list[nn.Parameter]) -> None:
    parts = flat.split([p.numel() for p in parameters])
    for parameter, part in zip(parameters, parts, strict=True):
        parameter.data.copy_(part.view_as(parameter))


def average_gradients(
    parameters: list[nn.Parameter], stop: bool, seconds: float
) -> tuple[bool, float]:
    """Average over the workers; tell all of them if one shall stop, and the first one's clock."""
    first = seconds if dist.get_rank() == 0 else 0.0
    extra = torch.tensor([float(stop), first])
    flat = torch.cat([*(p.grad.flatten() for p in parameters if p.grad is not None), extra])
    dist.all_reduce(flat)
    clock = float(flat[-1])
    any_stop = bool(flat[-2] > 0)
    flat /= dist.get_world_size()
    norm = flat[:-2].norm()
    flat *= min(1.0, 1.0 / float(norm + 1e-6))
    for parameter, part in zip(
        parameters, flat[:-2].split([p.numel() for p in parameters]), strict=True
    ):
        parameter.grad = part.view_as(parameter)
    return any_stop, clock


def save_checkpoint(
    work: Path, rank: int, model: nn.Module, optimisers: Optimisers, progress: dict[str, float]
) -> None:
    """All workers write into a new directory, then the first renames it over the old one."""
    new, old = work / "checkpoint.new", work / "checkpoint"
    if rank == 0:
        shutil.rmtree(new, ignore_errors=True)
        new.mkdir(parents=True)
    dist.barrier()
    state = {"muon": optimisers.muon.state_dict(), "adam": optimisers.adam.state_dict()}
    torch.save(state, new / f"optimisers.{rank}.pt")
    if rank == 0:
        torch.save({"model": model.state_dict(), "progress": progress}, new / "model.pt")
    dist.barrier()
    if rank == 0:
        aside = work / "checkpoint.old"
        shutil.rmtree(aside, ignore_errors=True)
        if old.exists():
            os.replace(old, aside)
        os.replace(new, old)


def load_checkpoint(
    work: Path, rank: int, model: nn.Module, optimisers: Optimisers
) -> dict[str, float]:
    directory = work / "checkpoint"
    saved = torch.load(directory / "model.pt")
    model.load_state_dict(saved["model"])
    state = torch.load(directory / f"optimisers.{rank}.pt")
    optimisers.muon.load_state_dict(state["muon"])
    optimisers.adam.load_state_dict(state["adam"])
    progress: dict[str, float] = saved["progress"]
    return progress


class StopRequest:
    """True once SIGTERM or SIGINT arrived."""

    def __init__(self) -> None:
        self.seen = False
        signal.signal(signal.SIGTERM, self.notice)
        signal.signal(signal.SIGINT, self.notice)

    def notice(self, number: int, frame: object) -> None:
        self.seen = True


def log(work: Path, **values: object) -> None:
    line = json.dumps(values)
    print(line, flush=True)
    with (work / "training.jsonl").open("a", encoding="utf-8") as file:
        file.write(line + "\n")


def train(rank: int, settings: Settings) -> None:
    stop = StopRequest()
    torch.set_num_threads(1)
    torch.manual_seed(SEED)
    address = f"file://{(settings.work / 'meeting').resolve()}"
    dist.init_process_group("gloo", init_method=address, rank=rank, world_size=settings.workers)
    model = settings.pair.new_target()
    optimisers = Optimisers(model, settings, rank)
    progress: dict[str, float] = {"step": 0, "window": 0, "seconds": 0.0, "tokens": 0}
    if settings.resume:
        progress = load_checkpoint(settings.work, rank, model, optimisers)
    if settings.first_window is not None:
        progress["window"] = settings.first_window
    windows = Windows(settings.data / f"windows_{settings.windows}.npz")
    for values in run_steps(model, optimisers, windows, settings, progress, stop, rank):
        if rank == 0:
            log(settings.work, **values)
    dist.destroy_process_group()


def run_steps(
    model: nn.Module,
    optimisers: Optimisers,
    windows: Windows,
    settings: Settings,
    progress: dict[str, float],
    stop: StopRequest,
    rank: int,
) -> Iterator[dict[str, object]]:
    """The training loop; yields what is worth a line in the log."""
    parameters = list(model.parameters())
    for layer in model.model.layers if settings.compile else ():
        layer.compile()  # one by one: layers of a kind share their code, so it is made only once
    share = settings.batch_windows // settings.workers
    began_s = logged_s = saved_s = time.monotonic()
    seconds_before, logged_step = progress["seconds"], int(progress["step"])
    stopping = False
    while progress["step"] < settings.steps and not stopping:
        step = int(progress["step"])
        ids, weights = windows.batch(int(progress["window"]) + rank * share, share)
        loss = weighted_loss(model, ids, weights)
        loss.backward()
        now_s = time.monotonic()
        stopping, clock_s = average_gradients(parameters, stop.seen, now_s - saved_s)
        optimisers.step(settings.rate(step))
        model.zero_grad(set_to_none=True)
        progress["step"] = step + 1
        progress["window"] += settings.batch_windows
        progress["tokens"] += settings.batch_windows * windows.length
        progress["seconds"] = round(seconds_before + now_s - began_s, 1)
        if (step + 1) % settings.log_every == 0:
            speed = (step + 1 - logged_step) * settings.batch_windows * windows.length
            yield {**progress, "loss": round(loss.item(), 4), "rate": round(settings.rate(step), 4),
                   "tok_per_s": round(speed / (now_s - logged_s))}  # fmt: skip
            logged_s, logged_step = now_s, step + 1
        if (step + 1) % settings.evaluate_every == 0 and rank == 0:
            yield {**progress, "held_out": held_out_losses(model, settings.data / "held_out.npz")}
        if stopping or clock_s > CHECKPOINT_EVERY_S or step + 1 == settings.steps:
            save_checkpoint(settings.work, rank, model, optimisers, progress)
            saved_s = time.monotonic()
    if rank == 0:
        yield {**progress, "held_out": held_out_losses(model, settings.data / "held_out.npz")}


def parse() -> Settings:
    parser = argparse.ArgumentParser(description=__doc__)
    add_pair(parser)
    parser.add_argument("--work", type=Path, required=True)
    parser.add_argument("--data", type=Path, help="the folder of the windows; default: --work")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--no-compile", dest="compile", action="store_false")
    parser.add_argument("--windows", default="512")
    parser.add_argument("--batch-windows", type=int, default=16)
    parser.add_argument("--steps", type=int, required=True)
    parser.add_argument("--warmup-steps", type=int, default=40)
    parser.add_argument("--cooldown-steps", type=int, required=True)
    parser.add_argument("--muon-rate", type=float, default=5e-3)
    parser.add_argument("--adam-rate", type=float, default=3e-3)
    parser.add_argument("--log-every", type=int, default=10)
    parser.add_argument("--evaluate-every", type=int, default=100)
    parser.add_argument("--resume", action="store_true")
    parser.add_argument("--first-window", type=int)
    options = parser.parse_args()
    options.data = options.data or options.work
    return Settings(**vars(options))


def main() -> None:
    settings = parse()
    settings.work.mkdir(parents=True, exist_ok=True)
    (settings.work / "meeting").unlink(missing_ok=True)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)  # the workers stop by themselves
    context = multiprocessing.get_context("spawn")
    workers = [
        context.Process(target=train, args=(rank, settings)) for rank in range(settings.workers)
    ]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    raise SystemExit(max(worker.exitcode or 0 for worker in workers))


if __name__ == "__main__":
    main()
