"""The tables of RESULTS.md from a raw file: `python -m benchmarks.engine.results RAW`.

Every figure is the median over the rounds of a run. A ratio is taken within each round, where both
sides met the same machine, and its median stands with the lowest and the highest. Nothing here
measures anything.
"""

import argparse
import json
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any, TypeAlias

from benchmarks.engine.candidates import CANDIDATES, LOADS, NUM_PROPOSALS, Candidate, Load, Way
from benchmarks.engine.machine import Machine
from benchmarks.engine.models import BYTES_PER_WEIGHT, Precision
from benchmarks.engine.outcome import Outcome
from benchmarks.engine.weights_read import product_flop_per_s, share_of_read_roof

Line: TypeAlias = Mapping[str, Any]
REFERENCE = Candidate(way="transformers", precision="F32", drafts=False)
NOTHING = "n/a"


@dataclass(frozen=True, kw_only=True)
class Run:
    """One candidate, one load, once, and what the machine could do in that round."""

    outcome: Outcome
    peak_memory_bytes: int
    others_cpu_s: float
    machine: Machine


@dataclass(frozen=True, kw_only=True)
class Results:
    header: Line
    runs: Mapping[tuple[Candidate, Load], Mapping[int, Run]]  # by round
    problems: Sequence[str]

    def of(self, candidate: Candidate, load: Load) -> Mapping[int, Run]:
        return self.runs.get((candidate, load), {})


def read(lines: Sequence[str]) -> Results:
    """Where a candidate did the same round twice, the later one: it was run again."""
    told = [json.loads(line) for line in lines]
    headers = [line for line in told if line["kind"] == "header"]
    if not headers:
        raise SystemExit("the file has no header: benchmarks.engine.side_by_side writes one")
    runs: defaultdict[tuple[Candidate, Load], dict[int, Run]] = defaultdict(dict)
    problems = {}
    for line in told:
        if line["kind"] == "header":
            continue
        key = Candidate(**line["candidate"]), Load(**line["load"])
        if line["kind"] == "failed":
            problems[key] = line["problem"]
            continue
        problems.pop(key, None)
        runs[key][line["round"]] = Run(
            outcome=Outcome(**line["outcome"]),
            peak_memory_bytes=line["peak_memory_bytes"],
            others_cpu_s=line["others_cpu_s"],
            machine=Machine(**line["machine"]),
        )
    return Results(header=headers[-1], runs=runs, problems=[*problems.values()])


# --- figures --------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Spread:
    """Over rounds."""

    median: float
    lowest: float
    highest: float

    @classmethod
    def over(cls, values: Sequence[float]) -> "Spread | None":
        if not values:
            return None
        return cls(median=median(values), lowest=min(values), highest=max(values))


def ratio(
    above: Mapping[int, Run],
    below: Mapping[int, Run],
    value: Callable[[Outcome], float] = lambda outcome: outcome.tok_per_s,
) -> Spread | None:
    """Of a figure of two candidates, within each round that has both."""
    both = sorted(above.keys() & below.keys())
    return Spread.over([value(above[r].outcome) / value(below[r].outcome) for r in both])


def bytes_per_step(results: Results, candidate: Candidate, load: Load) -> int:
    weights = results.header["weights"][load.model]
    numbers: int = weights["drafted_round" if candidate.drafts else "plain_step"]
    return numbers * BYTES_PER_WEIGHT[candidate.precision]


def roof_share(results: Results, candidate: Candidate, load: Load) -> Spread | None:
    num_bytes = bytes_per_step(results, candidate, load)
    return Spread.over(
        [
            share_of_read_roof(num_bytes, run.outcome.step_ms, run.machine.read_bytes_per_s)
            for run in results.of(candidate, load).values()
        ]
    )


def verify_share(results: Results, candidate: Candidate, load: Load) -> Spread | None:
    """Of the bare product's rate, by the products of a verified block of every sequence."""
    num_rows = load.concurrency * (1 + NUM_PROPOSALS)
    products = results.header["weights"][load.model]["products"]
    return Spread.over(
        [
            product_flop_per_s(num_rows, products, run.outcome.verify_ms)
            / run.machine.product_flop_per_s
            for run in results.of(candidate, load).values()
            if run.outcome.verify_ms is not None
        ]
    )


def num_equal_answers(results: Results, candidate: Candidate, load: Load) -> int | None:
    """Greedy answers that are the reference's in every round; None: no reference was run."""
    expected = [run.outcome.answers for run in results.of(REFERENCE, load).values()]
    if not expected:
        return None
    found = [run.outcome.answers for run in results.of(candidate, load).values()]
    return sum(
        all(answers[place] == expected[0][place] for answers in found)
        for place in range(load.num_requests)
    )


# --- tables ---------------------------------------------------------------------------------------


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> Iterator[str]:
    lines = (head, ["---", *["--:"] * (len(head) - 1)], *rows)
    yield from ("| " + " | ".join(line) + " |" for line in lines)
    yield ""


def _number(value: float | None, digits: int) -> str:
    return NOTHING if value is None else f"{value:,.{digits}f}"


def _spread(value: Spread | None, digits: int) -> str:
    if value is None:
        return NOTHING
    low, high = (_number(each, digits) for each in (value.lowest, value.highest))
    return f"{_number(value.median, digits)} ({low}-{high})"


def loads(results: Results) -> Iterator[str]:
    for load in LOADS:
        rows = [
            _row(results, candidate, load)
            for candidate in CANDIDATES
            if results.of(candidate, load)
        ]
        if rows:
            yield f"### {load.name}"
            yield ""
            yield f"{load.num_requests} requests of {load.num_tokens} tokens."
            yield ""
            yield from _table(_HEAD, rows)


_HEAD = (
    "candidate",
    "precision",
    "over HTTP",
    "tok/s",
    "tokens per step",
    "ms per step",
    "draft",
    "verify",
    "rest",
    "share of the read roof",
    "peak memory, MB",
    "same answers",
)


def _row(results: Results, candidate: Candidate, load: Load) -> list[str]:
    runs = results.of(candidate, load)

    def middle(value: Callable[[Outcome], float | None], digits: int) -> str:
        found = [each for each in (value(run.outcome) for run in runs.values()) if each is not None]
        return _number(median(found) if found else None, digits)

    equal = num_equal_answers(results, candidate, load)
    return [
        f"{candidate.way}, {'DFlash 2' if candidate.drafts else 'plain'}",
        candidate.precision,
        "yes" if candidate.is_server else "no",
        _spread(Spread.over([run.outcome.tok_per_s for run in runs.values()]), 1),
        middle(lambda outcome: outcome.tokens_per_step, 2),
        middle(lambda outcome: outcome.step_ms, 2),
        middle(lambda outcome: outcome.draft_ms, 2) if candidate.drafts else "",
        middle(lambda outcome: outcome.verify_ms, 2),
        middle(lambda outcome: outcome.rest_ms, 2),
        _spread(roof_share(results, candidate, load), 2),
        f"{max(run.peak_memory_bytes for run in runs.values()) / 1e6:,.0f}",
        NOTHING if equal is None else f"{equal} of {load.num_requests}",
    ]


@dataclass(frozen=True, kw_only=True)
class Goal:
    what: str
    at_least: float | None = None
    at_most: float | None = None
    found: Spread | None

    @property
    def words(self) -> str:
        return f"at least {self.at_least}" if self.at_least else f"at most {self.at_most}"

    @property
    def is_met(self) -> bool | None:
        """By the median; None: it was not measured."""
        if self.found is None:
            return None
        if self.at_least is not None:
            return self.found.median >= self.at_least
        assert self.at_most is not None
        return self.found.median <= self.at_most


def goals(results: Results) -> list[Goal]:
    alone, many, smollm2 = LOADS[:3]

    def runs(way: Way, drafts: bool, load: Load, precision: Precision = "F32") -> Any:
        return results.of(Candidate(way=way, precision=precision, drafts=drafts), load)

    def share(drafts: bool, load: Load) -> Spread | None:
        return roof_share(results, Candidate(way="ours", precision="F32", drafts=drafts), load)

    drafted = Candidate(way="ours", precision="F32", drafts=True)
    return [
        Goal(
            what="DFlash 2 over PyPI dflash's, tok/s, c = 1",
            at_least=3.0,
            found=ratio(runs("ours", True, alone), runs("PyPI dflash", True, alone)),
        ),
        Goal(
            what="plain step of the demo target over its read roof",
            at_most=2.5,
            found=_inverse(share(False, alone)),
        ),
        Goal(
            what="round over plain step, c = 1",
            at_most=1.6,
            found=ratio(
                runs("ours", True, alone), runs("ours", False, alone), lambda one: one.step_ms
            ),
        ),
        Goal(
            what="SmolLM2-135M plain, share of the read roof, c = 1",
            at_least=0.7,
            found=share(False, smollm2),
        ),
        Goal(
            what="SmolLM2-135M plain over llama.cpp F32, both over HTTP, tok/s, c = 1",
            at_least=0.9,
            found=ratio(runs("ours served", False, smollm2), runs("llama.cpp", False, smollm2)),
        ),
        *(
            Goal(
                what=f"DFlash 2 over llama.cpp's draft-dflash F32, both over HTTP, tok/s, c = "
                f"{load.concurrency}",
                at_least=1.0,
                found=ratio(runs("ours served", True, load), runs("llama.cpp", True, load)),
            )
            for load in (alone, many)
        ),
        Goal(
            what="verify pass of 128 rows, share of the bare product's rate, c = 16",
            at_least=0.7,
            found=verify_share(results, drafted, many),
        ),
    ]


def _inverse(value: Spread | None) -> Spread | None:
    if value is None:
        return None
    return Spread(median=1 / value.median, lowest=1 / value.highest, highest=1 / value.lowest)


def goal_table(results: Results) -> Iterator[str]:
    said = {True: "met", False: "**missed**", None: "not measured"}
    rows = [
        [goal.what, goal.words, _spread(goal.found, 2), said[goal.is_met]]
        for goal in goals(results)
    ]
    yield from _table(["goal", "wanted", "measured", ""], rows)


def scaling(results: Results) -> Iterator[str]:
    """Reported, no goals: what sixteen at a time gain over one, and drafts over none."""
    rows = []
    for one, many in zip(LOADS[::2], LOADS[1::2], strict=True):
        for candidate in CANDIDATES:
            gain = ratio(results.of(candidate, many), results.of(candidate, one))
            if gain is not None:
                rows.append([f"{candidate.name}, {one.model}", _spread(gain, 2)])
    yield from _table(["tok/s at c = 16 over c = 1", "ratio"], rows)
    rows = []
    for load in LOADS:
        for candidate in CANDIDATES:
            plain = Candidate(way=candidate.way, precision=candidate.precision, drafts=False)
            gain = ratio(results.of(candidate, load), results.of(plain, load))
            if candidate.drafts and gain is not None:
                rows.append([f"{candidate.name}, c = {load.concurrency}", _spread(gain, 2)])
    yield from _table(["tok/s with drafts over without", "ratio"], rows)


def preamble(results: Results) -> Iterator[str]:
    header = results.header
    packages = ", ".join(f"{name} {version}" for name, version in header["packages"].items())
    runs = [run for by_round in results.runs.values() for run in by_round.values()]
    others = [run.others_cpu_s / (run.outcome.wall_s * header["threads"]) for run in runs]
    machine = {run.machine for run in runs}
    reads = Spread.over([each.read_bytes_per_s / 1e9 for each in machine])
    products = Spread.over([each.product_flop_per_s / 1e9 for each in machine])
    ways = sorted({each.read_by for each in machine})
    told = (
        f"{header['date']}, commit {header['commit']}, {header['cpu']}, "
        f"{header['threads']} threads; Python {header['python']}, {packages}, llama.cpp b11434. "
        f"{max(map(len, results.runs.values()))} rounds."
    )
    yield told
    yield ""
    yield f"* memory read rate: {_spread(reads, 1)} GB/s, by {' or '.join(ways)}"
    yield f"* bare float32 product: {_spread(products, 0)} GFLOP/s"
    yield (
        "* share of the cores that other processes had during a run: "
        f"median {median(others):.1%}, largest {max(others):.1%}"
    )
    yield from (f"* left out: {problem}" for problem in results.problems)
    yield ""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("raw", type=Path)
    results = read(parser.parse_args().raw.read_text().splitlines())
    if not results.runs:
        raise SystemExit(f"no run in this file; failures: {', '.join(results.problems) or 'none'}")
    lines = [*preamble(results), *goal_table(results), *loads(results), *scaling(results)]
    print("\n".join(lines))


if __name__ == "__main__":
    main()
