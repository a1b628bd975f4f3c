"""Tokens per round by kind of prompt, under the ceiling that k sets."""

from matplotlib.figure import Figure
from matplotlib.ticker import FixedFormatter, FixedLocator

from harness.analysis.metrics import DECODING
from harness.analysis.summary import ALL, Section, Summary
from harness.report import format as fmt
from harness.report.plots.picture import Picture
from harness.report.plots.style import (
    HATCHES,
    INK,
    WIDTH_IN,
    colours,
    estimate_of,
    legend_below,
    plain_frame,
    title_above,
)
from harness.report.tables.figures import kind_word

METRIC = "acceptance_length"


def tokens_per_round(summary: Summary) -> list[Picture]:
    """Of all drafters of a section side by side."""
    return [
        Picture(
            plot="tokens_per_round",
            section=section.word,
            name=f"{fmt.slug(section.word)}_tokens_per_round",
            alt="Acceptance length of each drafter by kind of prompt, under its ceiling",
            notes=tuple(
                f"{view.cell.variant}, {kind}: {estimate.reason}"
                for view in section.drafted
                for kind in (*section.kinds, ALL)
                if (estimate := estimate_of(summary, view, METRIC, kind)).value is None
            ),
            draw=lambda section=section: _draw(summary, section),  # type: ignore[misc]
        )
        for section in summary.sections
        if section.workload in DECODING and section.drafted
    ]


def _draw(summary: Summary, section: Section) -> Figure:
    figure = Figure(figsize=(WIDTH_IN, 3.6), layout="constrained")
    axes = figure.subplots()
    shades, views = colours(summary), section.drafted
    kinds = (*section.kinds, ALL)
    width = 0.8 / len(views)
    for number, view in enumerate(views):
        for place, kind in enumerate(kinds):
            value = estimate_of(summary, view, METRIC, kind).value
            if value is None:
                continue
            x = place + (number - (len(views) - 1) / 2) * width
            axes.bar(
                x,
                value,
                width=width * 0.94,
                color=shades[view.cell.variant],
                hatch=HATCHES[number % len(HATCHES)],
                edgecolor="white",
                linewidth=0,
            )
            axes.annotate(
                fmt.length(value),
                (x, value),
                xytext=(0, 2),
                textcoords="offset points",
                ha="center",
                fontsize=8,
                color=INK,
            )
            if view.cell.k is not None:
                axes.hlines(view.cell.k + 1, x - width / 2, x + width / 2, color=INK, linewidth=1)
    axes.xaxis.set_major_locator(FixedLocator(range(len(kinds))))
    axes.xaxis.set_major_formatter(FixedFormatter([kind_word(kind) for kind in kinds]))
    axes.set_ylim(bottom=0)
    plain_frame(axes)
    title_above(
        axes,
        "Acceptance length, tokens per round",
        "1 + accepted / drafts over all requests of a kind; the line above a bar is its ceiling, "
        "k + 1",
    )
    entries = [(view.cell.variant, shades[view.cell.variant]) for view in views]
    legend_below(figure, entries, hatches=HATCHES)
    return figure
