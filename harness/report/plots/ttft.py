"""How long requests waited for their first token: the share that had it by then."""

from matplotlib.figure import Figure

from harness.analysis.summary import Section, Summary
from harness.cell_view import CellView
from harness.report import format as fmt
from harness.report.plots.picture import Picture
from harness.report.plots.style import (
    LINES,
    WIDTH_IN,
    colours,
    legend_below,
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
    return sorted(request.ttft_s * 1e3 for request in view.ok if request.ttft_s is not None)


def _draw(summary: Summary, section: Section) -> Figure:
    figure = Figure(figsize=(WIDTH_IN, 3.6), layout="constrained")
    axes = figure.subplots()
    shades, level = colours(summary), section.levels[-1]
    counts = []
    for number, name in enumerate(section.variants):
        waits = _waits(section.view(name, level))
        counts.append(len(waits))
        if waits:
            shares = [(index + 1) / len(waits) for index in range(len(waits))]
            axes.step(
                [waits[0], *waits],
                [0.0, *shares],
                where="post",
                color=shades[name],
                linestyle=LINES[number % len(LINES)],
                linewidth=2,
            )
    share_axis(axes)
    axes.set_xlim(left=0)
    axes.set_xlabel("time to first token, ms")
    plain_frame(axes)
    title_above(
        axes,
        f"Requests that had their first token by then, c = {level}",
        f"all boots; n = {_range(counts)} requests a variant; failed ones left out",
    )
    entries = [(name, shades[name]) for name in section.variants]
    legend_below(figure, entries, signs={}, lines=LINES)
    return figure


def _range(counts: list[int]) -> str:
    least, most = min(counts), max(counts)
    return str(least) if least == most else f"{least} to {most}"
