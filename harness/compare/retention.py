"""Which nights' raw data may go. A night's report, figures and published pages stay.

Only what `nightly` measured is ever removed, and of that nothing that somebody may ask about again:
not the newest nights, not the members of any baseline, not a run that another report names.
"""

import re
import shutil
from collections.abc import Collection
from pathlib import Path

from harness.compare import baselines
from harness.compare.history import COMPARISON_FILE, NIGHT_FILE, matrix_of
from harness.store import told

_RUN_ID = re.compile(r"\d{8}-\d{6}-[A-Za-z0-9._-]*[A-Za-z0-9_-]")
_REMOVED = ".removed-"


def expired(
    results_dir: Path, reports_dir: Path, *, matrix: str, keep: int, named: Collection[str] = ()
) -> tuple[str, ...]:
    """Nights of a matrix whose raw data may go, oldest first. `keep`: how many nights keep theirs;
    `named`: runs that are asked about elsewhere.
    """
    nights = sorted(
        path.parent.name
        for path in reports_dir.glob(f"*/{NIGHT_FILE}")
        if matrix_of(path.parent.name) == matrix
    )
    old = nights[: max(len(nights) - keep, 0)]
    wanted = _in_baselines(results_dir) | _named_by_reports(reports_dir) | set(named)
    return tuple(
        run_id
        for run_id in old
        if run_id not in wanted and (results_dir / run_id / "manifest.json").is_file()
    )


def remove(results_dir: Path, run_ids: Collection[str]) -> None:
    """Renamed first: what a kill leaves half removed is no run any more, and goes the next time."""
    for run_id in run_ids:
        folder = results_dir / run_id
        with told(folder):
            folder.rename(results_dir / f"{_REMOVED}{run_id}")
    for folder in results_dir.glob(f"{_REMOVED}*"):
        with told(folder):
            shutil.rmtree(folder)


def _in_baselines(results_dir: Path) -> set[str]:
    return {
        night.run_id
        for name in baselines.names(results_dir)
        for night in baselines.load(results_dir, name).nights
    }


def _named_by_reports(reports_dir: Path) -> set[str]:
    """In words or in a comparison; what a report says of its own run does not count."""
    found: set[str] = set()
    for path in (*reports_dir.rglob("*.md"), *reports_dir.glob(f"*/{COMPARISON_FILE}")):
        with told(path):
            text = path.read_text(encoding="utf-8")
        own = path.relative_to(reports_dir).parts[0]
        found |= set(_RUN_ID.findall(text)) - {own}
    return found
