"""Bars of decode rate by kind of prompt, with the speed-up over the reference."""

from collections.abc import Sequence

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patheffects import withStroke
from matplotlib.ticker import FixedFormatter, FixedLocator

from harness.analysis.metrics import DECODING
from harness.analysis.summary import ALL, Section, Summary
from harness.cell_view import CellView
from harness.records import Estimate
from harness.report import format as fmt
from harness.report.plots.picture import Picture
from harness.report.plots.style import (
    GRID,
    HATCHES,
    INK,
    MUTED,
    WIDTH_IN,
    colours,
    estimate_of,
    is_void,
    legend_below,
    plain_frame,
    title_above,
)
from harness.report.tables.figures import kind_word

MAX_LEVEL_LABELS = 3  # bars of a kind whose labels have room side by side; more stand upright


def decode_rate_by_kind(summary: Summary) -> list[Picture]:
    return [
        _bars_picture(summary, section)
        for section in summary.sections
        if section.workload in DECODING
    ]


def _bars_picture(summary: Summary, section: Section) -> Picture:
    kinds = (*section.kinds, ALL)
    missing = [
        f"{view.cell.variant}, {kind_word(kind)}: {estimate.reason}"
        for view in section.views
        for kind in (kinds if view.requests else (ALL,))
        if (estimate := estimate_of(summary, view, "decode_rate", kind)).value is None
    ]
    void = [
        f"{view.cell.variant} is pale: a check calls it invalid."
        for view in section.views
        if view.requests and is_void(summary, view)
    ]
    return Picture(
        plot="decode_rate_by_kind",
        section=section.word,
        name=f"{fmt.slug(section.word)}_by_kind",
        alt="Decode rate of each variant by kind of prompt, with the speed-up over its reference",
        notes=(*missing, *void),
        draw=lambda: _draw_bars(summary, section, kinds),
    )


def _draw_bars(summary: Summary, section: Section, kinds: Sequence[str]) -> Figure:
    figure = Figure(figsize=(WIDTH_IN, 4.3), layout="constrained")
    axes = figure.subplots()
    shades = colours(summary)
    num_variants = len(section.views)
    width = 0.8 / num_variants
    places = [float(i) + (0.35 if kind == ALL else 0.0) for i, kind in enumerate(kinds)]
    tallest = 0.0
    for number, view in enumerate(section.views):
        for place, kind in zip(places, kinds, strict=True):
            estimate = estimate_of(summary, view, "decode_rate", kind)
            if estimate.value is None:
                continue
            x = place + (number - (num_variants - 1) / 2) * width
            void = is_void(summary, view)
            hatch = HATCHES[number % len(HATCHES)]
            top = _bar(
                axes, x, width * 0.94, estimate, shades[view.cell.variant], hatch=hatch, void=void
            )
            tallest = max(tallest, top)
            speedup = estimate_of(summary, view, "speedup", kind).value
            _bar_label(axes, x, top, speedup, estimate, shades[view.cell.variant], num_variants)
    axes.set_xlim(places[0] - 0.55, places[-1] + 0.55)
    headroom = 1.16 if num_variants <= MAX_LEVEL_LABELS else 1.28
    axes.set_ylim(0, tallest * headroom if tallest else 1)
    axes.xaxis.set_major_locator(FixedLocator(places))
    axes.xaxis.set_major_formatter(FixedFormatter([kind_word(kind) for kind in kinds]))
    plain_frame(axes)
    axes.axvline(places[-1] - 0.675, color=GRID, linewidth=0.8)
    title_above(
        axes,
        "Decode rate of one stream, tokens per second",
        _bars_subtitle(summary, section),
    )
    entries = [(view.cell.variant, shades[view.cell.variant]) for view in section.views]
    legend_below(figure, entries, hatches=HATCHES)
    return figure


def _bar(
    axes: Axes,
    x: float,
    width: float,
    estimate: Estimate,
    colour: str,
    *,
    hatch: str,
    void: bool,
) -> float:
    """The bar and its whisker; returns how high they reach. A void figure is pale."""
    assert estimate.value is not None
    alpha = 0.3 if void else 1.0
    axes.bar(
        x,
        estimate.value,
        width=width,
        color=colour,
        hatch=hatch,
        edgecolor="white",
        linewidth=0,
        alpha=alpha,
    )
    if estimate.low is None or estimate.high is None:
        return estimate.value
    axes.errorbar(
        x,
        estimate.value,
        yerr=[[estimate.value - estimate.low], [estimate.high - estimate.value]],
        ecolor=INK,
        elinewidth=1.1,
        capsize=2.5,
        capthick=1.1,
    )
    return estimate.high


def _bar_label(
    axes: Axes,
    x: float,
    top: float,
    speedup: float | None,
    estimate: Estimate,
    colour: str,
    num_variants: int,
) -> None:
    """Speed-up where there is one; else the rate, where there is room for it."""
    assert estimate.value is not None
    if speedup is None and num_variants > 2:
        return
    axes.annotate(
        fmt.number(estimate.value, 3) if speedup is None else f"{speedup:.2f}x",
        (x, top),
        xytext=(0, 3),
        textcoords="offset points",
        ha="center",
        va="bottom",
        rotation=0 if num_variants <= MAX_LEVEL_LABELS else 90,
        fontsize=8.5 if speedup is None else 9.5 if num_variants < 3 else 7.5,
        fontweight="normal" if speedup is None else "bold",
        color=MUTED if speedup is None else colour,
        path_effects=[withStroke(linewidth=2, foreground="white")],  # over a neighbour's bar
    )


def _bars_subtitle(summary: Summary, section: Section) -> str:
    methods = {
        estimate.method
        for view in section.views
        if (estimate := estimate_of(summary, view, "decode_rate", ALL)).method
    }
    whiskers = f"whiskers: 95 % interval, {methods.pop()}" if len(methods) == 1 else "no intervals"
    return (
        f"mean over prompts of the median over repetitions; {whiskers}{_labels_mean(section.views)}"
    )


def _labels_mean(views: Sequence[CellView]) -> str:
    """Over which reference, where all bars have the same one."""
    names = {view.reference.cell.variant for view in views if view.reference is not None}
    if not names:
        return ""
    over = f"over {names.pop()}" if len(names) == 1 else "over each one's own reference"
    return f"; labels: speed-up {over}"
