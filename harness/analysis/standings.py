"""Any variant over any other: ratios, rankings with their ties, winners, and orders that flip.

Only cells of one section are held against each other, and only at one place of it: a kind of
prompt, or a number of requests in flight. Who is ahead is said by intervals over boots; without
them an order is seen and not decided.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import combinations, pairwise

from harness import checks
from harness.analysis import comparisons
from harness.analysis.metrics import COMPARISONS
from harness.analysis.summary import ALL, Section, Summary
from harness.cell_view import CellView
from harness.measures import relative_change
from harness.records import Estimate


@dataclass(frozen=True, kw_only=True)
class Place:
    """Where variants meet. `comparable` False: an unbalanced mix of prompts is served there."""

    kind: str
    concurrency: int
    comparable: bool = True


@dataclass(frozen=True, kw_only=True)
class Rank:
    """One variant of a ranking: `value` is its headline figure, tokens per second; `lead` is the
    ratio of the one before over it.
    """

    variant: str
    value: float
    lead: Estimate | None

    @property
    def clearly_behind(self) -> bool:
        return self.lead is not None and is_above_one(self.lead)


@dataclass(frozen=True, kw_only=True)
class Ranking:
    place: Place
    ranks: tuple[Rank, ...]  # best first


@dataclass(frozen=True, kw_only=True)
class Flip:
    """`ahead` leads at the section's base place and trails `behind` at `place`.

    `decided`: both orders are clear over boots, and both places are comparable.
    """

    ahead: str
    behind: str
    base: Place
    place: Place
    at_base: Estimate  # ahead / behind
    at_place: Estimate  # behind / ahead
    decided: bool


@dataclass(frozen=True, kw_only=True)
class Win:
    """`winners` are the first and whoever cannot be told from it; `value` is the first's headline
    figure, tokens per second; `lead` is over the next.
    """

    section: Section
    place: Place
    winners: tuple[str, ...]
    value: float
    next_variant: str | None
    lead: Estimate | None


@dataclass(frozen=True, kw_only=True)
class Decay:
    """Acceptance length, tokens per round, at both ends of the comparable part of a sweep."""

    variant: str
    first_level: int
    last_level: int
    first: float
    last: float

    @property
    def change(self) -> float:
        return relative_change(self.last, self.first)


def is_above_one(estimate: Estimate) -> bool:
    """Clearly: by an interval over boots. One within a boot decides nothing."""
    over_boots = estimate.method == "t over boots"
    return over_boots and estimate.low is not None and estimate.low > 1


def places(summary: Summary, section: Section) -> tuple[Place, ...]:
    """All kinds first, then each; of prefill its lengths alone; or every level, rising."""
    if section.load != "single":
        return tuple(
            Place(kind=ALL, concurrency=level, comparable=_is_comparable(summary, section, level))
            for level in section.levels
        )
    if section.workload == "prefill":
        kinds = section.kinds
    elif len(section.kinds) == 1:
        kinds = (ALL,)
    else:
        kinds = (ALL, *section.kinds)
    return tuple(Place(kind=kind, concurrency=1) for kind in kinds)


def _is_comparable(summary: Summary, section: Section, level: int) -> bool:
    views = [view for view in section.views if view.cell.concurrency == level]
    accused = {verdict.check for view in views for verdict in summary.verdicts_of(view)}
    return "balanced_mix" not in accused


# --- ratios ---------------------------------------------------------------------------------------


def ratio(summary: Summary, own: CellView, other: CellView, kind: str = ALL) -> Estimate:
    """Of the section's headline figures; an invalid cell has no part in one."""
    unit = COMPARISONS["speedup"].unit
    for view in (own, other):
        if checks.worst(summary.verdicts_of(view)) == "invalid":
            reason = f"{view.cell.variant} is invalid"
            return Estimate(value=None, unit=unit, n=0, reason=reason)
    figures = [summary.boot_figures[(view.cell.cell_id, kind)] for view in (own, other)]
    found = comparisons.ratio(*figures)
    if found is None:
        reason = figures[0].reason or figures[1].reason or "a figure is missing"
        return Estimate(value=None, unit=unit, n=0, reason=reason)
    value, interval = found
    boots = min(len(side.per_boot) for side in figures)
    return comparisons.estimate(value, interval, unit=unit, n=boots)


# --- rankings -------------------------------------------------------------------------------------


def ranking(summary: Summary, section: Section, place: Place) -> Ranking:
    """Best first; what has no figure, or a void one, takes no place."""
    views = sorted(_rivals(summary, section, place), key=lambda pair: -pair[0])
    leads = [ratio(summary, before[1], view[1], place.kind) for before, view in pairwise(views)]
    return Ranking(
        place=place,
        ranks=tuple(
            Rank(variant=view.cell.variant, value=value, lead=lead)
            for (value, view), lead in zip(views, [None, *leads], strict=False)
        ),
    )


def _rivals(summary: Summary, section: Section, place: Place) -> Iterator[tuple[float, CellView]]:
    for variant in section.variants:
        view = section.view(variant, place.concurrency)
        if view is None or checks.worst(summary.verdicts_of(view)) == "invalid":
            continue
        value = summary.boot_figures[(view.cell.cell_id, place.kind)].value
        if value is not None:
            yield value, view


def flips(summary: Summary, section: Section) -> Iterator[Flip]:
    """Pairs whose order is another somewhere than at the base: all kinds, or the lowest level that
    is comparable.
    """
    base, *others = sorted(places(summary, section), key=lambda place: not place.comparable)
    for place in others:
        for one, two in combinations(section.variants, 2):
            flip = _flip(summary, section, one, two, base, place)
            if flip is not None:
                yield flip


def _flip(
    summary: Summary, section: Section, one: str, two: str, base: Place, place: Place
) -> Flip | None:
    before = _ratio_at(summary, section, one, two, base)
    after = _ratio_at(summary, section, one, two, place)
    if before is None or after is None or before.value is None or after.value is None:
        return None
    if (before.value - 1) * (after.value - 1) >= 0:
        return None
    ahead, behind = (one, two) if before.value > 1 else (two, one)
    at_base = _ratio_at(summary, section, ahead, behind, base)
    at_place = _ratio_at(summary, section, behind, ahead, place)
    assert at_base is not None
    assert at_place is not None
    clear = is_above_one(at_base) and is_above_one(at_place)
    return Flip(
        ahead=ahead,
        behind=behind,
        base=base,
        place=place,
        at_base=at_base,
        at_place=at_place,
        decided=clear and base.comparable and place.comparable,
    )


def _ratio_at(
    summary: Summary, section: Section, own: str, other: str, place: Place
) -> Estimate | None:
    views = [section.view(variant, place.concurrency) for variant in (own, other)]
    if views[0] is None or views[1] is None:
        return None
    return ratio(summary, views[0], views[1], place.kind)


# --- winners --------------------------------------------------------------------------------------


def wins(summary: Summary) -> Iterator[Win]:
    """A row for each regime in which two variants or more have a figure."""
    for section in summary.sections:
        for place in places(summary, section):
            rivals = sorted(_rivals(summary, section, place), key=lambda pair: -pair[0])
            if len(rivals) > 1:
                yield _win(summary, section, place, rivals)


def _win(
    summary: Summary, section: Section, place: Place, rivals: list[tuple[float, CellView]]
) -> Win:
    value, best = rivals[0]
    leads = {view.cell.variant: ratio(summary, best, view, place.kind) for _, view in rivals[1:]}
    tied = tuple(variant for variant, lead in leads.items() if not is_above_one(lead))
    beaten = [variant for variant in leads if variant not in tied]
    runner_up = beaten[0] if beaten else None
    return Win(
        section=section,
        place=place,
        winners=(best.cell.variant, *tied),
        value=value,
        next_variant=runner_up,
        lead=leads[runner_up] if runner_up else None,
    )


# --- acceptance over concurrency ------------------------------------------------------------------


def decays(summary: Summary, section: Section) -> Iterator[Decay]:
    """From the lowest comparable level to the highest."""
    levels = [place.concurrency for place in places(summary, section) if place.comparable]
    for variant in section.variants:
        known = [
            (level, row.estimate.value)
            for level in levels
            if (view := section.view(variant, level)) is not None
            and checks.worst(summary.verdicts_of(view)) != "invalid"
            and (row := summary.row(view, "acceptance_length")) is not None
            and row.estimate.value is not None
        ]
        if len(known) > 1:
            (first_level, first), (last_level, last) = known[0], known[-1]
            yield Decay(
                variant=variant,
                first_level=first_level,
                last_level=last_level,
                first=first,
                last=last,
            )
