"""What a report says in words. Every sentence follows from rows, verdicts or recorded facts.

Names are written as they are; whoever puts a sentence on a page escapes it for that page.
"""

from collections.abc import Iterator, Sequence

from harness.analysis import standings
from harness.analysis.comparisons import Crossing
from harness.analysis.standings import Decay, Flip, Place
from harness.analysis.summary import ALL, Section, Summary
from harness.cell_view import CellView
from harness.records import Estimate
from harness.report import format as fmt

SHAPES = {
    "single": "one request at a time",
    "wave": "in waves of c that start together",
    "closed": "with c always in flight",
    "constant": "arriving at even distances, at most c in flight",
    "poisson": "arriving at random moments, at most c in flight",
}


def headline(summary: Summary) -> str:
    """One paragraph: the fastest drafted variant of each single-stream section, then the load."""
    parts = [
        sentence
        for section in summary.sections
        if section.workload != "prefill"
        for sentence in (
            _single_stream(summary, section) if section.is_single else _under_load(summary, section)
        )
    ]
    if not parts:
        parts = ["Nothing in this run compares a variant with a reference."]
    return " ".join(parts)


def _single_stream(summary: Summary, section: Section) -> Iterator[str]:
    best = _fastest(summary, section)
    if best is None:
        drafted = [view for view in section.views if view.reference is not None]
        if drafted:
            reason = _estimate(summary, drafted[0], "speedup").reason
            yield f"There is no speed-up to report for {drafted[0].cell.variant}: {reason}."
        return
    view, speedup = best
    assert speedup.value is not None
    assert view.reference is not None
    rate = _estimate(summary, view, "decode_rate").value
    assert rate is not None
    yield (
        f"{_begin(section)}{view.cell.variant} decodes {fmt.rate(rate)} tok/s with one request at "
        "a time, "
        f"{fmt.times(speedup.value)} {view.reference.cell.variant}{_certainty(speedup)}."
    )
    yield from _acceptance(summary, view)
    yield from _extremes(summary, section, view)


def _begin(section: Section) -> str:
    return "" if section.word == "generate" else f"In {section.word}, "


def _fastest(summary: Summary, section: Section) -> tuple[CellView, Estimate] | None:
    """Of the variants that have a speed-up, so that no invalid cell can win."""
    found = [
        (view, estimate)
        for view in section.views
        if (estimate := _estimate(summary, view, "speedup")).value is not None
    ]
    if not found:
        return None
    return max(found, key=lambda pair: _estimate(summary, pair[0], "decode_rate").value or 0.0)


def _certainty(speedup: Estimate) -> str:
    if speedup.low is None or speedup.high is None:
        return " (no interval: too few boots)"
    bounds = f"95 % interval {fmt.span(speedup.low, speedup.high)}"
    if speedup.method != "t over boots":
        return f" ({bounds} within one boot, which decides nothing)"
    told = "" if speedup.low > 1 or speedup.high < 1 else ", which does not exclude 1"
    return f" ({bounds} over {fmt.counted(speedup.n, 'boot')}{told})"


def _acceptance(summary: Summary, view: CellView) -> Iterator[str]:
    length = _estimate(summary, view, "acceptance_length").value
    fraction = _estimate(summary, view, "fraction_of_ceiling").value
    if length is not None and fraction is not None and view.cell.k is not None:
        yield (
            f"A round emits {fmt.length(length)} of at most {view.cell.k + 1} tokens "
            f"({fmt.percent(fraction)} of the ceiling)."
        )


def _extremes(summary: Summary, section: Section, view: CellView) -> Iterator[str]:
    """Only where the kinds lie apart: else the order is the noise's."""
    by_kind = [
        (estimate.value, kind, estimate)
        for kind in section.kinds
        if (estimate := _estimate(summary, view, "speedup", kind)).value is not None
    ]
    if len(by_kind) < 2:
        return
    least, most = min(by_kind, key=lambda each: each[0]), max(by_kind, key=lambda each: each[0])
    if _lies_above(most[2], least[2]):
        yield (
            f"It gains most on {most[1]} ({fmt.times(most[0])}) and least on {least[1]} "
            f"({fmt.times(least[0])})."
        )


def _lies_above(one: Estimate, other: Estimate) -> bool:
    """Whether two intervals, both over boots, have nothing in common."""
    if one.low is None or other.high is None or {one.method, other.method} != {"t over boots"}:
        return False
    return one.low > other.high


# --- under load -----------------------------------------------------------------------------------


def _under_load(summary: Summary, section: Section) -> Iterator[str]:
    """For the headline: where each drafted variant stands against its reference, if known."""
    for crossing in over_references(summary, section):
        if crossing.bracket.last_ahead is not None or crossing.bracket.first_behind is not None:
            yield f"Served {SHAPES[section.load]}, {_crossover(crossing)}"


def statements(summary: Summary, section: Section) -> Iterator[str]:
    """What a section's figures say in words, above its tables."""
    if section.workload == "concurrency":
        yield from crossovers(summary, section)
    elif section.workload != "prefill":
        yield from over_the_next(summary, section)
    yield from saturation(summary, section)
    yield from decay(summary, section)
    yield from order(summary, section)


def over_the_next(summary: Summary, section: Section) -> Iterator[str]:
    """The fastest drafter over the second: no speed-up tells of two drafters."""
    ranks = standings.ranking(summary, section, standings.Place(kind=ALL, concurrency=1)).ranks
    drafted = {view.cell.variant: view for view in section.drafted}
    rivals = [rank.variant for rank in ranks if rank.variant in drafted]
    if len(rivals) < 2:
        return
    own, other = rivals[:2]
    ratio = standings.ratio(summary, drafted[own], drafted[other])
    if ratio.value is not None:
        yield (
            f"{own} decodes {fmt.times(ratio.value)} as fast as {other}, the next drafter"
            f"{_certainty(ratio)}."
        )


def crossovers(summary: Summary, section: Section) -> Iterator[str]:
    """Against references whatever was found; between other pairs only where they cross."""
    named = over_references(summary, section)
    for crossing in summary.crossings.get(section.word, ()):
        if crossing in named or crossing.bracket.found:
            yield _crossover(crossing)


def over_references(summary: Summary, section: Section) -> list[Crossing]:
    """The pairs of a variant and its reference."""
    pairs = [
        {view.cell.variant, view.reference.cell.variant}
        for view in section.views
        if view.reference is not None
    ]
    return [
        crossing
        for crossing in summary.crossings.get(section.word, ())
        if {crossing.leader, crossing.other} in pairs
    ]


def _crossover(crossing: Crossing) -> str:
    low, high = crossing.bracket.last_ahead, crossing.bracket.first_behind
    begin = crossing.leader
    if low is not None and high is not None:
        said = (
            f"{begin} is clearly ahead of {crossing.other} up to c = {low} and clearly behind from "
            f"c = {high} on: the crossover lies between."
        )
    elif low is not None:
        said = f"{begin} is clearly ahead of {crossing.other} up to c = {low}"
        top = max(crossing.levels)
        said += ", the highest level." if low == top else f"; no crossover up to c = {top}."
    elif high is not None:
        said = f"{begin} is clearly behind {crossing.other} from c = {high} on."
    else:
        said = f"{begin} and {crossing.other} cannot be told apart at any level that counts."
    if crossing.excluded == crossing.levels:
        return (
            f"{begin} and {crossing.other} cannot be compared: every level is invalid or serves "
            "an unbalanced mix."
        )
    if crossing.excluded:
        level = "Level" if len(crossing.excluded) == 1 else "Levels"
        told = numbers(crossing.excluded)
        said += f" {level} c = {told} cannot decide (unbalanced mix or invalid)."
    return said


def one_at_a_time(summary: Summary) -> Iterator[str]:
    """Engines that say of themselves that requests queue: their curves are flat for a reason."""
    said: dict[str, None] = {}
    for view in summary.data.views:
        for boot in view.boots:
            if (boot.health or {}).get("max_concurrent_requests") == 1:
                said[view.cell.engine] = None
    for engine in said:
        yield (
            f"Engine {engine} serves one request at a time (its health page says so): above c = 1 "
            "requests wait their turn, so TTFT grows with c and the aggregate cannot."
        )


# --- before a run ---------------------------------------------------------------------------------


def smallest_effect_of_plan(effect: float, spread: float, boots: int) -> str:
    """Before a run the spread between boots can only be supposed."""
    return (
        f"with {boots} boots a side and a spread of {fmt.percent(spread)} between boots, a "
        f"difference below {fmt.percent(effect)} cannot be told from none"
    )


# --- acceptance and order -------------------------------------------------------------------------


def saturation(summary: Summary, section: Section) -> Iterator[str]:
    """Drafters that no tuning makes better."""
    for view in section.views:
        if any(verdict.check == "saturated" for verdict in summary.verdicts_of(view)):
            fraction = _estimate(summary, view, "fraction_of_ceiling").value
            if fraction is not None and view.cell.k is not None:
                at = "" if section.is_single else f" at c = {view.cell.concurrency}"
                yield (
                    f"{view.cell.variant} is saturated{at}: it reaches {fmt.percent(fraction)} of "
                    f"its ceiling of {view.cell.k + 1} tokens a round. Only a larger block would "
                    "help."
                )


def decay(summary: Summary, section: Section) -> Iterator[str]:
    """Acceptance over the comparable part of a sweep; a change below a hundredth is none."""
    if section.load != "wave" and section.load != "closed":
        return
    found = list(standings.decays(summary, section))
    kept = [each for each in found if abs(each.change) < 0.01]
    for ends in dict.fromkeys((each.first_level, each.last_level) for each in kept):
        alike = [each for each in kept if (each.first_level, each.last_level) == ends]
        named = fmt.listed([f"{each.variant} ({each.last:.3f})" for each in alike])
        yield f"The acceptance length is the same {_over(alike[0])} for {named}."
    for each in found:
        if each not in kept:
            yield (
                f"The acceptance length of {each.variant} changes by {fmt.change(each.change)} "
                f"{_over(each)}: {each.first:.3f} to {each.last:.3f}."
            )


def _over(decay: Decay) -> str:
    growth = f"{decay.last_level / decay.first_level:g} times the batch"
    return f"from c = {decay.first_level} to c = {decay.last_level} ({growth})"


def order(summary: Summary, section: Section) -> Iterator[str]:
    """Pairs whose order flips, the decided ones alone by name; the others are counted."""
    flips = list(standings.flips(summary, section))
    of_pair: dict[tuple[str, str], list[Flip]] = {}
    for flip in flips:
        if flip.decided:
            of_pair.setdefault((flip.ahead, flip.behind), []).append(flip)
    for decided in of_pair.values():
        yield _flips(section, decided)
    undecided = len([flip for flip in flips if not flip.decided])
    if undecided:
        yield (
            f"{fmt.counted(undecided, 'pair')} of variants and places {_stand(undecided)} in "
            f"another order than {_at(section, flips[0].base)} without the intervals telling them "
            "apart: no finding."
        )


def _flips(section: Section, flips: Sequence[Flip]) -> str:
    """Of one pair, wherever it stands the other way round."""
    first = flips[0]
    ratios = [flip.at_place.value for flip in flips if flip.at_place.value is not None]
    assert first.at_base.value is not None
    return (
        f"The order flips {_at(section, *(flip.place for flip in flips))}: {first.behind} is ahead "
        f"of {first.ahead} there ({fmt.listed([fmt.times(ratio) for ratio in ratios])}), and "
        f"behind it {_at(section, first.base)} ({first.ahead} {fmt.times(first.at_base.value)})."
    )


def _at(section: Section, *places: Place) -> str:
    if not section.is_single:
        return f"at c = {numbers([place.concurrency for place in places])}"
    if places[0].kind == ALL:
        return "over all kinds"
    return f"on {fmt.listed([place.kind for place in places])}"


def _stand(count: int) -> str:
    return "stands" if count == 1 else "stand"


def numbers(values: Sequence[int]) -> str:
    """1, 2 and 4."""
    return fmt.listed([str(value) for value in values])


def _estimate(summary: Summary, view: CellView, metric: str, kind: str = ALL) -> Estimate:
    row = summary.row(view, metric, kind)
    if row is None:
        return Estimate(value=None, unit="", n=0, reason="does not apply")
    return row.estimate
