"""How every picture looks: one palette, one frame, one place for names."""

import textwrap
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import cycle
from statistics import fmean
from typing import Any, Literal, TypeAlias, TypeVar

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
# that of a second engine darker, of a third lighter. What dark.py makes of them is as far apart.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9")
PLAIN_COLOURS = ("#6F757E", "#3A3F47", "#B8BDC4")
PAPER = "#FFFFFF"
INK = "#24292F"
MUTED = "#656D76"
GRID = "#E3E6EA"
BAND = "#F2C14E"
BAND_INK = "#7A5B00"
WIDTH_IN = 9.0
# in black and white too, no two of a picture's variants look alike
MARKERS = ("o", "s", "^", "D", "v", "P", "X")
HATCHES = ("", "//", "..", "xx", "\\\\", "--", "oo")
LineStyle: TypeAlias = Literal["-", "--", "-.", ":"] | tuple[float, tuple[float, ...]]
LINES: tuple[LineStyle, ...] = ("-", "--", "-.", ":", (0, (6, 1, 1, 1, 1, 1)))
HOLLOW = "Hollow points are invalid or serve an unbalanced mix: not comparable."
IN_FLIGHT = "requests in flight, c"

S = TypeVar("S")


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
    "axes.facecolor": PAPER,
    "figure.facecolor": PAPER,
    "savefig.facecolor": PAPER,
}


@contextmanager
def style() -> Iterator[None]:
    with mpl.rc_context(_STYLE):
        yield


@dataclass(frozen=True, kw_only=True)
class Look:
    """What a variant is told by, in every picture the same."""

    colour: str
    marker: str
    hatch: str
    line: LineStyle


def looks(summary: Summary) -> Mapping[str, Look]:
    """By variant, in the plan's order: grey without a drafter."""
    drafters = {view.cell.variant: view.cell.drafter for view in summary.data.views}
    palette, greys = cycle(COLOURS), cycle(PLAIN_COLOURS)
    shades = [next(palette if drafter else greys) for drafter in drafters.values()]
    return {
        variant: Look(colour=shade, marker=marker, hatch=hatch, line=line)
        for variant, shade, marker, hatch, line in zip(
            drafters,
            shades,
            apart(shades, MARKERS),
            apart(shades, HATCHES),
            apart(shades, LINES),
            strict=True,
        )
    }


def apart(shades: Sequence[str], signs: Sequence[S]) -> list[S]:
    """A sign each, in turn; a shade that comes again gets one that it has not had yet."""
    given: list[S] = []
    for number, shade in enumerate(shades):
        had = [sign for other, sign in zip(shades, given, strict=False) if other == shade]
        in_turn = [signs[(number + step) % len(signs)] for step in range(len(signs))]
        given.append(next((sign for sign in in_turn if sign not in had), in_turn[0]))
    return given


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
    """Both within the picture's width, and without a say in how wide the axes are."""
    lines = textwrap.wrap(subtitle, 110)
    axes.set_title(f"{title}\n" + "\n" * (len(lines) - 1), fontsize=13, fontweight="bold", pad=12)
    told = axes.annotate(
        "\n".join(lines),
        (0, 1),
        xycoords="axes fraction",
        xytext=(0, 14),
        textcoords="offset points",
        fontsize=9,
        color=MUTED,
    )
    told.set_in_layout(False)


def title_of_panels(figure: Figure, title: str) -> None:
    """Above several axes."""
    figure.suptitle(title, x=0.012, ha="left", fontsize=13, fontweight="bold")


def legend_of_bars(figure: Figure, entries: Mapping[str, Look]) -> None:
    _legend_below(
        figure,
        [
            Patch(facecolor=look.colour, hatch=look.hatch, edgecolor=PAPER, label=name)
            for name, look in entries.items()
        ],
        length=1.4,
    )


def legend_of_curves(figure: Figure, entries: Mapping[str, Look]) -> None:
    """Lines with their markers."""
    _legend_below(
        figure,
        [
            Line2D([], [], color=look.colour, marker=look.marker, markersize=7, label=name)
            for name, look in entries.items()
        ],
        length=2.2,
    )


def legend_of_lines(figure: Figure, entries: Mapping[str, Look]) -> None:
    """Lines without markers, told apart by their dashes."""
    _legend_below(
        figure,
        [
            Line2D([], [], color=look.colour, linestyle=look.line, linewidth=2, label=name)
            for name, look in entries.items()
        ],
        length=2.8,
    )


def _legend_below(figure: Figure, handles: Sequence[Artist], *, length: float) -> None:
    """In rows under the plot, which keeps its height however many names there are."""
    longest = max(len(str(handle.get_label())) for handle in handles)
    columns = max(1, min(len(handles), LEGEND_SIGNS // (longest + 8)))
    rows = -(-len(handles) // columns)
    figure.set_figheight(figure.get_figheight() + LEGEND_ROW_IN * max(0, rows - 2))
    figure.legend(
        handles=list(handles),
        loc="outside lower center",
        ncols=columns,
        frameon=False,
        handlelength=length,
        handleheight=0.9,
        columnspacing=1.6,
    )


LEGEND_SIGNS = 100
"""About so many letters of the legend's size have room side by side."""
LEGEND_ROW_IN = 0.22


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
