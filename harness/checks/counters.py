"""Whether the engine's counters can be believed, and are this run's alone."""

from collections.abc import Sequence

from harness import measures
from harness.cell_view import CellView, LedgerEntry
from harness.checks.finding import OK, Finding, invalid
from harness.records import Counters


def counter_reset(view: CellView) -> Finding:
    for found in view.gains.values():
        if not isinstance(found, measures.NotMeasured):
            continue
        if found.reason == "restart":
            return invalid(
                "The engine process was replaced between two readings of its counters. Look in "
                "its log for why it died, then measure the cell again."
            )
        if found.reason == "counter_reset":
            return invalid(
                f"Between two readings of the engine's counters, {found.message}, so something "
                "reset them. Let nothing else touch the engine, then measure the cell again."
            )
    return OK


def counter_foreign_label(view: CellView) -> Finding:
    labels = {label for pair in _readings(view) for counters in pair for label in counters.labels}
    if len(labels) <= 1:
        return OK
    return invalid(
        f"The counters belong to {len(labels)} models ({', '.join(sorted(labels))}). Measure an "
        "engine that serves the one model of this cell."
    )


def _readings(view: CellView) -> Sequence[tuple[Counters, Counters]]:
    """Counters before and after, of every scope that has both."""
    return [
        (pair.before.counters, pair.after.counters)
        for pair in view.readings.values()
        if pair.before and pair.after and pair.before.counters and pair.after.counters
    ]


def foreign_traffic(view: CellView) -> Finding:
    """The engine did no work that none of our requests asked for."""
    foreign = [entry for entry in view.ledger if entry.contaminated]
    if not foreign:
        return OK
    return invalid(
        f"{len(foreign)} of {len(view.ledger)} readings of the engine's counters are "
        f"{foreign[0].reason}. Somebody else uses the engine: measure as its sole client."
    )


def positions_add_up(view: CellView) -> Finding:
    """Every accepted token was accepted at some position."""
    total = view.total.delta
    if total is None or total.accepted_at is None or total.accepted_tokens is None:
        return OK
    if sum(total.accepted_at) == total.accepted_tokens:
        return OK
    return invalid(
        f"The engine counted {total.accepted_tokens} accepted tokens and {sum(total.accepted_at)} "
        "over its positions. Do not use its acceptance figures; report this to the engine."
    )


def token_identity(view: CellView) -> Finding:
    """tokens = requests + rounds + plain steps + accepted - trimmed, over every scope with its
    counters.
    """
    for entry in view.ledger:
        residual = _residual(view, entry)
        if residual is None or entry.delta is None or entry.where is None:
            continue
        # An engine that does not count what it cut off after the end may have accepted k tokens too
        # many.
        uncounted = entry.delta.trimmed_tokens is None and view.cell.drafter is not None
        slack = (view.cell.k or 0) * view.asked_in(entry.where).num_requests if uncounted else 0
        if not -slack <= residual <= 0:
            return invalid(
                f"The engine's counters do not add up: {residual:+d} tokens against requests + "
                "rounds + plain steps + accepted - trimmed. Do not use its acceptance figures; "
                "report this to the engine."
            )
    return OK


def _residual(view: CellView, entry: LedgerEntry) -> int | None:
    """None unless every request of the scope succeeded and the engine counts its plain steps."""
    if entry.delta is None or entry.where is None or entry.delta.plain_steps is None:
        return None
    asked = view.asked_in(entry.where)
    if not asked.num_requests or asked.num_failed or asked.tokens is None:
        return None
    return measures.token_identity_residual(entry.delta, asked.tokens, asked.num_requests)
