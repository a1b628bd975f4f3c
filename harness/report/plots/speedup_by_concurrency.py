"""Speed-up over the reference at the same number of requests in flight, in doublings."""

from collections.abc import Iterator, Sequence

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator

from harness.analysis.summary import ALL, Section, Summary
from harness.cell_view import CellView
from harness.report.plots import captions
from harness.report.plots.curves import (
    SHAPES,
    bracket_words,
    brackets,
    curve,
    have_room_at_their_ends,
    names_at_ends,
    sections_over_c,
)
from harness.report.plots.picture import Picture
from harness.report.plots.style import (
    HOLLOW,
    IN_FLIGHT,
    INK,
    WIDTH_IN,
    doubling_axis,
    estimate_of,
    is_comparable,
    legend_of_curves,
    looks,
    plain_frame,
    title_of_panels,
)

METRIC = "speedup"


def speedup_by_concurrency(summary: Summary) -> list[Picture]:
    """Where some variant has a reference; both load shapes side by side."""
    sections = [section for section in sections_over_c(summary) if _compared(section)]
    if not sections:
        return []
    return [
        Picture(
            plot="speedup_by_concurrency",
            section=sections[0].word,
            name="speedup_by_concurrency",
            alt="Speed-up of each drafter over its reference at the same number of requests in "
            "flight",
            caption=_caption(summary, sections),
            notes=tuple(_notes(summary, sections)),
            draw=lambda: _draw(summary, sections),
        )
    ]


def _compared(section: Section) -> tuple[CellView, ...]:
    return tuple(view for view in section.views if view.reference is not None)


def _caption(summary: Summary, sections: Sequence[Section]) -> str:
    views = [view for section in sections for view in _compared(section)]
    counted = captions.counted_by(summary, views, METRIC, "boot", "a side")
    return (
        f"Aggregate over the reference's at the same c, a step up is a doubling; {counted}. "
        f"{captions.interval(summary, views, METRIC, 'Bands')}; a band that holds 1x tells "
        f"nothing.{bracket_words(summary, sections)}"
    )


def _notes(summary: Summary, sections: Sequence[Section]) -> Iterator[str]:
    views = [(section, view) for section in sections for view in _compared(section)]
    for section, view in views:
        estimate = estimate_of(summary, view, METRIC, ALL)
        if estimate.value is None:
            cell = view.cell
            yield f"{section.word}, {cell.variant} at c = {cell.concurrency}: {estimate.reason}"
    if not all(is_comparable(summary, view) for _, view in views):
        yield HOLLOW


def _draw(summary: Summary, sections: Sequence[Section]) -> Figure:
    figure = Figure(figsize=(WIDTH_IN, 3.9), layout="constrained")
    panels = figure.subplots(1, len(sections), sharey=True, squeeze=False)[0]
    shown = looks(summary)
    drawn = [1.0]
    names = list(dict.fromkeys(v.cell.variant for each in sections for v in _compared(each)))
    for axes, section in zip(panels, sections, strict=True):
        for variant in dict.fromkeys(view.cell.variant for view in _compared(section)):
            drawn += curve(axes, summary, section, variant, METRIC, shown[variant])
        axes.axhline(1, color=INK, linewidth=1, linestyle=(0, (4, 2)))
        doubling_axis(axes, section.levels, IN_FLIGHT)
        axes.set_title(SHAPES[section.load], pad=10, fontsize=10.5, color=INK)
    _doublings_upwards(panels[0], min(drawn) / 1.1, max(drawn) * 1.25)
    for axes, section in zip(panels, sections, strict=True):
        plain_frame(axes)
        if have_room_at_their_ends(names, len(sections)):
            names_at_ends(axes, summary, section, METRIC, shown)
        brackets(axes, summary, section)
    if not have_room_at_their_ends(names, len(sections)):
        legend_of_curves(figure, {name: shown[name] for name in names})
    title_of_panels(figure, "Speed-up over the reference at the same c")
    return figure


TICKS = (0.125, 0.25, 0.5, 0.75, 1, 1.5, 2, 3, 4, 6, 8, 12, 16)


def _doublings_upwards(axes: Axes, low: float, high: float) -> None:
    axes.set_yscale("log", base=2)
    axes.set_ylim(low, high)
    axes.yaxis.set_major_locator(FixedLocator(TICKS))
    axes.yaxis.set_minor_locator(NullLocator())
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}x"))
