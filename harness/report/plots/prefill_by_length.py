"""Prefill over the length of the prompt."""

from matplotlib.figure import Figure

from harness.analysis.summary import Section, Summary
from harness.report import format as fmt
from harness.report.plots import captions
from harness.report.plots.bars import of_views
from harness.report.plots.picture import Picture
from harness.report.plots.style import (
    WIDTH_IN,
    doubling_axis,
    estimate_of,
    is_void,
    legend_of_curves,
    looks,
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
            caption="Tokens that no cache held over the time to the first token; mean over prompts "
            f"of the median over repetitions; {captions.requests_in_boots(section.views)} a "
            f"variant. {captions.interval(summary, section.views, METRIC, 'Bars')}; pale: void.",
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
    shown = looks(summary)
    tallest = 0.0
    for number, view in enumerate(section.views):
        name = view.cell.variant
        # side by side at a length, so that no interval hides another
        beside = 2 ** (0.025 * (number - (len(section.views) - 1) / 2))
        known = [
            (int(kind) * beside, estimate)
            for kind in section.kinds
            if (estimate := estimate_of(summary, view, METRIC, kind)).value is not None
        ]
        for length, estimate in known:
            if estimate.low is not None and estimate.high is not None:
                axes.vlines(
                    length, estimate.low, estimate.high, color=shown[name].colour, linewidth=1.2
                )
                tallest = max(tallest, estimate.high)
        values = [estimate.value for _, estimate in known if estimate.value is not None]
        tallest = max([tallest, *values])
        axes.plot(
            [length for length, _ in known],
            values,
            color=shown[name].colour,
            marker=shown[name].marker,
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
        "over the length of the prompt",
    )
    legend_of_curves(figure, of_views(section.views, shown))
    return figure
