"""What the engines wrote: lengths, repetition, and whether speculation changed a single token.

Texts are compared by their hashes; the first difference is looked for in the recorded events.
Whether a difference is a near-tie of the target or a fault of the engine cannot be told from here.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median

from harness import measures
from harness.analysis.measured import Measured, not_measured
from harness.cell_view import CellView, OutputEvents
from harness.records import Request


def output_tokens(statistic: Callable[[Sequence[int]], float]) -> Callable[[CellView], Measured]:
    """Shortest, median or longest output of the successful requests."""

    def figure(view: CellView) -> Measured:
        lengths = [item.output_tokens for item in view.ok if item.output_tokens is not None]
        if not lengths:
            return not_measured("the engine reports no token count")
        return Measured(value=float(statistic(lengths)), n=len(lengths))

    return figure


def prompt_tokens_median(view: CellView) -> Measured:
    """By the engine's own count, the chat template included."""
    lengths = [item.prompt_tokens for item in view.ok if item.prompt_tokens is not None]
    if not lengths:
        return not_measured("the engine reports no prompt tokens")
    return Measured(value=float(median(lengths)), n=len(lengths))


def cached_share(view: CellView) -> Measured:
    pairs = [(item.cached_tokens, item.prompt_tokens) for item in view.ok]
    known = [(cached, prompt) for cached, prompt in pairs if cached is not None and prompt]
    if not known:
        return not_measured("the engine reports no cached tokens")
    return Measured(
        value=sum(cached for cached, _ in known) / sum(prompt or 0 for _, prompt in known),
        n=len(known),
    )


def tokens_per_event(view: CellView) -> Measured:
    """Tokens over events with output, pooled: a stream's event is a read of one step or more."""
    counted = [item for item in view.ok if item.output_tokens is not None]
    events = sum(item.num_output_events for item in counted)
    if not events:
        return not_measured("the engine reports no token count")
    return Measured(value=sum(item.output_tokens or 0 for item in counted) / events, n=events)


def first_tokens_median(view: CellView) -> Measured:
    known = [item.first_tokens for item in view.ok if item.first_tokens is not None]
    if not known:
        return not_measured("no output came")
    return Measured(value=float(median(known)), n=len(known))


def first_tokens_are_a_lower_bound(view: CellView) -> bool:
    """Whether a stream told only how many events its first read held."""
    return any(item.first_tokens_source == "events" for item in view.ok)


def finish_reasons(view: CellView) -> Mapping[str, int]:
    """How often each reason ended an output, the most frequent first; `none` is none told."""
    return _histogram(item.finish_reason or "none" for item in view.ok)


def flags(view: CellView) -> Mapping[str, int]:
    """How many requests carry each flag."""
    return _histogram(flag for item in view.requests for flag in item.flags)


def count_sources(view: CellView) -> Mapping[str, int]:
    """By what the output tokens were counted; `unknown` where the engine does not tell."""
    return _histogram(item.output_tokens_source or "unknown" for item in view.ok)


def _histogram(words: Iterable[str]) -> Mapping[str, int]:
    return dict(Counter(words).most_common())


output_tokens_min = output_tokens(min)
output_tokens_median = output_tokens(median)
output_tokens_max = output_tokens(max)


def loops(view: CellView) -> Measured:
    """Share of outputs that repeat themselves."""
    known = [
        looping
        for request in view.ok
        if (looping := measures.loops(request.distinct_4gram_share)) is not None
    ]
    if not known:
        return not_measured("no output of four tokens or more")
    return Measured(value=sum(known) / len(known), n=len(known))


def ended_by_itself(view: CellView) -> Measured:
    """Share of outputs that the model ended, rather than the token limit."""
    reasons = [item.finish_reason for item in view.ok if item.finish_reason is not None]
    if not reasons:
        return not_measured("the engine gives no finish reason")
    return Measured(value=reasons.count("stop") / len(reasons), n=len(reasons))


# --- losslessness ---------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class FirstDifference:
    """Where an output leaves the reference's: the place of a token, or of a character."""

    prompt_id: str
    index: int
    unit: str  # token, character


@dataclass(frozen=True, kw_only=True)
class Losslessness:
    """Identical outputs, `num_identical` of `num_compared`; `against` names the other side."""

    variant: str
    against: str
    num_identical: int
    num_compared: int
    first_difference: FirstDifference | None
    reason: str | None = None  # why nothing was compared


def losslessness(view: CellView) -> Losslessness:
    """A variant's outputs against its reference's; a reference's later ones against its first."""
    reference = view.reference or view
    against = "itself" if reference is view else reference.cell.variant
    if view.cell.sampling.temperature > 0:
        return _not_compared(view, against, "sampled at temperature > 0")
    first = _first_outputs(reference.ok)
    pairs = [
        (request, first[_sent(request)])
        for request in view.ok
        if _sent(request) in first and request != first[_sent(request)]
    ]
    if not pairs:
        return _not_compared(view, against, "no output to compare with")
    differing = [(own, other) for own, other in pairs if own.text_sha256 != other.text_sha256]
    events = {**reference.events, **view.events}
    return Losslessness(
        variant=view.cell.variant,
        against=against,
        num_identical=len(pairs) - len(differing),
        num_compared=len(pairs),
        first_difference=_earliest(differing, events),
    )


def identical_outputs(view: CellView) -> Measured:
    """Share of outputs that are identical to the reference's, at temperature 0."""
    result = losslessness(view)
    if result.reason is not None:
        return not_measured(result.reason)
    return Measured(value=result.num_identical / result.num_compared, n=result.num_compared)


def _not_compared(view: CellView, against: str, reason: str) -> Losslessness:
    return Losslessness(
        variant=view.cell.variant,
        against=against,
        num_identical=0,
        num_compared=0,
        first_difference=None,
        reason=reason,
    )


def _first_outputs(requests: Sequence[Request]) -> Mapping[tuple[str, str | None], Request]:
    first: dict[tuple[str, str | None], Request] = {}
    for request in requests:
        first.setdefault(_sent(request), request)
    return first


def _sent(request: Request) -> tuple[str, str | None]:
    """A prompt behind another salt is another prompt."""
    return request.prompt_id, request.salt


def _earliest(
    differing: Sequence[tuple[Request, Request]], events: Mapping[str, OutputEvents]
) -> FirstDifference | None:
    found = [
        difference
        for own, other in differing
        if (
            difference := _first_difference(
                own.prompt_id,
                events.get(str(own.where.request_id)),
                events.get(str(other.where.request_id)),
            )
        )
    ]
    return min(found, key=lambda difference: (difference.unit, difference.index), default=None)


def _first_difference(
    prompt_id: str, own: OutputEvents | None, other: OutputEvents | None
) -> FirstDifference | None:
    if own is None or other is None:
        return None
    if own.token_ids is not None and other.token_ids is not None:
        index = _first_unequal(own.token_ids, other.token_ids)
        return FirstDifference(prompt_id=prompt_id, index=index, unit="token")
    index = _first_unequal(own.text or "", other.text or "")
    return FirstDifference(prompt_id=prompt_id, index=index, unit="character")


def _first_unequal(own: Sequence[object], other: Sequence[object]) -> int:
    for index, (left, right) in enumerate(zip(own, other, strict=False)):
        if left != right:
            return index
    return min(len(own), len(other))
