"""Curves of aggregate throughput over concurrency, a panel for each load shape."""

from collections.abc import Mapping, Sequence

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from harness.analysis.comparisons import Crossing
from harness.analysis.metrics import HEADLINE
from harness.analysis.summary import ALL, Section, Summary
from harness.report import sentences
from harness.report.plots.picture import Picture
from harness.report.plots.style import (
    HOLLOW,
    IN_FLIGHT,
    INK,
    MUTED,
    WIDTH_IN,
    colours,
    doubling_axis,
    estimate_of,
    is_comparable,
    markers,
    plain_frame,
    spread,
)

SHAPES: Mapping[str, str] = {
    "wave": "Waves: c requests start together",
    "closed": "Closed loop: c requests always in flight",
}


def throughput_by_concurrency(summary: Summary) -> list[Picture]:
    """Both load shapes side by side: one picture, a panel each."""
    sections = [
        section
        for section in summary.sections
        if section.load in SHAPES and len(section.levels) > 1
    ]
    if not sections:
        return []
    notes = [
        f"{section.word}, {view.cell.variant} at c = {view.cell.concurrency}: {estimate.reason}"
        for section in sections
        for view in section.views
        if (estimate := estimate_of(summary, view, HEADLINE["concurrency"], ALL)).value is None
    ]
    if any(not is_comparable(summary, view) for section in sections for view in section.views):
        notes.append(HOLLOW)
    return [
        Picture(
            plot="throughput_by_concurrency",
            name="throughput_by_concurrency",
            alt="Aggregate throughput of each variant over the number of requests in flight",
            notes=tuple(notes),
            draw=lambda: _draw_curves(summary, sections),
        )
    ]


def _draw_curves(summary: Summary, sections: Sequence[Section]) -> Figure:
    figure = Figure(figsize=(WIDTH_IN, 4.3), layout="constrained")
    panels = figure.subplots(1, len(sections), sharey=True, squeeze=False)[0]
    shades, signs = colours(summary), markers(summary)
    tallest = 0.0
    for axes, section in zip(panels, sections, strict=True):
        for variant in section.variants:
            tallest = max(
                tallest, _curve(axes, summary, section, variant, shades[variant], signs[variant])
            )
        doubling_axis(axes, section.levels, IN_FLIGHT)
        plain_frame(axes)
        axes.set_title(SHAPES[section.load], pad=10, fontsize=10.5, color=INK)
    for axes, section in zip(panels, sections, strict=True):
        axes.set_ylim(0, tallest * 1.2 if tallest else 1)
        _end_labels(axes, summary, section, shades)
        for row, crossing in enumerate(_found_over_references(summary, section)):
            _bracket(axes, crossing, row)
    figure.suptitle(
        "Aggregate throughput, tokens per second",
        x=0.012,
        ha="left",
        fontsize=13,
        fontweight="bold",
    )
    methods = {
        method
        for section in sections
        for view in section.views
        if (method := estimate_of(summary, view, HEADLINE["concurrency"], ALL).method)
    }
    if len(methods) == 1:
        bands = f"bands: 95 % interval, {methods.pop()}"
        figure.text(0.99, 0.985, bands, ha="right", va="top", fontsize=9, color=MUTED)
    return figure


def _curve(
    axes: Axes, summary: Summary, section: Section, variant: str, colour: str, marker: str
) -> float:
    """Line, points and interval band of one variant; a level without a figure breaks the line.

    Returns the highest point drawn, band included.
    """
    views = section.of_variant(variant)
    estimates = [estimate_of(summary, view, HEADLINE["concurrency"], ALL) for view in views]
    levels = [view.cell.concurrency for view in views]
    # matplotlib breaks a line at nan; nan never leaves this call
    values = [
        estimate.value if estimate.value is not None else float("nan") for estimate in estimates
    ]
    axes.plot(
        levels, values, color=colour, linewidth=2.2, marker=marker, markersize=5.5, clip_on=False
    )
    hollow = [
        (view.cell.concurrency, value)
        for view, value in zip(views, values, strict=True)
        if not is_comparable(summary, view)
    ]
    if hollow:
        axes.plot(
            *zip(*hollow, strict=True),
            linestyle="none",
            marker=marker,
            markersize=5.5,
            markerfacecolor="white",
            markeredgecolor=colour,
            markeredgewidth=1.6,
            clip_on=False,
        )
    known = [
        (level, estimate.low, estimate.high)
        for level, estimate in zip(levels, estimates, strict=True)
        if estimate.low is not None and estimate.high is not None
    ]
    if known:
        axes.fill_between(
            [level for level, _, _ in known],
            [low for _, low, _ in known],
            [high for _, _, high in known],
            color=colour,
            alpha=0.14,
            linewidth=0,
        )
    tops = [estimate.value for estimate in estimates if estimate.value is not None]
    return max(tops + [high for _, _, high in known], default=0.0)


def _end_labels(axes: Axes, summary: Summary, section: Section, shades: Mapping[str, str]) -> None:
    """Names at the right end of the lines, pushed apart where lines end close together."""
    ends = []
    for variant in section.variants:
        last = [
            (view.cell.concurrency, value)
            for view in section.of_variant(variant)
            if (value := estimate_of(summary, view, HEADLINE["concurrency"], ALL).value) is not None
        ]
        if last:
            ends.append((last[-1][1], last[-1][0], variant))
    ends.sort(key=lambda end: (end[0], end[2]))
    heights = spread([value for value, _, _ in ends], axes.get_ylim()[1] * 0.055)
    for (_, level, variant), height in zip(ends, heights, strict=True):
        axes.annotate(
            variant,
            (level, height),
            xytext=(9, 0),
            textcoords="offset points",
            va="center",
            fontsize=10,
            fontweight="bold",
            color=shades[variant],
            annotation_clip=False,
        )


def _found_over_references(summary: Summary, section: Section) -> list[Crossing]:
    """Those of other pairs stand in words only."""
    return [
        crossing
        for crossing in sentences.over_references(summary, section)
        if crossing.bracket.found
    ]


def _bracket(axes: Axes, crossing: Crossing, row: int) -> None:
    """The band in which one curve overtakes the other; a second one is labelled a line lower."""
    low, high = crossing.bracket.last_ahead, crossing.bracket.first_behind
    assert low is not None
    assert high is not None
    axes.axvspan(low, high, color="#F2C14E", alpha=0.22, linewidth=0, zorder=0)
    axes.annotate(
        f"{crossing.leader} falls behind:\nc = {low} to {high}",
        ((low * high) ** 0.5, axes.get_ylim()[1] * (0.985 - 0.11 * row)),
        ha="center",
        va="top",
        fontsize=8.5,
        color="#7A5B00",
    )
