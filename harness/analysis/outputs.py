"""What the engines wrote: lengths, repetition, and whether speculation changed a single token.

Texts are compared by their hashes; the first difference is looked for in the recorded events, and
what it is worth in the odds that the run asked for.
"""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from harness import differences, measures
from harness.analysis.measured import Measured, not_measured
from harness.cell_view import CellView, OutputEvents
from harness.differences import Judgement, Pair, Word
from harness.requests import middle


def output_tokens(statistic: Callable[[NDArray[Any]], float]) -> Callable[[CellView], Measured]:
    """Shortest, median or longest output of the successful requests."""

    def figure(view: CellView) -> Measured:
        lengths = view.ok.known("output_tokens")
        if not len(lengths):
            return not_measured("the engine reports no token count")
        return Measured(value=float(statistic(lengths)), n=len(lengths))

    return figure


def prompt_tokens_median(view: CellView) -> Measured:
    """By the engine's own count, the chat template included."""
    lengths = view.ok.known("prompt_tokens")
    if not len(lengths):
        return not_measured("the engine reports no prompt tokens")
    return Measured(value=middle(lengths), n=len(lengths))


def cached_share(view: CellView) -> Measured:
    cached, prompts = view.ok.column("cached_tokens"), view.ok.column("prompt_tokens")
    known = cached.known & prompts.known & (prompts.values > 0)
    if not known.any():
        return not_measured("the engine reports no cached tokens")
    share = int(cached.values[known].sum()) / int(prompts.values[known].sum())
    return Measured(value=share, n=int(np.count_nonzero(known)))


def tokens_per_event(view: CellView) -> Measured:
    """Tokens over events with output, pooled: a stream's event is a read of one step or more."""
    tokens, events = view.ok.column("output_tokens"), view.ok.column("num_output_events")
    num_events = int(events.values[tokens.known].sum())
    if not num_events:
        return not_measured("the engine reports no token count")
    return Measured(value=int(tokens.values.sum()) / num_events, n=num_events)


def first_tokens_median(view: CellView) -> Measured:
    known = view.ok.known("first_tokens")
    if not len(known):
        return not_measured("no output came")
    return Measured(value=middle(known), n=len(known))


def first_tokens_are_a_lower_bound(view: CellView) -> bool:
    """Whether a stream told only how many events its first read held."""
    return "events" in view.ok.labels("first_tokens_source")


def finish_reasons(view: CellView) -> Mapping[str, int]:
    """How often each reason ended an output, the most frequent first; `none` is none told."""
    return _histogram(view.ok.counts("finish_reason"), absent="none")


def flags(view: CellView) -> Mapping[str, int]:
    """How many requests carry each flag."""
    found: Counter[str] = Counter()
    for together, count in view.sent.counts("flags").items():
        found.update(dict.fromkeys((together or "").split(), count))
    return dict(found.most_common())


def count_sources(view: CellView) -> Mapping[str, int]:
    """By what the output tokens were counted; `unknown` where the engine does not tell."""
    return _histogram(view.ok.counts("output_tokens_source"), absent="unknown")


def _histogram(counts: Mapping[str | None, int], absent: str) -> Mapping[str, int]:
    named = Counter({word or absent: count for word, count in counts.items()})
    return dict(named.most_common())


output_tokens_min = output_tokens(np.min)
output_tokens_median = output_tokens(middle)
output_tokens_max = output_tokens(np.max)


def loops(view: CellView) -> Measured:
    """Share of outputs that repeat themselves."""
    known = view.ok.known("distinct_4gram_share")
    if not len(known):
        return not_measured("no output of four tokens or more")
    looping = int(np.count_nonzero(known < measures.LOOP_SHARE))
    return Measured(value=looping / len(known), n=len(known))


def ended_by_itself(view: CellView) -> Measured:
    """Share of outputs that the model ended, rather than the token limit."""
    reasons = view.ok.counts("finish_reason")
    told = len(view.ok) - reasons.get(None, 0)
    if not told:
        return not_measured("the engine gives no finish reason")
    return Measured(value=reasons.get("stop", 0) / told, n=told)


# --- losslessness ---------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class FirstDifference:
    """Where an output leaves the reference's: the place of a token, or of a character."""

    prompt_id: str
    index: int
    unit: str  # token, character
    word: Word = "unknown"
    gap_nats: float | None = None


@dataclass(frozen=True, kw_only=True)
class Losslessness:
    """Identical outputs, `num_identical` of `num_compared`; `against` names the other side. Of the
    others a word each: near-tie, real, unknown (`unknown_reason`).
    """

    cell_id: str
    variant: str
    against: str
    num_identical: int
    num_compared: int
    first_difference: FirstDifference | None
    reason: str | None = None  # why nothing was compared
    num_near_ties: int = 0
    num_real: int = 0
    num_unknown: int = 0
    unknown_reason: str | None = None  # the most frequent one
    tolerance_nats: float | None = None  # up to which gap a difference is a near-tie
    largest_gap_nats: float | None = None
    largest_gap_is_bound: bool = False  # it is at least that


def losslessness(view: CellView) -> Losslessness:
    """A variant's outputs against its reference's; a reference's later ones against its first."""
    reference = view.reference or view
    against = "itself" if reference is view else reference.cell.variant
    if view.cell.sampling.temperature > 0:
        return _not_compared(view, against, "sampled at temperature > 0")
    compared = differences.pairs_of(view)
    if not compared:
        return _not_compared(view, against, "no output to compare with")
    differing = [(pair, differences.judged(view, pair)) for pair in compared if pair.differs]
    words = Counter(judgement.word for _, judgement in differing)
    largest = max(
        (each for _, each in differing if each.gap_nats is not None),
        key=lambda judgement: judgement.gap_nats or 0.0,
        default=None,
    )
    reasons = Counter(judgement.reason for _, judgement in differing if judgement.reason)
    return Losslessness(
        cell_id=view.cell.cell_id,
        variant=view.cell.variant,
        against=against,
        num_identical=len(compared) - len(differing),
        num_compared=len(compared),
        first_difference=_earliest(differing, {**reference.events, **view.events}),
        num_near_ties=words["near-tie"],
        num_real=words["real"],
        num_unknown=words["unknown"],
        unknown_reason=reasons.most_common(1)[0][0] if reasons else None,
        tolerance_nats=differences.tolerance_nats(view),
        largest_gap_nats=largest.gap_nats if largest else None,
        largest_gap_is_bound=largest is not None and largest.is_bound,
    )


def identical_outputs(view: CellView) -> Measured:
    """Share of outputs that are identical to the reference's, at temperature 0."""
    result = losslessness(view)
    if result.reason is not None:
        return not_measured(result.reason)
    return Measured(value=result.num_identical / result.num_compared, n=result.num_compared)


def _not_compared(view: CellView, against: str, reason: str) -> Losslessness:
    return Losslessness(
        cell_id=view.cell.cell_id,
        variant=view.cell.variant,
        against=against,
        num_identical=0,
        num_compared=0,
        first_difference=None,
        reason=reason,
    )


def _earliest(
    differing: Sequence[tuple[Pair, Judgement]], events: Mapping[str, OutputEvents]
) -> FirstDifference | None:
    found = [
        difference
        for pair, judgement in differing
        if (difference := _first_difference(pair, judgement, events)) is not None
    ]
    return min(found, key=lambda difference: (difference.unit, difference.index), default=None)


def _first_difference(
    pair: Pair, judgement: Judgement, events: Mapping[str, OutputEvents]
) -> FirstDifference | None:
    own = events.get(str(pair.own.where.request_id))
    other = events.get(str(pair.reference.where.request_id))
    if own is None or other is None:
        return None
    by_tokens = own.token_ids is not None and other.token_ids is not None
    ours, theirs = (own.token_ids, other.token_ids) if by_tokens else (own.text, other.text)
    return FirstDifference(
        prompt_id=pair.own.prompt_id,
        index=differences.first_unequal(ours or (), theirs or ()),
        unit="token" if by_tokens else "character",
        word=judgement.word,
        gap_nats=judgement.gap_nats,
    )
