"""`nightly`: measure, report, compare, let a baseline grow up; then publish and make room.

Each step is somebody else's work; here are only their order and what becomes of a night. What
follows the comparison cannot undo it: where it fails, the night keeps its word and says so.
"""

import os
import subprocess
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from harness.compare import baselines, commands, history, retention
from harness.compare.baselines import Promoted
from harness.compare.compare import NO_REGRESSION, NOT_COMPARABLE, Comparison, compare
from harness.compare.history import matrix_of
from harness.compare.night import Night
from harness.compare.rules import NIGHTS_NEEDED, Rules
from harness.compare.trend import Step, steps
from harness.errors import HarnessError, ResultsError
from harness.report.comparison import as_json, sentences
from harness.store import RunFolder

HOOK_TIMEOUT_S = 120.0
NIGHTS_REMEMBERED = 60


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """`comparison` is None in the first night, which has nothing to be held against."""

    run_id: str
    report: Path
    comparison: Comparison | None
    kept_as: str | None  # the baseline that the night became part of
    steps: tuple[Step, ...]  # of the last nights, whenever they were found
    failures: tuple[str, ...] = ()  # of what followed the comparison

    @property
    def exit_code(self) -> int:
        """An empty comparison is no success, and a night that could not be published is none."""
        compared = NOT_COMPARABLE if self.comparison is None else self.comparison.exit_code
        return compared or (NOT_COMPARABLE if self.failures else NO_REGRESSION)

    @property
    def new_steps(self) -> tuple[Step, ...]:
        """Those that tonight made certain."""
        return tuple(step for step in self.steps if step.found_in == self.run_id)

    @property
    def is_news(self) -> bool:
        return self.exit_code != 0 or bool(self.new_steps)

    @property
    def headline(self) -> str:
        word = "not comparable: there was no baseline yet"
        if self.comparison is not None:
            word = sentences.headline(self.comparison)
        steps = (f"step: {sentences.step(step)}" for step in self.new_steps)
        return "; ".join((word, *steps, *self.failures))


def nightly(
    measure: Callable[[], RunFolder],
    report: Callable[[RunFolder], Path],
    *,
    baseline: str,
    results_dir: Path,
    rules: Rules,
    fill: bool,
    by: str,
) -> Outcome:
    """`fill`: let the night become part of the baseline while that has fewer than it needs.

    A baseline that cannot be read is better found before the night than after it.
    """
    baselines.checked_name(baseline)
    stored = _stored(results_dir, baseline)
    folder = measure()
    page = report(folder)
    night = commands.read_night(folder.path)
    found = compare(night, stored, baseline=f"baseline {baseline}", rules=rules) if stored else None
    history.remember(page.parent, night, as_json.comparison_json(found) if found else None)
    kept = fill and _may_join(night, stored, found)
    if kept:
        why = f"one of the first {NIGHTS_NEEDED} nights"
        member = Promoted(format=baselines.FORMAT, by=by, at=night.created_at, why=why, night=night)
        baselines.add(results_dir, baseline, [member])
    return Outcome(
        run_id=night.run_id,
        report=page,
        comparison=found,
        kept_as=baseline if kept else None,
        steps=steps(history.nights(page.parent.parent, last=NIGHTS_REMEMBERED)),
    )


def follow(outcome: Outcome, *steps: tuple[str, Callable[[Outcome], object]]) -> Outcome:
    """Do what comes after the comparison, each by its name. The first that fails ends it: what was
    not published must not be removed.
    """
    for name, do in steps:
        try:
            do(outcome)
        except HarnessError as error:
            return replace(outcome, failures=(f"{name} failed: {error}",))
    return outcome


def make_room(outcome: Outcome, *, results_dir: Path, reports_dir: Path, keep: int) -> None:
    """Remove the raw data of all but the newest nights of this matrix; nights at which a step
    began keep theirs.
    """
    old = retention.expired(
        results_dir,
        reports_dir,
        matrix=matrix_of(outcome.run_id),
        keep=keep,
        named=[step.run_id for step in outcome.steps],
    )
    retention.remove(results_dir, old)


def _stored(results_dir: Path, baseline: str) -> tuple[Night, ...]:
    if baseline not in baselines.names(results_dir):
        return ()
    return baselines.load(results_dir, baseline).nights


def _may_join(night: Night, stored: tuple[Night, ...], found: Comparison | None) -> bool:
    """A valid night without a regression, until there are enough.

    Doubtful nights join too: if only those like the first did, the baseline would think nights more
    alike than they are. And none joins later, or a slow decline would take the baseline along.
    """
    if len(stored) >= NIGHTS_NEEDED or (found is not None and found.having("regressed")):
        return False
    try:
        baselines.refuse_unfit(night)
    except ResultsError:
        return False
    return True


def call_hook(command: str, outcome: Outcome) -> str | None:
    """Tell a shell command of a night; returns what went wrong with that."""
    found = "{}" if outcome.comparison is None else as_json.comparison_json(outcome.comparison)
    variables = {
        "DFLASHBENCH_RUN": outcome.run_id,
        "DFLASHBENCH_REPORT": str(outcome.report),
        "DFLASHBENCH_EXIT_CODE": str(outcome.exit_code),
        "DFLASHBENCH_HEADLINE": outcome.headline,
    }
    return _run_hook(command, found, variables)


def call_hook_without_a_night(command: str, error: HarnessError) -> str | None:
    """A night that could not be had at all is the last one to pass over in silence."""
    variables = {
        "DFLASHBENCH_EXIT_CODE": str(error.exit_code),
        "DFLASHBENCH_HEADLINE": f"no night: {error}",
    }
    return _run_hook(command, "{}", variables)


def _run_hook(command: str, document: str, variables: dict[str, str]) -> str | None:
    try:
        done = subprocess.run(
            command,
            shell=True,
            input=document,
            text=True,
            encoding="utf-8",
            env={**os.environ, **variables},
            timeout=HOOK_TIMEOUT_S,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return f"did not end in {HOOK_TIMEOUT_S:.0f} s"
    return None if done.returncode == 0 else f"ended with {done.returncode}"
