"""Share of rounds that accept each drafted position, a line for each kind of prompt."""

from collections.abc import Mapping, Sequence

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator

from harness.analysis.metrics import DECODING
from harness.analysis.summary import ALL, Section, Summary
from harness.cell_view import CellView
from harness.report import format as fmt
from harness.report.plots import captions
from harness.report.plots.curves import NAME_GAP, name_beside
from harness.report.plots.picture import Picture
from harness.report.plots.style import (
    COLOURS,
    INK,
    MARKERS,
    WIDTH_IN,
    Look,
    apart,
    estimate_of,
    plain_frame,
    share_axis,
    spread,
    title_above,
)
from harness.report.tables import position_depth
from harness.report.tables.figures import kind_word

TOP = 1.02  # of the axis of shares


def acceptance_by_position(summary: Summary) -> list[Picture]:
    """A picture per drafted variant: one line a kind, from the first drafted token to the last."""
    return [
        _positions_picture(summary, section, view)
        for section in summary.sections
        if section.workload in DECODING
        for view in section.views
        if position_depth(summary, view)
    ]


def _positions_picture(summary: Summary, section: Section, view: CellView) -> Picture:
    gaps = [
        f"{kind}: {estimate.reason}"
        for kind in section.kinds
        if (estimate := estimate_of(summary, view, "acceptance_length", kind)).value is None
    ]
    return Picture(
        plot="acceptance_by_position",
        section=section.word,
        name=f"{fmt.slug(section.word)}_acceptance_{fmt.slug(view.cell.variant)}",
        alt=f"Share of rounds in which {view.cell.variant} accepts each drafted position, by kind",
        caption="Rounds that accepted the position, over all rounds; "
        f"{captions.counted_by(summary, [view], 'acceptance_length', 'round')}; a sum, so without "
        "an interval. The points of a line, summed, plus one are its acceptance length. Dashed: "
        "all kinds.",
        notes=tuple(gaps),
        draw=lambda: _draw_positions(summary, section, view),
    )


def _draw_positions(summary: Summary, section: Section, view: CellView) -> Figure:
    figure = Figure(figsize=(WIDTH_IN, 4.3), layout="constrained")
    axes = figure.subplots()
    shown = _looks(section.kinds)
    depth = position_depth(summary, view)
    positions = list(range(1, depth + 1))
    for kind in section.kinds:
        axes.plot(
            positions,
            _shares(summary, view, kind, depth),
            color=shown[kind].colour,
            linewidth=2,
            marker=shown[kind].marker,
            markersize=6,
            clip_on=False,
        )
    pooled = _shares(summary, view, ALL, depth)
    axes.plot(positions, pooled, color=INK, linewidth=1.4, linestyle=(0, (4, 2)))
    share_axis(axes)
    axes.set_xlim(0.85, depth + 0.15)
    axes.xaxis.set_major_locator(FixedLocator(positions))
    axes.set_xlabel("position in the draft (1 is the first drafted token)")
    plain_frame(axes)
    _position_labels(axes, summary, view, section.kinds, depth, shown)
    title_above(
        axes,
        "Share of rounds that accept a drafted position",
        f"{view.cell.variant}, {section.word}; beside a name: its acceptance length",
    )
    return figure


def _looks(kinds: Sequence[str]) -> Mapping[str, Look]:
    """A kind's colour and marker, the same in every picture of a section."""
    shades = [COLOURS[number % len(COLOURS)] for number in range(len(kinds))]
    return {
        kind: Look(colour=shade, marker=marker, hatch="", line="-")
        for kind, shade, marker in zip(kinds, shades, apart(shades, MARKERS), strict=True)
    }


def _shares(summary: Summary, view: CellView, kind: str, depth: int) -> list[float]:
    return [
        value if (value := _position(summary, view, kind, position)) is not None else float("nan")
        for position in range(1, depth + 1)
    ]


def _position(summary: Summary, view: CellView, kind: str, position: int) -> float | None:
    return estimate_of(summary, view, f"acceptance_at_position_{position}", kind).value


def _position_labels(
    axes: Axes,
    summary: Summary,
    view: CellView,
    kinds: Sequence[str],
    depth: int,
    shown: Mapping[str, Look],
) -> None:
    ends = [
        (value, kind)
        for kind in (*kinds, ALL)
        if (value := _position(summary, view, kind, depth)) is not None
    ]
    ends.sort()
    heights = spread([value for value, _ in ends], NAME_GAP * TOP)
    for (_, kind), height in zip(ends, heights, strict=True):
        accepted = estimate_of(summary, view, "acceptance_length", kind).value
        suffix = f"  {fmt.length(accepted)}" if accepted is not None else ""
        name_beside(axes, f"{kind_word(kind)}{suffix}", shown.get(kind), depth, height / TOP)
