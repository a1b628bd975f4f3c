"""Curves of a figure over the requests in flight: what the pictures of concurrency share."""

from collections.abc import Mapping, Sequence

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.transforms import blended_transform_factory, offset_copy

from harness.analysis.summary import ALL, Section, Summary
from harness.records import Estimate
from harness.report import sentences
from harness.report.plots.style import (
    BAND,
    BAND_INK,
    INK,
    PAPER,
    Look,
    estimate_of,
    is_comparable,
    spread,
)

SHAPES: Mapping[str, str] = {
    "wave": "Waves: c requests start together",
    "closed": "Closed loop: c requests always in flight",
}
MAX_NAMED_ENDS = 7  # names that stand at the ends of curves; more have a legend
MAX_NAME = 26  # letters; and so do longer ones
NAME_GAP = 0.058  # between two names, as a share of the axes' height
MARKER_SIZE = 6.0


def sections_over_c(summary: Summary) -> list[Section]:
    """Those that have a curve."""
    return [each for each in summary.sections if each.load in SHAPES and len(each.levels) > 1]


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


def have_room_at_their_ends(names: Sequence[str], num_panels: int) -> bool:
    return len(names) <= MAX_NAMED_ENDS and max(map(len, names)) * num_panels <= MAX_NAME


def names_at_ends(
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


def brackets(axes: Axes, summary: Summary, section: Section) -> None:
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
