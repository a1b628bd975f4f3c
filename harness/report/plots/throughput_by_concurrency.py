"""Aggregate throughput over the requests in flight, a panel for each load shape."""

from collections.abc import Sequence

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from harness.analysis.metrics import HEADLINE
from harness.analysis.summary import Section, Summary
from harness.report.plots import captions
from harness.report.plots.curves import (
    Panels,
    bracket_words,
    notes_over_c,
    panels_over_c,
    sections_over_c,
)
from harness.report.plots.picture import Picture

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
            notes=tuple(notes_over_c(summary, _panels(sections), METRIC)),
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


def _draw(summary: Summary, sections: Sequence[Section]) -> Figure:
    return panels_over_c(
        summary,
        _panels(sections),
        METRIC,
        title="Aggregate throughput, tokens per second",
        height_in=4.3,
        set_heights=lambda panels, drawn: _from_zero(panels[0], max(drawn, default=1.0) * 1.2),
    )


def _panels(sections: Sequence[Section]) -> Panels:
    return [(section, section.views) for section in sections]


def _from_zero(axes: Axes, high: float) -> None:
    axes.set_ylim(0, high)
