"""Who is decoded together: sequences join, take turns and leave, between one pass and the next.

Knows slots and whose turn it is; what a turn does is `decode`'s. Those that decode lie in the
first slots, in the order of the list, so that a pass reads one piece of memory. A prompt is read in
the last slot and moves when it has been read; when a sequence leaves, the last one takes its slot.
"""

from collections import deque
from collections.abc import Iterable

from engines.dflash2 import decode
from engines.dflash2.decode import (
    Outcome,
    Round,
    Sequence,
    Workspace,
    decode_round,
    new_sequence,
    read_chunk,
)
from engines.dflash2.sampling import SamplingParams


class Batch:
    """Up to `num_slots` sequences. One thread steps; the numbers may be read by any."""

    def __init__(self, work: Workspace, *, draft_until_batch: int | None = None) -> None:
        """draft_until_batch: with more sequences than that, steps are plain; None: never."""
        self._work = work
        self._draft_until_batch = draft_until_batch
        self._unread: deque[Sequence] = deque()  # the first one may have been read in part
        self._decoding: list[Sequence] = []
        self._is_prompts_turn = True

    @property
    def num_slots(self) -> int:
        return self._work.cache.num_slots

    @property
    def num_bytes(self) -> int:
        """Of keys, values, states and the drafter's contexts, taken at the start."""
        return self._work.num_bytes

    @property
    def num_used_positions(self) -> int:
        return sum(self._work.cache.lengths)

    @property
    def num_sequences(self) -> int:
        return len(self._unread) + len(self._decoding)

    def add(
        self,
        prompt_ids: Iterable[int],
        *,
        max_tokens: int,
        min_tokens: int,
        sampling: SamplingParams,
        stop_ids: frozenset[int],
        num_likeliest: int = 0,
    ) -> Sequence:
        """Take a sequence in; see `new_sequence`. There must be a slot for it."""
        assert self.num_sequences < self.num_slots, "every slot is taken"
        sequence = new_sequence(
            self._work,
            prompt_ids,
            max_tokens=max_tokens,
            min_tokens=min_tokens,
            sampling=sampling,
            stop_ids=stop_ids,
            num_likeliest=num_likeliest,
        )
        self._unread.append(sequence)
        return sequence

    def remove(self, sequence: Sequence) -> None:
        """Forget a sequence, whatever it was about to do."""
        if sequence in self._decoding:
            self._vacate(self._decoding.index(sequence))
        else:
            if sequence is self._unread[0]:
                self._work.reset(self.num_slots - 1)
            self._unread.remove(sequence)

    def clear(self) -> None:
        """Forget every sequence, wherever a pass that failed has left it."""
        self._unread.clear()
        self._decoding.clear()
        for slot in range(self.num_slots):
            self._work.reset(slot)

    def step(self) -> list[tuple[Sequence, Outcome]]:
        """Prompts or a round of all that decode: in turn, where there are both.

        Prompts have a chunk's worth of tokens in a turn: a part of a long one, or several short
        ones. A sequence that ended or failed is gone afterwards.
        """
        if self._unread and (self._is_prompts_turn or not self._decoding):
            self._is_prompts_turn = False
            return self._read()
        self._is_prompts_turn = True
        return self._decode()

    def _read(self) -> list[tuple[Sequence, Outcome]]:
        found: list[tuple[Sequence, Outcome]] = []
        num_read = 0
        while self._unread and num_read < decode.PREFILL_CHUNK_TOKENS:
            sequence = self._unread[0]
            num_before = sequence.num_read
            found += self._read_chunk(sequence)
            num_read += sequence.num_read - num_before
        return found

    def _read_chunk(self, sequence: Sequence) -> list[tuple[Sequence, Outcome]]:
        slot = self.num_slots - 1
        outcome = read_chunk(self._work, sequence, slot)
        if outcome is None:
            return []
        self._unread.popleft()
        if _goes_on(outcome):
            if len(self._decoding) < slot:
                self._work.move(slot, len(self._decoding))
            self._decoding.append(sequence)
        else:
            self._work.reset(slot)
        return [(sequence, outcome)]

    def _decode(self) -> list[tuple[Sequence, Outcome]]:
        sequences = [*self._decoding]
        if not sequences:
            return []
        limit = self._draft_until_batch
        drafting = limit is None or len(sequences) <= limit
        outcomes = decode_round(self._work, sequences, drafting=drafting)
        for slot in reversed(range(len(sequences))):
            if not _goes_on(outcomes[slot]):
                self._vacate(slot)
        return [*zip(sequences, outcomes, strict=True)]

    def _vacate(self, slot: int) -> None:
        """Put the last decoding sequence into a slot whose own is done."""
        last = len(self._decoding) - 1
        if slot < last:
            self._work.move(last, slot)
            self._decoding[slot] = self._decoding[last]
        else:
            self._work.reset(slot)
        del self._decoding[last]


def _goes_on(outcome: Outcome) -> bool:
    return isinstance(outcome, Round) and outcome.finish_reason is None
