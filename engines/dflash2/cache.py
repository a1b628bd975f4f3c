"""All state of a sequence: what the target's layers remember, and the drafter's window of context.

Knows shapes and lengths, not what the numbers mean. The target's cache can be rolled back,
because it is filled with rows that verification may reject; the drafter's never needs to,
because only accepted tokens enter it.
"""

import torch
from torch import Tensor

from engines.dflash2.config import DrafterConfig, HybridTargetConfig, TransformerConfig
from engines.dflash2.deltanet import DeltaState


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
            config.num_attention_layers,
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


class HybridCache(KVCache):
    """Keys and values of a qwen3_5 target's attention layers, and the states of its other layers.

    Only rows of the last pass can be rolled back, and only if they were from two to `CHUNK_ROWS`:
    a recurrent state cannot be cut like keys and values, see `deltanet`.
    """

    def __init__(
        self,
        config: HybridTargetConfig,
        num_rows: int,
        dtype: torch.dtype,
        device: torch.device | str = "cpu",
    ) -> None:
        super().__init__(config, num_rows, dtype, device)
        attending = [n for n, kind in enumerate(config.layer_types) if kind == "full_attention"]
        self._place = {layer: place for place, layer in enumerate(attending)}
        self._states = {
            layer: new_delta_state(config, 1, dtype, device)
            for layer, kind in enumerate(config.layer_types)
            if kind == "linear_attention"
        }

    def append(self, layer: int, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
        return super().append(self._place[layer], keys, values)

    def delta_state(self, layer: int) -> DeltaState:
        return self._states[layer]

    def roll_back(self, length: int) -> None:
        num_dropped = self.length - length
        num_pending = min((state.num_pending for state in self._states.values()), default=0)
        if self._states and num_dropped > num_pending:
            raise IndexError(
                f"cannot roll back to {length}: of the {self.length} rows held, the last "
                f"{num_pending} can be taken back"
            )
        super().roll_back(length)
        for state in self._states.values():
            state.keep(state.num_pending - num_dropped)

    def reset(self) -> None:
        super().reset()
        for state in self._states.values():
            state.reset()


def new_delta_state(
    config: HybridTargetConfig,
    batch_size: int,
    dtype: torch.dtype,
    device: torch.device | str = "cpu",
) -> DeltaState:
    """The state of one layer before any row. S is float32 whatever the activations are."""
    heads = (config.linear_num_value_heads, config.linear_key_head_dim)
    wide = torch.promote_types(dtype, torch.float32)
    num_rows = config.linear_conv_kernel_dim - 1
    return DeltaState(
        S=torch.zeros(batch_size, *heads, config.linear_value_head_dim, dtype=wide, device=device),
        convolved=torch.zeros(
            batch_size, num_rows, config.linear_channels, dtype=dtype, device=device
        ),
    )


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
