"""Curves of a figure over the requests in flight: what the pictures of concurrency share."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TypeAlias

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.transforms import blended_transform_factory, offset_copy

from harness.analysis.summary import ALL, Section, Summary
from harness.cell_view import CellView
from harness.records import Estimate
from harness.report import sentences
from harness.report.plots.style import (
    BAND,
    BAND_INK,
    HOLLOW,
    IN_FLIGHT,
    INK,
    PAPER,
    WIDTH_IN,
    Look,
    doubling_axis,
    estimate_of,
    is_comparable,
    legend_of_curves,
    looks,
    plain_frame,
    spread,
    title_of_panels,
)

SHAPES: Mapping[str, str] = {
    "wave": "Waves: c requests start together",
    "closed": "Closed loop: c requests always in flight",
}
Panels: TypeAlias = Sequence[tuple[Section, Sequence[CellView]]]
"""A panel's section, and those of its views that have a curve in it."""

MAX_NAMED_ENDS = 7  # names that stand at the ends of curves; more have a legend
MAX_NAME = 26  # letters; and so do longer ones
NAME_GAP = 0.058  # between two names, as a share of the axes' height
MARKER_SIZE = 6.0


def sections_over_c(summary: Summary) -> list[Section]:
    """Those that have a curve."""
    return [each for each in summary.sections if each.load in SHAPES and len(each.levels) > 1]


def panels_over_c(
    summary: Summary,
    shown: Panels,
    metric: str,
    *,
    title: str,
    height_in: float,
    set_heights: Callable[[Sequence[Axes], Sequence[float]], None],
) -> Figure:
    """The curves of the views' variants.

    set_heights: gives the panels, which share it, a vertical axis for all that was drawn.
    """
    figure = Figure(figsize=(WIDTH_IN, height_in), layout="constrained")
    panels = figure.subplots(1, len(shown), sharey=True, squeeze=False)[0]
    look_of, drawn = looks(summary), []
    for axes, (section, views) in zip(panels, shown, strict=True):
        for variant in _variants(views):
            drawn += curve(axes, summary, section, variant, metric, look_of[variant])
        doubling_axis(axes, section.levels, IN_FLIGHT)
        axes.set_title(SHAPES[section.load], pad=10, fontsize=10.5, color=INK)
    set_heights(panels, drawn)
    names = _variants(view for _, views in shown for view in views)
    for axes, (section, _) in zip(panels, shown, strict=True):
        plain_frame(axes)
        if _have_room_at_their_ends(names, len(shown)):
            _names_at_ends(axes, summary, section, metric, look_of)
        _brackets(axes, summary, section)
    if not _have_room_at_their_ends(names, len(shown)):
        legend_of_curves(figure, {name: look_of[name] for name in names})
    title_of_panels(figure, title)
    return figure


def notes_over_c(summary: Summary, shown: Panels, metric: str) -> Iterator[str]:
    """Why a point is missing, and what a hollow one is."""
    for section, views in shown:
        for view in views:
            estimate = estimate_of(summary, view, metric, ALL)
            if estimate.value is None:
                cell = view.cell
                yield f"{section.word}, {cell.variant} at c = {cell.concurrency}: {estimate.reason}"
    if not all(is_comparable(summary, view) for _, views in shown for view in views):
        yield HOLLOW


def _variants(views: Iterable[CellView]) -> list[str]:
    return list(dict.fromkeys(view.cell.variant for view in views))


def curve(
    axes: Axes, summary: Summary, section: Section, variant: str, metric: str, look: Look
) -> list[float]:
    """Line, points and interval band of one variant; a level without a figure breaks the line, one
    that cannot be compared is hollow. Returns all that was drawn, bands included.
    """
    views = section.of_variant(variant)
    estimates = [estimate_of(summary, view, metric, ALL) for view in views]
    levels = [view.cell.concurrency for view in views]
    # matplotlib breaks a line at nan; nan never leaves this call
    values = [float("nan") if each.value is None else each.value for each in estimates]
    axes.plot(levels, values, color=look.colour, linewidth=2.2, clip_on=False)
    for view, level, value in zip(views, levels, values, strict=True):
        axes.plot(
            level,
            value,
            marker=look.marker,
            markersize=MARKER_SIZE,
            color=look.colour,
            markerfacecolor=look.colour if is_comparable(summary, view) else PAPER,
            markeredgecolor=look.colour,
            markeredgewidth=1.6,
            clip_on=False,
        )
    figures = [each.value for each in estimates if each.value is not None]
    return figures + _band(axes, levels, estimates, look.colour)


def _band(
    axes: Axes, levels: Sequence[int], estimates: Sequence[Estimate], colour: str
) -> list[float]:
    known = [
        (level, each.low, each.high)
        for level, each in zip(levels, estimates, strict=True)
        if each.low is not None and each.high is not None
    ]
    lows, highs = [low for _, low, _ in known], [high for _, _, high in known]
    if known:
        axes.fill_between(
            [level for level, _, _ in known], lows, highs, color=colour, alpha=0.14, linewidth=0
        )
    return lows + highs


# --- names ----------------------------------------------------------------------------------------


def _have_room_at_their_ends(names: Sequence[str], num_panels: int) -> bool:
    return len(names) <= MAX_NAMED_ENDS and max(map(len, names)) * num_panels <= MAX_NAME


def _names_at_ends(
    axes: Axes, summary: Summary, section: Section, metric: str, looks: Mapping[str, Look]
) -> None:
    """At the right of the last level with its marker, pushed apart where lines end close together;
    the axes' limits must stand.
    """
    to_axes = axes.transScale + axes.transLimits
    last = section.levels[-1]
    ends = []
    for variant in section.variants:
        known = [
            (view.cell.concurrency, value)
            for view in section.of_variant(variant)
            if (value := estimate_of(summary, view, metric, ALL).value) is not None
        ]
        if known:
            ends.append((float(to_axes.transform(known[-1])[1]), variant))
    ends.sort()
    heights = spread([height for height, _ in ends], NAME_GAP)
    for (_, variant), height in zip(ends, heights, strict=True):
        name_beside(axes, variant, looks[variant], last, height)


def name_beside(axes: Axes, name: str, look: Look | None, x: float, height: float) -> None:
    """Right of `x` in the data, at a share of the axes' height; behind its marker, if any."""
    place = blended_transform_factory(axes.transData, axes.transAxes)
    figure = axes.figure
    assert isinstance(figure, Figure)
    if look is not None:
        axes.plot(
            x,
            height,
            marker=look.marker,
            markersize=MARKER_SIZE,
            color=look.colour,
            transform=offset_copy(place, figure, x=16, units="points"),
            scalex=False,
            scaley=False,
            clip_on=False,
        )
    axes.annotate(
        name,
        (x, height),
        xycoords=place,
        xytext=(24, 0),
        textcoords="offset points",
        va="center",
        fontsize=10,
        color=INK,
        annotation_clip=False,
    )


# --- where one overtakes another ------------------------------------------------------------------


def _brackets(axes: Axes, summary: Summary, section: Section) -> None:
    """The bands in which a drafter's curve falls behind its reference's; of other pairs the words
    tell.
    """
    for row, (levels, names) in enumerate(_leaders(summary, section).items()):
        _bracket(axes, levels, names, row)


def bracket_words(summary: Summary, sections: Sequence[Section]) -> str:
    """For a caption, where there is a band to explain."""
    if not any(_leaders(summary, section) for section in sections):
        return ""
    return " A yellow band is where a drafter falls behind its reference."


def _leaders(summary: Summary, section: Section) -> Mapping[tuple[int, int], list[str]]:
    """Bracket -> the drafters that fall behind in it."""
    found: dict[tuple[int, int], list[str]] = {}
    for crossing in sentences.over_references(summary, section):
        low, high = crossing.bracket.last_ahead, crossing.bracket.first_behind
        if low is not None and high is not None:
            found.setdefault((low, high), []).append(crossing.leader)
    return found


def _bracket(axes: Axes, levels: tuple[int, int], names: Sequence[str], row: int) -> None:
    """A second one is labelled a line lower."""
    low, high = levels
    who = names[0] if len(names[0]) <= MAX_NAME else "a drafter"
    told = f"{who} falls" if len(names) == 1 else f"{len(names)} drafters fall"
    axes.axvspan(low, high, color=BAND, alpha=0.22, linewidth=0, zorder=0)
    axes.annotate(
        f"{told} behind:\nc = {low} to {high}",
        ((low * high) ** 0.5, 0.985 - 0.11 * row),
        xycoords=blended_transform_factory(axes.transData, axes.transAxes),
        ha="center",
        va="top",
        fontsize=8.5,
        color=BAND_INK,
    )
