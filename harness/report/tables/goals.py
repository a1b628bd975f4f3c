"""The figures that the matrix wants reached, beside what each variant reached."""

from harness.analysis.metrics import COMPARISONS, METRICS
from harness.analysis.summary import Summary
from harness.report import format as fmt
from harness.report.tables.figures import Figures
from harness.report.tables.table import Entry, Table, figure, label, missing


def goals(summary: Summary) -> list[Table]:
    """None where the matrix wants none."""
    wanted = summary.manifest.goals
    rows = [row for metric, goal in wanted.items() for row in _goal_rows(summary, metric, goal)]
    if not rows:
        return []
    return [
        Table(
            name="goals",
            title="Goals",
            columns=("goal", "to reach", "variant", "workload", "c", "figure", "of the goal", ""),
            rows=tuple(rows),
            notes=("Goals are the matrix's own; no verdict and no exit code depends on them.",),
        )
    ]


def _goal_rows(summary: Summary, metric: str, goal: float) -> list[tuple[Entry, ...]]:
    asked = (label(metric), figure(goal, plain))
    if metric not in METRICS and metric not in COMPARISONS:
        names = missing("no figure of this name; docs/figures.md has them all")
        return [(*asked, label(""), label(""), label(""), names, names, names)]
    return [
        (
            *asked,
            label(view.cell.variant),
            label(section.word),
            label(str(view.cell.concurrency)),
            *_towards(Figures(summary).entry(view, metric, plain), metric, goal),
        )
        for section in summary.sections
        for view in section.views
        if summary.row(view, metric) is not None
    ]


def _towards(entry: Entry, metric: str, goal: float) -> tuple[Entry, Entry, Entry]:
    """The figure, its share of the goal, and whether it got there. A void one gets nowhere."""
    if not isinstance(entry.value, float) or entry.mark == fmt.INVALID_MARK:
        reason = entry.reason or "the cell is invalid"
        return entry, missing(reason), missing(reason)
    share = figure(entry.value / goal if goal else None, fmt.percent, "the goal is 0")
    row = METRICS.get(metric) or COMPARISONS[metric]
    lower_is_better = row.direction == "lower"
    reached = entry.value <= goal if lower_is_better else entry.value >= goal
    return entry, share, label("reached" if reached else "not reached")


def plain(value: float) -> str:
    return fmt.number(value, 4)
