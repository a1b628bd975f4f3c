"""How every picture looks: one palette, one frame, one place for names."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import cycle
from statistics import fmean
from typing import Any, Literal, TypeAlias

import matplotlib as mpl
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from matplotlib.ticker import FixedFormatter, FixedLocator, NullLocator

from harness.analysis.summary import Summary
from harness.cell_view import CellView
from harness.records import Estimate

# Okabe and Ito's palette, told apart with any kind of colour vision; plain decoding is always grey,
# that of a second engine darker, of a third lighter.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9")
PLAIN_COLOURS = ("#8A8F98", "#4A4F58", "#C3C7CD")
INK = "#24292F"
MUTED = "#656D76"
GRID = "#E3E6EA"
WIDTH_IN = 9.0
MARKERS = ("o", "s", "^", "D", "v", "P")  # told apart in black and white too
LineStyle: TypeAlias = Literal["-", "--", "-.", ":"]
LINES: tuple[LineStyle, ...] = ("-", "--", "-.", ":")
HATCHES = ("", "//", "..", "xx", "\\\\")
HOLLOW = "Hollow points are invalid or serve an unbalanced mix: not comparable."
IN_FLIGHT = "requests in flight, c"


_STYLE: dict[Any, Any] = {
    "font.family": "DejaVu Sans",
    "font.size": 10.5,
    "text.color": INK,
    "text.parse_math": False,  # a name with two dollar signs is a name
    "axes.edgecolor": GRID,
    "axes.labelcolor": MUTED,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.titlesize": 11.5,
    "axes.titlelocation": "left",
    "xtick.color": MUTED,
    "ytick.color": MUTED,
    "xtick.labelcolor": INK,
    "ytick.labelcolor": MUTED,
    "svg.fonttype": "path",
    "svg.hashsalt": "dflashbench",  # equal data, equal file
    "figure.facecolor": "white",
    "savefig.facecolor": "white",
}


@contextmanager
def style() -> Iterator[None]:
    with mpl.rc_context(_STYLE):
        yield


def colours(summary: Summary) -> Mapping[str, str]:
    """By variant, in the plan's order: grey without a drafter."""
    drafters = {view.cell.variant: view.cell.drafter for view in summary.data.views}
    palette, greys = cycle(COLOURS), cycle(PLAIN_COLOURS)
    return {variant: next(palette if drafter else greys) for variant, drafter in drafters.items()}


def markers(summary: Summary) -> Mapping[str, str]:
    """By variant, in the plan's order."""
    names = dict.fromkeys(view.cell.variant for view in summary.data.views)
    return dict(zip(names, cycle(MARKERS), strict=False))


def spread(wanted: Sequence[float], gap: float) -> list[float]:
    """Heights at least `gap` apart, as near to the wanted ones (rising) as can be: labels that
    would touch become a stack around their mean.
    """
    stacks: list[list[float]] = []
    for height in wanted:
        stacks.append([height])
        while len(stacks) > 1 and _lowest(stacks[-1], gap) < _highest(stacks[-2], gap) + gap:
            upper = stacks.pop()
            stacks[-1] += upper
    return [_lowest(stack, gap) + i * gap for stack in stacks for i in range(len(stack))]


def _lowest(stack: Sequence[float], gap: float) -> float:
    return fmean(stack) - (len(stack) - 1) * gap / 2


def _highest(stack: Sequence[float], gap: float) -> float:
    return fmean(stack) + (len(stack) - 1) * gap / 2


def plain_frame(axes: Axes) -> None:
    """Horizontal guide lines and a base, both behind the data."""
    axes.tick_params(axis="both", length=0, pad=6)
    axes.spines["left"].set_visible(False)
    axes.yaxis.grid(True, color=GRID, linewidth=0.8)
    axes.set_axisbelow(True)
    axes.spines["bottom"].set_zorder(0)


def doubling_axis(axes: Axes, places: Sequence[int], label: str) -> None:
    """Across: a step for each doubling, marked at `places` alone."""
    axes.set_xscale("log", base=2)
    axes.xaxis.set_major_locator(FixedLocator(places))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.xaxis.set_major_formatter(FixedFormatter([str(place) for place in places]))
    axes.set_xlabel(label)


def share_axis(axes: Axes) -> None:
    """Upwards: 0 to 1, in quarters."""
    axes.set_ylim(0, 1.02)
    axes.yaxis.set_major_locator(FixedLocator([0, 0.25, 0.5, 0.75, 1]))
    axes.yaxis.set_major_formatter(FixedFormatter(["0", "25 %", "50 %", "75 %", "100 %"]))


def title_above(axes: Axes, title: str, subtitle: str) -> None:
    axes.set_title(f"{title}\n", fontsize=13, fontweight="bold", pad=12)
    axes.annotate(
        subtitle,
        (0, 1),
        xycoords="axes fraction",
        xytext=(0, 14),
        textcoords="offset points",
        fontsize=9,
        color=MUTED,
    )


def legend_below(
    figure: Figure,
    entries: Sequence[tuple[str, str]],
    *,
    hatches: Sequence[str] = ("",),
    signs: Mapping[str, str] | None = None,
    lines: Sequence[LineStyle] = ("-",),
) -> None:
    """In a row under the plot, where any number of names has room; with what tells the rows apart
    in black and white.
    """
    handles: list[Artist] = [
        Line2D(
            [],
            [],
            color=colour,
            marker=signs.get(name, ""),
            markersize=7,
            linestyle=lines[number % len(lines)],
            linewidth=2,
            label=name,
        )
        if signs is not None
        else Patch(
            facecolor=colour, hatch=hatches[number % len(hatches)], edgecolor="white", label=name
        )
        for number, (name, colour) in enumerate(entries)
    ]
    figure.legend(
        handles=handles,
        loc="outside lower center",
        ncols=min(len(handles), 5 if sum(len(name) for name, _ in entries) < 60 else 3),
        frameon=False,
        handlelength=0.9 if signs is None else 2.2,
        handleheight=0.9,
        columnspacing=1.6,
    )


def is_void(summary: Summary, view: CellView) -> bool:
    return any(verdict.level == "invalid" for verdict in summary.verdicts_of(view))


def is_comparable(summary: Summary, view: CellView) -> bool:
    accused = {verdict.check for verdict in summary.verdicts_of(view)}
    return not is_void(summary, view) and "balanced_mix" not in accused


def estimate_of(summary: Summary, view: CellView, metric: str, kind: str) -> Estimate:
    row = summary.row(view, metric, kind)
    if row is None:
        return Estimate(value=None, unit="", n=0, reason="does not apply")
    return row.estimate
