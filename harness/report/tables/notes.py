"""The sentences under a table: verdicts with their cells, and what its intervals are."""

from collections.abc import Sequence

from harness.analysis.summary import Section, Summary
from harness.cell_view import CellView
from harness.report import format as fmt


def verdict_notes(summary: Summary, views: Sequence[CellView]) -> tuple[str, ...]:
    """One sentence per check and message, with the cells it speaks of."""
    accused: dict[tuple[str, str, str], list[CellView]] = {}
    for view in views:
        for verdict in summary.verdicts_of(view):
            key = (verdict.level, verdict.check, verdict.message)
            accused.setdefault(key, []).append(view)
    ordered = sorted(accused.items(), key=lambda item: item[0][0] != "invalid")
    return tuple(
        f"{_mark(level)} {check} ({_whose(guilty)}): {message}"
        for (level, check, message), guilty in ordered
    )


def _mark(level: str) -> str:
    return fmt.INVALID_MARK if level == "invalid" else fmt.WARNING_MARK


def _whose(views: Sequence[CellView]) -> str:
    """plain at c = 1 and 2; DFlash2 at c = 1."""
    levels: dict[str, list[str]] = {}
    for view in views:
        levels.setdefault(view.cell.variant, []).append(str(view.cell.concurrency))
    if all(view.cell.workload == "generate" for view in views):
        return fmt.listed(list(levels))
    return "; ".join(f"{variant} at c = {fmt.listed(cs)}" for variant, cs in levels.items())


def interval_notes(summary: Summary, section: Section) -> tuple[str, ...]:
    rows = [summary.row(view, "speedup") for view in section.views]
    methods = {row.estimate.method for row in rows if row and row.estimate.method}
    boots = min((len(view.boots) for view in section.views if view.boots), default=0)
    if "bootstrap within one boot" in methods:
        return ("The intervals are within one boot: they decide nothing.",)
    pooled = (
        "A factor is of figures that pool a prompt's repetitions over boots, its interval of the "
        "boots' own figures: it need not lie in the middle."
    )
    if boots == 2:
        return (
            pooled,
            "Two boots a side: the intervals are wide (2 degrees of freedom). A claim wants four.",
        )
    return (pooled,) if boots > 2 else ()
