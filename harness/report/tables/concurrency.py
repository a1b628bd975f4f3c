"""Requests in flight: a table for each metric, variants down and levels across."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from harness.analysis import standings
from harness.analysis.standings import Decay
from harness.analysis.summary import Section, Summary
from harness.cell_view import CellView
from harness.report import format as fmt
from harness.report.tables.figures import (
    Figures,
    beside,
    file_word,
    sections,
    variant_label,
)
from harness.report.tables.notes import first_notes, later_warnings, warnings
from harness.report.tables.table import Accusation, Entry, Formatter, Table, label


@dataclass(frozen=True, kw_only=True)
class Grid:
    """A table of one metric: variants down, concurrency across."""

    metric: str
    title: str
    show: Formatter
    interval: bool = False
    drafters_only: bool = False
    beside: str | None = None  # a share to show in brackets


GRIDS: Sequence[Grid] = (
    Grid(
        metric="aggregate_throughput",
        title="Aggregate, tok/s (occupancy: the share of stream-seconds in use)",
        show=fmt.rate,
        beside="occupancy",
    ),
    Grid(
        metric="speedup",
        title="Speed-up over the reference at the same c (95 % interval)",
        show=fmt.times,
        interval=True,
        drafters_only=True,
    ),
    Grid(metric="ttft_p50", title="TTFT p50, ms", show=fmt.milliseconds),
    Grid(
        metric="ttft_from_schedule_p50",
        title="TTFT after the due moment p50, ms",
        show=fmt.milliseconds,
    ),
    Grid(
        metric="acceptance_length",
        title="Acceptance length, tokens per round",
        show=fmt.length,
        drafters_only=True,
    ),
    Grid(
        metric="scaling",
        title="Scaling over c = 1 (efficiency: scaling / c)",
        show=fmt.times,
        beside="efficiency",
    ),
)
FURTHER: Sequence[Grid] = (
    Grid(metric="aggregate_steady", title="Aggregate while c are in flight, tok/s", show=fmt.rate),
    Grid(metric="ttft_p90", title="TTFT p90, ms", show=fmt.milliseconds),
    Grid(
        metric="ttft_from_schedule_p99",
        title="TTFT after the due moment p99, ms",
        show=fmt.milliseconds,
    ),
    Grid(metric="occupancy", title="Occupancy: share of stream-seconds in use", show=fmt.percent),
)
"""For those who ask more."""


def concurrency(summary: Summary) -> list[Table]:
    """One table per metric; verdicts stand under the first that they touch."""
    return _tables(summary, GRIDS)


def further_concurrency(summary: Summary) -> list[Table]:
    return _tables(summary, FURTHER)


def _tables(summary: Summary, grids: Sequence[Grid]) -> list[Table]:
    return [
        _table(summary, section, grid)
        for section in sections(summary, "concurrency")
        for grid in grids
        if any(summary.row(view, grid.metric) is not None for view in section.views)
        and _variants(section, grid)
    ]


def _variants(section: Section, grid: Grid) -> list[str]:
    return [
        variant
        for variant in section.variants
        if not grid.drafters_only or section.of_variant(variant)[0].cell.drafter is not None
    ]


def _table(summary: Summary, section: Section, grid: Grid) -> Table:
    notes, warned = _under(summary, section, grid.metric)
    return Table(
        name=f"{file_word(section)}_{grid.metric}",
        title=grid.title,
        columns=("variant", *(f"c = {level}" for level in section.levels)),
        rows=tuple(
            _grid_row(summary, section, grid, variant) for variant in _variants(section, grid)
        ),
        notes=notes,
        warnings=warned,
        section=section.word,
    )


def _under(
    summary: Summary, section: Section, metric: str
) -> tuple[tuple[str, ...], tuple[Accusation, ...]]:
    """Once each: under the headline figure, the time to first token and the acceptance length."""
    if metric == section.headline:
        notes = (*first_notes(summary, section), *_mixed_notes(section))
        return notes, warnings(summary, section.views, metric)
    if metric in ("ttft_p50", "acceptance_length"):
        return later_warnings(summary, section, metric)
    return (), ()


def _mixed_notes(section: Section) -> Iterator[str]:
    num_prompts = len(section.views[0].prompt_kinds)
    mixed = [str(level) for level in section.levels if level % num_prompts]
    if section.load == "wave" and mixed:
        yield (
            f"At c = {fmt.listed(mixed)} a wave holds no whole round of the {num_prompts} prompts, "
            "so waves differ in prompts and the figure is that of the median wave. The closed loop "
            "has no such step."
        )


def _grid_row(summary: Summary, section: Section, grid: Grid, variant: str) -> tuple[Entry, ...]:
    views = [section.view(variant, level) for level in section.levels]
    return (variant_label(section, variant), *(_grid_entry(summary, grid, view) for view in views))


def _grid_entry(summary: Summary, grid: Grid, view: CellView | None) -> Entry:
    figures = Figures(summary)
    entry = figures.entry(view, grid.metric, grid.show, interval=grid.interval)
    if grid.beside is None:
        return entry
    return beside(entry, figures.entry(view, grid.beside, fmt.percent))


def decays(summary: Summary) -> list[Table]:
    """Acceptance length at both ends of the comparable part of a sweep."""
    return [
        Table(
            name=f"{file_word(section)}_acceptance_decay",
            title="Acceptance length over the comparable part of the sweep",
            columns=("variant", "from", "tok/round", "to", "tok/round", "change"),
            rows=rows,
            section=section.word,
        )
        for section in sections(summary, "concurrency")
        if (rows := tuple(_decay_row(section, each) for each in standings.decays(summary, section)))
    ]


def _decay_row(section: Section, decay: Decay) -> tuple[Entry, ...]:
    def at(level: int, length: float) -> tuple[Entry, Entry]:
        view = section.view(decay.variant, level)
        assert view is not None
        shown = Entry(text=f"{length:.3f}", value=length, cell_id=view.cell.cell_id)
        return label(f"c = {level}"), shown

    return (
        variant_label(section, decay.variant),
        *at(decay.first_level, decay.first),
        *at(decay.last_level, decay.last),
        Entry(text=fmt.change(decay.change), value=decay.change),
    )
