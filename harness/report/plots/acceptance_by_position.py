"""Share of rounds that accept each drafted position, a line for each kind of prompt."""

from collections.abc import Mapping, Sequence

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator

from harness.analysis.metrics import DECODING
from harness.analysis.summary import ALL, Section, Summary
from harness.cell_view import CellView
from harness.report import format as fmt
from harness.report.plots.picture import Picture
from harness.report.plots.style import (
    COLOURS,
    INK,
    WIDTH_IN,
    estimate_of,
    plain_frame,
    share_axis,
    spread,
    title_above,
)
from harness.report.tables import position_depth
from harness.report.tables.figures import kind_word


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
        notes=tuple(gaps),
        draw=lambda: _draw_positions(summary, section, view),
    )


def _draw_positions(summary: Summary, section: Section, view: CellView) -> Figure:
    figure = Figure(figsize=(WIDTH_IN, 4.3), layout="constrained")
    axes = figure.subplots()
    shades = dict(zip(section.kinds, COLOURS * len(section.kinds), strict=False))
    depth = position_depth(summary, view)
    positions = list(range(1, depth + 1))
    for kind in section.kinds:
        axes.plot(
            positions,
            _shares(summary, view, kind, depth),
            color=shades[kind],
            linewidth=2,
            marker="o",
            markersize=5,
            clip_on=False,
        )
    pooled = _shares(summary, view, ALL, depth)
    axes.plot(positions, pooled, color=INK, linewidth=1.4, linestyle=(0, (4, 2)))
    share_axis(axes)
    axes.set_xlim(0.85, depth + 0.15)
    axes.xaxis.set_major_locator(FixedLocator(positions))
    axes.set_xlabel("position in the draft (1 is the first drafted token)")
    plain_frame(axes)
    _position_labels(axes, summary, view, section.kinds, depth, shades)
    title_above(
        axes,
        f"Share of rounds that accept a drafted position, {view.cell.variant}",
        "the points of a line, summed, plus one are its acceptance length, written beside its name",
    )
    return figure


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
    shades: Mapping[str, str],
) -> None:
    ends = [
        (value, kind)
        for kind in (*kinds, ALL)
        if (value := _position(summary, view, kind, depth)) is not None
    ]
    ends.sort()
    heights = spread([value for value, _ in ends], 0.062)
    for (_, kind), height in zip(ends, heights, strict=True):
        accepted = estimate_of(summary, view, "acceptance_length", kind).value
        suffix = f"  {fmt.length(accepted)}" if accepted is not None else ""
        axes.annotate(
            f"{kind_word(kind)}{suffix}",
            (depth, height),
            xytext=(10, 0),
            textcoords="offset points",
            va="center",
            fontsize=10,
            fontweight="normal" if kind == ALL else "bold",
            color=INK if kind == ALL else shades[kind],
            annotation_clip=False,
        )
