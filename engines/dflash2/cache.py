"""All state of the sequences: what the target's layers remember, and the drafter's windows.

Every sequence has a slot of its own; a pass reads and writes neighbouring slots, and its sequences
may be of any lengths. Rows of a pass are on probation until `commit` says how many of them
happened, because verification may reject the rest; the drafter's context has no such rows, because
only accepted tokens enter it. Knows shapes and lengths, not what the numbers mean.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from engines.dflash2.config import DrafterConfig, HybridTargetConfig, TransformerConfig
from engines.dflash2.deltanet import DeltaState

CLEAN_ROWS = 256  # rows that are made clean at once


class KVCache:
    """Keys and values, one row per position, in memory taken once.

    A pass over sequences of different lengths reads the short ones beyond their end. Attention
    weighs what it finds there with zero, but zero times NaN is NaN: so rows are cleaned before
    anybody can read them, for each sequence anew.
    """

    def __init__(
        self,
        config: TransformerConfig,
        num_slots: int,
        num_rows: int,
        dtype: torch.dtype,
        device: torch.device | str = "cpu",
    ) -> None:
        shape = (
            config.num_attention_layers,
            num_slots,
            config.num_key_value_heads,
            num_rows,
            config.head_dim,
        )
        self.keys = torch.empty(shape, dtype=dtype, device=device)
        self.values = torch.empty(shape, dtype=dtype, device=device)
        self.num_rows = num_rows
        self.lengths = [0] * num_slots  # rows that happened
        self._num_clean = [0] * num_slots

    @property
    def num_slots(self) -> int:
        return len(self.lengths)

    @property
    def num_bytes(self) -> int:
        return self.keys.nbytes + self.values.nbytes

    def view(self, slots: range) -> "CacheView":
        """Neighbouring slots, for one pass."""
        return CacheView(self, slots)

    def reset(self, slot: int) -> None:
        self.lengths[slot] = self._num_clean[slot] = 0

    def move(self, source: int, destination: int) -> None:
        """Put a sequence into another slot, whose own is lost; the slot it leaves is empty."""
        length = self.lengths[source]
        for rows in (self.keys, self.values):
            rows[:, destination, :, :length] = rows[:, source, :, :length]
        self.lengths[destination] = self._num_clean[destination] = length
        self.reset(source)

    def take_back(self, slots: range, num_rows: int) -> None:
        """Forget the last rows of each sequence, although they happened."""
        for slot in slots:
            if not 0 <= num_rows <= self.lengths[slot]:
                raise IndexError(
                    f"cannot take back {num_rows} rows: slot {slot} holds {self.lengths[slot]}"
                )
            self.lengths[slot] -= num_rows

    def clean(self, slots: range, num_rows: int) -> None:
        """See to it that the slots can be read up to a row."""
        for slot in slots:
            start = self._num_clean[slot]
            if start < num_rows:
                end = min(num_rows + CLEAN_ROWS, self.num_rows)
                self.keys[:, slot, :, start:end] = 0
                self.values[:, slot, :, start:end] = 0
                self._num_clean[slot] = end


class CacheView:
    """Neighbouring slots of a cache during one pass: `begin`, each layer's `append`, `commit`."""

    def __init__(self, cache: KVCache, slots: range) -> None:
        self.cache = cache
        self.slots = slots
        self.num_new = 0
        self.num_keys = 0  # rows that the longest sequence has at the end of the pass
        self.positions = torch.empty(0)  # of the new rows, [batch, num_new]

    @property
    def lengths(self) -> list[int]:
        """Rows of each sequence that happened."""
        return self.cache.lengths[self.slots.start : self.slots.stop]

    def begin(self, num_new: int) -> Tensor:
        """Make room behind every sequence; the positions of its new rows, [batch, num_new]."""
        cache, lengths = self.cache, self.lengths
        self.num_new, self.num_keys = num_new, max(lengths) + num_new
        if self.num_keys > cache.num_rows:
            raise IndexError(
                f"row {self.num_keys - 1} does not fit a cache of {cache.num_rows} rows"
            )
        cache.clean(self.slots, self.num_keys)
        device = cache.keys.device
        first = torch.tensor(lengths, device=device).unsqueeze(1)
        self.positions = first + torch.arange(num_new, device=device)
        return self.positions

    def memory(self, layer: int) -> tuple[Tensor, Tensor]:
        """A layer's keys and values: twice [batch, key-value heads, all rows, head_dim]."""
        slots = slice(self.slots.start, self.slots.stop)
        return self.cache.keys[layer, slots], self.cache.values[layer, slots]

    def append(self, layer: int, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
        """Write a layer's new rows behind every sequence and return all of its rows.

        keys, values: [batch, key-value heads, num_new, head_dim] -> the same with num_keys rows;
        of a shorter sequence, those behind its own are to be masked.
        """
        found = []
        for memory, new in zip(self.memory(layer), (keys, values), strict=True):
            places = self.positions[:, None, :, None].expand_as(new)
            memory.scatter_(2, places, new)
            found.append(memory[:, :, : self.num_keys])
        return found[0], found[1]

    def commit(self, num_rows: Sequence[int]) -> None:
        """Of each sequence's new rows, the first so many happened; the others never did."""
        for slot, count in zip(self.slots, num_rows, strict=True):
            if not 0 <= count <= self.num_new:
                raise IndexError(f"{count} rows cannot stay: the pass had {self.num_new}")
            self.cache.lengths[slot] += count
        self.num_new = 0


class HybridCache(KVCache):
    """Keys and values of a qwen3_5 target's attention layers, and the states of its other layers.

    How many rows stay can only be said of passes of two to `CHUNK_ROWS` rows: of others all do,
    because a recurrent state cannot be cut like keys and values, see `deltanet`.
    """

    def __init__(
        self,
        config: HybridTargetConfig,
        num_slots: int,
        num_rows: int,
        dtype: torch.dtype,
        device: torch.device | str = "cpu",
    ) -> None:
        super().__init__(config, num_slots, num_rows, dtype, device)
        attending = [n for n, kind in enumerate(config.layer_types) if kind == "full_attention"]
        self.places = {layer: place for place, layer in enumerate(attending)}
        self.states = {
            layer: new_delta_state(config, num_slots, dtype, device)
            for layer, kind in enumerate(config.layer_types)
            if kind == "linear_attention"
        }

    @property
    def num_bytes(self) -> int:
        states = self.states.values()
        return super().num_bytes + sum(state.num_bytes for state in states)

    def view(self, slots: range) -> "HybridView":
        return HybridView(self, slots)

    def reset(self, slot: int) -> None:
        super().reset(slot)
        for state in self.states.values():
            state.reset(slot)

    def move(self, source: int, destination: int) -> None:
        for state in self.states.values():
            state.move(source, destination)
        super().move(source, destination)


class HybridView(CacheView):
    def __init__(self, cache: HybridCache, slots: range) -> None:
        super().__init__(cache, slots)
        self._places_of_layers = cache.places
        self._states = {layer: state.view(slots) for layer, state in cache.states.items()}

    def memory(self, layer: int) -> tuple[Tensor, Tensor]:
        return super().memory(self._places_of_layers[layer])

    def delta_state(self, layer: int) -> DeltaState:
        return self._states[layer]

    def commit(self, num_rows: Sequence[int]) -> None:
        num_new = self.num_new
        can_choose = all(state.num_pending == num_new for state in self._states.values())
        if not can_choose and any(count != num_new for count in num_rows):
            raise IndexError(
                f"{tuple(num_rows)} rows cannot stay: the recurrent states contain all {num_new}"
            )
        super().commit(num_rows)
        for state in self._states.values():
            state.keep(num_rows)


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


@dataclass(frozen=True, kw_only=True)
class RingPlaces:
    """Tokens of several sequences in one row, and where they belong; each field: [tokens]."""

    sequences: Tensor  # which of the pass's sequences a token is from
    rows: Tensor  # which of that sequence's new rows it is
    slots: Tensor
    positions: Tensor  # absolute


NOWHERE = -(1 << 40)  # the position of a row that holds nothing: too far away for any window


class ContextRings:
    """Keys and values of each sequence's last window - 1 tokens, all that a block can ever see.

    Rows lie at their position modulo the ring's size, in any order in time: rotary positions are
    already in the keys, and `positions` says where each row belongs.
    """

    def __init__(
        self,
        config: DrafterConfig,
        num_slots: int,
        dtype: torch.dtype,
        device: torch.device | str = "cpu",
    ) -> None:
        self.num_rows = config.sliding_window - 1
        shape = (
            config.num_hidden_layers,
            num_slots,
            config.num_key_value_heads,
            self.num_rows,
            config.head_dim,
        )
        self._keys = torch.zeros(shape, dtype=dtype, device=device)
        self._values = torch.zeros(shape, dtype=dtype, device=device)
        self._positions = torch.full((num_slots, self.num_rows), NOWHERE, device=device)
        # Tokens ever appended to each; also the position of its next token, the anchor.
        self.num_tokens = [0] * num_slots

    @property
    def num_bytes(self) -> int:
        return self._keys.nbytes + self._values.nbytes + self._positions.nbytes

    def extend(self, slots: range, num_new: Sequence[int]) -> "RingPlaces":
        """Make room for the next tokens of each sequence: of more than a ring holds, the last."""
        rows, positions = [], []
        for index, (slot, count) in enumerate(zip(slots, num_new, strict=True)):
            first = self.num_tokens[slot]
            kept = range(max(0, count - self.num_rows), count)
            rows += [(index, row) for row in kept]
            positions += [first + row for row in kept]
            self.num_tokens[slot] = first + count
        device = self._keys.device
        sequences, numbers = torch.tensor(rows, device=device).T
        return RingPlaces(
            sequences=sequences,
            rows=numbers,
            slots=slots.start + sequences,
            positions=torch.tensor(positions, device=device),
        )

    def write(self, places: "RingPlaces", keys: Tensor, values: Tensor) -> None:
        """keys, values: [layers, key-value heads, tokens, head_dim] of the tokens with places."""
        rows = places.positions % self.num_rows
        self._keys[:, places.slots, :, rows] = keys.permute(2, 0, 1, 3)
        self._values[:, places.slots, :, rows] = values.permute(2, 0, 1, 3)
        self._positions[places.slots, rows] = places.positions

    def reset(self, slot: int) -> None:
        # Values too: a shorter ring is read beyond its end, and zero times NaN would be NaN.
        for rows in (self._keys, self._values):
            rows[:, slot] = 0
        self._positions[slot] = NOWHERE
        self.num_tokens[slot] = 0

    def move(self, source: int, destination: int) -> None:
        """Put a sequence's ring into another slot; the slot it leaves is empty."""
        for rows in (self._keys, self._values):
            rows[:, destination] = rows[:, source]
        self._positions[destination] = self._positions[source]
        self.num_tokens[destination] = self.num_tokens[source]
        self.reset(source)

    def keys(self, slots: range) -> Tensor:
        """[layers, batch, key-value heads, tokens held, head_dim]."""
        return self._keys[:, slots.start : slots.stop, :, : self.num_held(slots)]

    def values(self, slots: range) -> Tensor:
        return self._values[:, slots.start : slots.stop, :, : self.num_held(slots)]

    def positions(self, slots: range) -> Tensor:
        """[batch, tokens held]: the absolute position of each row, or NOWHERE."""
        return self._positions[slots.start : slots.stop, : self.num_held(slots)]

    def num_held(self, slots: range) -> int:
        """Rows of the longest ring among them."""
        return min(max(self.num_tokens[slots.start : slots.stop]), self.num_rows)
