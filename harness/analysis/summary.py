"""summarise(folder): every figure, interval, verdict and finding of a run, ready to be shown.

Pure: reads the folder's facts and writes nothing back. How a number looks is the report's business.
"""

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import combinations

from harness import checks
from harness.analysis import comparisons, dataset, ledger, outputs, stats
from harness.analysis.comparisons import BootFigures, Crossing, boot_figures
from harness.analysis.dataset import Dataset
from harness.analysis.measured import Measured
from harness.analysis.metrics import (
    C_IN_FLIGHT,
    COMPARISONS,
    DECODING,
    HEADLINE,
    METRICS,
    POSITION_METRICS,
    Metric,
)
from harness.analysis.outputs import Losslessness
from harness.cell_view import CellView
from harness.records import Estimate, Level, LoadShape, Manifest, MetricRow, Verdict
from harness.store import RunFolder

ALL = "all"


@dataclass(frozen=True, kw_only=True)
class Section:
    """Cells that may share a table: one protocol, one prompt set, one token limit.

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
    judged = {view.cell.cell_id: checks.judge(view) for view in data.views}
    sections = _sections(data.views)
    return Summary(
        data=data,
        sections=sections,
        rows=tuple(row for section in sections for row in _Rows(section, judged).all()),
        verdicts=tuple(verdict for verdicts in judged.values() for verdict in verdicts),
        losslessness=_losslessness(sections),
        crossings={section.word: _crossings(section, judged) for section in sections},
        visible_effects=tuple(
            effect for section in sections if (effect := _visible_effect(section)) is not None
        ),
        boot_figures={
            (view.cell.cell_id, view.kind or ALL): boot_figures(view, section.headline)
            for section in sections
            for whole in section.views
            for view in _with_kinds(whole, by_kind=section.is_single)
        },
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
    grouped: dict[tuple[str, str, int], list[CellView]] = defaultdict(list)
    for view in views:
        cell = view.cell
        grouped[(cell.protocol_id, cell.prompt_set, cell.max_tokens)].append(view)
    words = _words([members[0] for members in grouped.values()])
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


def workload_word(view: CellView) -> str:
    """`generate`, `concurrency` for waves (the study's shape), `concurrency-closed`,
    `concurrency-poisson-2-per-s`.
    """
    cell = view.cell
    if cell.load in ("single", "wave"):
        return cell.workload
    rate = "" if cell.rate_per_s is None else f"-{cell.rate_per_s:g}-per-s"
    return f"{cell.workload}-{cell.load}{rate}"


def _words(views: Sequence[CellView]) -> list[str]:
    """Sections of one word are told apart by prompt set, then token limit, then protocol."""
    words = [workload_word(view) for view in views]
    for part in ("prompt_set", "max_tokens", "protocol_id"):
        words = [
            f"{word}:{getattr(view.cell, part)}" if words.count(word) > 1 else word
            for word, view in zip(words, views, strict=True)
        ]
    return words


def _with_kinds(view: CellView, *, by_kind: bool) -> Iterator[CellView]:
    """The whole cell first, then narrowed to each kind."""
    yield view
    if by_kind:
        yield from (view.of_kind(kind) for kind in view.kinds)


# --- rows -----------------------------------------------------------------------------------------


class _Rows:
    """The metric rows of one section."""

    def __init__(self, section: Section, judged: Mapping[str, Sequence[Verdict]]) -> None:
        self.section = section
        self.judged = judged
        self.figures: dict[tuple[str, str | None, str], BootFigures] = {}
        self.invalid = {
            cell_id: [verdict.check for verdict in verdicts if verdict.level == "invalid"]
            for cell_id, verdicts in judged.items()
            if checks.worst(verdicts) == "invalid"
        }

    def all(self) -> Iterator[MetricRow]:
        for view in self.section.views:
            for metric, row in METRICS.items():
                if view.cell.workload in row.workloads and view.cell.load in row.loads:
                    for narrowed in _with_kinds(view, by_kind=row.by_kind):
                        yield self._row(narrowed, metric, self._estimate(narrowed, metric, row))
            yield from self._positions(view)
            yield from self._comparisons(view)

    def _row(self, view: CellView, metric: str, estimate: Estimate) -> MetricRow:
        cell = view.cell
        return MetricRow(
            variant=cell.variant,
            workload=self.section.word,
            kind=view.kind or ALL,
            concurrency=cell.concurrency,
            load=cell.load,
            metric=metric,
            estimate=estimate,
            verdicts=tuple(
                item.check for item in _touching(_accusing(self.judged[cell.cell_id]), metric)
            ),
            cell_id=cell.cell_id,
        )

    def _estimate(self, view: CellView, metric: str, row: Metric) -> Estimate:
        if not view.requests:
            reason = _why_unfinished(view) or "no request of this kind was sent"
            return Estimate(value=None, unit=row.unit, n=0, reason=reason)
        measured = row.compute(view)
        if measured.value is None or row.groups is None:
            return _without_interval(measured, row.unit)
        interval = self._interval(view, metric)
        return comparisons.estimate(measured.value, interval, unit=row.unit, n=measured.n)

    def _interval(self, view: CellView, metric: str) -> stats.Interval | None:
        own = self._boot_figures(view, view.kind, metric)
        if len(own.per_boot) == 1:
            return stats.bootstrap_interval(own.groups)
        peers = [
            self._boot_figures(other, view.kind, metric).per_boot
            for other in self.section.views
            if other.cell.concurrency == view.cell.concurrency and other.requests
        ]
        return stats.figure_interval(own.per_boot, peers)

    def _boot_figures(self, view: CellView, kind: str | None, metric: str) -> BootFigures:
        """Each once: every variant of a table asks for all of its peers'."""
        key = (view.cell.cell_id, kind, metric)
        if key not in self.figures:
            narrowed = view if kind == view.kind or kind is None else view.of_kind(kind)
            self.figures[key] = boot_figures(narrowed, metric)
        return self.figures[key]

    def _positions(self, whole: CellView) -> Iterator[MetricRow]:
        if whole.cell.drafter is None or not whole.requests:
            return
        for view in _with_kinds(whole, by_kind=not whole.counters_are_shared):
            shares = {
                "acceptance_at_position": ledger.acceptance_at_position(view),
                "conditional_acceptance_at_position": ledger.conditional_acceptance(view),
            }
            for name, positions in shares.items():
                for position, measured in enumerate(positions, start=1):
                    unit = POSITION_METRICS[name].unit
                    yield self._row(view, f"{name}_{position}", _without_interval(measured, unit))

    def _comparisons(self, whole: CellView) -> Iterator[MetricRow]:
        for view in _with_kinds(whole, by_kind=self.section.is_single):
            yield self._row(view, "speedup", self._speedup(view))
        if whole.cell.load in C_IN_FLIGHT:
            single = self.section.view(whole.cell.variant, 1)
            yield self._row(whole, "scaling", comparisons.scaling(whole, single, self.invalid))
            yield self._row(
                whole, "efficiency", comparisons.efficiency(whole, single, self.invalid)
            )

    def _speedup(self, view: CellView) -> Estimate:
        if not view.requests and view.unfinished:
            unit = COMPARISONS["speedup"].unit
            return Estimate(value=None, unit=unit, n=0, reason=_why_unfinished(view))
        return comparisons.speedup(view, self.invalid)


def _why_unfinished(view: CellView) -> str | None:
    """The first clause of the first reason; the verdict under the table has the whole, log and
    all.
    """
    return view.unfinished[0].partition("; ")[0].rstrip(".") if view.unfinished else None


def _without_interval(measured: Measured, unit: str) -> Estimate:
    return Estimate(value=measured.value, unit=unit, n=measured.n, reason=measured.reason)


# --- findings -------------------------------------------------------------------------------------


def _losslessness(sections: Sequence[Section]) -> tuple[Losslessness, ...]:
    views = [
        view
        for section in sections
        if section.workload in DECODING and section.is_single
        for view in section.views
        if view.requests
    ]
    references = [view for view in views if view.reference is None]
    others = [view for view in views if view.reference is not None]
    return tuple(outputs.losslessness(view) for view in references + others)


def _crossings(section: Section, judged: Mapping[str, Sequence[Verdict]]) -> tuple[Crossing, ...]:
    """Every pair of variants, the one that leads at the lowest level first."""
    if section.workload != "concurrency" or len(section.levels) < 2:
        return ()
    found = []
    for first, second in combinations(section.variants, 2):
        one, two = section.of_variant(first), section.of_variant(second)
        if _leads(two, one):
            one, two = two, one
        found.append(comparisons.crossing(one, two, judged))
    return tuple(found)


def _leads(one: Sequence[CellView], two: Sequence[CellView]) -> bool:
    """By the plain figures, at the lowest level that both have."""
    compute = METRICS[HEADLINE["concurrency"]].compute
    rivals = {view.cell.concurrency: view for view in two}
    for view in one:
        rival = rivals.get(view.cell.concurrency)
        if rival is None or not view.requests or not rival.requests:
            continue
        own, other = compute(view).value, compute(rival).value
        if own is not None and other is not None:
            return own > other
    return False


def _visible_effect(section: Section) -> VisibleEffect | None:
    """From the spread between boots, pooled over the section's cells."""
    samples = [
        boot_figures(view, section.headline).per_boot for view in section.views if view.requests
    ]
    boots = min((len(sample) for sample in samples), default=0)
    spread = stats.log_spread(samples)
    if boots < 2 or spread is None:
        return None
    # the spread is pooled over many cells, but an interval has only two cells' degrees of freedom
    effect = stats.smallest_visible_effect(spread[0], 2 * boots - 2, boots)
    return VisibleEffect(word=section.word, boots=boots, spread=spread[0], effect=effect)
