"""Every figure of one cell, made in one go while its requests are at hand.

What is left is small: a value and one per boot. How figures of several cells come together is
summary.py's business, and a cell's verdicts are the checks'.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from harness import checks
from harness.analysis import ledger, outputs, stats
from harness.analysis.comparisons import BootFigures, boot_figures
from harness.analysis.measured import Measured
from harness.analysis.metrics import DECODING, HEADLINE, METRICS
from harness.analysis.outputs import Losslessness
from harness.analysis.spread import Spread, spread
from harness.analysis.stats import Interval
from harness.cell_view import CellView, LedgerEntry
from harness.records import Verdict


@dataclass(frozen=True, kw_only=True)
class Figure:
    """`per_boot` and `within_one_boot`, which is there for a single boot alone, are of metrics that
    have groups.
    """

    measured: Measured
    per_boot: tuple[float, ...] = ()
    within_one_boot: Interval | None = None


@dataclass(frozen=True, kw_only=True)
class CellFigures:
    """`figures`: by metric and kind, None for all kinds; of a cell without requests there are none.
    `positions`: acceptance by position, by name and kind.
    """

    verdicts: tuple[Verdict, ...]
    figures: Mapping[tuple[str, str | None], Figure]
    positions: Mapping[tuple[str, str | None], tuple[Measured, ...]]
    headline: Mapping[str | None, BootFigures]
    counted: LedgerEntry  # over all kinds
    spread: Spread | None  # None: not known of such a cell
    quiet: frozenset[bool | None]  # whether the engine was, at each reading of its counters
    losslessness: Losslessness | None  # None: not asked of such a cell

    @classmethod
    def of(cls, view: CellView) -> "CellFigures":
        """The view forgets what it came to remember."""
        view = view.afresh()
        return cls(
            verdicts=checks.judge(view),
            figures=dict(_figures(view)),
            positions=dict(_positions(view)),
            headline=dict(_headline(view)),
            counted=view.total,
            spread=spread(view),
            quiet=frozenset(_quiet(view)),
            losslessness=_losslessness(view),
        )

    @property
    def is_void(self) -> bool:
        return checks.worst(self.verdicts) == "invalid"


def with_kinds(view: CellView, *, by_kind: bool) -> Iterator[CellView]:
    """The whole cell first, then narrowed to each kind."""
    yield view
    if by_kind:
        yield from (view.of_kind(kind) for kind in view.kinds)


def _figures(view: CellView) -> Iterator[tuple[tuple[str, str | None], Figure]]:
    for metric, row in METRICS.items():
        if view.cell.workload in row.workloads and view.cell.load in row.loads:
            for narrowed in with_kinds(view, by_kind=row.by_kind):
                if narrowed.requests:
                    yield (metric, narrowed.kind), _figure(narrowed, metric)


def _figure(view: CellView, metric: str) -> Figure:
    if METRICS[metric].groups is None:
        return Figure(measured=METRICS[metric].compute(view))
    found = boot_figures(view, metric)
    alone = len(found.per_boot) == 1
    return Figure(
        measured=found.measured,
        per_boot=found.per_boot,
        within_one_boot=stats.bootstrap_interval(found.groups) if alone else None,
    )


def _headline(view: CellView) -> Iterator[tuple[str | None, BootFigures]]:
    for narrowed in with_kinds(view, by_kind=view.cell.load == "single"):
        yield narrowed.kind, boot_figures(narrowed, HEADLINE[view.cell.workload])


def _positions(view: CellView) -> Iterator[tuple[tuple[str, str | None], tuple[Measured, ...]]]:
    if view.cell.drafter is None or not view.requests:
        return
    for narrowed in with_kinds(view, by_kind=not view.counters_are_shared):
        kind = narrowed.kind
        yield ("acceptance_at_position", kind), ledger.acceptance_at_position(narrowed)
        yield ("conditional_acceptance_at_position", kind), ledger.conditional_acceptance(narrowed)


def _quiet(view: CellView) -> Iterator[bool | None]:
    for pair in view.readings.values():
        yield from (each.quiet for each in (pair.before, pair.after) if each and each.counters)


def _losslessness(view: CellView) -> Losslessness | None:
    asked = view.cell.workload in DECODING and view.cell.load == "single" and bool(view.requests)
    return outputs.losslessness(view) if asked else None
