"""A target that is a rule, and drafters that say what they are told: cases small enough to read."""

from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor

from engines.dflash2.selector import Draft
from engines.dflash2.target import TargetOutput


class ToyCache:
    """Keeps the tokens themselves, so that a row too many or too few changes every answer."""

    def __init__(self, num_rows: int) -> None:
        self.num_rows = num_rows
        self.ids: list[int] = []

    @property
    def length(self) -> int:
        return len(self.ids)

    def mark(self) -> int:
        return self.length

    def roll_back(self, length: int) -> None:
        del self.ids[length:]

    def reset(self) -> None:
        self.ids.clear()


class ToyTarget:
    """After each token, the logits that the rule gives for all tokens so far."""

    def __init__(self, rule: Callable[[list[int]], Sequence[float]]) -> None:
        self._rule = rule
        self.config = SimpleNamespace(max_position_embeddings=100_000)
        self.embedding_weight = torch.zeros(1)

    def __call__(
        self, ids: Tensor, *, cache: ToyCache, tap_layer_ids: Sequence[int] = ()
    ) -> TargetOutput:
        rows = []
        for token in ids[0].tolist():
            cache.ids.append(token)
            assert cache.length <= cache.num_rows
            rows.append(list(self._rule(cache.ids)))
        features = torch.zeros(1, len(rows), 1) if tap_layer_ids else None
        return TargetOutput(hidden=torch.tensor([rows]), features=features)

    def logits(self, hidden: Tensor) -> Tensor:
        return hidden

    def new_cache(self, num_rows: int) -> ToyCache:
        return ToyCache(num_rows)


class ToyDrafter:
    """Draws each proposal from q(tokens so far); q is a list of one probability per token."""

    target_layer_ids = (0,)

    def __init__(self, num_proposals: int, q: Callable[[list[int]], Sequence[float]]) -> None:
        self.num_proposals = num_proposals
        self._q = q

    def new_context(self) -> None:
        return None

    def append_context(self, features: Tensor, context: None) -> None:
        pass

    def propose(
        self, anchor: int, context: None, *, temperature: float, generator: torch.Generator
    ) -> Draft:
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
