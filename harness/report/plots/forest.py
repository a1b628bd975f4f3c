"""A forest of ratios: every speed-up with its interval, on one logarithmic axis."""

from collections.abc import Iterator
from dataclasses import dataclass

from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator

from harness.analysis.summary import ALL, Summary
from harness.records import Estimate
from harness.report import format as fmt
from harness.report.plots import captions
from harness.report.plots.picture import Picture
from harness.report.plots.style import INK, WIDTH_IN, looks, plain_frame, title_above


@dataclass(frozen=True, kw_only=True)
class Line:
    variant: str
    text: str
    ratio: Estimate
    is_at_an_end: bool  # of the levels of its load


MAX_LINES = 30
TICKS = (0.25, 0.5, 0.75, 1, 1.5, 2, 3, 4, 6, 8)


def forest(summary: Summary) -> list[Picture]:
    """All sections in one picture, where there are two ratios or more."""
    lines = _lines(summary)
    if len(lines) < 2:
        return []
    return [
        Picture(
            plot="forest",
            name="speedups",
            alt="Every speed-up over its reference with its 95 % interval",
            caption=_caption(lines),
            notes=(),
            draw=lambda: _draw(summary, lines),
        )
    ]


def _lines(summary: Summary) -> list[Line]:
    """Of many, a load's lowest and highest level: its curves have those between."""
    lines = list(_all_lines(summary))
    if len(lines) <= MAX_LINES:
        return lines
    return [line for line in lines if line.is_at_an_end]


def _all_lines(summary: Summary) -> Iterator[Line]:
    for section in summary.sections:
        for view in section.views:
            row = summary.row(view, "speedup", ALL)
            if row is not None and row.estimate.value is not None:
                yield Line(
                    variant=row.variant,
                    text=_text(row.variant, row.workload, row.concurrency),
                    ratio=row.estimate,
                    is_at_an_end=row.concurrency in (section.levels[0], section.levels[-1]),
                )


def _caption(lines: list[Line]) -> str:
    methods = sorted({line.ratio.method for line in lines if line.ratio.method is not None})
    drawn = f"Lines: 95 % intervals ({fmt.listed(methods)})" if methods else "No intervals"
    return (
        f"{drawn}; n = {captions.between(line.ratio.n for line in lines)} boots a side. A line "
        "through 1x tells nothing."
    )


def _text(variant: str, workload: str, concurrency: int) -> str:
    at = f", c = {concurrency}" if workload.startswith("concurrency") else ""
    return f"{variant}: {workload}{at}"


def _draw(summary: Summary, lines: list[Line]) -> Figure:
    figure = Figure(figsize=(WIDTH_IN, 1.5 + 0.28 * len(lines)), layout="constrained")
    axes = figure.subplots()
    shown = looks(summary)
    ends = [bound for line in lines for bound in _bounds(line.ratio)]
    for place, line in enumerate(reversed(lines)):
        low, high = _bounds(line.ratio)
        look = shown[line.variant]
        axes.hlines(place, low, high, color=look.colour, linewidth=2)
        assert line.ratio.value is not None
        axes.plot(line.ratio.value, place, marker=look.marker, color=look.colour)
        axes.annotate(
            _told(line.ratio),
            (1.01, place),
            xycoords=("axes fraction", "data"),
            va="center",
            fontsize=8.5,
            color=INK,
            annotation_clip=False,
        )
    axes.axvline(1, color=INK, linewidth=1, linestyle=(0, (4, 2)))
    axes.set_xscale("log")
    axes.set_xlim(min(*ends, 1) * 0.92, max(*ends, 1) * 1.08)
    axes.xaxis.set_major_locator(FixedLocator(TICKS))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}x"))
    axes.yaxis.set_major_locator(FixedLocator(range(len(lines))))
    axes.set_yticklabels([line.text for line in reversed(lines)], fontsize=9)
    plain_frame(axes)
    title_above(
        axes,
        "Speed-ups over the reference",
        "headline figure over the reference's; beside each: n boots a side",
    )
    return figure


def _bounds(ratio: Estimate) -> tuple[float, float]:
    assert ratio.value is not None
    if ratio.low is None or ratio.high is None:
        return ratio.value, ratio.value
    return ratio.low, ratio.high


def _told(ratio: Estimate) -> str:
    assert ratio.value is not None
    within = "" if ratio.method == "t over boots" else ", one boot" if ratio.method else ""
    return f"{fmt.times(ratio.value)}  n = {ratio.n}{within}"
