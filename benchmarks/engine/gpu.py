"""The engine on a GPU, in the true shapes of a 27B target and its drafter: every figure in a go.

    python -m benchmarks.engine.gpu --raw FILE            on a card with 80 GB or more
    python -m benchmarks.engine.gpu --raw FILE --small    the rehearsal, on a CPU
    python -m benchmarks.engine.gpu --table [FILE]        the table, measured or not

Weights are random (see `gpu_models`), so tokens mean nothing, no draft is accepted, and what is
told is time: of a plain step, of a round, of reading a prompt. Medians of warm repetitions; the
device is waited for at each stamp of the clock.
"""

import argparse
import json
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

import torch

from benchmarks.engine.gpu_models import (
    Shapes,
    full_shapes,
    num_bytes,
    random_drafter,
    random_target,
    small_shapes,
)
from engines.dflash2.batch import Batch
from engines.dflash2.decode import Round, new_workspace
from engines.dflash2.drafter import DFlash2Drafter
from engines.dflash2.sampling import SamplingParams
from engines.dflash2.selfcheck import HostFallbackError, check_device
from engines.dflash2.top_k import top_candidates

NOT_RUN = "not run: no card was at hand"
REHEARSED = "rehearsed: small, on a CPU"
NUM_REPETITIONS = 5
LOOKED_UP = ("embed_tokens", "_codebook")  # tables of which a step reads a few rows
DRAFTERS = {"BF16": False, "Q8": True}


@dataclass(frozen=True, kw_only=True)
class Scale:
    """How much of everything: the card's, and the rehearsal's."""

    concurrency: tuple[int, ...]
    prompt_tokens: int  # of a sequence whose steps are timed
    long_prompt_tokens: int  # of one whose reading is timed
    num_steps: int
    read_bytes: int  # of the buffer that the memory's rate is measured with


FULL = Scale(
    concurrency=(1, 2, 4, 8, 16),
    prompt_tokens=256,
    long_prompt_tokens=4096,
    num_steps=12,
    read_bytes=8 << 30,
)
SMALL = Scale(
    concurrency=(1, 2),
    prompt_tokens=16,
    long_prompt_tokens=128,
    num_steps=3,
    read_bytes=1 << 20,
)


@dataclass(frozen=True, kw_only=True)
class Figure:
    """A line of the table. The goal's side says which way is better."""

    key: str
    what: str
    digits: int = 2
    at_least: float | None = None
    at_most: float | None = None

    @property
    def goal(self) -> str:
        if self.at_least is not None:
            return f"at least {self.at_least:g}"
        return "" if self.at_most is None else f"at most {self.at_most:g}"

    def verdict(self, value: float) -> str:
        if self.at_least is not None:
            return "met" if value >= self.at_least else "**missed**"
        if self.at_most is not None:
            return "met" if value <= self.at_most else "**missed**"
        return ""


def figures(concurrency: Sequence[int]) -> list[Figure]:
    return [
        Figure(key="plain_tok_per_s", what="plain, c = 1: tok/s", digits=1),
        Figure(key="roof_share", what="plain, c = 1: share of the read roof", at_least=0.8),
        *(
            Figure(
                key=f"round_over_step_{drafter}",
                what=f"round with k = 7, {drafter} drafter, over one plain step, c = 1",
                at_most=1.25,
            )
            for drafter in DRAFTERS
        ),
        *(
            Figure(
                key=f"draft_share_{drafter}",
                what=f"share of a round that is drafting, {drafter} drafter, c = 1",
            )
            for drafter in DRAFTERS
        ),
        Figure(
            key="top_k_ms",
            what="best 16 of each row of 7 x 248,320, ms, median of five warm runs",
            digits=3,
            at_most=0.15,
        ),
        Figure(
            key="checks_passed",
            what="attention and selector against float64, searches against a sort, all on the "
            "device: share of checks within the bounds",
            at_least=1.0,
        ),
        Figure(key="prefill_tok_per_s", what="reading a prompt, plain: tok/s", digits=0),
        Figure(
            key="prefill_ratio",
            what="reading a prompt with the drafter (Q8) over without: tok/s",
            digits=3,
            at_least=0.97,
        ),
        *(
            Figure(key=f"{name}_{level}", what=f"c = {level}: {what}", digits=digits)
            for level in concurrency
            for name, what, digits in (
                ("plain_ms", "plain step, ms", 2),
                ("round_ms", "round with the Q8 drafter, ms", 2),
                ("tok_per_s", "plain, all sequences together, tok/s", 0),
            )
        ),
    ]


# --- measuring ------------------------------------------------------------------------------------


class Bench:
    """The models on a device, and what is measured of them. Models are made one after the other."""

    def __init__(self, shapes: Shapes, scale: Scale, device: torch.device) -> None:
        self.shapes, self.scale, self.device = shapes, scale, device
        # BF16 as published; a CPU rehearses in the precision that it is exact in
        self.dtype = torch.bfloat16 if device.type == "cuda" else torch.float32
        self.target = random_target(shapes, self.dtype, device)

    def clock(self) -> float:
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)
        return time.perf_counter()

    def measure(self) -> dict[str, float]:
        found = {"top_k_ms": self.top_k_ms(), "read_bytes_per_s": self.read_bytes_per_s()}
        found["checks_passed"] = self.checks_passed()
        plain = {level: self.step_ms(None, level)[0] for level in self.scale.concurrency}
        found |= {f"plain_ms_{level}": ms for level, ms in plain.items()}
        found |= {f"tok_per_s_{level}": 1e3 * level / ms for level, ms in plain.items()}
        found["plain_tok_per_s"] = 1e3 / plain[1]
        weights_bytes = num_bytes(self.target, without=LOOKED_UP)
        found["roof_share"] = weights_bytes / found["read_bytes_per_s"] / (plain[1] / 1e3)
        found["prefill_tok_per_s"] = self.prefill_tok_per_s(None)
        for name, is_q8 in DRAFTERS.items():
            drafter = random_drafter(self.shapes, self.target, self.dtype, is_q8=is_q8)
            found |= self._with_drafter(name, drafter, plain[1])
        found["prefill_ratio"] /= found["prefill_tok_per_s"]
        return found

    def _with_drafter(
        self, name: str, drafter: DFlash2Drafter, plain_ms: float
    ) -> dict[str, float]:
        """The last drafter's figures by c are those that stay: the Q8 one's."""
        found = {}
        for level in self.scale.concurrency:
            found[f"round_ms_{level}"], draft_share = self.step_ms(drafter, level)
            if level == 1:
                found[f"round_over_step_{name}"] = found["round_ms_1"] / plain_ms
                found[f"draft_share_{name}"] = draft_share
        return found | {"prefill_ratio": self.prefill_tok_per_s(drafter)}

    def step_ms(self, drafter: DFlash2Drafter | None, num_sequences: int) -> tuple[float, float]:
        """Median of a step of so many sequences, and the share of it that is drafting."""
        batch = self._batch(drafter, num_sequences, self.scale.prompt_tokens)
        times_s, shares = [], []
        for _ in range(self.scale.num_steps + 2):
            started_at_s = self.clock()
            (_, outcome), *_ = batch.step()
            times_s.append(self.clock() - started_at_s)
            assert isinstance(outcome, Round), outcome
            shares.append(outcome.draft_s / (outcome.draft_s + outcome.verify_s))
        return 1e3 * median(times_s[2:]), median(shares[2:])

    def _batch(self, drafter: DFlash2Drafter | None, num_sequences: int, num_read: int) -> Batch:
        """With sequences whose prompts have been read, and that do not end soon."""
        num_more = (self.scale.num_steps + 3) * (1 + self.shapes.drafter.num_proposals)
        work = new_workspace(
            self.target,
            drafter,
            num_slots=num_sequences,
            kv_len=num_read + num_more,
            clock=self.clock,
        )
        batch = Batch(work)
        noise = torch.Generator().manual_seed(0)
        for _ in range(num_sequences):
            ids = torch.randint(self.shapes.target.vocab_size, (num_read,), generator=noise)
            batch.add(
                ids.tolist(),
                max_tokens=num_more,
                min_tokens=num_more,
                sampling=SamplingParams(),
                stop_ids=frozenset(),
            )
        num_prompts = 0
        while num_prompts < num_sequences:
            num_prompts += sum(outcome.is_prefill for _, outcome in batch.step())
        return batch

    def prefill_tok_per_s(self, drafter: DFlash2Drafter | None) -> float:
        num_tokens = self.scale.long_prompt_tokens
        times_s = []
        for _ in range(NUM_REPETITIONS):
            started_at_s = self.clock()
            self._batch(drafter, 1, num_tokens)
            times_s.append(self.clock() - started_at_s)
        return num_tokens / median(times_s)

    def top_k_ms(self) -> float:
        rows, k = self.shapes.drafter.num_proposals, self.shapes.drafter.selector_top_k
        scores = torch.randn(rows, self.shapes.target.vocab_size, device=self.device)
        return 1e3 * self._warm_s(lambda: top_candidates(scores, k))

    def read_bytes_per_s(self) -> float:
        """By a sum over a buffer that no cache holds."""
        buffer = torch.ones(self.scale.read_bytes // 4, device=self.device)
        return self.scale.read_bytes / self._warm_s(buffer.sum)

    def _warm_s(self, act: Callable[[], object]) -> float:
        act()
        times_s = []
        for _ in range(NUM_REPETITIONS):
            started_at_s = self.clock()
            act()
            times_s.append(self.clock() - started_at_s)
        return median(times_s)

    def checks_passed(self) -> float:
        """Share; 0 if anything at all was computed on the host."""
        try:
            found = check_device(self.device)
        except HostFallbackError as error:
            say(f"host fallback: {error}")
            return 0.0
        for finding in found:
            say(f"{finding.name:<12}{'ok  ' if finding.ok else 'BAD '}{finding.text}")
        return sum(finding.ok for finding in found) / len(found)


def describe(device: torch.device, *, small: bool) -> Mapping[str, Any]:
    return {
        "device": torch.cuda.get_device_name(device) if device.type == "cuda" else "CPU",
        "torch": torch.__version__,
        "rehearsal": small,
    }


# --- showing --------------------------------------------------------------------------------------


def table(told: Mapping[str, Any] | None) -> str:
    """With every goal beside its figure; `told` is a line of the raw file, None: there is none."""
    lines = ["| figure | goal | measured | |", "| --- | --- | --: | --- |"]
    for figure in figures(FULL.concurrency):
        value = None if told is None else told["figures"].get(figure.key)
        shown = NOT_RUN if told is None else "n/a"
        verdict = ""
        if value is not None:
            shown = f"{value:,.{figure.digits}f}"
            verdict = REHEARSED if told["rehearsal"] else figure.verdict(value)
        lines.append(f"| {figure.what} | {figure.goal} | {shown} | {verdict} |")
    return "\n".join(lines)


def say(text: str) -> None:
    sys.stderr.write(text + "\n")


def run(raw: Path, *, small: bool) -> None:
    shapes, scale = (small_shapes(), SMALL) if small else (full_shapes(), FULL)
    device = torch.device("cpu" if small else "cuda")
    told = describe(device, small=small)
    began_s = time.monotonic()
    bench = Bench(shapes, scale, device)
    say(f"{time.monotonic() - began_s:.0f} s: the target is there")
    line = {**told, "figures": bench.measure(), "took_s": time.monotonic() - began_s}
    with raw.open("a") as file:
        file.write(json.dumps(line) + "\n")
    print(table(line))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--raw", type=Path)
    parser.add_argument("--small", action="store_true", help="rehearse on the CPU")
    parser.add_argument("--table", action="store_true", help="of the raw file's last line")
    options = parser.parse_args()
    if options.table:
        lines = options.raw.read_text().splitlines() if options.raw else []
        print(table(json.loads(lines[-1]) if lines else None))
        return
    if options.raw is None:
        parser.error("--raw FILE is needed: where the figures are kept")
    if not options.small and not torch.cuda.is_available():
        raise SystemExit("this PyTorch sees no GPU; --small rehearses on the CPU")
    run(options.raw, small=options.small)


if __name__ == "__main__":
    main()
