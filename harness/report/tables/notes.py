"""The sentences under a table: verdicts with their cells, and what its intervals are."""

import re
from collections.abc import Iterator, Mapping, Sequence

from harness.analysis.summary import Section, Summary
from harness.cell_view import CellView
from harness.records import Verdict
from harness.report import format as fmt
from harness.report.tables.figures import (
    sessions_of,
    with_other_sessions,
    with_other_weights,
)
from harness.report.tables.table import Accusation

NUMBER = re.compile(r"(?<![\w.-])\d+(?:\.\d+)?(?![\w-]|\.\d)")
"""As it stands alone in a sentence: no part of a name, of a version or of a boot's id."""


def first_notes(summary: Summary, section: Section) -> tuple[str, ...]:
    """Under a section's first table: what is odd about its rows, then what voids some."""
    return (
        *_weights_notes(section),
        *_session_notes(section),
        *void_notes(summary, section.views, section.headline),
    )


def _weights_notes(section: Section) -> Iterator[str]:
    others = with_other_weights(section)
    if others:
        named = "; ".join(f"{target} ({fmt.listed(own)})" for target, own in _grouped(others))
        yield (
            f"{fmt.OTHER_WEIGHTS_MARK} other weights than the first row's "
            f"({section.views[0].cell.target}): {named}. What separates such a row is not the "
            "drafter alone."
        )


def _session_notes(section: Section) -> Iterator[str]:
    others = with_other_sessions(section)
    if others:
        told = {variant: fmt.listed(ids) for variant, ids in others.items()}
        named = "; ".join(f"{ids} ({fmt.listed(who)})" for ids, who in _grouped(told))
        own = fmt.listed(sessions_of(section)[section.views[0].cell.variant])
        yield (
            f"{fmt.OTHER_SESSION_MARK} measured in another session than the first row's ({own}): "
            f"{named}. What a control says of them stands under Sessions and machines."
        )


def _grouped(by_variant: Mapping[str, str]) -> Iterator[tuple[str, list[str]]]:
    """What several variants share, with the variants."""
    for shared in dict.fromkeys(by_variant.values()):
        yield shared, [variant for variant, own in by_variant.items() if own == shared]


# --- verdicts -------------------------------------------------------------------------------------


def void_notes(
    summary: Summary, views: Sequence[CellView], metric: str | None = None
) -> tuple[str, ...]:
    """A sentence for each check that voids rows, with the rows; of those that touch `metric`."""
    return tuple(
        f"{fmt.INVALID_MARK} {each.check} ({each.whose}): {each.message}"
        for each in _accusations(summary, views, metric, "invalid")
    )


def warnings(
    summary: Summary, views: Sequence[CellView], metric: str | None = None
) -> tuple[Accusation, ...]:
    """One for each check and wording, whatever its numbers are."""
    return tuple(_accusations(summary, views, metric, "warning"))


def later_warnings(
    summary: Summary, section: Section, metric: str
) -> tuple[tuple[str, ...], tuple[Accusation, ...]]:
    """Under the first table of `metric`: what voids its rows and what warns of them, and stands
    under no earlier table.
    """
    told_void = void_notes(summary, section.views, section.headline)
    told = warnings(summary, section.views, section.headline)
    return (
        tuple(n for n in void_notes(summary, section.views, metric) if n not in told_void),
        tuple(each for each in warnings(summary, section.views, metric) if each not in told),
    )


def _accusations(
    summary: Summary, views: Sequence[CellView], metric: str | None, level: str
) -> Iterator[Accusation]:
    accused: dict[tuple[str, str], list[tuple[CellView, Verdict]]] = {}
    for view in views:
        for verdict in summary.verdicts_of(view, metric):
            if verdict.level == level:
                key = (verdict.check, NUMBER.sub("0", verdict.message))
                accused.setdefault(key, []).append((view, verdict))
    for (check, _), pairs in accused.items():
        guilty = [view for view, _ in pairs]
        yield Accusation(
            check=check,
            whose=_whose(guilty, views),
            message=merged([verdict.message for _, verdict in pairs]),
        )


def merged(messages: Sequence[str]) -> str:
    """Messages that differ in their numbers as one, with the range of each number that moves:
    took 7.1 to 27.6 % less.
    """
    columns = zip(*(NUMBER.findall(message) for message in messages), strict=True)
    ranges = [_range(numbers) for numbers in columns]
    return NUMBER.sub(lambda _: ranges.pop(0), messages[0])


def _range(numbers: Sequence[str]) -> str:
    least, most = min(numbers, key=float), max(numbers, key=float)
    return least if least == most else f"{least} to {most}"


def _whose(guilty: Sequence[CellView], views: Sequence[CellView]) -> str:
    """plain at c = 1 and 2; DFlash2 at c = 1."""
    if len(views) > 1 and len(guilty) == len(views):
        return "every row"
    if all(view.cell.load == "single" for view in guilty):
        return fmt.listed([view.cell.variant for view in guilty])
    return "; ".join(f"{who} at c = {fmt.listed(cs)}" for who, cs in _levels(guilty).items())


def _levels(views: Sequence[CellView]) -> Mapping[str, list[str]]:
    levels: dict[str, list[str]] = {}
    for view in views:
        levels.setdefault(view.cell.variant, []).append(str(view.cell.concurrency))
    return levels


# --- intervals ------------------------------------------------------------------------------------


def interval_notes(summary: Summary, section: Section) -> tuple[str, ...]:
    rows = [summary.row(view, "speedup") for view in section.views]
    methods = {row.estimate.method for row in rows if row and row.estimate.method}
    boots = min((len(view.boots) for view in section.views if view.boots), default=0)
    if "bootstrap within one boot" in methods:
        return ("The intervals are within one boot: they decide nothing.",)
    if boots == 2:
        return (
            "Two boots a side: the intervals are wide (2 degrees of freedom). A claim wants four.",
        )
    return ()
