"""Figures between cells: speed-up over the reference, scaling over c, and where two curves cross.

A cell that a check calls invalid gives none of them, on either side. What an interval is made of is
stats.py's business; this module only knows which figures may be held against each other.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from harness.analysis import stats
from harness.analysis.measured import Measured
from harness.analysis.metrics import COMPARISONS, METRICS
from harness.analysis.stats import Crossover, Groups, Interval, Level
from harness.cell_view import CellView
from harness.records import Estimate, Verdict

Invalid = Mapping[str, Sequence[str]]
"""Cell id -> the checks that void it."""


@dataclass(frozen=True, kw_only=True)
class BootFigures:
    """One figure per boot, and the repetitions under it."""

    measured: Measured  # over all boots
    by_boot: Mapping[str, float]
    groups: Groups

    @property
    def value(self) -> float | None:
        return self.measured.value

    @property
    def reason(self) -> str | None:
        return self.measured.reason

    @property
    def per_boot(self) -> tuple[float, ...]:
        return tuple(self.by_boot.values())


Headline: TypeAlias = Callable[[CellView], BootFigures]
"""The figures of a view that comparisons are of."""


def boot_figures(view: CellView, metric: str) -> BootFigures:
    """`metric` is one that has groups."""
    row = METRICS[metric]
    assert row.groups is not None
    by_boot = {
        boot_id: value
        for boot_id, of_boot in view.by_boot.items()
        if (value := row.compute(of_boot).value) is not None
    }
    return BootFigures(measured=row.compute(view), by_boot=by_boot, groups=row.groups(view))


def ratio(figures: BootFigures, reference: BootFigures) -> tuple[float, Interval | None] | None:
    """Ratio of the figures over all boots, with the interval its boots allow."""
    if figures.value is None or not reference.value:
        return None
    value = figures.value / reference.value
    if len(figures.per_boot) == 1 and len(reference.per_boot) == 1:
        return value, stats.bootstrap_interval(figures.groups, reference.groups)
    return value, stats.ratio_interval(figures.per_boot, reference.per_boot)


def estimate(value: float, interval: Interval | None, *, unit: str, n: int) -> Estimate:
    """The figure over all boots may lie a hair outside an interval that is centred on the boots'
    own figures; the interval is then drawn out to it.
    """
    if interval is None:
        return Estimate(value=value, unit=unit, n=n, reason="no interval: too few boots")
    return Estimate(
        value=value,
        low=min(interval.low, value),
        high=max(interval.high, value),
        unit=unit,
        n=n,
        method=interval.method,
    )


def speedup(view: CellView, headline: Headline, invalid: Invalid) -> Estimate:
    """Headline figure over the reference's: the same work on the same engine, without a drafter."""
    unit = COMPARISONS["speedup"].unit
    reason = why_no_speedup(view, invalid)
    if reason is not None or view.reference is None:
        return Estimate(value=None, unit=unit, n=0, reason=reason)
    own, other = headline(view), headline(view.reference)
    found = ratio(own, other)
    if found is None:
        return Estimate(value=None, unit=unit, n=0, reason=own.reason or other.reason)
    value, interval = found
    return estimate(value, interval, unit=unit, n=min(len(own.per_boot), len(other.per_boot)))


def why_no_speedup(view: CellView, invalid: Invalid) -> str | None:
    if view.reference is None:
        return view.cell.reference_reason or "no reference"
    if view.cell.cell_id in invalid:
        return f"invalid: {', '.join(invalid[view.cell.cell_id])}"
    if view.reference.cell.cell_id in invalid:
        return f"the reference is invalid: {', '.join(invalid[view.reference.cell.cell_id])}"
    return None


def scaling(
    view: CellView, single: CellView | None, headline: Headline, invalid: Invalid
) -> Estimate:
    """Aggregate over the same variant's at c = 1."""
    unit = COMPARISONS["scaling"].unit
    value, reason = _scaling(view, single, headline, invalid)
    return Estimate(value=value, unit=unit, n=len(view.boots), reason=reason)


def efficiency(
    view: CellView, single: CellView | None, headline: Headline, invalid: Invalid
) -> Estimate:
    """Scaling over c."""
    value, reason = _scaling(view, single, headline, invalid)
    share = None if value is None else value / view.cell.concurrency
    return Estimate(
        value=share, unit=COMPARISONS["efficiency"].unit, n=len(view.boots), reason=reason
    )


def _scaling(
    view: CellView, single: CellView | None, headline: Headline, invalid: Invalid
) -> tuple[float | None, str | None]:
    if single is None:
        return None, "c = 1 was not measured"
    for side in (view, single):
        if side.cell.cell_id in invalid:
            return None, f"invalid at c = {side.cell.concurrency}"
    own, alone = headline(view), headline(single)
    if own.value is None or not alone.value:
        return None, own.reason or alone.reason
    return own.value / alone.value, None


@dataclass(frozen=True, kw_only=True)
class Crossing:
    """Where the curve of `other` overtakes that of `leader`, over the levels of one load shape."""

    leader: str
    other: str
    bracket: Crossover
    levels: tuple[int, ...]
    excluded: tuple[int, ...]  # levels that could not end the bracket


def crossing(
    leader: Sequence[CellView],
    other: Sequence[CellView],
    headline: Headline,
    verdicts: Mapping[str, Sequence[Verdict]],
) -> Crossing:
    """Both sides at the levels they share."""
    others = {view.cell.concurrency: view for view in other}
    pairs = [
        (view, others[view.cell.concurrency]) for view in leader if view.cell.concurrency in others
    ]
    levels = [_level(own, rival, headline, verdicts) for own, rival in pairs]
    return Crossing(
        leader=leader[0].cell.variant,
        other=other[0].cell.variant,
        bracket=stats.crossover(levels),
        levels=tuple(level.concurrency for level in levels),
        excluded=tuple(level.concurrency for level in levels if not level.usable),
    )


def _level(
    own: CellView,
    rival: CellView,
    headline: Headline,
    verdicts: Mapping[str, Sequence[Verdict]],
) -> Level:
    found = ratio(headline(own), headline(rival))
    usable = all(_may_end_a_bracket(verdicts[side.cell.cell_id]) for side in (own, rival))
    return Level(concurrency=own.cell.concurrency, ratio=found[1] if found else None, usable=usable)


def _may_end_a_bracket(verdicts: Sequence[Verdict]) -> bool:
    return not any(
        verdict.level == "invalid" or (verdict.check == "balanced_mix" and verdict.level != "ok")
        for verdict in verdicts
    )
