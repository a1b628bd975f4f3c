"""From requests to text: feeds the batch, cuts answers at their stops, keeps the books.

Knows the tokenizer and the batch's rounds; knows nothing about HTTP, queues or what the models
compute. A round's tokens stay together: one round of a sequence, one `Piece`.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Generator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal, Protocol

import torch
from torch import nn

from engines.dflash2 import kernels
from engines.dflash2.batch import Batch
from engines.dflash2.compilations import Compilations, compilations
from engines.dflash2.config import ModelError, load_target_config
from engines.dflash2.decode import Outcome, Round, new_workspace
from engines.dflash2.drafter import DFlash2Drafter
from engines.dflash2.limits import MAX_CONCURRENT_REQUESTS
from engines.dflash2.metrics import Ledger, prefill_entry, round_entry, timings
from engines.dflash2.mtp import MTPDrafter
from engines.dflash2.sampling import Likely, SamplingParams
from engines.dflash2.selector import NonFiniteError
from engines.dflash2.tokenizer import StreamDecoder, Tokenizer, load_stop_ids, load_tokenizer
from engines.dflash2.weights import load_drafter, load_mtp, load_target

DEFAULT_KV_LEN = 4096

FinishReason = Literal["stop", "length"]


class Started(Protocol):
    """A sequence of the loop, as far as the engine looks at it."""

    @property
    def started_at_s(self) -> float | None:
        """When the first chunk of its prompt began."""


class DecodeLoop(Protocol):
    """`batch.Batch`, or a script in its place."""

    @property
    def num_slots(self) -> int: ...

    @property
    def num_bytes(self) -> int: ...

    @property
    def num_used_positions(self) -> int: ...

    def add(
        self,
        prompt_ids: tuple[int, ...],
        *,
        max_tokens: int,
        min_tokens: int,
        sampling: SamplingParams,
        stop_ids: frozenset[int],
        num_likeliest: int = 0,
    ) -> Started: ...

    def remove(self, sequence: Any) -> None: ...

    def clear(self) -> None: ...

    def step(self) -> list[tuple[Any, Outcome]]: ...


@dataclass(frozen=True, kw_only=True)
class GenerationRequest:
    prompt_ids: tuple[int, ...]
    max_tokens: int
    min_tokens: int
    sampling: SamplingParams
    stop: tuple[str, ...]
    ignore_eos: bool
    stop_token_ids: frozenset[int] = frozenset()  # these stop whatever ignore_eos says
    num_likeliest: int = 0  # tokens to tell that the prompt makes likeliest


@dataclass(frozen=True, kw_only=True)
class Piece:
    """What one round adds to the answer; the text may be empty where it has to be held back.

    entry: for the process's books, where the time of a pass is divided among its sequences.
    """

    text: str
    token_ids: tuple[int, ...]
    entry: Ledger
    likeliest: tuple[Likely, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Finished:
    finish_reason: FinishReason
    timings: dict[str, Any]


class StopText:
    """Cuts text before the first stop string, holding back what may be the beginning of one."""

    def __init__(self, stops: tuple[str, ...]) -> None:
        self._stops = stops
        self._held = ""
        self.found = False

    def feed(self, text: str) -> str:
        """The part of the text so far that can be shown now."""
        self._held += text
        starts = [at for stop in self._stops if (at := self._held.find(stop)) >= 0]
        self.found = bool(starts)
        return self._release(min(starts) if starts else len(self._held) - self._undecided())

    def finish(self) -> str:
        """What is still held when no more text comes: nothing behind a stop string."""
        return "" if self.found else self._release(len(self._held))

    def _release(self, length: int) -> str:
        shown, self._held = self._held[:length], self._held[length:]
        return shown

    def _undecided(self) -> int:
        """Length of the longest end of the held text with which a stop string begins."""
        longest = max((len(stop) - 1 for stop in self._stops), default=0)
        return next(
            (
                length
                for length in range(min(longest, len(self._held)), 0, -1)
                if any(stop.startswith(self._held[-length:]) for stop in self._stops)
            ),
            0,
        )


class AnswerText:
    """A growing answer: takes rounds, keeps the tokens up to its end, and shows their text."""

    def __init__(self, request: GenerationRequest, decoder: StreamDecoder) -> None:
        self._min_tokens = request.min_tokens
        self._decoder = decoder
        self._stop_text = StopText(request.stop)
        self._num_tokens = 0
        self.finish_reason: FinishReason | None = None

    def take(self, round_: Round) -> tuple[tuple[int, ...], str]:
        """The tokens of the round that belong to the answer, and the text they release."""
        # The stop token that ended the decoding counts, but is not shown.
        num_shown = len(round_.tokens) - (round_.finish_reason == "stop")
        text = ""
        for num_kept, token_id in enumerate(round_.tokens[:num_shown], start=1):
            text += self._show(token_id)
            if self._stop_text.found:
                self.finish_reason = "stop"
                return round_.tokens[:num_kept], text
        self.finish_reason = round_.finish_reason
        return round_.tokens, text if self.finish_reason is None else text + self._rest()

    def _show(self, token_id: int) -> str:
        self._num_tokens += 1
        text = self._decoder.feed([token_id])
        # Like stop tokens, stop strings do not count among the first min_tokens tokens: their text
        # is shown at once and cannot become half of a stop string.
        return text if self._num_tokens <= self._min_tokens else self._stop_text.feed(text)

    def _rest(self) -> str:
        rest = self._stop_text.feed(self._decoder.finish())
        return rest + self._stop_text.finish()


@dataclass(kw_only=True, eq=False)
class Answer:
    """One request that is being answered. Times are the engine's clock's."""

    request: GenerationRequest
    text: AnswerText
    sequence: Started
    queued_at_s: float
    compilations_before: Compilations
    ledger: Ledger = field(default_factory=Ledger)  # its own: it waited for the whole of each pass
    first_at_s: float = 0.0  # when its first token came
    last_at_s: float = 0.0


class Engine:
    """The loaded models with their tokenizer and limits; answers several requests at a time.

    `start` takes a request in, each `step` moves some or all of them on, `abandon` forgets one and
    `abandon_all` every one.
    """

    def __init__(
        self,
        *,
        loop: DecodeLoop,
        tokenizer: Tokenizer,
        stop_ids: frozenset[int],
        kv_len: int,
        vocab_size: int,
        depth: int | None,
        block_size: int | None,
        draft_until_batch: int | None = None,
        weights_bytes: int | None = None,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self._loop = loop
        self.tokenizer = tokenizer
        self.stop_ids = stop_ids
        self.kv_len = kv_len
        self.vocab_size = vocab_size
        self.depth = depth  # proposals per round; None without a drafter
        self.block_size = block_size
        self.draft_until_batch = draft_until_batch
        self.weights_bytes = weights_bytes  # of target and drafter in memory; None: not known
        self._clock = clock
        self._answers: dict[Started, Answer] = {}

    @property
    def max_concurrent_requests(self) -> int:
        return self._loop.num_slots

    @property
    def kv_bytes(self) -> int:
        """Memory of everything that is remembered of sequences, taken at the start."""
        return self._loop.num_bytes

    @property
    def kv_capacity_tokens(self) -> int:
        return self.max_concurrent_requests * self.kv_len

    @property
    def kv_used_tokens(self) -> int:
        """Positions that the requests hold now; may be asked by any thread."""
        return self._loop.num_used_positions

    def start(self, request: GenerationRequest, *, queued_at_s: float | None = None) -> Answer:
        """Take a request in; it must have a slot, see `max_concurrent_requests`."""
        stop_ids = frozenset() if request.ignore_eos else self.stop_ids
        sequence = self._loop.add(
            request.prompt_ids,
            max_tokens=request.max_tokens,
            min_tokens=request.min_tokens,
            sampling=request.sampling,
            stop_ids=stop_ids | request.stop_token_ids,
            num_likeliest=request.num_likeliest,
        )
        answer = Answer(
            request=request,
            text=AnswerText(request, self.tokenizer.stream_decoder()),
            sequence=sequence,
            queued_at_s=self._clock() if queued_at_s is None else queued_at_s,
            compilations_before=compilations(),
        )
        self._answers[sequence] = answer
        return answer

    def abandon(self, answer: Answer) -> None:
        """Forget a request that has not ended; its slot is free at once."""
        del self._answers[answer.sequence]
        self._loop.remove(answer.sequence)

    def abandon_all(self) -> None:
        """Forget every request, whatever a step that failed has left of it."""
        self._answers.clear()
        self._loop.clear()

    def step(self) -> list[tuple[Answer, Piece | Finished | NonFiniteError]]:
        """One pass, and what came of it: a piece of an answer, its end after the last, an error."""
        found: list[tuple[Answer, Piece | Finished | NonFiniteError]] = []
        for sequence, outcome in self._loop.step():
            answer = self._answers[sequence]
            if isinstance(outcome, NonFiniteError):
                del self._answers[sequence]
                found.append((answer, outcome))
                continue
            found.append((answer, self._take(answer, outcome)))
            if answer.text.finish_reason is not None:
                del self._answers[sequence]
                if outcome.finish_reason is None:  # a stop string, of which the loop knows nothing
                    self._loop.remove(sequence)
                found.append((answer, self._finished(answer, answer.text.finish_reason)))
        return found

    def generate(self, request: GenerationRequest) -> Generator[Piece | Finished, None, None]:
        """One request alone: its pieces as they come, then how it ended."""
        answer = self.start(request)
        try:
            while answer.sequence in self._answers:
                for _, item in self.step():
                    if isinstance(item, NonFiniteError):
                        raise item
                    yield item
        finally:
            if answer.sequence in self._answers:
                self.abandon(answer)

    def _take(self, answer: Answer, round_: Round) -> Piece:
        token_ids, text = answer.text.take(round_)
        now_s = self._clock()
        answer.last_at_s = now_s
        if round_.is_prefill:
            assert answer.sequence.started_at_s is not None
            answer.first_at_s = now_s
            entry = _prefill_entry(answer.request, round_)
            own = replace(entry, prefill_s=now_s - answer.sequence.started_at_s)
        else:
            own = _round_entry(round_, num_kept=len(token_ids))
            entry = own.shared_by(round_.num_sharing)
        answer.ledger += own
        return Piece(text=text, token_ids=token_ids, entry=entry, likeliest=round_.likeliest)

    def _finished(self, answer: Answer, finish_reason: FinishReason) -> Finished:
        assert answer.sequence.started_at_s is not None
        compiled = compilations()
        return Finished(
            finish_reason=finish_reason,
            timings=timings(
                answer.ledger,
                queue_s=answer.sequence.started_at_s - answer.queued_at_s,
                decode_s=answer.last_at_s - answer.first_at_s,
                depth=self.depth,
                block_size=self.block_size,
                compiled=compiled - answer.compilations_before,
                compiled_in_all=compiled,
            ),
        )


def _prefill_entry(request: GenerationRequest, round_: Round) -> Ledger:
    return prefill_entry(
        num_prompt_tokens=len(request.prompt_ids),
        num_tokens=len(round_.tokens),
        prefill_s=round_.verify_s,
    )


def _round_entry(round_: Round, *, num_kept: int) -> Ledger:
    """The round's entry; what a stop string cut off comes on top of what the loop trimmed."""
    return round_entry(
        num_tokens=num_kept,
        num_drafted=round_.num_drafted,
        num_accepted=round_.num_accepted,
        num_trimmed=round_.num_trimmed + len(round_.tokens) - num_kept,
        draft_s=round_.draft_s,
        verify_s=round_.verify_s,
    )


def load_engine(
    model_dir: Path,
    drafter_dir: Path | None,
    *,
    dtype: torch.dtype,
    kv_len: int | None,
    device: torch.device | str = "cpu",
    max_concurrent_requests: int = MAX_CONCURRENT_REQUESTS,
    draft_until_batch: int | None = None,
    mtp_k: int | None = None,
) -> Engine:
    """What is in the folders, ready to decode; kv_len None: as many positions as is modest.

    drafter_dir: of a DFlash 2 drafter, or mtp_k: how many tokens the target's own MTP head shall
    propose; never both.
    """
    assert drafter_dir is None or mtp_k is None, "one drafter per process"
    config = load_target_config(model_dir)
    positions = _check_kv_len(kv_len, config.max_position_embeddings, model_dir)
    tokenizer, stop_ids = load_tokenizer(model_dir), load_stop_ids(model_dir)
    _check_tokenizer(tokenizer, config.vocab_size, model_dir)
    kernels.library()  # if it has to be compiled, then before anybody waits for an answer
    target = load_target(model_dir, dtype, device=device)
    drafter: DFlash2Drafter | MTPDrafter | None = None
    if drafter_dir is not None:
        drafter = load_drafter(drafter_dir, target, dtype)
    elif mtp_k is not None:
        drafter = load_mtp(model_dir, target, num_proposals=mtp_k)
    # The memory for keys and values is taken once, so that no request can fail for want of it.
    work = new_workspace(target, drafter, num_slots=max_concurrent_requests, kv_len=positions)
    return Engine(
        loop=Batch(work, draft_until_batch=draft_until_batch),
        tokenizer=tokenizer,
        stop_ids=stop_ids,
        kv_len=positions,
        vocab_size=config.vocab_size,
        depth=None if drafter is None else drafter.num_proposals,
        block_size=None if drafter is None else drafter.block_size,
        draft_until_batch=draft_until_batch,
        weights_bytes=_num_bytes(target) + (0 if drafter is None else _num_bytes(drafter.model)),
    )


def _num_bytes(model: nn.Module) -> int:
    return sum(tensor.nbytes for tensor in model.state_dict().values())


def _check_tokenizer(tokenizer: Tokenizer, vocab_size: int, model_dir: Path) -> None:
    # A smaller tokenizer is normal: vocabularies are padded to round numbers.
    if tokenizer.highest_id >= vocab_size:
        raise ModelError(
            f"{model_dir}: tokenizer.json has ids up to {tokenizer.highest_id}, but the model's "
            f"vocab_size is {vocab_size}; put the tokenizer of this model there"
        )


def _check_kv_len(asked: int | None, num_positions: int, model_dir: Path) -> int:
    if asked is None:
        return min(DEFAULT_KV_LEN, num_positions)
    if asked > num_positions:
        raise ModelError(
            f"--kv-len is {asked}, but the model in {model_dir} has {num_positions} positions "
            f"(max_position_embeddings); give at most {num_positions}"
        )
    return asked
