"""summarise(folder): every figure, interval, verdict and finding of a run, ready to be shown.

Pure: reads the folder's facts and writes nothing back. How a number looks is the report's business.
"""

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from itertools import combinations
from typing import TypeAlias

from harness import checks
from harness.analysis import comparisons, dataset, stats
from harness.analysis.comparisons import BootFigures, Crossing, Headline
from harness.analysis.dataset import Dataset
from harness.analysis.figures import CellFigures, Figure, with_kinds
from harness.analysis.measured import Measured
from harness.analysis.metrics import (
    C_IN_FLIGHT,
    COMPARISONS,
    HEADLINE,
    METRICS,
    POSITION_METRICS,
)
from harness.analysis.outputs import Losslessness
from harness.analysis.spread import Spread
from harness.cell_view import CellView, LedgerEntry
from harness.records import Estimate, Level, LoadShape, Manifest, MetricRow, Verdict
from harness.store import RunFolder

ALL = "all"

Found: TypeAlias = Mapping[str, CellFigures]
"""By cell id."""


@dataclass(frozen=True, kw_only=True)
class Section:
    """Cells that may share a table: one protocol, one prompt set, one token limit, and one kind of
    machine.

    `word` is the `workload` of `show --json`.
    """

    word: str
    workload: str
    load: LoadShape
    prompt_set: str
    max_tokens: int
    protocol_id: str
    views: tuple[CellView, ...]

    @property
    def is_single(self) -> bool:
        """One request at a time, so that every kind of prompt has figures of its own."""
        return self.load == "single"

    @property
    def headline(self) -> str:
        """The metric that speed-ups are of."""
        return HEADLINE[self.workload]

    @property
    def variants(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(view.cell.variant for view in self.views))

    @property
    def levels(self) -> tuple[int, ...]:
        return tuple(sorted({view.cell.concurrency for view in self.views}))

    @property
    def kinds(self) -> tuple[str, ...]:
        return self.views[0].kinds

    @property
    def drafted(self) -> tuple[CellView, ...]:
        """Those that have a drafter."""
        return tuple(view for view in self.views if view.cell.drafter is not None)

    def of_variant(self, variant: str) -> tuple[CellView, ...]:
        """By rising concurrency."""
        found = [view for view in self.views if view.cell.variant == variant]
        return tuple(sorted(found, key=lambda view: view.cell.concurrency))

    def view(self, variant: str, concurrency: int) -> CellView | None:
        """None: the matrix does not ask for it."""
        for view in self.of_variant(variant):
            if view.cell.concurrency == concurrency:
                return view
        return None


@dataclass(frozen=True, kw_only=True)
class VisibleEffect:
    """The smallest difference of the headline figure that this run's boots can tell from none."""

    word: str
    boots: int
    spread: float  # standard deviation of log figures between boots
    effect: float  # a share: 0.03 is 3 %


@dataclass(frozen=True, kw_only=True)
class Summary:
    data: Dataset
    sections: tuple[Section, ...]
    rows: tuple[MetricRow, ...]
    verdicts: tuple[Verdict, ...]  # one per check and cell, the good ones too
    losslessness: tuple[Losslessness, ...]  # references against themselves first
    crossings: Mapping[str, tuple[Crossing, ...]]  # by section word
    visible_effects: tuple[VisibleEffect, ...]
    boot_figures: Mapping[tuple[str, str], BootFigures]  # (cell id, kind): the headline figure
    counted: Mapping[str, LedgerEntry]  # cell id: what the engine's counters gained
    spreads: Mapping[str, Spread | None]  # cell id: None where it is not known
    quiet: frozenset[bool | None]  # whether engines were, at each reading of their counters

    @property
    def manifest(self) -> Manifest:
        return self.data.manifest

    @property
    def level(self) -> Level:
        """The worst word on any cell."""
        return checks.worst(self.verdicts)

    @cached_property
    def _index(self) -> Mapping[tuple[str | None, str, str], MetricRow]:
        return {(row.cell_id, row.kind, row.metric): row for row in self.rows}

    def row(self, view: CellView, metric: str, kind: str = ALL) -> MetricRow | None:
        """None where the metric does not apply to the cell."""
        return self._index.get((view.cell.cell_id, kind, metric))

    @cached_property
    def _by_cell(self) -> Mapping[str | None, tuple[Verdict, ...]]:
        grouped: dict[str | None, list[Verdict]] = defaultdict(list)
        for verdict in self.verdicts:
            grouped[verdict.cell_id].append(verdict)
        return {cell_id: _accusing(verdicts) for cell_id, verdicts in grouped.items()}

    def verdicts_of(self, view: CellView, metric: str | None = None) -> tuple[Verdict, ...]:
        """Those that are not ok, invalid ones first; of those the ones that touch `metric`."""
        own = self._by_cell.get(view.cell.cell_id, ())
        return own if metric is None else _touching(own, metric)


def summarise(folder: RunFolder) -> Summary:
    data = dataset.load(folder)
    found = {view.cell.cell_id: CellFigures.of(view) for view in data.views}
    judged = {cell_id: each.verdicts for cell_id, each in found.items()}
    sections = _sections(data.views)
    return Summary(
        data=data,
        sections=sections,
        rows=tuple(row for section in sections for row in _Rows(section, found).all()),
        verdicts=tuple(verdict for verdicts in judged.values() for verdict in verdicts),
        losslessness=_losslessness(sections, found),
        crossings={section.word: _crossings(section, found) for section in sections},
        visible_effects=tuple(
            effect
            for section in sections
            if (effect := _visible_effect(section, found)) is not None
        ),
        boot_figures={
            (cell_id, kind or ALL): figures
            for cell_id, each in found.items()
            for kind, figures in each.headline.items()
        },
        counted={cell_id: each.counted for cell_id, each in found.items()},
        spreads={cell_id: each.spread for cell_id, each in found.items()},
        quiet=frozenset(each for figures in found.values() for each in figures.quiet),
    )


def _touching(verdicts: Sequence[Verdict], metric: str) -> tuple[Verdict, ...]:
    return tuple(
        verdict
        for verdict in verdicts
        if verdict.touches is None or metric.startswith(verdict.touches)
    )


def _accusing(verdicts: Sequence[Verdict]) -> tuple[Verdict, ...]:
    bad = [verdict for verdict in verdicts if verdict.level != "ok"]
    return tuple(sorted(bad, key=lambda verdict: verdict.level != "invalid"))


# --- sections -------------------------------------------------------------------------------------


def _sections(views: Sequence[CellView]) -> tuple[Section, ...]:
    devices = _devices(views)
    grouped: dict[tuple[str, str, int, str], list[CellView]] = defaultdict(list)
    for view in views:
        cell = view.cell
        key = (cell.protocol_id, cell.prompt_set, cell.max_tokens, devices[cell.cell_id])
        grouped[key].append(view)
    words = _words([members[0] for members in grouped.values()], devices)
    return tuple(
        Section(
            word=word,
            workload=members[0].cell.workload,
            load=members[0].cell.load,
            prompt_set=members[0].cell.prompt_set,
            max_tokens=members[0].cell.max_tokens,
            protocol_id=members[0].cell.protocol_id,
            views=tuple(members),
        )
        for word, members in zip(words, grouped.values(), strict=True)
    )


def _devices(views: Sequence[CellView]) -> Mapping[str, str]:
    """Cell -> the kind of machine that it was measured on; what was not measured counts to where
    others of the same resources were.
    """
    known = {view.cell.cell_id: view.sessions[0].device_key for view in views if view.sessions}
    of_needs = {_needs(v): known[v.cell.cell_id] for v in views if v.cell.cell_id in known}
    first = next(iter(known.values()), "")
    return {
        view.cell.cell_id: known.get(view.cell.cell_id) or of_needs.get(_needs(view), first)
        for view in views
    }


def _needs(view: CellView) -> tuple[tuple[str, float], ...]:
    return tuple(sorted((view.cell.resources or {}).items()))


def workload_word(view: CellView) -> str:
    """`generate`, `concurrency` for waves (the study's shape), `concurrency-closed`,
    `concurrency-poisson-2-per-s`.
    """
    cell = view.cell
    if cell.load in ("single", "wave"):
        return cell.workload
    rate = "" if cell.rate_per_s is None else f"-{cell.rate_per_s:g}-per-s"
    return f"{cell.workload}-{cell.load}{rate}"


def _words(views: Sequence[CellView], devices: Mapping[str, str]) -> list[str]:
    """Sections of one word are told apart by device, then prompt set, token limit and protocol."""
    words = [workload_word(view) for view in views]
    if len(set(devices.values())) > 1:
        words = [f"{word}:{devices[v.cell.cell_id]}" for word, v in zip(words, views, strict=True)]
    for part in ("prompt_set", "max_tokens", "protocol_id"):
        words = [
            f"{word}:{getattr(view.cell, part)}" if words.count(word) > 1 else word
            for word, view in zip(words, views, strict=True)
        ]
    return words


# --- rows -----------------------------------------------------------------------------------------


class _Rows:
    """The metric rows of one section."""

    def __init__(self, section: Section, found: Found) -> None:
        self.section = section
        self.found = found
        self.headline = partial(_headline, found)
        self.invalid = {
            cell_id: [verdict.check for verdict in each.verdicts if verdict.level == "invalid"]
            for cell_id, each in found.items()
            if each.is_void
        }

    def all(self) -> Iterator[MetricRow]:
        for view in self.section.views:
            for metric, row in METRICS.items():
                if view.cell.workload in row.workloads and view.cell.load in row.loads:
                    for kind in (None, *(view.kinds if row.by_kind else ())):
                        yield self._row(view, kind, metric, self._estimate(view, kind, metric))
            yield from self._positions(view)
            yield from self._comparisons(view)

    def _row(self, view: CellView, kind: str | None, metric: str, estimate: Estimate) -> MetricRow:
        cell = view.cell
        verdicts = self.found[cell.cell_id].verdicts
        return MetricRow(
            variant=cell.variant,
            workload=self.section.word,
            kind=kind or ALL,
            concurrency=cell.concurrency,
            load=cell.load,
            metric=metric,
            estimate=estimate,
            verdicts=tuple(item.check for item in _touching(_accusing(verdicts), metric)),
            cell_id=cell.cell_id,
        )

    def _estimate(self, view: CellView, kind: str | None, metric: str) -> Estimate:
        unit = METRICS[metric].unit
        figure = self._figure(view, kind, metric)
        if figure is None:
            reason = _why_unfinished(view) or "no request of this kind was sent"
            return Estimate(value=None, unit=unit, n=0, reason=reason)
        measured = figure.measured
        if measured.value is None or METRICS[metric].groups is None:
            return _without_interval(measured, unit)
        interval = self._interval(view, kind, metric, figure)
        return comparisons.estimate(measured.value, interval, unit=unit, n=measured.n)

    def _figure(self, view: CellView, kind: str | None, metric: str) -> Figure | None:
        return self.found[view.cell.cell_id].figures.get((metric, kind))

    def _interval(
        self, view: CellView, kind: str | None, metric: str, own: Figure
    ) -> stats.Interval | None:
        if len(own.per_boot) == 1:
            return own.within_one_boot
        peers = [
            figure.per_boot
            for other in self.section.views
            if other.cell.concurrency == view.cell.concurrency
            and (figure := self._figure(other, kind, metric)) is not None
        ]
        return stats.figure_interval(own.per_boot, peers)

    def _positions(self, view: CellView) -> Iterator[MetricRow]:
        for (name, kind), positions in self.found[view.cell.cell_id].positions.items():
            for position, measured in enumerate(positions, start=1):
                estimate = _without_interval(measured, POSITION_METRICS[name].unit)
                yield self._row(view, kind, f"{name}_{position}", estimate)

    def _comparisons(self, whole: CellView) -> Iterator[MetricRow]:
        for view in with_kinds(whole, by_kind=self.section.is_single):
            yield self._row(view, view.kind, "speedup", self._speedup(view))
        if whole.cell.load in C_IN_FLIGHT:
            single = self.section.view(whole.cell.variant, 1)
            for metric, of in (
                ("scaling", comparisons.scaling),
                ("efficiency", comparisons.efficiency),
            ):
                estimate = of(whole, single, self.headline, self.invalid)
                yield self._row(whole, None, metric, estimate)

    def _speedup(self, view: CellView) -> Estimate:
        if view.unfinished and not view.requests:
            unit = COMPARISONS["speedup"].unit
            return Estimate(value=None, unit=unit, n=0, reason=_why_unfinished(view))
        return comparisons.speedup(view, self.headline, self.invalid)


def _headline(found: Found, view: CellView) -> BootFigures:
    return found[view.cell.cell_id].headline[view.kind]


def _why_unfinished(view: CellView) -> str | None:
    """The first clause of the first reason; the verdict under the table has the whole, log and
    all.
    """
    return view.unfinished[0].partition("; ")[0].rstrip(".") if view.unfinished else None


def _without_interval(measured: Measured, unit: str) -> Estimate:
    return Estimate(value=measured.value, unit=unit, n=measured.n, reason=measured.reason)


# --- findings -------------------------------------------------------------------------------------


def _losslessness(sections: Sequence[Section], found: Found) -> tuple[Losslessness, ...]:
    views = [view for section in sections for view in section.views]
    references = [view for view in views if view.reference is None]
    others = [view for view in views if view.reference is not None]
    return tuple(
        compared
        for view in references + others
        if (compared := found[view.cell.cell_id].losslessness) is not None
    )


def _crossings(section: Section, found: Found) -> tuple[Crossing, ...]:
    """Every pair of variants, the one that leads at the lowest level first."""
    if section.workload != "concurrency" or len(section.levels) < 2:
        return ()
    headline = partial(_headline, found)
    judged = {cell_id: each.verdicts for cell_id, each in found.items()}
    crossings = []
    for first, second in combinations(section.variants, 2):
        one, two = section.of_variant(first), section.of_variant(second)
        if _leads(two, one, headline):
            one, two = two, one
        crossings.append(comparisons.crossing(one, two, headline, judged))
    return tuple(crossings)


def _leads(one: Sequence[CellView], two: Sequence[CellView], headline: Headline) -> bool:
    """By the plain figures, at the lowest level that both have."""
    rivals = {view.cell.concurrency: view for view in two}
    for view in one:
        rival = rivals.get(view.cell.concurrency)
        if rival is None:
            continue
        own, other = headline(view).value, headline(rival).value
        if own is not None and other is not None:
            return own > other
    return False


def _visible_effect(section: Section, found: Found) -> VisibleEffect | None:
    """From the spread between boots, pooled over the section's cells."""
    samples = [
        _headline(found, view).per_boot
        for view in section.views
        if found[view.cell.cell_id].figures
    ]
    boots = min((len(sample) for sample in samples), default=0)
    spread = stats.log_spread(samples)
    if boots < 2 or spread is None:
        return None
    # the spread is pooled over many cells, but an interval has only two cells' degrees of freedom
    effect = stats.smallest_visible_effect(spread[0], 2 * boots - 2, boots)
    return VisibleEffect(word=section.word, boots=boots, spread=spread[0], effect=effect)
