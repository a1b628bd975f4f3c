"""The headline figure of one stream, boot after boot: whether the machine moved."""

from datetime import datetime

from matplotlib.figure import Figure

from harness.analysis.summary import ALL, Section, Summary
from harness.report import format as fmt
from harness.report.plots import captions
from harness.report.plots.bars import of_views
from harness.report.plots.picture import Picture
from harness.report.plots.style import (
    MUTED,
    WIDTH_IN,
    legend_of_curves,
    looks,
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
            caption="Headline figure of one stream, a point for each boot with all of its "
            f"repetitions; n = {captions.between(len(view.boots) for view in section.views)} boots "
            "a variant. A point is a single figure, so it has no interval.",
            notes=(),
            draw=lambda section=section: _draw(summary, section),  # type: ignore[misc]
        )
        for section in summary.sections
        if section.workload == "generate" and any(len(view.boots) > 1 for view in section.views)
    ]


def _draw(summary: Summary, section: Section) -> Figure:
    figure = Figure(figsize=(WIDTH_IN, 3.4), layout="constrained")
    axes = figure.subplots()
    shown = looks(summary)
    for view in section.views:
        own = summary.boot_figures[(view.cell.cell_id, ALL)]
        if not own.by_boot:
            continue
        mean = sum(own.per_boot) / len(own.per_boot)
        minutes = [_minutes(summary, boot_id) for boot_id in own.by_boot]
        axes.plot(
            minutes,
            [(value / mean - 1) * 100 for value in own.per_boot],
            color=shown[view.cell.variant].colour,
            marker=shown[view.cell.variant].marker,
            markersize=7,
            linewidth=1.2,
        )
    axes.axhline(0, color=MUTED, linewidth=0.8)
    axes.set_xlabel("minutes since the first boot began")
    axes.set_ylabel("against the variant's mean, %")
    plain_frame(axes)
    title_above(
        axes,
        "Drift: each boot against its variant's mean",
        section.word,
    )
    legend_of_curves(figure, of_views(section.views, shown))
    return figure


def _minutes(summary: Summary, boot_id: str) -> float:
    started = {
        str(boot.where.boot_id): datetime.fromisoformat(boot.started_at)
        for boot in summary.data.boots
    }
    return (started[boot_id] - min(started.values())).total_seconds() / 60
