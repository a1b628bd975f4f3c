"""The speculation ledger in figures: what the engine's counters say about drafting.

Deltas are pooled over the scopes of a view and divided once. Where counters cannot tell, the reason
is handed on, under the words of docs/terms.md; nothing is estimated from the client's side.
"""

from collections.abc import Callable, Mapping
from typing import Any

from harness import measures
from harness.adapters import ADAPTERS
from harness.analysis import stats, throughput
from harness.analysis.measured import Measured, not_measured
from harness.cell_view import CellView, LedgerEntry
from harness.measures import CountersDelta


def acceptance_length(view: CellView) -> Measured:
    return _at_most(_ceiling(view), _from_drafts(view, measures.acceptance_length))


def acceptance_rate(view: CellView) -> Measured:
    return _at_most(1, _from_drafts(view, measures.acceptance_rate))


def fraction_of_ceiling(view: CellView) -> Measured:
    if view.cell.drafter is not None and view.cell.k is None:
        return not_measured("the matrix does not say k")
    return _at_most(
        1,
        _from_drafts(
            view,
            lambda delta: measures.fraction_of_ceiling(
                measures.acceptance_length(delta), view.cell.k
            ),
        ),
    )


def _ceiling(view: CellView) -> int | None:
    return None if view.cell.k is None else view.cell.k + 1


def _at_most(most: float | None, measured: Measured) -> Measured:
    """A figure that no engine can reach is none; its value stands in the reason."""
    if measured.value is None or most is None or measured.value <= most:
        return measured
    return not_measured(f"impossible: {measured.value:.4g}, where {most:g} is the most")


def draft_coverage(view: CellView) -> Measured:
    return _from_drafts(view, measures.draft_coverage)


def tokens_per_step(view: CellView) -> Measured:
    return _at_most(_ceiling(view), _from_tokens(view, measures.tokens_per_step))


def tokens_per_round(view: CellView) -> Measured:
    return _from_tokens(view, lambda delta, tokens, _: measures.tokens_per_round(delta, tokens))


def tokens_per_step_and_prefill(view: CellView) -> Measured:
    return _from_tokens(view, measures.tokens_per_step_and_prefill)


def accepted_of_tested(view: CellView) -> Measured:
    return _from_drafts(view, measures.accepted_of_tested)


def token_identity_residual(view: CellView) -> Measured:
    return _from_tokens(view, measures.token_identity_residual)


def roof_fraction(view: CellView) -> Measured:
    """Of the target alone: what the drafter reads comes on top."""
    bandwidth = view.device.get("memory_bandwidth_GBps")
    if bandwidth is None:
        return not_measured("the matrix gives no `device: {memory_bandwidth_GBps}`")
    if view.step_bytes is None:
        return not_measured("the target's safetensors files are not on this machine")
    rate = stats.mean_of_medians(throughput.decode_rate_strict_groups(view))
    if rate is None:
        return not_measured(throughput.why_no_rate(view))
    a_step = Measured(value=1.0, n=0) if view.cell.drafter is None else tokens_per_step(view)
    if not a_step.value:
        return a_step
    fraction = measures.roof_fraction(view.step_bytes, rate / a_step.value, bandwidth * 1e9)
    return Measured(value=fraction, n=len(view.ok))


def draft_ms_per_round(view: CellView) -> Measured:
    return _from_drafts(view, lambda delta: _ms_per_round(delta.draft_s, delta.drafts))


def verify_ms_per_round(view: CellView) -> Measured:
    return _from_drafts(view, lambda delta: _ms_per_round(delta.verify_s, delta.drafts))


def engine_decode_rate(view: CellView) -> Measured:
    """Of plain variants too: it asks nothing of a drafter."""
    entry = view.total
    rate = measures.engine_decode_rate(entry.delta) if entry.delta else None
    if rate is None:
        return not_measured(entry.reason or "not_reported: the engine counts no decode time")
    return Measured(value=rate, n=len(view.ok))


def acceptance_at_position(view: CellView) -> tuple[Measured, ...]:
    """Share of rounds that accepted position 1, 2, ..., up to k; empty where unknown.

    Positions behind the last that the page names were never accepted: engines begin a series with
    its first token.
    """
    delta = counted(view).delta
    shares = measures.acceptance_at_position(delta) if delta else None
    if shares is None:
        return ()
    never = (0.0,) * ((view.cell.k or 0) - len(shares))
    return tuple(_at_most(1, Measured(value=share, n=_rounds(delta))) for share in shares + never)


def conditional_acceptance(view: CellView) -> tuple[Measured, ...]:
    """Share of the rounds that came as far as a position and accepted it too."""
    delta = counted(view).delta
    shares = measures.conditional_acceptance(delta) if delta else None
    return tuple(
        not_measured("no round came that far")
        if share is None
        else _at_most(1, Measured(value=share, n=_rounds(delta)))
        for share in shares or ()
    )


def counted(view: CellView) -> LedgerEntry:
    """By the engine's counters; for a kind among others, by what the engine told with each
    request.
    """
    read_request = ADAPTERS[view.cell.adapter].read_request
    if view.kind is None or not view.counters_are_shared or read_request is None:
        return view.total
    return view.remembered("counted", lambda: _told_with_each(view, read_request))


def _told_with_each(
    view: CellView, read_request: Callable[[Mapping[str, Any]], CountersDelta | None]
) -> LedgerEntry:
    told = [read_request(timings or {}) for timings in view.ok.timings()]
    known = [delta for delta in told if delta is not None]
    if len(known) != len(view.sent):
        reason = (
            "not_reported: counters are shared, and the engine told of drafting with "
            f"{len(known)} of {len(view.sent)} requests"
        )
        return LedgerEntry(where=None, delta=None, reason=reason)
    return LedgerEntry(where=None, delta=measures.pooled(known), reason=None)


def _from_drafts(view: CellView, figure: Callable[[CountersDelta], float | None]) -> Measured:
    if view.cell.drafter is None:
        return not_measured("plain decoding")
    entry = counted(view)
    if entry.delta is None:
        return not_measured(entry.reason or "unavailable: no counters were read")
    value = figure(entry.delta)
    if value is None:
        return not_measured(_why_not(entry.delta))
    return Measured(value=value, n=_rounds(entry.delta))


def _from_tokens(
    view: CellView, figure: Callable[[CountersDelta, int, int], float | None]
) -> Measured:
    """Of what the client received in the counters' scopes: tokens and requests."""
    if view.sent.lacks("output_tokens"):
        return not_measured("a request has no token count")
    tokens = int(view.sent.known("output_tokens").sum())
    return _from_drafts(view, lambda delta: figure(delta, tokens, len(view.sent)))


def _why_not(delta: CountersDelta) -> str:
    """Why an engine's counters that were read give no figure of drafting."""
    if (delta.drafts, delta.draft_tokens, delta.accepted_tokens) == (None, None, None):
        return "not_configured: the engine has no counters of drafting, so it runs no drafter"
    if delta.drafts == 0:
        return "no_drafts: nothing was drafted"
    if delta.drafts is None:
        return "not_reported: the engine counts no rounds"
    if delta.accepted_tokens is None:
        return "not_reported: the engine counts rounds and no accepted tokens"
    return "not_reported: the engine keeps no such counter"


def _rounds(delta: CountersDelta | None) -> int:
    return delta.drafts or 0 if delta else 0


def _ms_per_round(seconds: float | None, rounds: int | None) -> float | None:
    return None if seconds is None or not rounds else seconds / rounds * 1e3
