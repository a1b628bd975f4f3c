"""PLOTS: the pictures of a report, as SVG and PNG.

Each plot says first what it shows and what it cannot (`Picture`), without drawing; drawing comes
last, so that the page and its numbers are on disk whatever happens to a picture. A variant has one
colour in all of them.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from io import BytesIO
from itertools import cycle
from pathlib import Path
from statistics import fmean
from typing import Any

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch
from matplotlib.patheffects import withStroke
from matplotlib.ticker import FixedFormatter, FixedLocator, NullLocator

from harness.analysis.comparisons import Crossing
from harness.analysis.metrics import HEADLINE
from harness.analysis.summary import ALL, Section, Summary
from harness.cell_view import CellView
from harness.records import Estimate
from harness.report import format as fmt
from harness.report import sentences
from harness.report.tables import position_depth
from harness.store import write_whole

# Okabe and Ito's palette, told apart with any kind of colour vision; plain decoding is always grey,
# that of a second engine darker, of a third lighter.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9")
PLAIN_COLOURS = ("#8A8F98", "#4A4F58", "#C3C7CD")
INK = "#24292F"
MUTED = "#656D76"
GRID = "#E3E6EA"
WIDTH_IN = 9.0
MAX_LEVEL_LABELS = 3  # bars of a kind whose labels have room side by side; more stand upright

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


@dataclass(frozen=True, kw_only=True)
class Picture:
    """`plot` is its row, `name` its file; `notes` stand under it; `draw` makes the figure."""

    plot: str
    name: str
    alt: str
    notes: tuple[str, ...]
    draw: Callable[[], Figure]


def pictures(summary: Summary) -> tuple[Picture, ...]:
    return tuple(picture for make in PLOTS.values() for picture in make(summary))


_KINDS: Mapping[str, Mapping[str, Any]] = {
    "svg": {"metadata": {"Date": None}},
    "png": {"dpi": 160, "metadata": {"Software": None}},
}


def save(picture: Picture, folder: Path) -> None:
    """`<name>.svg` and `<name>.png`, without a date in them."""
    with _style():
        figure = picture.draw()
        for kind, options in _KINDS.items():
            drawn = BytesIO()
            figure.savefig(drawn, format=kind, **options)
            write_whole(folder / f"{picture.name}.{kind}", drawn.getvalue())


@contextmanager
def _style() -> Iterator[None]:
    with mpl.rc_context(_STYLE):
        yield


def colours(summary: Summary) -> Mapping[str, str]:
    """By variant, in the plan's order: grey without a drafter."""
    drafters = {view.cell.variant: view.cell.drafter for view in summary.data.views}
    palette, greys = cycle(COLOURS), cycle(PLAIN_COLOURS)
    return {variant: next(palette if drafter else greys) for variant, drafter in drafters.items()}


# --- bars by kind ---------------------------------------------------------------------------------


def decode_rate_by_kind(summary: Summary) -> list[Picture]:
    return [
        _bars_picture(summary, section)
        for section in summary.sections
        if section.workload == "generate"
    ]


def _bars_picture(summary: Summary, section: Section) -> Picture:
    kinds = (*section.kinds, ALL)
    missing = [
        f"{view.cell.variant}, {'all kinds' if kind == ALL else kind}: {estimate.reason}"
        for view in section.views
        for kind in (kinds if view.requests else (ALL,))
        if (estimate := _estimate(summary, view, "decode_rate", kind)).value is None
    ]
    void = [
        f"{view.cell.variant} is pale: a check calls it invalid."
        for view in section.views
        if view.requests and _is_void(summary, view)
    ]
    return Picture(
        plot="decode_rate_by_kind",
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
            estimate = _estimate(summary, view, "decode_rate", kind)
            if estimate.value is None:
                continue
            x = place + (number - (num_variants - 1) / 2) * width
            void = _is_void(summary, view)
            top = _bar(axes, x, width * 0.94, estimate, shades[view.cell.variant], void=void)
            tallest = max(tallest, top)
            speedup = _estimate(summary, view, "speedup", kind).value
            _bar_label(axes, x, top, speedup, estimate, shades[view.cell.variant], num_variants)
    axes.set_xlim(places[0] - 0.55, places[-1] + 0.55)
    headroom = 1.16 if num_variants <= MAX_LEVEL_LABELS else 1.28
    axes.set_ylim(0, tallest * headroom if tallest else 1)
    axes.xaxis.set_major_locator(FixedLocator(places))
    axes.xaxis.set_major_formatter(
        FixedFormatter(["all kinds" if kind == ALL else kind for kind in kinds])
    )
    _plain_frame(axes)
    axes.axvline(places[-1] - 0.675, color=GRID, linewidth=0.8)
    _title(
        axes,
        "Decode rate of one stream, tokens per second",
        _bars_subtitle(summary, section),
    )
    _legend(figure, [(view.cell.variant, shades[view.cell.variant]) for view in section.views])
    return figure


def _bar(
    axes: Axes, x: float, width: float, estimate: Estimate, colour: str, *, void: bool
) -> float:
    """The bar and its whisker; returns how high they reach. A void figure is pale."""
    assert estimate.value is not None
    alpha = 0.3 if void else 1.0
    axes.bar(x, estimate.value, width=width, color=colour, linewidth=0, alpha=alpha)
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
        if (estimate := _estimate(summary, view, "decode_rate", ALL)).method
    }
    whiskers = f"whiskers: 95 % interval, {methods.pop()}" if len(methods) == 1 else "no intervals"
    return f"mean over prompts of the median over repetitions; {whiskers}; labels: speed-up"


# --- concurrency ----------------------------------------------------------------------------------


SHAPES: Mapping[str, str] = {
    "wave": "Waves: c requests start together",
    "closed": "Closed loop: c requests always in flight",
}


def throughput_by_concurrency(summary: Summary) -> list[Picture]:
    """Both load shapes side by side: one picture, a panel each."""
    sections = [
        section
        for section in summary.sections
        if section.load in SHAPES and len(section.levels) > 1
    ]
    if not sections:
        return []
    notes = [
        f"{section.word}, {view.cell.variant} at c = {view.cell.concurrency}: {estimate.reason}"
        for section in sections
        for view in section.views
        if (estimate := _estimate(summary, view, HEADLINE["concurrency"], ALL)).value is None
    ]
    if any(not _is_comparable(summary, view) for section in sections for view in section.views):
        notes.append("Hollow points are invalid or serve an unbalanced mix: not comparable.")
    return [
        Picture(
            plot="throughput_by_concurrency",
            name="throughput_by_concurrency",
            alt="Aggregate throughput of each variant over the number of requests in flight",
            notes=tuple(notes),
            draw=lambda: _draw_curves(summary, sections),
        )
    ]


def _draw_curves(summary: Summary, sections: Sequence[Section]) -> Figure:
    figure = Figure(figsize=(WIDTH_IN, 4.3), layout="constrained")
    panels = figure.subplots(1, len(sections), sharey=True, squeeze=False)[0]
    shades = colours(summary)
    tallest = 0.0
    for axes, section in zip(panels, sections, strict=True):
        for variant in section.variants:
            tallest = max(tallest, _curve(axes, summary, section, variant, shades[variant]))
        _concurrency_axis(axes, section)
        axes.set_title(SHAPES[section.load], pad=10, fontsize=10.5, color=INK)
    for axes, section in zip(panels, sections, strict=True):
        axes.set_ylim(0, tallest * 1.2 if tallest else 1)
        _end_labels(axes, summary, section, shades)
        for row, crossing in enumerate(_found_over_references(summary, section)):
            _bracket(axes, crossing, row)
    figure.suptitle(
        "Aggregate throughput, tokens per second",
        x=0.012,
        ha="left",
        fontsize=13,
        fontweight="bold",
    )
    methods = {
        method
        for section in sections
        for view in section.views
        if (method := _estimate(summary, view, HEADLINE["concurrency"], ALL).method)
    }
    if len(methods) == 1:
        bands = f"bands: 95 % interval, {methods.pop()}"
        figure.text(0.99, 0.985, bands, ha="right", va="top", fontsize=9, color=MUTED)
    return figure


def _curve(axes: Axes, summary: Summary, section: Section, variant: str, colour: str) -> float:
    """Line, points and interval band of one variant; a level without a figure breaks the line.

    Returns the highest point drawn, band included.
    """
    views = section.of_variant(variant)
    estimates = [_estimate(summary, view, HEADLINE["concurrency"], ALL) for view in views]
    levels = [view.cell.concurrency for view in views]
    # matplotlib breaks a line at nan; nan never leaves this call
    values = [
        estimate.value if estimate.value is not None else float("nan") for estimate in estimates
    ]
    axes.plot(
        levels, values, color=colour, linewidth=2.2, marker="o", markersize=5.5, clip_on=False
    )
    hollow = [
        (view.cell.concurrency, value)
        for view, value in zip(views, values, strict=True)
        if not _is_comparable(summary, view)
    ]
    if hollow:
        axes.plot(
            *zip(*hollow, strict=True),
            linestyle="none",
            marker="o",
            markersize=5.5,
            markerfacecolor="white",
            markeredgecolor=colour,
            markeredgewidth=1.6,
            clip_on=False,
        )
    known = [
        (level, estimate.low, estimate.high)
        for level, estimate in zip(levels, estimates, strict=True)
        if estimate.low is not None and estimate.high is not None
    ]
    if known:
        axes.fill_between(
            [level for level, _, _ in known],
            [low for _, low, _ in known],
            [high for _, _, high in known],
            color=colour,
            alpha=0.14,
            linewidth=0,
        )
    tops = [estimate.value for estimate in estimates if estimate.value is not None]
    return max(tops + [high for _, _, high in known], default=0.0)


def _concurrency_axis(axes: Axes, section: Section) -> None:
    axes.set_xscale("log", base=2)
    axes.xaxis.set_major_locator(FixedLocator(list(section.levels)))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.xaxis.set_major_formatter(FixedFormatter([str(level) for level in section.levels]))
    axes.set_xlabel("requests in flight, c")
    _plain_frame(axes)


def _end_labels(axes: Axes, summary: Summary, section: Section, shades: Mapping[str, str]) -> None:
    """Names at the right end of the lines, pushed apart where lines end close together."""
    ends = []
    for variant in section.variants:
        last = [
            (view.cell.concurrency, value)
            for view in section.of_variant(variant)
            if (value := _estimate(summary, view, HEADLINE["concurrency"], ALL).value) is not None
        ]
        if last:
            ends.append((last[-1][1], last[-1][0], variant))
    ends.sort(key=lambda end: (end[0], end[2]))
    heights = spread([value for value, _, _ in ends], axes.get_ylim()[1] * 0.055)
    for (_, level, variant), height in zip(ends, heights, strict=True):
        axes.annotate(
            variant,
            (level, height),
            xytext=(9, 0),
            textcoords="offset points",
            va="center",
            fontsize=10,
            fontweight="bold",
            color=shades[variant],
            annotation_clip=False,
        )


def _found_over_references(summary: Summary, section: Section) -> list[Crossing]:
    """Those of other pairs stand in words only."""
    return [
        crossing
        for crossing in sentences.over_references(summary, section)
        if crossing.bracket.found
    ]


def _bracket(axes: Axes, crossing: Crossing, row: int) -> None:
    """The band in which one curve overtakes the other; a second one is labelled a line lower."""
    low, high = crossing.bracket.last_ahead, crossing.bracket.first_behind
    assert low is not None
    assert high is not None
    axes.axvspan(low, high, color="#F2C14E", alpha=0.22, linewidth=0, zorder=0)
    axes.annotate(
        f"{crossing.leader} falls behind:\nc = {low} to {high}",
        ((low * high) ** 0.5, axes.get_ylim()[1] * (0.985 - 0.11 * row)),
        ha="center",
        va="top",
        fontsize=8.5,
        color="#7A5B00",
    )


# --- acceptance per position ----------------------------------------------------------------------


def acceptance_by_position(summary: Summary) -> list[Picture]:
    """A picture per drafted variant: one line a kind, from the first drafted token to the last."""
    return [
        _positions_picture(summary, section, view)
        for section in summary.sections
        if section.workload == "generate"
        for view in section.views
        if position_depth(summary, view)
    ]


def _positions_picture(summary: Summary, section: Section, view: CellView) -> Picture:
    gaps = [
        f"{kind}: {estimate.reason}"
        for kind in section.kinds
        if (estimate := _estimate(summary, view, "acceptance_length", kind)).value is None
    ]
    return Picture(
        plot="acceptance_by_position",
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
    axes.set_ylim(0, 1.02)
    axes.set_xlim(0.85, depth + 0.15)
    axes.xaxis.set_major_locator(FixedLocator(positions))
    axes.yaxis.set_major_locator(FixedLocator([0, 0.25, 0.5, 0.75, 1]))
    axes.yaxis.set_major_formatter(FixedFormatter(["0", "25 %", "50 %", "75 %", "100 %"]))
    axes.set_xlabel("position in the draft (1 is the first drafted token)")
    _plain_frame(axes)
    _position_labels(axes, summary, view, section.kinds, depth, shades)
    _title(
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
    return _estimate(summary, view, f"acceptance_at_position_{position}", kind).value


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
        accepted = _estimate(summary, view, "acceptance_length", kind).value
        suffix = f"  {fmt.length(accepted)}" if accepted is not None else ""
        axes.annotate(
            f"{'all kinds' if kind == ALL else kind}{suffix}",
            (depth, height),
            xytext=(10, 0),
            textcoords="offset points",
            va="center",
            fontsize=10,
            fontweight="normal" if kind == ALL else "bold",
            color=INK if kind == ALL else shades[kind],
            annotation_clip=False,
        )


PLOTS: Mapping[str, Callable[[Summary], list[Picture]]] = {
    "decode_rate_by_kind": decode_rate_by_kind,
    "throughput_by_concurrency": throughput_by_concurrency,
    "acceptance_by_position": acceptance_by_position,
}


# --- shared ---------------------------------------------------------------------------------------


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


def _estimate(summary: Summary, view: CellView, metric: str, kind: str) -> Estimate:
    row = summary.row(view, metric, kind)
    if row is None:
        return Estimate(value=None, unit="", n=0, reason="does not apply")
    return row.estimate


def _plain_frame(axes: Axes) -> None:
    """Horizontal guide lines and a base, both behind the data."""
    axes.tick_params(axis="both", length=0, pad=6)
    axes.spines["left"].set_visible(False)
    axes.yaxis.grid(True, color=GRID, linewidth=0.8)
    axes.set_axisbelow(True)
    axes.spines["bottom"].set_zorder(0)


def _title(axes: Axes, title: str, subtitle: str) -> None:
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


def _legend(figure: Figure, entries: Sequence[tuple[str, str]]) -> None:
    """In a row under the plot, where any number of names has room."""
    handles = [Patch(color=colour, label=name) for name, colour in entries]
    figure.legend(
        handles=handles,
        loc="outside lower center",
        ncols=min(len(handles), 5),
        frameon=False,
        handlelength=0.9,
        handleheight=0.9,
        columnspacing=1.6,
    )


def _is_void(summary: Summary, view: CellView) -> bool:
    return any(verdict.level == "invalid" for verdict in summary.verdicts_of(view))


def _is_comparable(summary: Summary, view: CellView) -> bool:
    accused = {verdict.check for verdict in summary.verdicts_of(view)}
    return not _is_void(summary, view) and "balanced_mix" not in accused
