"""All state of a sequence: the target's keys and values, and the drafter's window of context.

Knows shapes and lengths, not what the numbers mean. The target's cache can be rolled back,
because it is filled with rows that verification may reject; the drafter's never needs to,
because only accepted tokens enter it.
"""

import torch
from torch import Tensor

from engines.dflash2.config import DrafterConfig, TransformerConfig


class KVCache:
    """Keys and values of the target, one row per position, in memory taken once."""

    def __init__(
        self,
        config: TransformerConfig,
        num_rows: int,
        dtype: torch.dtype,
        device: torch.device | str = "cpu",
    ) -> None:
        shape = (
            config.num_hidden_layers,
            1,  # batch
            config.num_key_value_heads,
            num_rows,
            config.head_dim,
        )
        self.keys = torch.empty(shape, dtype=dtype, device=device)
        self.values = torch.empty(shape, dtype=dtype, device=device)
        self.num_rows = num_rows
        self.length = 0

    def append(self, layer: int, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
        """Write new rows of one layer after `length` and return all of its rows up to them.

        The length moves on by `advance`, once every layer has written.
        """
        end = self.length + keys.shape[-2]
        if end > self.num_rows:
            raise IndexError(f"row {end - 1} does not fit a cache of {self.num_rows} rows")
        self.keys[layer, :, :, self.length : end] = keys
        self.values[layer, :, :, self.length : end] = values
        return self.keys[layer, :, :, :end], self.values[layer, :, :, :end]

    def advance(self, num_rows: int) -> None:
        self.length += num_rows

    def mark(self) -> int:
        """A place to roll back to."""
        return self.length

    def roll_back(self, length: int) -> None:
        """Forget every row from `length` on; what they held is overwritten by the next append."""
        if not 0 <= length <= self.length:
            raise IndexError(f"cannot roll back to {length}: the cache holds {self.length} rows")
        self.length = length

    def reset(self) -> None:
        self.length = 0


class ContextRing:
    """Keys and values of the last window - 1 context tokens, all that a block can ever see.

    Rows lie at their position modulo the ring's size, in any order in time: rotary positions are
    already in the keys, and `positions` says where each row belongs.
    """

    def __init__(
        self, config: DrafterConfig, dtype: torch.dtype, device: torch.device | str = "cpu"
    ) -> None:
        self.num_rows = config.sliding_window - 1
        shape = (
            config.num_hidden_layers,
            1,  # batch
            config.num_key_value_heads,
            self.num_rows,
            config.head_dim,
        )
        self._keys = torch.empty(shape, dtype=dtype, device=device)
        self._values = torch.empty(shape, dtype=dtype, device=device)
        self._positions = torch.empty(self.num_rows, dtype=torch.int64, device=device)
        self.num_tokens = 0  # ever appended; also the position of the next token, the anchor

    def append(self, keys: Tensor, values: Tensor, first_position: int) -> None:
        """keys, values: [layers, 1, key-value heads, tokens, head_dim] of tokens in a row.

        Positions may be passed over only when the ring would have lost them again by the end:
        of a long prompt, give the last `num_rows` tokens.
        """
        num_new = keys.shape[-2]
        end = first_position + num_new
        skipped = first_position != self.num_tokens
        if num_new > self.num_rows or (skipped and num_new < self.num_rows):
            raise IndexError(
                f"{num_new} tokens from {first_position} on do not follow the "
                f"{self.num_tokens} before them in a ring of {self.num_rows}"
            )
        positions = torch.arange(first_position, end, device=self._positions.device)
        slots = positions % self.num_rows
        self._keys[:, :, :, slots] = keys
        self._values[:, :, :, slots] = values
        self._positions[slots] = positions
        self.num_tokens = end

    def reset(self) -> None:
        self.num_tokens = 0

    @property
    def keys(self) -> Tensor:
        """[layers, 1, key-value heads, tokens held, head_dim]."""
        return self._keys[:, :, :, : self.num_held]

    @property
    def values(self) -> Tensor:
        return self._values[:, :, :, : self.num_held]

    @property
    def positions(self) -> Tensor:
        """[tokens held]: the absolute position of each row."""
        return self._positions[: self.num_held]

    @property
    def num_held(self) -> int:
        return min(self.num_tokens, self.num_rows)
