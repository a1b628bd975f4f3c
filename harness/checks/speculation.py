"""Whether the drafter that was asked for drafted, and as deep as it was told."""

import re

from harness import measures
from harness.cell_view import CellView
from harness.checks.finding import OK, Finding, invalid, warning

SATURATED_FRACTION = 0.97
SHALLOW_FRACTION = 0.95  # a last round may be cut short by the token limit, no more


def speculation_active(view: CellView) -> Finding:
    total = view.total.delta
    drafts = total.drafts if total else None
    if view.cell.drafter is None:
        if not drafts:
            return OK
        return invalid(
            f"{view.cell.engine} counted {drafts} drafts although this variant is plain. Start it "
            "without a drafter, or it is no reference."
        )
    if drafts is None:
        reason = view.total.reason or "the engine keeps no drafting counters"
        return warning(
            f"Whether {view.cell.engine} used {view.cell.drafter} is unknown: {reason}. Compare "
            "its output times with the reference's."
        )
    if drafts == 0:
        return invalid(
            f"{view.cell.engine} drafted nothing although the cell asks for {view.cell.drafter}. "
            "Look in the server's log for why the drafter was not loaded."
        )
    return OK


def speculator_kind(view: CellView) -> Finding:
    asked = view.cell.drafter or "none"
    for boot in view.boots:
        named = (boot.health or {}).get("drafter")
        if isinstance(named, str) and named != asked:
            return invalid(
                f"{view.cell.engine} says that it drafts with {named!r} where the cell asks for "
                f"{asked!r}. Look in the server's log for what it loaded."
            )
    return OK


def al_within_k_plus_1(view: CellView) -> Finding:
    total, k = view.total.delta, view.cell.k
    share = measures.acceptance_rate(total) if total else None
    if total and share is not None and share > 1:
        return invalid(
            f"The engine counts {total.accepted_tokens} of {total.draft_tokens} drafted tokens as "
            "accepted, which cannot be. Do not use its acceptance figures; report this to the "
            "engine."
        )
    length = measures.acceptance_length(total) if total else None
    if length is None or k is None or length <= k + 1:
        return OK
    return invalid(
        f"Acceptance length {length:.3f} with k = {k}, where {k + 1} is the most a round can "
        "emit. The engine drafts deeper than the matrix says: set `k` to what it uses."
    )


def drafted_depth(view: CellView) -> Finding:
    total, k = view.total.delta, view.cell.k
    if total is None or k is None or not total.drafts or total.draft_tokens is None:
        return OK
    depth = total.draft_tokens / total.drafts
    message = f"The engine drafted {depth:.2f} tokens per round where the matrix says k = {k}."
    if depth > k:
        return invalid(f"{message} Set `k` to what it uses, or start it with that depth.")
    if depth < SHALLOW_FRACTION * k:
        return warning(
            f"{message} fraction_of_ceiling counts {k} + 1. Look for a confidence threshold or a "
            "token limit that ends drafts early."
        )
    return OK


def k_le_block(view: CellView) -> Finding:
    """A block is the drafted tokens and the one they follow."""
    for boot in view.boots:
        block = (boot.health or {}).get("block")
        if isinstance(block, int) and view.cell.k is not None and view.cell.k > block - 1 > 0:
            return invalid(
                f"k = {view.cell.k}, but the drafter's block of {block} holds {block - 1} drafted "
                f"tokens. Write k: {block - 1} or less."
            )
    return OK


def saturated(view: CellView) -> Finding:
    total, k = view.total.delta, view.cell.k
    length = measures.acceptance_length(total) if total else None
    fraction = measures.fraction_of_ceiling(length, k)
    if fraction is None or not SATURATED_FRACTION <= fraction <= 1:
        return OK
    return warning(
        f"The drafter reaches {fraction * 100:.1f} % of its ceiling of {k} + 1 tokens a round. No "
        "tuning remains; only a larger block would help."
    )


def synthetic_acceptance(view: CellView) -> Finding:
    for boot in view.boots:
        asked = " ".join([*boot.argv, *(f"{key} {value}" for key, value in boot.wanted.items())])
        found = _SYNTHETIC.search(asked)
        if found is not None:
            return invalid(
                f"The engine was told how much to accept ({found.group()}): its output is no "
                "model's, its speed no drafter's. Remove the setting to measure one."
            )
    return OK


# llama.cpp b11434: --spec-synth-len, --spec-synth-rates; vLLM 0.32: in its speculative config
_SYNTHETIC = re.compile(
    r"spec[-_]synth[-_]\w+|synthetic_acceptance_\w+|rejection_sample_method\W+synthetic"
)
