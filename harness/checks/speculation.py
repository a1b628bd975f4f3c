"""Whether the drafter that was asked for drafted, and as deep as it was told."""

import re

from harness import measures
from harness.cell_view import CellView
from harness.checks.checkpoints import drafter_architectures, is_dflash2
from harness.checks.finding import ACCEPTANCE, OK, Finding, invalid, warning

SATURATED_FRACTION = 0.97
REJECTED_LENGTH = 1.01
ROUNDS_TO_TELL = 20  # whoever gets one first draft in five right misses 20 in 1 % of cases
LOW_COVERAGE = 0.5
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
    if drafts == 0 and view.cell.max_tokens == 1:
        return OK  # the prefill gives the one token, and nothing is left to draft
    if drafts == 0:
        return _too_many_to_draft(view) or invalid(
            f"{view.cell.engine} drafted nothing although the cell asks for {view.cell.drafter}. "
            "Look in the server's log for why the drafter was not loaded."
        )
    return OK


def _too_many_to_draft(view: CellView) -> Finding | None:
    """An engine may be told to stop drafting where a step serves many requests anyway."""
    limits = [(boot.health or {}).get("draft_until_batch") for boot in view.boots]
    known = [limit for limit in limits if isinstance(limit, int)]
    if not known or max(known) >= view.cell.concurrency:
        return None
    return warning(
        f"Nothing was drafted: {view.cell.engine} drafts for at most {max(known)} requests at once "
        f"(draft_until_batch), and {view.cell.concurrency} were in flight. Read this level as "
        "plain decoding beside a loaded drafter, or raise that limit."
    )


def all_rejected(view: CellView) -> Finding:
    """A wrong checkpoint, head or tap leaves the output right and only the speed low."""
    total = view.total.delta
    length = measures.acceptance_length(total) if total else None
    if total is None or length is None or (total.drafts or 0) < ROUNDS_TO_TELL:
        return OK
    if length >= REJECTED_LENGTH:
        return OK
    depth = "" if view.cell.k is None else f" with k = {view.cell.k}"
    return invalid(
        f"Acceptance length {length:.2f}{depth}: {total.drafts} rounds accepted "
        f"{total.accepted_tokens} drafted tokens, so what ran is no working {view.cell.drafter}. "
        "Look in the server's log which drafter it loaded, and whether that was made for this "
        "target."
    )


def draft_coverage(view: CellView) -> Finding:
    total = view.total.delta
    coverage = measures.draft_coverage(total) if total else None
    if view.cell.drafter is None or not coverage or coverage >= LOW_COVERAGE:
        return OK
    return warning(
        f"Only {coverage * 100:.0f} % of the decode steps had a draft, and the acceptance length "
        "is that of those steps alone. Read tokens_per_step beside it, which counts them all.",
        touches=ACCEPTANCE,
    )


def speculator_kind(view: CellView) -> Finding:
    asked = view.cell.drafter or "none"
    for boot in view.boots:
        named = (boot.health or {}).get("drafter")
        if isinstance(named, str) and named != asked:
            return invalid(
                f"{view.cell.engine} says that it drafts with {named!r} where the cell asks for "
                f"{asked!r}. Look in the server's log for what it loaded."
            )
    if _told(view) == ("off" if view.cell.drafter else "on"):
        return invalid(
            f"{view.cell.engine} says that its speculation is {_told(view)} where the cell asks "
            f"for {asked!r}. Look in the server's log for what became of the drafter."
        )
    if asked == "dflash2" and not is_dflash2(view):
        return invalid(
            f"{view.cell.drafter_model} is no DFlash 2 drafter: its config.json names "
            f"{', '.join(drafter_architectures(view))}. Take a checkpoint of DFlash2DraftModel, or "
            "write the method that this one is of."
        )
    return _runner(view) if view.cell.adapter == "vllm" and is_dflash2(view) else OK


def _told(view: CellView) -> str | None:
    """On or off, as the engine says; None where it does not, or another thing in another boot."""
    said = {(boot.health or {}).get("speculation") for boot in view.boots}
    return said.pop() if len(said) == 1 else None


def _runner(view: CellView) -> Finding:
    """vLLM's older runner loads such a checkpoint without its selector and convolutions, drafts as
    DFlash 1 and says nothing.
    """
    ready = [boot for boot in view.boots if boot.ready_s is not None]
    runners = {(boot.health or {}).get("runner") for boot in ready}
    if runners <= {"V2"}:
        return OK
    if "V1" in runners:
        return invalid(
            "vLLM ran its V1 model runner, which drafts with a DFlash 2 checkpoint as if it were "
            "DFlash 1. Set VLLM_USE_V2_MODEL_RUNNER=1 in the engine's `environment`."
        )
    return warning(
        "vLLM's log does not say which model runner it used, and its V1 runner drafts with a "
        "DFlash 2 checkpoint as if it were DFlash 1. Look for `Using V2 Model Runner` in the "
        "server's log before these figures are quoted."
    )


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


def saturated(view: CellView) -> Finding:
    total, k = view.total.delta, view.cell.k
    length = measures.acceptance_length(total) if total else None
    fraction = measures.fraction_of_ceiling(length, k)
    if fraction is None or not SATURATED_FRACTION <= fraction <= 1:
        return OK
    return warning(
        f"The drafter reaches {fraction * 100:.1f} % of its ceiling of {k} + 1 tokens a round. No "
        "tuning remains; only a larger block would help.",
        touches=ACCEPTANCE,
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
