"""Bars of decode rate by kind of prompt, with the speed-up over the reference."""

from collections.abc import Sequence

from matplotlib.figure import Figure

from harness.analysis.metrics import DECODING
from harness.analysis.summary import Section, Summary
from harness.cell_view import CellView
from harness.report import format as fmt
from harness.report.plots import captions
from harness.report.plots.bars import Bars, bar, bar_label, kinds_below, of_views
from harness.report.plots.picture import Picture
from harness.report.plots.style import (
    WIDTH_IN,
    estimate_of,
    is_void,
    legend_of_bars,
    looks,
    title_above,
)
from harness.report.tables.figures import all_and_kinds, kind_word

METRIC = "decode_rate"


def decode_rate_by_kind(summary: Summary) -> list[Picture]:
    return [
        _picture(summary, section) for section in summary.sections if section.workload in DECODING
    ]


def _picture(summary: Summary, section: Section) -> Picture:
    bars = _bars(section)
    missing = [
        f"{view.cell.variant}, {kind_word(kind)}: {estimate.reason}"
        for view in section.views
        for kind in (bars.kinds if view.requests else bars.kinds[-1:])
        if (estimate := estimate_of(summary, view, METRIC, kind)).value is None
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
        caption=_caption(summary, section, bars),
        notes=(*missing, *void),
        draw=lambda: _draw(summary, section, bars),
    )


def _bars(section: Section) -> Bars:
    first, *kinds = all_and_kinds(section)
    return Bars(kinds=(*kinds, first), num_variants=len(section.views))


def _caption(summary: Summary, section: Section, bars: Bars) -> str:
    whiskers = captions.interval(summary, section.views, METRIC, "Whiskers")
    return (
        "Mean over prompts of the median over repetitions; "
        f"{captions.requests_in_boots(section.views)} a variant. {whiskers}."
        f"{_labels_mean(section.views, bars)}"
    )


def _labels_mean(views: Sequence[CellView], bars: Bars) -> str:
    """Over which reference, where all bars have the same one."""
    names = {view.reference.cell.variant for view in views if view.reference is not None}
    if not names:
        return ""
    if not bars.have_labels:
        return " The bars are too many to be labelled: speed-ups stand in the table."
    over = f"over {names.pop()}" if len(names) == 1 else "over each one's own reference"
    return f" Labels: speed-up {over}."


def _draw(summary: Summary, section: Section, bars: Bars) -> Figure:
    figure = Figure(figsize=(WIDTH_IN, 4.3), layout="constrained")
    axes = figure.subplots()
    shown = of_views(section.views, looks(summary))
    title_above(axes, "Decode rate of one stream, tokens per second", section.word)
    legend_of_bars(figure, shown)
    tallest = 0.0
    for number, view in enumerate(section.views):
        for kind in bars.kinds:
            estimate = estimate_of(summary, view, METRIC, kind)
            if estimate.value is None:
                continue
            x, void = bars.at(kind, number), is_void(summary, view)
            top = bar(axes, x, bars.width, estimate, shown[view.cell.variant], void=void)
            tallest = max(tallest, top)
            speedup = estimate_of(summary, view, "speedup", kind).value
            text = fmt.number(estimate.value, 3) if speedup is None else f"{speedup:.2f}x"
            if bars.have_labels:
                bar_label(axes, bars, x, top, text, bold=speedup is not None)
    kinds_below(axes, bars, tallest)
    return figure
