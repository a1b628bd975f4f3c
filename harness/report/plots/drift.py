"""The headline figure of one stream, boot after boot: whether the machine moved."""

from datetime import datetime

from matplotlib.figure import Figure

from harness.analysis.summary import ALL, Section, Summary
from harness.report import format as fmt
from harness.report.plots.picture import Picture
from harness.report.plots.style import (
    WIDTH_IN,
    colours,
    legend_below,
    markers,
    plain_frame,
    title_above,
)


def drift(summary: Summary) -> list[Picture]:
    """Where a section was measured in more than one boot of a variant."""
    return [
        Picture(
            plot="drift",
            section=section.word,
            name=f"{fmt.slug(section.word)}_drift",
            alt="Each boot's figure against its variant's mean, over the time of the run",
            notes=(),
            draw=lambda section=section: _draw(summary, section),  # type: ignore[misc]
        )
        for section in summary.sections
        if section.workload == "generate" and any(len(view.boots) > 1 for view in section.views)
    ]


def _draw(summary: Summary, section: Section) -> Figure:
    figure = Figure(figsize=(WIDTH_IN, 3.4), layout="constrained")
    axes = figure.subplots()
    shades, signs = colours(summary), markers(summary)
    for view in section.views:
        own = summary.boot_figures[(view.cell.cell_id, ALL)]
        if not own.by_boot:
            continue
        mean = sum(own.per_boot) / len(own.per_boot)
        minutes = [_minutes(summary, boot_id) for boot_id in own.by_boot]
        axes.plot(
            minutes,
            [(value / mean - 1) * 100 for value in own.per_boot],
            color=shades[view.cell.variant],
            marker=signs[view.cell.variant],
            markersize=7,
            linewidth=1.2,
        )
    axes.axhline(0, color="#8A8F98", linewidth=0.8)
    axes.set_xlabel("minutes since the first boot began")
    axes.set_ylabel("against the variant's mean, %")
    plain_frame(axes)
    title_above(
        axes,
        "Drift: each boot against its variant's mean",
        "headline figure of one stream; n = one boot a point, all of its repetitions in it",
    )
    entries = [(view.cell.variant, shades[view.cell.variant]) for view in section.views]
    legend_below(figure, entries, signs=signs)
    return figure


def _minutes(summary: Summary, boot_id: str) -> float:
    started = {
        str(boot.where.boot_id): datetime.fromisoformat(boot.started_at)
        for boot in summary.data.boots
    }
    return (started[boot_id] - min(started.values())).total_seconds() / 60
