"""One request from token ids to text: runs the decode loop, cuts at stops, keeps the books.

Knows the tokenizer and the decode loop's rounds; knows nothing about HTTP, queues or what the
models compute. A round's tokens stay together: one round, one `Piece`.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Generator
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Literal, Protocol

import torch

from engines.dflash2.config import ModelError, load_target_config
from engines.dflash2.decode import Round, generate, new_cache
from engines.dflash2.metrics import Ledger, prefill_entry, round_entry, timings
from engines.dflash2.sampling import SamplingParams
from engines.dflash2.tokenizer import StreamDecoder, Tokenizer, load_stop_ids, load_tokenizer
from engines.dflash2.weights import load_drafter, load_target

DEFAULT_KV_LEN = 4096

FinishReason = Literal["stop", "length"]


class DecodeLoop(Protocol):
    """`decode.generate` with its models filled in: the prefill's round first, then one per step."""

    def __call__(
        self,
        prompt_ids: tuple[int, ...],
        *,
        max_tokens: int,
        min_tokens: int,
        sampling: SamplingParams,
        stop_ids: frozenset[int],
        kv_len: int,
    ) -> Generator[Round, None, None]: ...


@dataclass(frozen=True, kw_only=True)
class GenerationRequest:
    prompt_ids: tuple[int, ...]
    max_tokens: int
    min_tokens: int
    sampling: SamplingParams
    stop: tuple[str, ...]
    ignore_eos: bool


@dataclass(frozen=True, kw_only=True)
class Piece:
    """What one round adds to the answer; the text may be empty where it has to be held back."""

    text: str
    token_ids: tuple[int, ...]
    entry: Ledger


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


class Engine:
    """The loaded pair with its tokenizer and limits; `generate` decodes one request at a time."""

    def __init__(
        self,
        *,
        decode: DecodeLoop,
        tokenizer: Tokenizer,
        stop_ids: frozenset[int],
        kv_len: int,
        vocab_size: int,
        depth: int | None,
        block_size: int | None,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self._decode = decode
        self.tokenizer = tokenizer
        self.stop_ids = stop_ids
        self.kv_len = kv_len
        self.vocab_size = vocab_size
        self.depth = depth  # proposals per round; None without a drafter
        self.block_size = block_size
        self._clock = clock

    def generate(
        self, request: GenerationRequest, *, queue_s: float = 0.0
    ) -> Generator[Piece | Finished, None, None]:
        """The answer's pieces as they come, then how it ended; closing it ends the decoding."""
        answer = AnswerText(request, self.tokenizer.stream_decoder())
        compilations_before = kernel_compilations()
        ledger, decode_s = Ledger(), 0.0
        started_at_s = first_at_s = self._clock()
        with closing(self._rounds(request)) as rounds:
            for round_ in rounds:
                now_s = self._clock()
                token_ids, text = answer.take(round_)
                if round_.is_prefill:
                    first_at_s = now_s
                    entry = _prefill_entry(request, round_, prefill_s=now_s - started_at_s)
                else:
                    entry = _round_entry(round_, num_kept=len(token_ids))
                ledger, decode_s = ledger + entry, now_s - first_at_s
                yield Piece(text=text, token_ids=token_ids, entry=entry)
                if answer.finish_reason is not None:
                    break
        if answer.finish_reason is None:
            raise RuntimeError("the decode loop ended without a finish reason")
        yield Finished(
            finish_reason=answer.finish_reason,
            timings=timings(
                ledger,
                queue_s=queue_s,
                decode_s=decode_s,
                depth=self.depth,
                block_size=self.block_size,
                kernel_compilations=kernel_compilations() - compilations_before,
            ),
        )

    def _rounds(self, request: GenerationRequest) -> Generator[Round, None, None]:
        return self._decode(
            request.prompt_ids,
            max_tokens=request.max_tokens,
            min_tokens=request.min_tokens,
            sampling=request.sampling,
            stop_ids=frozenset() if request.ignore_eos else self.stop_ids,
            kv_len=self.kv_len,
        )


def _prefill_entry(request: GenerationRequest, round_: Round, *, prefill_s: float) -> Ledger:
    return prefill_entry(
        num_prompt_tokens=len(request.prompt_ids),
        num_tokens=len(round_.tokens),
        prefill_s=prefill_s,
    )


def _round_entry(round_: Round, *, num_kept: int) -> Ledger:
    """The round's entry; what a stop string cut off comes on top of what the loop trimmed."""
    return round_entry(
        num_tokens=num_kept,
        num_drafted=round_.num_drafted,
        num_accepted=round_.num_accepted,
        num_trimmed=round_.num_trimmed + len(round_.tokens) - num_kept,
        draft_s=round_.draft_s or 0.0,
        verify_s=round_.verify_s,
    )


def load_engine(
    model_dir: Path,
    drafter_dir: Path | None,
    *,
    dtype: torch.dtype,
    kv_len: int | None,
    device: torch.device | str = "cpu",
) -> Engine:
    """The pair in the folders, ready to decode; kv_len None: as many positions as is modest."""
    config = load_target_config(model_dir)
    positions = _check_kv_len(kv_len, config.max_position_embeddings, model_dir)
    tokenizer, stop_ids = load_tokenizer(model_dir), load_stop_ids(model_dir)
    _check_tokenizer(tokenizer, config.vocab_size, model_dir)
    target = load_target(model_dir, dtype, device=device)
    drafter = None if drafter_dir is None else load_drafter(drafter_dir, target, dtype)
    return Engine(
        # The memory for keys and values is taken once, so that no request can fail for want of it.
        decode=partial(generate, target, drafter, cache=new_cache(target, drafter, positions)),
        tokenizer=tokenizer,
        stop_ids=stop_ids,
        kv_len=positions,
        vocab_size=config.vocab_size,
        depth=None if drafter is None else drafter.num_proposals,
        block_size=None if drafter is None else drafter.config.block_size,
    )


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


def kernel_compilations() -> int:
    """Graphs compiled by torch.compile in this process: 0 as long as everything runs eagerly.

    Nothing here asks for compilation, so dynamo is normally not even imported; it is read, not
    assumed, so that a number is reported should that ever change.
    """
    dynamo = sys.modules.get("torch._dynamo.utils")
    return 0 if dynamo is None else int(dynamo.counters["stats"]["unique_graphs"])
