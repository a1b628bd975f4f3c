"""`compare` and `baseline`: what the command line calls."""

from collections.abc import Sequence
from pathlib import Path

from harness.analysis import dataset
from harness.compare import baselines
from harness.compare.baselines import Promoted
from harness.compare.compare import Comparison, compare
from harness.compare.night import Night, night_of
from harness.compare.rules import Rules
from harness.store import RunFolder


def read_night(run: Path) -> Night:
    return night_of(dataset.load(RunFolder.open(run)))


def compare_with_baseline(run: Path, name: str, results_dir: Path, rules: Rules) -> Comparison:
    nights = baselines.load(results_dir, name).nights
    return compare(read_night(run), nights, baseline=f"baseline {name}", rules=rules)


def compare_with_run(run: Path, other: Path, rules: Rules) -> Comparison:
    night = read_night(other)
    return compare(read_night(run), [night], baseline=f"run {night.run_id}", rules=rules)


def promote(runs: Sequence[Path], *, by: str, at: str, why: str) -> tuple[Promoted, ...]:
    """All of them or none: the first that is not fit to measure others by is refused."""
    nights = [read_night(run) for run in runs]
    for night in nights:
        baselines.refuse_unfit(night)
    return tuple(
        Promoted(format=baselines.FORMAT, by=by, at=at, why=why, night=night) for night in nights
    )
