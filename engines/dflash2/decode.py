"""The decode loop: draft, verify, accept, commit. Plain decoding is the same loop, undrafted.

A prompt is read in chunks; then each round moves every sequence of a batch on by what the target
decided in one pass. Token ids in, rounds of token ids out. A drafter only makes several tokens
cheap to decide at once. Knows nothing of text, requests or time limits, nor who joins and leaves
(`batch`); a batch of one is decoded by the same functions.
"""

import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor

from engines.dflash2.cache import CacheView, KVCache
from engines.dflash2.drafting import Committed, Draft, Drafter
from engines.dflash2.sampling import (
    Accepted,
    Generators,
    Likely,
    SamplingParams,
    accept_each,
    generators,
    likeliest_tokens,
)
from engines.dflash2.selector import NonFiniteError
from engines.dflash2.target import Target, TargetOutput

PREFILL_CHUNK_TOKENS = 512  # bounds the attention mask, the features held and what others wait


@dataclass(frozen=True, kw_only=True)
class Round:
    """One sequence's part of a step. Drafted and accepted are counted before trimming, as by vLLM.

    Times are those of the whole pass, which all of its sequences waited for.
    """

    tokens: tuple[int, ...]  # emitted: accepted drafts, then the target's own token; trimmed
    num_drafted: int  # 0 in the prefill and in plain steps
    num_accepted: int
    num_trimmed: int  # decided, but behind a stop token or over max_tokens
    is_prefill: bool
    draft_s: float  # proposing, and taking in what was accepted; 0.0 without a drafter
    verify_s: float  # the target's pass and its choices; in the prefill, all that was done
    num_sharing: int  # sequences in the pass
    finish_reason: Literal["stop", "length"] | None  # None: there is more to come
    likeliest: tuple[Likely, ...] = ()  # in the prefill's round, where they were asked for


Outcome = Round | NonFiniteError  # an error: of this sequence, which cannot go on


class LengthError(ValueError):
    """A request for more tokens than the cache has room for, or for none at all."""


@dataclass(kw_only=True, eq=False)
class Sequence:
    """A prompt on its way to an answer. The functions below move it on; others only read it."""

    prompt_ids: tuple[int, ...]
    sampling: SamplingParams
    noise: Generators
    ending: "Ending"
    num_likeliest: int
    num_read: int = 0  # of the prompt
    started_at_s: float | None = None  # when its first chunk began; None: it waits
    prefill_s: float = 0.0  # spent on its chunks so far
    anchor: int = -1  # its newest token, which no pass has seen yet; none before the prefill's end

    @property
    def is_read(self) -> bool:
        return self.num_read == len(self.prompt_ids)


@dataclass(frozen=True, kw_only=True)
class Workspace:
    """The models, and the memory in which they keep the sequences of a batch, a slot for each."""

    target: Target
    drafter: Drafter | None
    cache: KVCache
    contexts: Any  # the drafter's
    kv_len: int  # positions that a prompt and its answer may have together
    clock: Callable[[], float]

    @property
    def num_bytes(self) -> int:
        return self.cache.num_bytes + (0 if self.drafter is None else self.contexts.num_bytes)

    @property
    def taps(self) -> tuple[int, ...]:
        return () if self.drafter is None else self.drafter.target_layer_ids

    def reset(self, slot: int) -> None:
        self.cache.reset(slot)
        if self.drafter is not None:
            self.contexts.reset(slot)

    def move(self, source: int, destination: int) -> None:
        self.cache.move(source, destination)
        if self.drafter is not None:
            self.contexts.move(source, destination)


def new_workspace(
    target: Target,
    drafter: Drafter | None,
    *,
    num_slots: int,
    kv_len: int,
    clock: Callable[[], float] = time.perf_counter,
) -> Workspace:
    """Memory for so many sequences of up to kv_len tokens.

    A drafter always proposes its whole block, near the end too, and the target verifies all of
    it. Rows are reserved for that, so that the same requests fit with and without drafting.
    """
    limit = target.config.max_position_embeddings
    if not 1 <= kv_len <= limit:
        raise LengthError(f"kv_len {kv_len} is not in 1..{limit}, the positions the target knows")
    num_rows = kv_len + (0 if drafter is None else drafter.num_proposals)
    return Workspace(
        target=target,
        drafter=drafter,
        cache=target.new_cache(num_slots, num_rows),
        contexts=None if drafter is None else drafter.new_contexts(num_slots, num_rows),
        kv_len=kv_len,
        clock=clock,
    )


def new_sequence(
    work: Workspace,
    prompt_ids: Iterable[int],
    *,
    max_tokens: int,
    sampling: SamplingParams,
    stop_ids: frozenset[int],
    min_tokens: int = 0,
    num_likeliest: int = 0,
) -> Sequence:
    """A sequence that ends with a stop token, which is emitted and counted, or after max_tokens.

    Stop tokens among the first min_tokens do not stop. Prompt and answer must fit kv_len. The
    first round tells the num_likeliest tokens that the prompt makes likeliest.
    """
    prompt_ids = tuple(prompt_ids)
    check_fit(len(prompt_ids), max_tokens, work.kv_len)
    return Sequence(
        prompt_ids=prompt_ids,
        sampling=sampling,
        noise=generators(sampling.seed, work.target.embedding_weight.device),
        ending=Ending(max_tokens=max_tokens, min_tokens=min_tokens, stop_ids=stop_ids),
        num_likeliest=num_likeliest,
    )


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


def generate(
    target: Target,
    drafter: Drafter | None,
    prompt_ids: Iterable[int],
    *,
    kv_len: int,
    clock: Callable[[], float] = time.perf_counter,
    **wishes: Any,
) -> Iterator[Round]:
    """Decode one sequence alone: the prefill's round with one token, then a round per step.

    wishes: as of `new_sequence`.
    """
    work = new_workspace(target, drafter, num_slots=1, kv_len=kv_len, clock=clock)
    return rounds_alone(work, new_sequence(work, prompt_ids, **wishes))


def rounds_alone(work: Workspace, sequence: Sequence) -> Iterator[Round]:
    """A sequence from its prompt to its end, in slot 0 and without company."""
    outcome: Outcome | None = None
    while outcome is None:
        outcome = read_chunk(work, sequence, slot=0)
    while True:
        if isinstance(outcome, NonFiniteError):
            raise outcome
        yield outcome
        if outcome.finish_reason is not None:
            return
        (outcome,) = decode_round(work, [sequence])


@torch.inference_mode()
def read_chunk(work: Workspace, sequence: Sequence, slot: int) -> Outcome | None:
    """Read the next chunk of a prompt into a slot; the last one decides the first token."""
    started_at_s = work.clock()
    slots = range(slot, slot + 1)
    if sequence.num_read == 0:
        work.reset(slot)
        sequence.started_at_s = started_at_s
    first, end = sequence.num_read, sequence.num_read + PREFILL_CHUNK_TOKENS
    chunk = sequence.prompt_ids[first:end]
    output = _pass(work, [chunk], view := work.cache.view(slots))
    view.commit([len(chunk)])
    sequence.num_read += len(chunk)

    following = sequence.prompt_ids[first + 1 : end + 1]
    likeliest: tuple[Likely, ...] = ()
    if sequence.is_read:
        logits = work.target.logits(output.hidden[:, -1:])
        (accepted,) = _accept([sequence], [None], logits)
        if isinstance(accepted, NonFiniteError):
            return accepted
        sequence.anchor = accepted.next_token
        likeliest = likeliest_tokens(logits[0], sequence.num_likeliest)
        following = (*following, sequence.anchor)
    _tell_drafter(work, output, slots, [following])
    sequence.prefill_s += work.clock() - started_at_s
    if not sequence.is_read:
        return None
    tokens, finish_reason = sequence.ending.trim((sequence.anchor,))
    return Round(
        tokens=tokens,
        num_drafted=0,
        num_accepted=0,
        num_trimmed=0,
        is_prefill=True,
        draft_s=0.0,
        verify_s=sequence.prefill_s,
        num_sharing=1,
        finish_reason=finish_reason,
        likeliest=likeliest,
    )


@torch.inference_mode()
def decode_round(
    work: Workspace, sequences: list[Sequence], *, drafting: bool = True
) -> list[Outcome]:
    """One step of every sequence; sequences[i] lies in slot i and its prompt has been read."""
    slots = range(len(sequences))

    # 1) Draft: all blocks in one pass of the drafter.
    started_at_s = work.clock()
    drafts = _propose(work, sequences, slots) if drafting else [None] * len(sequences)
    drafted = [() if draft is None else draft.tokens for draft in drafts]
    drafted_at_s = work.clock()

    # 2) Verify: one pass of the target over every anchor and its drafts.
    rows = [(each.anchor, *tokens) for each, tokens in zip(sequences, drafted, strict=True)]
    output = _pass(work, rows, view := work.cache.view(slots))

    # 3) Accept: of each, a prefix of the drafts, then one token of the target's own.
    accepted = _accept(sequences, drafts, work.target.logits(output.hidden))
    decided = [_decided(*each) for each in zip(drafted, accepted, strict=True)]

    # 4) Commit: rejected rows never happened; the target's own token is the next anchor.
    view.commit([len(tokens) for tokens in decided])
    for sequence, tokens in zip(sequences, decided, strict=True):
        sequence.anchor = tokens[-1]
    verified_at_s = work.clock()

    # 5) What stays is what the drafter will look at.
    _tell_drafter(work, output, slots, decided)
    told_at_s = work.clock()
    draft_s = (drafted_at_s - started_at_s) + (told_at_s - verified_at_s)
    return [
        result
        if isinstance(result, NonFiniteError)
        else _round(
            sequence,
            decided=tokens,
            num_drafted=len(rows[0]) - 1,
            draft_s=0.0 if work.drafter is None else draft_s,
            verify_s=verified_at_s - drafted_at_s,
            num_sharing=len(sequences),
        )
        for sequence, tokens, result in zip(sequences, decided, accepted, strict=True)
    ]


def _propose(work: Workspace, sequences: list[Sequence], slots: range) -> list[Draft | None]:
    if work.drafter is None:
        return [None] * len(sequences)
    return [
        *work.drafter.propose(
            [each.anchor for each in sequences],
            work.contexts,
            slots,
            temperatures=[each.sampling.temperature for each in sequences],
            generators=[each.noise.drafts for each in sequences],
        )
    ]


def _pass(work: Workspace, rows: list[tuple[int, ...]], view: CacheView) -> TargetOutput:
    """rows: of each sequence, equally many."""
    ids = torch.tensor(rows, device=work.target.embedding_weight.device)
    return work.target(ids, cache=view, tap_layer_ids=work.taps)


def _accept(
    sequences: list[Sequence], drafts: list[Draft | None], logits: Tensor
) -> list[Accepted | NonFiniteError]:
    return accept_each(
        drafts,
        logits,
        [each.sampling for each in sequences],
        [each.noise.target for each in sequences],
    )


def _decided(drafted: tuple[int, ...], accepted: Accepted | NonFiniteError) -> tuple[int, ...]:
    """The tokens behind the anchor; of a sequence that failed, one that nobody will see."""
    if isinstance(accepted, NonFiniteError):
        return (0,)
    return (*drafted[: accepted.num_accepted], accepted.next_token)


def _tell_drafter(
    work: Workspace, output: TargetOutput, slots: range, decided: list[tuple[int, ...]]
) -> None:
    """decided: of each sequence, the token behind each row that stays."""
    if work.drafter is None:
        return
    num_rows = tuple(len(tokens) for tokens in decided)
    length = output.hidden.shape[1]
    padded = [(*tokens, *(0,) * (length - len(tokens))) for tokens in decided]
    committed = Committed(
        hidden=output.hidden,
        features=output.features,
        num_rows=num_rows,
        next_tokens=torch.tensor(padded, device=output.hidden.device),
    )
    work.drafter.append_context(committed, work.contexts, slots)


def _round(
    sequence: Sequence,
    *,
    decided: tuple[int, ...],
    num_drafted: int,
    draft_s: float,
    verify_s: float,
    num_sharing: int,
) -> Round:
    tokens, finish_reason = sequence.ending.trim(decided)
    return Round(
        tokens=tokens,
        num_drafted=num_drafted,
        num_accepted=len(decided) - 1,
        num_trimmed=len(decided) - len(tokens),
        is_prefill=False,
        draft_s=draft_s,
        verify_s=verify_s,
        num_sharing=num_sharing,
        finish_reason=finish_reason,
    )


@dataclass(kw_only=True)
class Ending:
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
