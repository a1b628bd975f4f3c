"""Tokens per round by kind of prompt, under the ceiling that k sets."""

from matplotlib.figure import Figure

from harness.analysis.metrics import DECODING
from harness.analysis.summary import Section, Summary
from harness.report import format as fmt
from harness.report.plots import captions
from harness.report.plots.bars import Bars, bar, bar_label, kinds_below, of_views
from harness.report.plots.picture import Picture
from harness.report.plots.style import (
    INK,
    WIDTH_IN,
    estimate_of,
    legend_of_bars,
    looks,
    title_above,
)
from harness.report.tables.figures import all_and_kinds

METRIC = "acceptance_length"


def tokens_per_round(summary: Summary) -> list[Picture]:
    """Of all drafters of a section side by side."""
    return [
        Picture(
            plot="tokens_per_round",
            section=section.word,
            name=f"{fmt.slug(section.word)}_tokens_per_round",
            alt="Acceptance length of each drafter by kind of prompt, under its ceiling",
            caption=_caption(summary, section),
            notes=tuple(
                f"{view.cell.variant}, {kind}: {estimate.reason}"
                for view in section.drafted
                for kind in _bars(section).kinds
                if (estimate := estimate_of(summary, view, METRIC, kind)).value is None
            ),
            draw=lambda section=section: _draw(summary, section),  # type: ignore[misc]
        )
        for section in summary.sections
        if section.workload in DECODING and section.drafted
    ]


def _caption(summary: Summary, section: Section) -> str:
    counted = captions.counted_by(summary, section.drafted, METRIC, "round", "a variant")
    return (
        f"1 + accepted / drafts over all requests of a kind; {counted}; a sum, so without an "
        "interval. The line above a bar is its ceiling, k + 1."
    )


def _bars(section: Section) -> Bars:
    first, *kinds = all_and_kinds(section)
    return Bars(kinds=(*kinds, first), num_variants=len(section.drafted))


def _draw(summary: Summary, section: Section) -> Figure:
    figure = Figure(figsize=(WIDTH_IN, 3.6), layout="constrained")
    axes = figure.subplots()
    bars, shown = _bars(section), of_views(section.drafted, looks(summary))
    title_above(axes, "Acceptance length, tokens per round", section.word)
    legend_of_bars(figure, shown)
    tallest = max((view.cell.k or 0) + 1.0 for view in section.drafted)
    for number, view in enumerate(section.drafted):
        for kind in bars.kinds:
            estimate = estimate_of(summary, view, METRIC, kind)
            if estimate.value is None:
                continue
            x = bars.at(kind, number)
            top = bar(axes, x, bars.width, estimate, shown[view.cell.variant])
            tallest = max(tallest, top)
            if view.cell.k is not None:
                ceiling, half = view.cell.k + 1.0, bars.width * 0.47
                axes.hlines(ceiling, x - half, x + half, color=INK, linewidth=1)
                # a label that would lie across the line stands above it
                top = ceiling if ceiling - top < 0.22 * tallest else top
            if bars.have_labels:
                bar_label(axes, bars, x, top, fmt.length(estimate.value), bold=False)
    kinds_below(axes, bars, tallest)
    return figure
