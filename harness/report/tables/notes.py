"""The sentences under a table: verdicts with their cells, and what its intervals are."""

from collections.abc import Iterator, Sequence

from harness.analysis.summary import Section, Summary
from harness.cell_view import CellView
from harness.report import format as fmt
from harness.report.tables.figures import with_other_weights


def first_notes(summary: Summary, section: Section) -> tuple[str, ...]:
    """Under a section's first table: what is odd about its rows, then its verdicts."""
    return (*_weights_notes(section), *verdict_notes(summary, section.views, section.headline))


def later_notes(summary: Summary, section: Section, metric: str) -> tuple[str, ...]:
    """Under the first table of `metric`: what touches it and stands under no earlier table."""
    told = set(verdict_notes(summary, section.views, section.headline))
    notes = verdict_notes(summary, section.views, metric)
    return tuple(note for note in notes if note not in told)


def _weights_notes(section: Section) -> Iterator[str]:
    others = with_other_weights(section)
    if others:
        named = "; ".join(f"{variant}: {target}" for variant, target in others.items())
        yield (
            f"{fmt.OTHER_WEIGHTS_MARK} other weights than the first row's "
            f"({section.views[0].cell.target}): {named}. Such a row stands beside the others with "
            "its own figures; what separates it is not the drafter alone."
        )


def verdict_notes(
    summary: Summary, views: Sequence[CellView], metric: str | None = None
) -> tuple[str, ...]:
    """One sentence per check and message, with the cells it speaks of; of those that touch
    `metric`.
    """
    accused: dict[tuple[str, str, str], list[CellView]] = {}
    for view in views:
        for verdict in summary.verdicts_of(view, metric):
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
    if all(view.cell.load == "single" for view in views):
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
