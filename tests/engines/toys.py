"""A target that is a rule, and drafters that say what they are told: cases small enough to read."""

from collections.abc import Callable, Iterator, Sequence
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor

from engines.dflash2.drafting import Committed, Draft
from engines.dflash2.target import TargetOutput


class ToyCache:
    """Keeps the tokens themselves, so that a row too many or too few changes every answer."""

    num_bytes = 0

    def __init__(self, num_slots: int, num_rows: int) -> None:
        self.num_rows = num_rows
        self.ids: list[list[int]] = [[] for _ in range(num_slots)]

    @property
    def num_slots(self) -> int:
        return len(self.ids)

    @property
    def lengths(self) -> list[int]:
        return [len(ids) for ids in self.ids]

    def view(self, slots: range) -> "ToyView":
        return ToyView(self, slots)

    def reset(self, slot: int) -> None:
        self.ids[slot] = []

    def move(self, source: int, destination: int) -> None:
        self.ids[destination] = self.ids[source]
        self.reset(source)


class ToyView:
    def __init__(self, cache: ToyCache, slots: range) -> None:
        self._cache = cache
        self._slots = slots
        self._new: list[list[int]] = []

    def begin(self, new: list[list[int]]) -> Iterator[list[int]]:
        """Of each sequence in turn, the tokens up to and with each of its new ones."""
        self._new = new
        for slot, ids in zip(self._slots, new, strict=True):
            for end in range(1, len(ids) + 1):
                known = self._cache.ids[slot] + ids[:end]
                assert len(known) <= self._cache.num_rows
                yield known

    def commit(self, num_rows: Sequence[int]) -> None:
        for slot, ids, count in zip(self._slots, self._new, num_rows, strict=True):
            self._cache.ids[slot] += ids[:count]


class ToyTarget:
    """After each token, the logits that the rule gives for all tokens so far."""

    def __init__(self, rule: Callable[[list[int]], Sequence[float]]) -> None:
        self._rule = rule
        self.config = SimpleNamespace(max_position_embeddings=100_000)
        self.embedding_weight = torch.zeros(1)

    def __call__(
        self, ids: Tensor, *, cache: ToyView, tap_layer_ids: Sequence[int] = ()
    ) -> TargetOutput:
        rows = [list(self._rule(known)) for known in cache.begin(ids.tolist())]
        features = torch.zeros(*ids.shape, 1) if tap_layer_ids else None
        return TargetOutput(hidden=torch.tensor(rows).view(*ids.shape, -1), features=features)

    def logits(self, hidden: Tensor) -> Tensor:
        return hidden

    def new_cache(self, num_slots: int, num_rows: int) -> ToyCache:
        return ToyCache(num_slots, num_rows)


class NoContexts:
    """What a drafter that looks at its anchor alone has to remember."""

    num_bytes = 0

    def reset(self, slot: int) -> None:
        pass

    def move(self, source: int, destination: int) -> None:
        pass


class ToyDrafter:
    """Draws each proposal from q(tokens so far); q is a list of one probability per token."""

    target_layer_ids = (0,)

    def __init__(self, num_proposals: int, q: Callable[[list[int]], Sequence[float]]) -> None:
        self.num_proposals = num_proposals
        self._q = q

    def new_contexts(self, num_slots: int, num_rows: int) -> NoContexts:
        return NoContexts()

    def append_context(self, committed: Committed, contexts: NoContexts, slots: range) -> None:
        pass

    def propose(
        self,
        anchors: Sequence[int],
        contexts: NoContexts,
        slots: range,
        *,
        temperatures: Sequence[float],
        generators: Sequence[torch.Generator],
    ) -> list[Draft]:
        return [self._draft(*each) for each in zip(anchors, generators, strict=True)]

    def _draft(self, anchor: int, generator: torch.Generator) -> Draft:
        tokens, rows = [anchor], []
        for _ in range(self.num_proposals):
            rows.append(torch.tensor(list(self._q(tokens))))
            tokens.append(int(rows[-1].multinomial(1, generator=generator)))
        q = torch.stack(rows)
        return Draft(
            tokens=tuple(tokens[1:]),
            candidates=torch.arange(q.shape[-1]).expand(len(rows), -1),
            probabilities=q,
        )


def certain(token: int, vocab_size: int) -> list[float]:
    """A distribution of one token, or the logits of a target that has no doubt."""
    return [1.0 if other == token else 0.0 for other in range(vocab_size)]


def following(sequence: Sequence[int], vocab_size: int, start: int) -> ToyTarget:
    """A target that continues a prompt of `start` tokens with the sequence, then with token 0."""

    def rule(ids: list[int]) -> list[float]:
        place = len(ids) - start
        return certain(sequence[place] if place < len(sequence) else 0, vocab_size)

    return ToyTarget(rule)


def saying(sequence: Sequence[int], num_proposals: int, vocab_size: int) -> Any:
    """A drafter that proposes what the sequence has after the anchor, whose tokens are distinct."""

    def q(tokens: list[int]) -> list[float]:
        place = sequence.index(tokens[0]) + len(tokens) if tokens[0] in sequence else 0
        return certain(sequence[place] if place < len(sequence) else 0, vocab_size)

    return ToyDrafter(num_proposals, q)
