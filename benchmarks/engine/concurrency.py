"""Aggregate speed of the engine, by how many sequences it decodes at once, with and without drafts.

Answers the same requests at each concurrency, in this process and without HTTP: as many at a time
as the level says, a new one as soon as one has ended, each cut at the same number of tokens. Time
runs from the first prompt's first chunk to the last token, so prompts are in it. Plain and drafted
cells alternate, and every other repetition goes through them backwards, so that a machine that
slows down slows down all of them. Greedy, and every cell must give the same tokens.

    python -m benchmarks.engine.concurrency --pair engines/demo/dense --threads 2

The last line is one JSON document with every cell; a table for RESULTS.md stands above it.
"""

import argparse
import itertools
import json
import platform
import statistics
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import torch

from engines.dflash2.batch import Batch
from engines.dflash2.decode import Round, new_workspace
from engines.dflash2.drafter import DFlash2Drafter
from engines.dflash2.sampling import SamplingParams
from engines.dflash2.target import Target
from engines.dflash2.tokenizer import load_tokenizer
from engines.dflash2.weights import load_drafter, load_target

LEVELS = (1, 2, 4, 8, 16)
KV_LEN = 1024
Answers = list[tuple[int, ...]]


@dataclass(frozen=True, kw_only=True)
class Cell:
    """One run of all requests. A step of one sequence is a round, or a plain step."""

    mode: str
    concurrency: int
    wall_s: float
    num_tokens: int
    num_steps: int
    num_accepted: int
    draft_s: float  # of all passes, each counted once
    verify_s: float
    prefill_s: float

    @property
    def tok_per_s(self) -> float:
        return self.num_tokens / self.wall_s

    @property
    def acceptance_length(self) -> float:
        return 1 + self.num_accepted / self.num_steps


def run_cell(
    batch: Batch, prompts: Sequence[Sequence[int]], max_tokens: int
) -> tuple[Cell, Answers]:
    """Answer all prompts with as many at a time as the batch has slots."""
    waiting = list(reversed(prompts))
    rounds: dict[object, list[Round]] = {}
    started_at_s = time.perf_counter()
    while waiting or batch.num_sequences > 0:
        while waiting and batch.num_sequences < batch.num_slots:
            sequence = batch.add(
                waiting.pop(),
                max_tokens=max_tokens,
                min_tokens=max_tokens,
                sampling=SamplingParams(),
                stop_ids=frozenset(),
            )
            rounds[sequence] = []
        for sequence, outcome in batch.step():
            assert isinstance(outcome, Round), outcome
            rounds[sequence].append(outcome)
    wall_s = time.perf_counter() - started_at_s
    return _cell(batch, wall_s, [*rounds.values()]), [_tokens(each) for each in rounds.values()]


def _cell(batch: Batch, wall_s: float, rounds: Sequence[Sequence[Round]]) -> Cell:
    steps = [step for each in rounds for step in each[1:]]
    return Cell(
        mode="dflash2" if any(step.num_drafted for step in steps) else "plain",
        concurrency=batch.num_slots,
        wall_s=wall_s,
        num_tokens=sum(len(step.tokens) for each in rounds for step in each),
        num_steps=len(steps),
        num_accepted=sum(step.num_accepted for step in steps),
        draft_s=sum(step.draft_s / step.num_sharing for step in steps),
        verify_s=sum(step.verify_s / step.num_sharing for step in steps),
        prefill_s=sum(each[0].verify_s for each in rounds),
    )


def _tokens(rounds: Sequence[Round]) -> tuple[int, ...]:
    return tuple(token for step in rounds for token in step.tokens)


def measure(
    target: Target,
    drafter: DFlash2Drafter,
    prompts: Sequence[Sequence[int]],
    *,
    max_tokens: int,
    repetitions: int,
) -> list[Cell]:
    batches = [
        Batch(new_workspace(target, one, num_slots=level, kv_len=KV_LEN))
        for level in LEVELS
        for one in (None, drafter)
    ]
    for batch in batches:  # touches the memory and warms the caches up
        run_cell(batch, prompts[: batch.num_slots], max_tokens=4)
    cells: list[Cell] = []
    expected: Answers | None = None
    for repetition in range(repetitions):
        for batch in batches if repetition % 2 == 0 else reversed(batches):
            cell, answers = run_cell(batch, prompts, max_tokens)
            expected = answers if expected is None else expected
            assert answers == expected, f"{cell.mode} at {cell.concurrency} changed an answer"
            cells.append(cell)
            print(f"{cell.mode:>8} c={cell.concurrency:<3} {cell.tok_per_s:7.1f} tok/s", flush=True)
    return cells


def table(cells: Sequence[Cell]) -> str:
    """Medians over repetitions; "x c = 1" is within a mode, "x plain" at the same concurrency."""
    by_cell = {
        (mode, level): [each for each in cells if (each.mode, each.concurrency) == (mode, level)]
        for mode in ("plain", "dflash2")
        for level in LEVELS
    }
    rate = {key: statistics.median(each.tok_per_s for each in of) for key, of in by_cell.items()}
    lines = [
        "| c | plain tok/s | x c = 1 | DFlash 2 tok/s | x c = 1 | x plain | acceptance length "
        "| ms per round: draft | verify | plain step |",
        "| --: | --: | --: | --: | --: | --: | --: | --: | --: | --: |",
    ]
    for level in LEVELS:
        plain, drafted = by_cell["plain", level], by_cell["dflash2", level]
        columns = [
            str(level),
            f"{rate['plain', level]:.1f}",
            f"{rate['plain', level] / rate['plain', 1]:.2f}",
            f"{rate['dflash2', level]:.1f}",
            f"{rate['dflash2', level] / rate['dflash2', 1]:.2f}",
            f"{rate['dflash2', level] / rate['plain', level]:.2f}",
            f"{drafted[0].acceptance_length:.2f}",
            f"{_ms_per_pass(drafted, 'draft_s', level):.1f}",
            f"{_ms_per_pass(drafted, 'verify_s', level):.1f}",
            f"{_ms_per_pass(plain, 'verify_s', level):.1f}",
        ]
        lines.append(f"| {' | '.join(columns)} |")
    return "\n".join(lines)


def _ms_per_pass(cells: Sequence[Cell], name: str, level: int) -> float:
    """A pass as its sequences see it, on average with all slots taken."""
    return statistics.median(1e3 * getattr(cell, name) * level / cell.num_steps for cell in cells)


def load_prompts(path: Path, pair: Path, count: int) -> list[list[int]]:
    """So many prompts of the set, over and over if it has fewer."""
    tokenizer = load_tokenizer(pair / "target")
    lines = map(json.loads, path.read_text(encoding="utf-8").splitlines())
    prompts = [tokenizer.encode_chat(line["messages"], {}) for line in lines]
    return list(itertools.islice(itertools.cycle(prompts), count))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pair", type=Path, default=Path("engines/demo/dense"))
    parser.add_argument("--prompts", type=Path, default=Path("prompts/demo5.jsonl"))
    parser.add_argument("--max-tokens", type=int, default=128)
    parser.add_argument("--repetitions", type=int, default=2)
    parser.add_argument("--threads", type=int, default=2)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    target = load_target(options.pair / "target")
    drafter = load_drafter(options.pair / "drafter", target)
    cells = measure(
        target,
        drafter,
        load_prompts(options.prompts, options.pair, max(LEVELS)),
        max_tokens=options.max_tokens,
        repetitions=options.repetitions,
    )
    print(table(cells))
    facts = {
        "torch": torch.__version__,
        "threads": options.threads,
        "machine": platform.machine(),
        "max_tokens": options.max_tokens,
    }
    print(json.dumps({**facts, "cells": [asdict(cell) for cell in cells]}))


if __name__ == "__main__":
    main()
