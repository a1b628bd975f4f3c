"""Speed-up over the reference at the same number of requests in flight, in doublings."""

from collections.abc import Sequence

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator

from harness.analysis.summary import Section, Summary
from harness.cell_view import CellView
from harness.report.plots import captions
from harness.report.plots.curves import (
    Panels,
    bracket_words,
    notes_over_c,
    panels_over_c,
    sections_over_c,
)
from harness.report.plots.picture import Picture
from harness.report.plots.style import INK

METRIC = "speedup"


def speedup_by_concurrency(summary: Summary) -> list[Picture]:
    """Where some variant has a reference; both load shapes side by side."""
    shown = [(each, views) for each in sections_over_c(summary) if (views := _compared(each))]
    if not shown:
        return []
    return [
        Picture(
            plot="speedup_by_concurrency",
            section=shown[0][0].word,
            name="speedup_by_concurrency",
            alt="Speed-up of each drafter over its reference at the same number of requests in "
            "flight",
            caption=_caption(summary, shown),
            notes=tuple(notes_over_c(summary, shown, METRIC)),
            draw=lambda: _draw(summary, shown),
        )
    ]


def _compared(section: Section) -> tuple[CellView, ...]:
    return tuple(view for view in section.views if view.reference is not None)


def _caption(summary: Summary, shown: Panels) -> str:
    compared = [view for _, views in shown for view in views]
    counted = captions.counted_by(summary, compared, METRIC, "boot", "a side")
    return (
        f"Aggregate over the reference's at the same c, a step up is a doubling; {counted}. "
        f"{captions.interval(summary, compared, METRIC, 'Bands')}; a band that holds 1x tells "
        f"nothing.{bracket_words(summary, [section for section, _ in shown])}"
    )


def _draw(summary: Summary, shown: Panels) -> Figure:
    return panels_over_c(
        summary,
        shown,
        METRIC,
        title="Speed-up over the reference at the same c",
        height_in=3.9,
        set_heights=_around_1,
    )


def _around_1(panels: Sequence[Axes], drawn: Sequence[float]) -> None:
    for axes in panels:
        axes.axhline(1, color=INK, linewidth=1, linestyle=(0, (4, 2)))
    _doublings_upwards(panels[0], min(1.0, *drawn) / 1.1, max(1.0, *drawn) * 1.25)


TICKS = (0.125, 0.25, 0.5, 0.75, 1, 1.5, 2, 3, 4, 6, 8, 12, 16)


def _doublings_upwards(axes: Axes, low: float, high: float) -> None:
    axes.set_yscale("log", base=2)
    axes.set_ylim(low, high)
    axes.yaxis.set_major_locator(FixedLocator(TICKS))
    axes.yaxis.set_minor_locator(NullLocator())
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}x"))
