"""The decode loop: draft, verify, accept, commit. Plain decoding is the same loop, undrafted.

Token ids in, rounds of token ids out. Every token is decided by the target; a drafter only makes
several of them cheap to decide in one pass. Knows nothing of text, requests or time limits.
"""

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol

import torch
from torch import Tensor

from engines.dflash2.cache import KVCache
from engines.dflash2.sampling import SamplingParams, accept, generators
from engines.dflash2.selector import Draft
from engines.dflash2.target import Target

PREFILL_CHUNK_TOKENS = 512  # bounds the attention mask and the features held at once


class Drafter(Protocol):
    """Whoever proposes tokens: DFlash 2, or a test that knows the answer.

    What it remembers of a sequence lives in the context it makes, so one drafter serves many.
    """

    @property
    def num_proposals(self) -> int:
        """How many tokens each draft has, always."""

    @property
    def target_layer_ids(self) -> tuple[int, ...]:
        """Which target layers' outputs it wants as features, at least one."""

    def new_context(self) -> Any: ...

    def append_context(self, features: Tensor, context: Any) -> None:
        """features: [1, tokens, taps * hidden] of the next accepted tokens, never of rejected ones.

        They are the drafter's to keep: no later pass writes into them.
        """

    def propose(
        self, anchor: int, context: Any, *, temperature: float, generator: torch.Generator
    ) -> Draft:
        """Propose what follows the anchor, the newest token, whose features nobody has yet."""


@dataclass(frozen=True, kw_only=True)
class Round:
    """One step of the loop. Drafted and accepted are counted before trimming, as vLLM does."""

    tokens: tuple[int, ...]  # emitted: accepted drafts, then the target's own token; trimmed
    num_drafted: int  # 0 in the prefill and in plain steps
    num_accepted: int
    num_trimmed: int  # decided, but behind a stop token or over max_tokens
    is_prefill: bool
    draft_s: float  # taking in the last round's features and proposing; 0.0 without a drafter
    verify_s: float  # the target's pass and its choices; in the prefill, all that was done
    finish_reason: Literal["stop", "length"] | None  # None: there is more to come


class LengthError(ValueError):
    """A request for more tokens than the cache has room for, or for none at all."""


def generate(
    target: Target,
    drafter: Drafter | None,
    prompt_ids: Sequence[int],
    *,
    max_tokens: int,
    sampling: SamplingParams,
    stop_ids: frozenset[int],
    kv_len: int,
    min_tokens: int = 0,
    cache: KVCache | None = None,
    clock: Callable[[], float] = time.perf_counter,
) -> Iterator[Round]:
    """Decode one sequence: first the prefill's round with one token, then a round per step.

    Ends with a stop token, which is emitted and counted, after max_tokens, or when closed. Stop
    tokens among the first min_tokens do not stop. Prompt and answer together must fit kv_len.
    cache: memory to reuse, from `new_cache`; its content is forgotten.
    """
    check_fit(len(prompt_ids), max_tokens, kv_len)
    if cache is not None and cache.num_rows < num_cache_rows(drafter, kv_len):
        raise LengthError(
            f"the cache has {cache.num_rows} rows and needs {num_cache_rows(drafter, kv_len)} for "
            f"kv_len {kv_len} with this drafter; make it with new_cache"
        )
    return _decode(
        target,
        drafter,
        prompt_ids,
        sampling=sampling,
        ending=_Ending(max_tokens=max_tokens, min_tokens=min_tokens, stop_ids=stop_ids),
        cache=new_cache(target, drafter, kv_len) if cache is None else cache,
        clock=clock,
    )


def new_cache(target: Target, drafter: Drafter | None, kv_len: int) -> KVCache:
    """A cache for sequences of up to kv_len tokens."""
    limit = target.config.max_position_embeddings
    if not 1 <= kv_len <= limit:
        raise LengthError(f"kv_len {kv_len} is not in 1..{limit}, the positions the target knows")
    return target.new_cache(num_cache_rows(drafter, kv_len))


def num_cache_rows(drafter: Drafter | None, kv_len: int) -> int:
    """kv_len, and the rows of a last draft that may stick out past it.

    A drafter always proposes its whole block, near the end too, and the target verifies all of
    it. Rows are reserved for that, so that the same requests fit with and without drafting.
    """
    return kv_len + (0 if drafter is None else drafter.num_proposals)


def check_fit(num_prompt_tokens: int, max_tokens: int, kv_len: int) -> None:
    """Raise unless there is a prompt, something to generate, and room for both."""
    if num_prompt_tokens < 1:
        raise LengthError("the prompt has no tokens; give at least one to continue from")
    if max_tokens < 1:
        raise LengthError(f"max_tokens is {max_tokens}; ask for at least one token")
    if num_prompt_tokens + max_tokens > kv_len:
        raise LengthError(
            f"{num_prompt_tokens} prompt tokens and max_tokens {max_tokens} do not fit kv_len "
            f"{kv_len}; shorten one of them, or start the engine with a longer --kv-len"
        )


@torch.inference_mode()
def _decode(
    target: Target,
    drafter: Drafter | None,
    prompt_ids: Sequence[int],
    *,
    sampling: SamplingParams,
    ending: "_Ending",
    cache: KVCache,
    clock: Callable[[], float],
) -> Iterator[Round]:
    device = target.embedding_weight.device
    noise = generators(sampling.seed, device)
    context = None if drafter is None else drafter.new_context()
    taps = () if drafter is None else drafter.target_layer_ids
    cache.reset()

    # 1) Prefill: the prompt's features become context, its last row decides the first token.
    started_at_s = clock()
    ids = torch.tensor([list(prompt_ids)], device=device)
    for chunk in ids.split(PREFILL_CHUNK_TOKENS, dim=1):
        output = target(chunk, cache=cache, tap_layer_ids=taps)
        if drafter is not None:
            drafter.append_context(output.features, context)
    anchor = accept(None, target.logits(output.hidden[0, -1:]), sampling, noise.target).next_token
    tokens, finish_reason = ending.trim((anchor,))
    yield Round(
        tokens=tokens,
        num_drafted=0,
        num_accepted=0,
        num_trimmed=0,
        is_prefill=True,
        draft_s=0.0,
        verify_s=clock() - started_at_s,
        finish_reason=finish_reason,
    )

    features: Tensor | None = None  # of the tokens committed since the last draft
    while finish_reason is None:
        # 2) Draft: the whole block in one pass of the drafter.
        started_at_s = drafted_at_s = clock()
        draft = None
        if drafter is not None:
            if features is not None:
                drafter.append_context(features, context)
            draft = drafter.propose(
                anchor, context, temperature=sampling.temperature, generator=noise.drafts
            )
            drafted_at_s = clock()

        # 3) Verify: one pass of the target over the anchor and all drafts.
        drafted = () if draft is None else draft.tokens
        mark = cache.mark()
        ids = torch.tensor([[anchor, *drafted]], device=device)
        output = target(ids, cache=cache, tap_layer_ids=taps)

        # 4) Accept: a prefix of the drafts, then one token of the target's own.
        accepted = accept(draft, target.logits(output.hidden[0]), sampling, noise.target)
        decided = (*drafted[: accepted.num_accepted], accepted.next_token)

        # 5) Commit: forget the rejected rows; the target's own token is the next anchor.
        num_kept = 1 + accepted.num_accepted
        cache.roll_back(mark + num_kept)
        features = None if output.features is None else output.features[:, :num_kept]
        anchor = accepted.next_token
        tokens, finish_reason = ending.trim(decided)
        yield Round(
            tokens=tokens,
            num_drafted=len(drafted),
            num_accepted=accepted.num_accepted,
            num_trimmed=len(decided) - len(tokens),
            is_prefill=False,
            draft_s=drafted_at_s - started_at_s,
            verify_s=clock() - drafted_at_s,
            finish_reason=finish_reason,
        )


@dataclass(kw_only=True)
class _Ending:
    """When a sequence ends, and how much of its last round belongs to it."""

    max_tokens: int
    min_tokens: int
    stop_ids: frozenset[int]
    num_tokens: int = 0

    def trim(
        self, decided: tuple[int, ...]
    ) -> tuple[tuple[int, ...], Literal["stop", "length"] | None]:
        """The tokens up to the end, if it is among them, and its reason."""
        for num_taken, token in enumerate(decided, start=1):
            self.num_tokens += 1
            if token in self.stop_ids and self.num_tokens > self.min_tokens:
                return decided[:num_taken], "stop"
            if self.num_tokens == self.max_tokens:
                return decided[:num_taken], "length"
        return decided, None
