"""Bars of a figure by kind of prompt, the variants of a section side by side."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

from matplotlib.axes import Axes
from matplotlib.patheffects import withStroke
from matplotlib.ticker import FixedFormatter, FixedLocator

from harness.analysis.summary import ALL
from harness.cell_view import CellView
from harness.records import Estimate
from harness.report.plots.style import GRID, INK, PAPER, WIDTH_IN, Look, plain_frame
from harness.report.tables.figures import kind_word

FILLED = 0.82  # of a kind's place; the rest keeps the kinds apart
LEVEL_PT = 26.0  # a bar this wide has room for a label across, in points
UPRIGHT_PT = 8.5  # and this wide for one that stands


@dataclass(frozen=True, kw_only=True)
class Bars:
    """Where the bars of some variants stand over kinds, all of them last and a little apart."""

    kinds: tuple[str, ...]
    num_variants: int

    @property
    def places(self) -> list[float]:
        apart = 0.35 if len(self.kinds) > 1 else 0.0
        return [number + (apart if kind == ALL else 0.0) for number, kind in enumerate(self.kinds)]

    @property
    def width(self) -> float:
        return min(FILLED / self.num_variants, 0.4)

    @property
    def width_pt(self) -> float:
        """On paper, about."""
        return 0.92 * WIDTH_IN * 72 * self.width / (self.places[-1] + 1.1)

    def at(self, kind: str, number: int) -> float:
        middle = (self.num_variants - 1) / 2
        return self.places[self.kinds.index(kind)] + (number - middle) * self.width

    @property
    def have_labels(self) -> bool:
        return self.width_pt >= UPRIGHT_PT


def bar(
    axes: Axes, x: float, width: float, estimate: Estimate, look: Look, *, void: bool = False
) -> float:
    """The bar and its whisker; returns how high they reach. A void figure is pale."""
    assert estimate.value is not None
    axes.bar(
        x,
        estimate.value,
        width=width * 0.94,
        color=look.colour,
        hatch=look.hatch,
        edgecolor=PAPER,
        linewidth=0,
        alpha=0.3 if void else 1.0,
    )
    if estimate.low is None or estimate.high is None:
        return estimate.value
    axes.errorbar(
        x,
        estimate.value,
        yerr=[[estimate.value - estimate.low], [estimate.high - estimate.value]],
        fmt="none",
        color=INK,
        elinewidth=1.0,
        capsize=2.0,
        capthick=1.0,
    )
    return estimate.high


def bar_label(axes: Axes, bars: Bars, x: float, top: float, text: str, *, bold: bool) -> None:
    """Across where a bar is wide enough, else upright."""
    across = bars.width_pt >= LEVEL_PT
    axes.annotate(
        text,
        (x, top),
        xytext=(0, 3),
        textcoords="offset points",
        ha="center",
        va="bottom",
        rotation=0 if across else 90,
        fontsize=8.5 if across else min(8.0, bars.width_pt * 0.85),
        fontweight="bold" if bold else "normal",
        color=INK,
        path_effects=[withStroke(linewidth=2, foreground=PAPER)],  # over a neighbour's whisker
    )


def kinds_below(axes: Axes, bars: Bars, tallest: float) -> None:
    """Names of the kinds, a line before all of them, and room for the labels."""
    axes.set_xlim(bars.places[0] - 0.55, bars.places[-1] + 0.55)
    headroom = 1.14 if bars.width_pt >= LEVEL_PT else 1.24
    axes.set_ylim(0, tallest * headroom if tallest else 1)
    axes.xaxis.set_major_locator(FixedLocator(bars.places))
    axes.xaxis.set_major_formatter(FixedFormatter([kind_word(kind) for kind in bars.kinds]))
    plain_frame(axes)
    if len(bars.kinds) > 1:
        axes.axvline(bars.places[-1] - 0.675, color=GRID, linewidth=0.8)
    figure = axes.get_figure(root=True)
    assert figure is not None
    figure.draw_without_rendering()
    _turn_long_names(axes)


def _turn_long_names(axes: Axes) -> None:
    """Names that would touch stand at a slant."""
    labels = axes.get_xticklabels()
    boxes = [label.get_window_extent() for label in labels]
    if any(left.x1 > right.x0 for left, right in pairwise(boxes)):
        for label in labels:
            label.set(rotation=20, ha="right", rotation_mode="anchor")


def of_views(views: Sequence[CellView], shown: Mapping[str, Look]) -> Mapping[str, Look]:
    """The looks of a picture's variants, in their order."""
    return {view.cell.variant: shown[view.cell.variant] for view in views}
