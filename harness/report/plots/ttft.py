"""How long requests waited for their first token: the share that had it by then."""

from matplotlib.figure import Figure

from harness.analysis.summary import Section, Summary
from harness.cell_view import CellView
from harness.report import format as fmt
from harness.report import sentences
from harness.report.plots import captions
from harness.report.plots.picture import Picture
from harness.report.plots.style import (
    WIDTH_IN,
    legend_of_lines,
    looks,
    plain_frame,
    share_axis,
    title_above,
)


def ttft(summary: Summary) -> list[Picture]:
    """Of the highest level of every load: there waiting shows."""
    return [
        Picture(
            plot="ttft",
            section=section.word,
            name=f"{fmt.slug(section.word)}_ttft",
            alt=f"Share of requests over time to first token at c = {section.levels[-1]}",
            caption=_caption(section),
            notes=(),
            draw=lambda section=section: _draw(summary, section),  # type: ignore[misc]
        )
        for section in summary.sections
        if section.workload == "concurrency"
        and _waits(section.view(section.variants[0], section.levels[-1]))
    ]


def _waits(view: CellView | None) -> list[float]:
    if view is None:
        return []
    return sorted((view.ok.known("ttft_s") * 1e3).tolist())


def _caption(section: Section) -> str:
    counts = [len(_waits(section.view(name, section.levels[-1]))) for name in section.variants]
    return (
        f"Requests of all boots, each for itself; n = {captions.between(counts)} a variant, failed "
        "ones left out. What every request waited, so without an interval."
    )


def _draw(summary: Summary, section: Section) -> Figure:
    figure = Figure(figsize=(WIDTH_IN, 3.6), layout="constrained")
    axes = figure.subplots()
    shown, level = looks(summary), section.levels[-1]
    for name in section.variants:
        waits = _waits(section.view(name, level))
        if waits:
            shares = [(index + 1) / len(waits) for index in range(len(waits))]
            axes.step(
                [waits[0], *waits],
                [0.0, *shares],
                where="post",
                color=shown[name].colour,
                linestyle=shown[name].line,
                linewidth=2,
            )
    share_axis(axes)
    axes.set_xlim(left=0)
    axes.set_xlabel("time to first token, ms")
    plain_frame(axes)
    title_above(
        axes,
        f"Requests that had their first token by then, c = {level}",
        f"served {sentences.SHAPES[section.load]}",
    )
    legend_of_lines(figure, {name: shown[name] for name in section.variants})
    return figure
