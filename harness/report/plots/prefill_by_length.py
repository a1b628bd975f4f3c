"""Prefill over the length of the prompt."""

from matplotlib.figure import Figure

from harness.analysis.summary import Section, Summary
from harness.report import format as fmt
from harness.report.plots.picture import Picture
from harness.report.plots.style import (
    WIDTH_IN,
    colours,
    doubling_axis,
    estimate_of,
    is_void,
    legend_below,
    markers,
    plain_frame,
    title_above,
)

METRIC = "prefill_rate"


def prefill_by_length(summary: Summary) -> list[Picture]:
    """Where the kinds of a section are lengths."""
    return [
        Picture(
            plot="prefill_by_length",
            section=section.word,
            name=f"{fmt.slug(section.word)}_by_length",
            alt="Prefill rate of each variant over the length of the prompt",
            notes=tuple(
                f"{view.cell.variant}, {kind} tokens: {estimate.reason}"
                for view in section.views
                for kind in section.kinds
                if (estimate := estimate_of(summary, view, METRIC, kind)).value is None
            ),
            draw=lambda section=section: _draw(summary, section),  # type: ignore[misc]
        )
        for section in summary.sections
        if section.workload == "prefill" and all(kind.isdigit() for kind in section.kinds)
    ]


def _draw(summary: Summary, section: Section) -> Figure:
    figure = Figure(figsize=(WIDTH_IN, 3.8), layout="constrained")
    axes = figure.subplots()
    shades, signs = colours(summary), markers(summary)
    tallest = 0.0
    for view in section.views:
        name = view.cell.variant
        known = [
            (int(kind), estimate)
            for kind in section.kinds
            if (estimate := estimate_of(summary, view, METRIC, kind)).value is not None
        ]
        for length, estimate in known:
            if estimate.low is not None and estimate.high is not None:
                axes.vlines(length, estimate.low, estimate.high, color=shades[name], linewidth=1.2)
                tallest = max(tallest, estimate.high)
        values = [estimate.value for _, estimate in known if estimate.value is not None]
        tallest = max([tallest, *values])
        axes.plot(
            [length for length, _ in known],
            values,
            color=shades[name],
            marker=signs[name],
            markersize=7,
            linewidth=2,
            alpha=0.3 if is_void(summary, view) else 1,
        )
    lengths = sorted(int(kind) for kind in section.kinds)
    doubling_axis(axes, lengths, "prompt, tokens by the engine's own count")
    axes.set_ylim(0, tallest * 1.1 if tallest else 1)
    plain_frame(axes)
    title_above(
        axes,
        "Prefill, computed prompt tokens per second",
        "tokens that no cache held / time to first token; mean over prompts of the median over "
        "repetitions; bars: 95 % interval; pale: void",
    )
    entries = [(view.cell.variant, shades[view.cell.variant]) for view in section.views]
    legend_below(figure, entries, signs=signs)
    return figure
