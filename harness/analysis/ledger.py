"""The speculation ledger in figures: what the engine's counters say about drafting.

Deltas are pooled over the scopes of a view and divided once. Where counters cannot tell, the reason
is handed on; nothing is estimated from the client's side.
"""

from collections.abc import Callable

from harness import measures
from harness.analysis.measured import Measured, not_measured
from harness.cell_view import CellView
from harness.measures import CountersDelta


def acceptance_length(view: CellView) -> Measured:
    return _from_delta(view, measures.acceptance_length)


def acceptance_rate(view: CellView) -> Measured:
    return _from_delta(view, measures.acceptance_rate)


def fraction_of_ceiling(view: CellView) -> Measured:
    if view.cell.drafter is not None and view.cell.k is None:
        return not_measured("the matrix does not say k")
    return _from_delta(
        view,
        lambda delta: measures.fraction_of_ceiling(measures.acceptance_length(delta), view.cell.k),
    )


def draft_coverage(view: CellView) -> Measured:
    return _from_delta(view, measures.draft_coverage)


def tokens_per_step(view: CellView) -> Measured:
    lengths = [request.output_tokens for request in view.requests]
    known = [length for length in lengths if length is not None]
    if len(known) != len(lengths):
        return not_measured("a request has no token count")
    return _from_delta(view, lambda delta: measures.tokens_per_step(delta, sum(known), len(known)))


def draft_ms_per_round(view: CellView) -> Measured:
    return _from_delta(view, lambda delta: _ms_per_round(delta.draft_s, delta.drafts))


def verify_ms_per_round(view: CellView) -> Measured:
    return _from_delta(view, lambda delta: _ms_per_round(delta.verify_s, delta.drafts))


def acceptance_at_position(view: CellView) -> tuple[Measured, ...]:
    """Share of rounds that accepted position 1, 2, ..., in that order; empty where unknown."""
    delta = view.total.delta
    shares = measures.acceptance_at_position(delta) if delta else None
    return tuple(Measured(value=share, n=_rounds(delta)) for share in shares or ())


def conditional_acceptance(view: CellView) -> tuple[Measured, ...]:
    """Share of the rounds that came as far as a position and accepted it too."""
    delta = view.total.delta
    shares = measures.conditional_acceptance(delta) if delta else None
    return tuple(
        not_measured("no round came that far")
        if share is None
        else Measured(value=share, n=_rounds(delta))
        for share in shares or ()
    )


def why_no_acceptance(view: CellView) -> str | None:
    """The reason a view has no figure of acceptance, or None when it has."""
    if view.cell.drafter is None:
        return "plain decoding"
    if view.total.delta is None:
        return view.total.reason
    if view.total.delta.drafts is None:
        return "the engine counts no rounds"
    return None if view.total.delta.drafts else "nothing was drafted"


def _from_delta(view: CellView, figure: Callable[[CountersDelta], float | None]) -> Measured:
    reason = why_no_acceptance(view)
    delta = view.total.delta
    if reason is not None or delta is None:
        return not_measured(reason or "no counters were read")
    value = figure(delta)
    if value is None:
        return not_measured("the engine keeps no such counter")
    return Measured(value=value, n=_rounds(delta))


def _rounds(delta: CountersDelta | None) -> int:
    return delta.drafts or 0 if delta else 0


def _ms_per_round(seconds: float | None, rounds: int | None) -> float | None:
    return None if seconds is None or not rounds else seconds / rounds * 1e3
