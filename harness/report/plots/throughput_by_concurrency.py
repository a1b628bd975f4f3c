"""Aggregate throughput over the requests in flight, a panel for each load shape."""

from collections.abc import Sequence

from matplotlib.figure import Figure

from harness.analysis.metrics import HEADLINE
from harness.analysis.summary import ALL, Section, Summary
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

METRIC = HEADLINE["concurrency"]


def throughput_by_concurrency(summary: Summary) -> list[Picture]:
    """Both load shapes side by side: one picture, under the first of them."""
    sections = sections_over_c(summary)
    if not sections:
        return []
    return [
        Picture(
            plot="throughput_by_concurrency",
            section=sections[0].word,
            name="throughput_by_concurrency",
            alt="Aggregate throughput of each variant over the number of requests in flight",
            caption=_caption(summary, sections),
            notes=_notes(summary, sections),
            draw=lambda: _draw(summary, sections),
        )
    ]


def _caption(summary: Summary, sections: Sequence[Section]) -> str:
    views = [view for section in sections for view in section.views]
    counted = captions.counted_by(summary, views, METRIC, "repetition", "a point")
    return (
        "Tokens of all streams over the time from the first request to the last end; "
        f"{counted}. {captions.interval(summary, views, METRIC, 'Bands')}."
        f"{bracket_words(summary, sections)}"
    )


def _notes(summary: Summary, sections: Sequence[Section]) -> tuple[str, ...]:
    gaps = tuple(
        f"{section.word}, {view.cell.variant} at c = {view.cell.concurrency}: {estimate.reason}"
        for section in sections
        for view in section.views
        if (estimate := estimate_of(summary, view, METRIC, ALL)).value is None
    )
    views = [view for section in sections for view in section.views]
    return gaps if all(is_comparable(summary, view) for view in views) else (*gaps, HOLLOW)


def _draw(summary: Summary, sections: Sequence[Section]) -> Figure:
    figure = Figure(figsize=(WIDTH_IN, 4.3), layout="constrained")
    panels = figure.subplots(1, len(sections), sharey=True, squeeze=False)[0]
    shown = looks(summary)
    drawn: list[float] = []
    for axes, section in zip(panels, sections, strict=True):
        for variant in section.variants:
            drawn += curve(axes, summary, section, variant, METRIC, shown[variant])
        doubling_axis(axes, section.levels, IN_FLIGHT)
        plain_frame(axes)
        axes.set_title(SHAPES[section.load], pad=10, fontsize=10.5, color=INK)
    panels[0].set_ylim(0, max(drawn, default=1.0) * 1.2)
    names = list(dict.fromkeys(name for section in sections for name in section.variants))
    for axes, section in zip(panels, sections, strict=True):
        if have_room_at_their_ends(names, len(sections)):
            names_at_ends(axes, summary, section, METRIC, shown)
        brackets(axes, summary, section)
    if not have_room_at_their_ends(names, len(sections)):
        legend_of_curves(figure, {name: shown[name] for name in names})
    title_of_panels(figure, "Aggregate throughput, tokens per second")
    return figure
