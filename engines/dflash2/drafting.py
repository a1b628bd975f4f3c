"""What the decode loop and a drafter say to each other, whatever kind of drafter it is.

Sequences lie in slots, and every call is about neighbouring ones: `slots: range`, the sequences of
a batch in that order. What a drafter remembers of them lies in its contexts, never in itself.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor


@dataclass(frozen=True, kw_only=True)
class Draft:
    """One sequence's proposed tokens, and the distribution each of them was drawn from."""

    tokens: tuple[int, ...]
    candidates: Tensor  # [k, c] token ids; a proposal is always one of its row's candidates
    probabilities: Tensor  # [k, c], zero for every token that is no candidate


@dataclass(frozen=True, kw_only=True)
class Committed:
    """What one pass of the target added to its sequences: the first num_rows[i] rows of each.

    Rejected rows stand behind them and mean nothing. The tensors are the drafter's to keep: no
    later pass writes into them.
    """

    hidden: Tensor  # [batch, length, hidden], after the final norm
    features: Tensor | None  # [batch, length, taps * hidden]; None where nothing is tapped
    num_rows: tuple[int, ...]  # [batch], at least 1
    next_tokens: Tensor  # [batch, length], the token that follows each row; behind num_rows any


class Contexts(Protocol):
    """What a drafter remembers of the sequences, a slot for each."""

    @property
    def num_bytes(self) -> int: ...

    def reset(self, slot: int) -> None: ...

    def move(self, source: int, destination: int) -> None:
        """Put a sequence into another slot, whose own is lost; the slot it leaves is empty."""


class Drafter(Protocol):
    """Whoever proposes tokens: DFlash 2, the target's MTP head, a test that knows the answer."""

    @property
    def num_proposals(self) -> int:
        """How many tokens each draft has, always."""

    @property
    def target_layer_ids(self) -> tuple[int, ...]:
        """Which target layers' outputs it wants as features."""

    def new_contexts(self, num_slots: int, num_rows: int) -> Any:
        """`Contexts` of its own kind; num_rows: positions that a sequence can reach, drafts too."""

    def append_context(self, committed: Committed, contexts: Any, slots: range) -> None:
        """Take in accepted tokens, never rejected ones: after every pass of the target, in order.

        Of a prompt that is many tokens of one sequence, later a few of each, or one in plain steps.
        """

    def propose(
        self,
        anchors: Sequence[int],
        contexts: Any,
        slots: range,
        *,
        temperatures: Sequence[float],
        generators: Sequence[torch.Generator],
    ) -> list[Draft]:
        """Propose what follows each anchor, the newest token, which the target has not seen yet.

        One draft for each sequence, drawn with its own generator at its own temperature.
        """
