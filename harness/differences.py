"""Where a greedy output leaves its reference's: by a near-tie of the target, or for real.

Speculation changes no token. Where an output differs all the same, the target found two tokens so
nearly alike that rounding decides between them, and a pass over several rows rounds otherwise than
one over a single row: a near-tie. Or something is wrong. The two look the same from outside, and
the odds of both tokens, told by the reference's engine, tell them apart. Pure: who asks an engine
is the run's business.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias

from harness.cell_view import CellView
from harness.records import Cell, Plan, Request, Rescore

Word: TypeAlias = Literal["near-tie", "real", "unknown"]

WORKLOADS = ("generate", "edit")
"""Whose outputs are compared: `prefill` has one token, and under load batch shapes change."""

TOLERANCE_NATS: Mapping[str, float] = {"float32": 0.01}
"""By the type that an engine says it computes in; docs/terms.md says what was measured."""

COARSE_TOLERANCE_NATS = 0.25
"""For bfloat16, and where an engine does not say: between 16 and 32, where logits lie, a bfloat16
moves in steps of 1/8. Either token is up to half a step off in either of two passes, so rounding
alone can move the gap between the tokens by two steps.
"""


def is_compared(cell: Cell) -> bool:
    is_greedy = cell.sampling.temperature == 0
    return is_greedy and cell.load == "single" and cell.workload in WORKLOADS


def compared_with(plan: Plan, variant: str) -> tuple[Cell, ...]:
    """The cells of `variant` that outputs are held against, its own later ones if no other's, and
    the cells of those outputs; in the plan's order.
    """
    own = {
        cell.cell_id: cell
        for cell in plan.cells
        if cell.variant == variant and cell.control_of is None and is_compared(cell)
    }
    held = {cell.cell_id for cell in plan.cells if cell.reference_cell_id in own}
    held |= {cell_id for cell_id, cell in own.items() if cell.reference_cell_id is None}
    against = {
        cell.reference_cell_id or cell.cell_id for cell in plan.cells if cell.cell_id in held
    }
    return tuple(cell for cell in plan.cells if cell.cell_id in held | against)


# --- which outputs are held against which ---------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Pair:
    """An output and what it is held against: the reference's first one to the same prompt."""

    own: Request
    reference: Request

    @property
    def differs(self) -> bool:
        return self.own.text_sha256 != self.reference.text_sha256


def pairs(own: Sequence[Request], reference: Sequence[Request]) -> tuple[Pair, ...]:
    """Of requests that succeeded. A reference's own later outputs are held against its first."""
    first: dict[tuple[str, str | None], Request] = {}
    for request in reference:
        first.setdefault(_sent(request), request)
    return tuple(
        Pair(own=request, reference=first[_sent(request)])
        for request in own
        if _sent(request) in first and not _is_same(request, first[_sent(request)])
    )


def _sent(request: Request) -> tuple[str, str | None]:
    """A prompt behind another salt is another prompt."""
    return request.prompt_id, request.salt


def _is_same(one: Request, other: Request) -> bool:
    """By what tells them apart: two records have forty fields to compare."""
    same_id = one.where.request_id == other.where.request_id
    return same_id and one.text_sha256 == other.text_sha256


def pairs_of(view: CellView) -> tuple[Pair, ...]:
    """A kind's are among the whole cell's, which need not be read again."""
    if view.whole is not None and view.kind != view.whole.kind:
        return tuple(pair for pair in pairs_of(view.whole) if pair.own.kind == view.kind)
    return view.remembered("pairs", lambda: pairs(view.ok, (view.reference or view).ok))


def first_unequal(own: Sequence[object], other: Sequence[object]) -> int:
    for index, (left, right) in enumerate(zip(own, other, strict=False)):
        if left != right:
            return index
    return min(len(own), len(other))


# --- what the odds say ----------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Judgement:
    """`gap_nats`: how much less likely than the likeliest token the reference's engine finds the
    output's, in natural logarithms; at least that much where `is_bound`.
    """

    word: Word
    gap_nats: float | None = None
    is_bound: bool = False
    reason: str | None = None  # why it is unknown


def judged(view: CellView, pair: Pair) -> Judgement:
    """Of a pair that differs."""
    rescore = view.rescores.get(str(pair.own.where.request_id))
    if rescore is None or rescore.reference_text_sha256 != pair.reference.text_sha256:
        return Judgement(word="unknown", reason=_why_not_asked(view))
    if rescore.reason is not None:
        return Judgement(word="unknown", reason=rescore.reason)
    return _judged(rescore, tolerance_nats(view))


def _why_not_asked(view: CellView) -> str:
    if view.losslessness is None or not view.losslessness.rescore:
        return "the run did not ask for odds"
    return "the reference's engine was not asked; `dflashbench resume` asks it"


def _judged(rescore: Rescore, tolerance: float) -> Judgement:
    likeliest = rescore.likeliest[0].logprob
    reference = _logprob(rescore, rescore.reference_token_id)
    if reference is None or likeliest - reference > tolerance:
        # its own token was the likeliest when it wrote the output, so this is another prompt
        reason = "asked again, the reference's engine does not find its own token likeliest"
        return Judgement(word="unknown", reason=reason)
    own = _logprob(rescore, rescore.token_id)
    if own is not None:
        gap = likeliest - own
        return Judgement(word="near-tie" if gap <= tolerance else "real", gap_nats=gap)
    least = likeliest - rescore.likeliest[-1].logprob
    if least <= tolerance or rescore.token_id is None:
        reason = "the engine does not tell how likely the output's token is"
        return Judgement(word="unknown", reason=reason)
    return Judgement(word="real", gap_nats=least, is_bound=True)


def _logprob(rescore: Rescore, token_id: int | None) -> float | None:
    """None where the engine does not tell. The end writes nothing; of such tokens it is the
    likeliest.
    """
    for token in rescore.likeliest:
        if token.token_id == token_id or (token_id is None and token.text == ""):
            return token.logprob
    return None


def tolerance_nats(view: CellView) -> float:
    """How large a gap rounding explains: as the matrix says, else by the coarser of both sides."""
    if view.losslessness is not None and view.losslessness.tolerance_nats is not None:
        return view.losslessness.tolerance_nats
    boots = (*view.boots, *(view.reference.boots if view.reference else ()))
    told = {str((boot.health or {}).get("dtype")) for boot in boots}
    return max(
        (TOLERANCE_NATS.get(dtype, COARSE_TOLERANCE_NATS) for dtype in told),
        default=COARSE_TOLERANCE_NATS,
    )
