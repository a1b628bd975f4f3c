"""Acceptance length over requests in flight: does a drafter degrade under load?"""

from matplotlib.figure import Figure

from harness.analysis.summary import ALL, Section, Summary
from harness.report import format as fmt
from harness.report import sentences
from harness.report.plots import captions
from harness.report.plots.curves import curve
from harness.report.plots.picture import Picture
from harness.report.plots.style import (
    HOLLOW,
    IN_FLIGHT,
    WIDTH_IN,
    doubling_axis,
    estimate_of,
    is_comparable,
    legend_of_curves,
    looks,
    plain_frame,
    title_above,
)

METRIC = "acceptance_length"


def acceptance_by_concurrency(summary: Summary) -> list[Picture]:
    """A picture per load that has drafters at several levels."""
    return [
        Picture(
            plot="acceptance_by_concurrency",
            section=section.word,
            name=f"{fmt.slug(section.word)}_acceptance_by_c",
            alt="Acceptance length of each drafter over the number of requests in flight",
            caption=_caption(summary, section),
            notes=_notes(summary, section),
            draw=lambda section=section: _draw(summary, section),  # type: ignore[misc]
        )
        for section in summary.sections
        if section.workload == "concurrency" and len(section.levels) > 1 and section.drafted
    ]


def _caption(summary: Summary, section: Section) -> str:
    counted = captions.counted_by(summary, section.drafted, METRIC, "round", "a point")
    return (
        f"1 + accepted / drafts over all requests of a level; {counted}; a sum, so without an "
        "interval. 1 is a drafter that never helps."
    )


def _notes(summary: Summary, section: Section) -> tuple[str, ...]:
    gaps = tuple(
        f"{view.cell.variant} at c = {view.cell.concurrency}: {estimate.reason}"
        for view in section.drafted
        if (estimate := estimate_of(summary, view, METRIC, ALL)).value is None
    )
    if all(is_comparable(summary, view) for view in section.drafted):
        return gaps
    return (*gaps, HOLLOW)


def _draw(summary: Summary, section: Section) -> Figure:
    figure = Figure(figsize=(WIDTH_IN, 3.8), layout="constrained")
    axes = figure.subplots()
    shown = looks(summary)
    names = list(dict.fromkeys(view.cell.variant for view in section.drafted))
    for name in names:
        curve(axes, summary, section, name, METRIC, shown[name])
    doubling_axis(axes, section.levels, IN_FLIGHT)
    axes.set_ylim(1, max(axes.get_ylim()[1] * 1.05, 2))
    plain_frame(axes)
    title_above(
        axes,
        "Acceptance length over concurrency, tokens per round",
        f"served {sentences.SHAPES[section.load]}",
    )
    legend_of_curves(figure, {name: shown[name] for name in names})
    return figure
