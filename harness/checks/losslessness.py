"""Did speculation change what the target says?"""

from collections.abc import Sequence

from harness.cell_view import CellView
from harness.checks.finding import OK, Finding, invalid, warning
from harness.differences import Judgement, Pair, is_compared, judged, pairs_of, tolerance_nats


def lossless(view: CellView) -> Finding:
    """Asked of a drafter and the plain decoding of the same target on the same engine: of other
    pairs nobody says that their outputs are equal.
    """
    reference = view.reference
    if reference is None or view.cell.drafter is None or not is_compared(view.cell):
        return OK
    if (view.cell.target, view.cell.engine) != (reference.cell.target, reference.cell.engine):
        return OK
    found = _real(view)
    if not found:
        return OK
    pair, judgement = max(found, key=lambda each: each[1].gap_nats or 0.0)
    said = (
        f"{len(found)} of {len(view.ok)} outputs differ from {reference.cell.variant}'s for real: "
        f"that to {pair.own.prompt_id!r} goes on with a token {_told(judgement)} nats less likely "
        f"than the target's own, and rounding explains {tolerance_nats(view):g}."
    )
    if _real(reference):
        return warning(
            f"{said} {reference.cell.variant} does not repeat its own outputs either, so the "
            "engine, not the drafter, is to be looked at first."
        )
    return invalid(
        f"{said} Drafts are accepted that the target would not write: look at the outputs side by "
        "side, and report it to the engine. If it is known to round so coarsely, set "
        "`losslessness: {tolerance_nats: ...}`."
    )


def _real(view: CellView) -> Sequence[tuple[Pair, Judgement]]:
    found = [(pair, judged(view, pair)) for pair in pairs_of(view) if pair.differs]
    return [each for each in found if each[1].word == "real"]


def _told(judgement: Judgement) -> str:
    bound = "at least " if judgement.is_bound else ""
    return f"{bound}{judgement.gap_nats:.2g}"
