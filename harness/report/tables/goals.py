"""The figures that the matrix wants reached, beside what each variant reached."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from harness.analysis.metrics import COMPARISONS, METRICS
from harness.analysis.summary import Section, Summary
from harness.cell_view import CellView
from harness.report import format as fmt
from harness.report.tables.figures import Figures
from harness.report.tables.table import Entry, Table, figure, label, missing

NO_SUCH_FIGURE = "no figure of this name; docs/figures.md has them all"
NOTE = (
    "Goals are the matrix's own; no verdict and no exit code depends on them. Every cell that has "
    "the figure counts, a void one as not reached; every one of them stands in goals_by_cell.csv."
)


@dataclass(frozen=True, kw_only=True)
class Try:
    """One cell's figure beside a goal. `reached` None: there is no figure, or a void one."""

    section: Section
    view: CellView
    entry: Entry
    reached: bool | None

    @property
    def is_known(self) -> bool:
        """Whether it has a figure, void or not: plain decoding has no acceptance to reach."""
        return self.entry.value is not None

    @property
    def place(self) -> str:
        if self.section.is_single:
            return self.section.word
        return f"{self.section.word}, c = {self.view.cell.concurrency}"


def goals(summary: Summary) -> list[Table]:
    """A row for each goal and variant: in how many cells it was reached, and where it was not."""
    rows = tuple(
        row
        for metric, goal in summary.manifest.goals.items()
        for row in _goal_rows(summary, metric, goal)
    )
    if not rows:
        return []
    return [
        Table(
            name="goals",
            title="Goals",
            columns=("goal", "to reach", "variant", "reached", "least", "at", "not reached"),
            rows=rows,
            notes=(NOTE,),
        )
    ]


def _goal_rows(summary: Summary, metric: str, goal: float) -> Iterator[tuple[Entry, ...]]:
    asked = (label(metric), figure(goal, lambda value: with_unit(metric, value)))
    if not is_figure(metric):
        gap = missing(NO_SUCH_FIGURE)
        yield (*asked, label(""), gap, gap, gap, gap)
        return
    known = [each for each in tries_of(summary, metric, goal) if each.is_known]
    for variant in dict.fromkeys(view.cell.variant for view in summary.data.views):
        tries = [each for each in known if each.view.cell.variant == variant]
        if tries:
            yield (*asked, label(variant), *_outcome(tries, metric))


def _outcome(tries: Sequence[Try], metric: str) -> Iterator[Entry]:
    num_reached = sum(each.reached is True for each in tries)
    yield Entry(text=f"{num_reached} of {len(tries)}", value=num_reached / len(tries))
    furthest = max if _lower_is_better(metric) else min
    worst = furthest(tries, key=lambda each: float(each.entry.value or 0))
    yield worst.entry
    yield label(worst.place)
    missed = [each.place for each in tries if not each.reached]
    yield label("; ".join(missed) or fmt.DASH)


def goals_by_cell(summary: Summary) -> list[Table]:
    """The figure of every cell, its share of the goal, and whether it got there."""
    rows = tuple(
        (
            label(metric),
            figure(goal, plain),
            label(each.view.cell.variant),
            label(each.section.word),
            label(str(each.view.cell.concurrency)),
            *_towards(each, goal),
        )
        for metric, goal in summary.manifest.goals.items()
        if is_figure(metric)
        for each in tries_of(summary, metric, goal)
    )
    if not rows:
        return []
    return [
        Table(
            name="goals_by_cell",
            title="Goals, cell by cell",
            columns=("goal", "to reach", "variant", "workload", "c", "figure", "of the goal", ""),
            rows=rows,
        )
    ]


def tries_of(summary: Summary, metric: str, goal: float) -> list[Try]:
    """Of every cell that the figure applies to."""
    figures = Figures(summary)
    return [
        Try(section=section, view=view, entry=entry, reached=_is_reached(entry, metric, goal))
        for section in summary.sections
        for view in section.views
        if summary.row(view, metric) is not None
        for entry in (figures.entry(view, metric, plain),)
    ]


def _is_reached(entry: Entry, metric: str, goal: float) -> bool | None:
    """A void figure gets nowhere."""
    if not isinstance(entry.value, float) or entry.mark == fmt.INVALID_MARK:
        return None
    return entry.value <= goal if _lower_is_better(metric) else entry.value >= goal


def _towards(each: Try, goal: float) -> tuple[Entry, Entry, Entry]:
    if each.reached is None:
        reason = each.entry.reason or "the cell is invalid"
        return each.entry, missing(reason), missing(reason)
    assert isinstance(each.entry.value, float)
    share = figure(each.entry.value / goal if goal else None, fmt.percent, "the goal is 0")
    return each.entry, share, label("reached" if each.reached else "not reached")


def is_figure(metric: str) -> bool:
    """Whether there is a figure of this name."""
    return metric in METRICS or metric in COMPARISONS


def _lower_is_better(metric: str) -> bool:
    row = METRICS.get(metric) or COMPARISONS[metric]
    return row.direction == "lower"


def with_unit(metric: str, value: float) -> str:
    if not is_figure(metric):
        return plain(value)
    unit = (METRICS.get(metric) or COMPARISONS[metric]).unit
    return plain(value) if unit == "1" else f"{plain(value)} {unit}"


def plain(value: float) -> str:
    return fmt.number(value, 4)
