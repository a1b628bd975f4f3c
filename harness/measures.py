"""The arithmetic of one request and of an engine's counters.

Definitions are those of docs/terms.md. Pure functions of plain numbers: this module knows no file,
no engine and no statistics over requests (analysis has those). None means "not measurable"; nothing
is clamped.
"""

import itertools
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass, fields, replace
from operator import attrgetter
from typing import Literal, TypeAlias

from harness.records import Counters

BURST_S = 0.001
"""Reads closer than this carry one step's output, and output this close to the first counts as
first.
"""

LOOP_SHARE = 0.5
"""A reply whose share of distinct 4-grams lies below this repeats itself."""

# --- one request ----------------------------------------------------------------------------------


def decode_rate(
    n: int | None,
    n_first: int | None,
    t_first_s: float | None,
    t_last_s: float | None,
    wall_s: float | None,
) -> float | None:
    """Tokens per second after the first token: n / (wall - ttft), the published study's definition.

    It counts the first read's tokens without their time; `decode_rate_strict` does not. None where
    that one is: what came in one go has an end, but no rate.
    """
    strict = decode_rate_strict(n, n_first, t_first_s, t_last_s)
    if strict is None or n is None or t_first_s is None or wall_s is None or wall_s <= t_first_s:
        return None
    return n / (wall_s - t_first_s)


def decode_rate_strict(
    n: int | None, n_first: int | None, t_first_s: float | None, t_last_s: float | None
) -> float | None:
    """Tokens per second from first to last output: (n - n_first) / (t_last - t_first).

    None for one burst: the time between two reads of it is the network's and not the engine's.
    """
    if n is None or n_first is None or t_first_s is None or t_last_s is None:
        return None
    if n <= n_first or t_last_s - t_first_s <= BURST_S:
        return None
    return (n - n_first) / (t_last_s - t_first_s)


def excess(headline: float | None, strict: float | None) -> float | None:
    """By how much a decode rate exceeds the strict one, as a share of it."""
    return headline / strict - 1 if headline is not None and strict else None


def tpot(
    n: int | None, n_first: int | None, t_first_s: float | None, t_last_s: float | None
) -> float | None:
    """Seconds per output token after the first read: (t_last - t_first) / (n - n_first)."""
    rate = decode_rate_strict(n, n_first, t_first_s, t_last_s)
    return None if rate is None else 1 / rate


def prefill_rate(
    prompt_tokens: int | None, cached_tokens: int | None, ttft_s: float | None
) -> float | None:
    """Prompt tokens computed per second until the first token, asked for with max_tokens = 1.

    Tokens taken from a prefix cache were not computed. One computed token measures the cache, not
    prefill.
    """
    if prompt_tokens is None or not ttft_s:
        return None
    computed = prompt_tokens - (cached_tokens or 0)
    return computed / ttft_s if computed > 1 else None


@dataclass(frozen=True, kw_only=True)
class Burst:
    """Output that came in one go; `tokens` is None where the engine does not say how many."""

    at_s: float
    tokens: int | None


def bursts(at_s: Sequence[float], tokens: Sequence[int | None]) -> tuple[Burst, ...]:
    """Join output events that follow each other within `BURST_S`; a burst's time is its first
    event's.

    at_s: [events] ascending; tokens: [events] what each carried.
    """
    groups: list[list[int]] = []
    for i, now_s in enumerate(at_s):
        if groups and now_s - at_s[i - 1] < BURST_S:
            groups[-1].append(i)
        else:
            groups.append([i])
    return tuple(
        Burst(at_s=at_s[group[0]], tokens=_sum_known([tokens[i] for i in group]))
        for group in groups
    )


def step_times(at_s: Sequence[float]) -> tuple[float, ...]:
    """Seconds between the starts of neighbouring bursts: with speculation a step emits several
    tokens.
    """
    starts = [burst.at_s for burst in bursts(at_s, [None] * len(at_s))]
    return tuple(later - earlier for earlier, later in itertools.pairwise(starts))


def token_times(at_s: Sequence[float], tokens: Sequence[int | None]) -> tuple[float, ...] | None:
    """Seconds per token, one value for each token behind the first burst: a burst's gap is shared
    out evenly over the tokens it brought, so the mean over tokens is `tpot` (up to a burst's
    width).

    None where a burst does not tell its tokens: a gap is no time per token.
    """
    if not at_s:
        return None
    first, *others = bursts(at_s, tokens)
    found: list[float] = []
    since_s = first.at_s
    for burst in others:
        if burst.tokens is None:
            return None
        if burst.tokens:  # text can come without a token: then the gap is part of the next one's
            found += [(burst.at_s - since_s) / burst.tokens] * burst.tokens
            since_s = burst.at_s
    return tuple(found)


PEAK_WINDOW_S = 1.0


def peak_rate(at_s: Sequence[float], tokens: Sequence[float]) -> float | None:
    """The most tokens per second over any stretch of a stream that lasts a second or longer.

    Longer ones count too, the whole stream among them, so that no peak lies below the mean; None
    for a stream that is shorter. A densest stretch is never twice the window long: one of its
    halves would be as dense.
    """
    if not at_s or at_s[-1] - at_s[0] < PEAK_WINDOW_S:
        return None
    best = sum(tokens) / (at_s[-1] - at_s[0])
    for start, start_s in enumerate(at_s):
        inside = 0.0
        for end in range(start, len(at_s)):
            lasted_s = at_s[end] - start_s
            if lasted_s >= 2 * PEAK_WINDOW_S:
                break
            inside += tokens[end]
            rate = inside / lasted_s if lasted_s > PEAK_WINDOW_S else inside / PEAK_WINDOW_S
            if rate > best:  # `max` would be called for every pair of a stream's events
                best = rate
    return best


def distinct_4gram_share(words: Sequence[Hashable]) -> float | None:
    """Distinct runs of four over all runs of four, of token ids or of words; None below four of
    them.
    """
    runs = zip(words, words[1:], words[2:], words[3:], strict=False)
    return len(set(runs)) / (len(words) - 3) if len(words) > 3 else None


# --- counters -------------------------------------------------------------------------------------

Reason: TypeAlias = Literal[
    "unavailable",  # a snapshot is missing
    "counter_reset",  # a counter went down
    "restart",  # another process answered
    "foreign_label",  # a second model was counted
]


@dataclass(frozen=True, kw_only=True)
class NotMeasured:
    """Why two snapshots have no difference that means anything."""

    reason: Reason
    message: str


@dataclass(frozen=True, kw_only=True)
class CountersDelta:
    """What an engine's ledger gained over a scope. None: the engine keeps no such counter."""

    drafts: int | None = None
    draft_tokens: int | None = None
    accepted_tokens: int | None = None
    accepted_at: tuple[int, ...] | None = None
    tested_tokens: int | None = None
    trimmed_tokens: int | None = None
    plain_steps: int | None = None
    generation_tokens: int | None = None
    prompt_tokens: int | None = None
    requests: int | None = None
    draft_s: float | None = None
    verify_s: float | None = None
    decode_calls: int | None = None
    generation_s: float | None = None
    cached_prompt_tokens: int | None = None
    preemptions: int | None = None


_SECONDS = ("draft_s", "verify_s", "generation_s")
_COUNTS = tuple(f.name for f in fields(CountersDelta) if f.name not in ("accepted_at", *_SECONDS))
_NAMES = _COUNTS + _SECONDS
_values = attrgetter(*_NAMES)  # at once: this is done for every request of a run


def counters_delta(before: Counters | None, after: Counters | None) -> CountersDelta | NotMeasured:
    """after - before. A series that is absent before and present after counts from 0 (same
    process).

    A counter that went down is a reset: its negative difference can look like a plausible
    acceptance (the quotient of two negative numbers), so there is no delta at all.
    """
    if before is None or after is None:
        return NotMeasured(reason="unavailable", message="the metrics page could not be read")
    return _refusal(before, after) or _difference(before, after)


def _refusal(before: Counters, after: Counters) -> NotMeasured | None:
    if None not in (before.process_start_s, after.process_start_s) and (
        before.process_start_s != after.process_start_s
    ):
        return NotMeasured(reason="restart", message="the engine's process started anew in between")
    for name, old, new in zip(_NAMES, _values(before), _values(after), strict=True):
        if old is not None and (new is None or new < old):
            fell = "vanished" if new is None else f"went from {old} to {new}"
            return NotMeasured(reason="counter_reset", message=f"{name} {fell}")
    if any(old > new for old, new in _positions(before.accepted_at, after.accepted_at)):
        return NotMeasured(reason="counter_reset", message="accepted tokens per position went down")
    if len(set(before.labels) | set(after.labels)) > 1:
        labels = ", ".join(sorted({*before.labels, *after.labels}))
        return NotMeasured(reason="foreign_label", message=f"more than one model counts: {labels}")
    return None


def _difference(before: Counters, after: Counters) -> CountersDelta:
    gained = (
        None if new is None else new - (old or 0)
        for old, new in zip(_values(before), _values(after), strict=True)
    )
    accepted_at = None
    if after.accepted_at is not None:
        accepted_at = tuple(n - o for o, n in _positions(before.accepted_at, after.accepted_at))
    return CountersDelta(
        **dict(zip(_NAMES, gained, strict=True)),
        accepted_at=accepted_at,
    )


def _positions(
    before: tuple[int, ...] | None, after: tuple[int, ...] | None
) -> list[tuple[int, int]]:
    """Pairs per position; a position that one snapshot lacks counts 0 there."""
    old, new = before or (), after or ()
    depth = max(len(old), len(new))
    return list(zip(_padded(old, depth), _padded(new, depth), strict=True))


def _padded(counts: tuple[int, ...], depth: int) -> tuple[int, ...]:
    return counts + (0,) * (depth - len(counts))


def pooled(deltas: Iterable[CountersDelta]) -> CountersDelta:
    """The sum, to be divided once. A counter that is missing in one delta is missing in the sum."""
    rows = list(deltas)
    accepted_at = None
    if rows and all(row.accepted_at is not None for row in rows):
        depth = max(len(row.accepted_at or ()) for row in rows)
        padded = [_padded(row.accepted_at or (), depth) for row in rows]
        accepted_at = tuple(sum(column) for column in zip(*padded, strict=True))
    columns = zip(*map(_values, rows), strict=True) if rows else [()] * len(_NAMES)
    return CountersDelta(
        **{name: _sum_known(column) for name, column in zip(_NAMES, columns, strict=True)},
        accepted_at=accepted_at,
    )


def _sum_known(values: Sequence[int | None]) -> int | None:
    known = [value for value in values if value is not None]
    return sum(known) if known and len(known) == len(values) else None


def _ratio(part: float | None, whole: float | None) -> float | None:
    return part / whole if part is not None and whole else None


def acceptance_length(delta: CountersDelta) -> float | None:
    """Tokens per round: 1 + accepted / drafts. The 1 is the target's own token (vLLM, the
    study).
    """
    accepted_per_round = _ratio(delta.accepted_tokens, delta.drafts)
    return None if accepted_per_round is None else 1 + accepted_per_round


def acceptance_rate(delta: CountersDelta) -> float | None:
    """accepted / drafted tokens."""
    return _ratio(delta.accepted_tokens, delta.draft_tokens)


def acceptance_at_position(delta: CountersDelta) -> tuple[float, ...] | None:
    """Share of rounds that accepted position i, position 0 first."""
    if delta.accepted_at is None or not delta.drafts:
        return None
    return tuple(accepted / delta.drafts for accepted in delta.accepted_at)


def conditional_acceptance(delta: CountersDelta) -> tuple[float | None, ...] | None:
    """Acceptance of position i among the rounds that accepted position i - 1."""
    if delta.accepted_at is None or not delta.drafts:
        return None
    before = (delta.drafts, *delta.accepted_at[:-1])
    return tuple(_ratio(now, prior) for now, prior in zip(delta.accepted_at, before, strict=True))


def fraction_of_ceiling(length: float | None, k: int | None) -> float | None:
    """acceptance_length / (k + 1). Above 1 the k is wrong."""
    return None if length is None or k is None else length / (k + 1)


def acceptance_rate_of_length(length: float, k: int) -> float:
    """What is left of a length without the target's own token, of the k that were drafted.

    Near saturation it reads like `fraction_of_ceiling`, and it is another figure: 10.42 tokens a
    round at k = 14 are 69.5 % of the ceiling and 67.3 % of the drafted tokens.
    """
    return (length - 1) / k


def relative_change(new: float, old: float) -> float:
    """new / old - 1: -0.069 from 4.589 to 4.272."""
    return new / old - 1


def full_length_requests(kv_tokens: int, context_tokens: int) -> float:
    """How many requests of the whole context's length the keys and values have room for."""
    return kv_tokens / context_tokens


def with_plain_steps(delta: CountersDelta, requests: int) -> CountersDelta:
    """Plain steps from the target's forward passes, where the engine counts those instead.

    Holds for requests that ran alone and whose prompts took one pass each: every other pass was a
    decode step, and those that were no round were plain.
    """
    if delta.plain_steps is not None or delta.decode_calls is None or delta.drafts is None:
        return delta
    return replace(delta, plain_steps=delta.decode_calls - requests - delta.drafts)


def _steps(delta: CountersDelta) -> int | None:
    if delta.drafts is None or delta.plain_steps is None:
        return None
    return delta.drafts + delta.plain_steps


def draft_coverage(delta: CountersDelta) -> float | None:
    """Rounds with a draft over all decode steps; None where plain steps are not counted."""
    return _ratio(delta.drafts, _steps(delta))


def tokens_per_step(delta: CountersDelta, tokens: int, requests: int) -> float | None:
    """(tokens - first tokens) / decode steps: what speculation gains when some steps draft nothing.

    tokens, requests: what the client received; the first token of a request comes from prefill.
    None where plain steps are not counted: the rounds alone would hide the steps without a draft.
    """
    return _ratio(tokens - requests, _steps(delta))


def token_identity_residual(delta: CountersDelta, tokens: int, requests: int) -> int | None:
    """tokens - (requests + rounds + plain steps + accepted - trimmed): 0 where every token is
    explained.

    An engine that does not count trimmed tokens may leave a residual in [-k x requests, 0].
    """
    steps = _steps(delta)
    if steps is None or delta.accepted_tokens is None:
        return None
    return tokens - (requests + steps + delta.accepted_tokens - (delta.trimmed_tokens or 0))


def tokens_per_round(delta: CountersDelta, tokens: int) -> float | None:
    """tokens / rounds, the prompt's first token among them: SGLang's acceptance length."""
    return _ratio(tokens, delta.drafts)


def engine_decode_rate(delta: CountersDelta) -> float | None:
    """Tokens over the engine's own decode seconds; like `decode_rate` it counts the first tokens
    without their time.
    """
    return _ratio(delta.generation_tokens, delta.generation_s)


def tokens_per_step_and_prefill(delta: CountersDelta, tokens: int, requests: int) -> float | None:
    """tokens / (decode steps + prefills), specdec_bench's acceptance length: it counts the step
    that gave a request its first token.
    """
    steps = _steps(delta)
    return None if steps is None else _ratio(tokens, steps + requests)


def roof_fraction(
    step_bytes: int | None, steps_per_s: float | None, bandwidth_bytes_per_s: float | None
) -> float | None:
    """Weight bytes read per second over what the device can read; a cache may carry it above 1."""
    if step_bytes is None or steps_per_s is None:
        return None
    return _ratio(step_bytes * steps_per_s, bandwidth_bytes_per_s)


def accepted_of_tested(delta: CountersDelta) -> float | None:
    """accepted / tested tokens: those behind the first that was refused were never tested."""
    return _ratio(delta.accepted_tokens, delta.tested_tokens)
