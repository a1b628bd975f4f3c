"""The target's cache and the drafter's rings: what they keep, where, and what they refuse."""

import dataclasses
import math
from collections.abc import Sequence

import pytest
import torch
from torch import Tensor

from engines.dflash2.cache import NOWHERE, ContextRings, KVCache
from engines.dflash2.config import DrafterConfig, TargetConfig


def rows(*numbers: Sequence[float]) -> Tensor:
    """[batch, key-value heads, rows, head_dim] full of a number per row."""
    return torch.tensor(numbers, dtype=torch.float32)[:, None, :, None].expand(-1, 2, -1, 16)


def held(keys: Tensor) -> list[list[float]]:
    """The number of each row of each sequence, which must fill all heads and channels."""
    assert (keys == keys[..., :1, :, :1]).all()
    return keys[..., 0, :, 0].tolist()


@pytest.fixture
def cache(tiny_target_config: TargetConfig) -> KVCache:
    config = dataclasses.replace(tiny_target_config, num_hidden_layers=1)
    return KVCache(config, num_slots=3, num_rows=6, dtype=torch.float32)


def write(
    cache: KVCache, slots: range, *numbers: Sequence[float], num_kept: Sequence[int] | None = None
) -> tuple[list[list[int]], list[list[float]]]:
    """A pass of one layer: the positions of its rows, and all rows that it sees."""
    view = cache.view(slots)
    positions = view.begin(len(numbers[0]))
    keys, values = view.append(0, rows(*numbers), -rows(*numbers))
    assert torch.equal(keys, -values)
    view.commit([len(numbers[0])] * len(numbers) if num_kept is None else num_kept)
    return positions.tolist(), held(keys)


def test_rows_that_did_not_happen_are_overwritten_by_the_next_ones(cache: KVCache) -> None:
    write(cache, range(1), [1, 2, 3])
    write(cache, range(1), [4, 5, 6], num_kept=[1])
    assert cache.lengths == [4, 0, 0]
    assert write(cache, range(1), [50]) == ([[4]], [[1, 2, 3, 4, 50]])


def test_sequences_of_different_lengths_are_written_each_behind_its_own_end(
    cache: KVCache,
) -> None:
    write(cache, range(1, 2), [1, 2, 3])
    write(cache, range(2, 3), [7])
    positions, seen = write(cache, range(1, 3), [4, 5], [8, 9], num_kept=[1, 2])
    assert positions == [[3, 4], [1, 2]]
    assert seen == [[1, 2, 3, 4, 5], [7, 8, 9, 0, 0]]  # zeros: behind the mask, but no NaN
    assert cache.lengths == [0, 4, 3]


def test_what_a_pass_reads_behind_an_end_is_never_a_leftover(cache: KVCache) -> None:
    write(cache, range(2), [math.inf] * 6, [1] * 6)
    cache.reset(0)
    cache.reset(1)
    write(cache, range(1), [1])
    write(cache, range(1, 2), [2, 2, 2])
    _, seen = write(cache, range(2), [3], [3])
    assert seen == [[1, 3, 0, 0], [2, 2, 2, 3]]


def test_a_moved_sequence_goes_on_in_its_new_slot_and_leaves_the_old_one_empty(
    cache: KVCache,
) -> None:
    write(cache, range(1), [9, 9, 9, 9])
    write(cache, range(2, 3), [1, 2])
    cache.move(2, 0)
    assert cache.lengths == [2, 0, 0]
    assert write(cache, range(1), [3]) == ([[2]], [[1, 2, 3]])
    assert write(cache, range(2, 3), [5]) == ([[0]], [[5]])


def test_rows_beyond_the_cache_are_refused(cache: KVCache) -> None:
    write(cache, range(1), [1, 2, 3, 4, 5])
    with pytest.raises(IndexError, match="row 6 does not fit a cache of 6 rows"):
        write(cache, range(2), [6, 7], [6, 7])
    assert cache.lengths == [5, 0, 0]


@pytest.mark.parametrize("count", [-1, 4])
def test_keeping_rows_that_are_not_there_is_refused(cache: KVCache, count: int) -> None:
    with pytest.raises(IndexError, match=f"{count} rows cannot stay: the pass had 3"):
        write(cache, range(1), [1, 2, 3], num_kept=[count])


def test_rows_that_happened_can_be_taken_back(cache: KVCache) -> None:
    write(cache, range(2), [1, 2, 3], [4, 5, 6])
    cache.take_back(range(2), 2)
    assert cache.lengths == [1, 1, 0]
    with pytest.raises(IndexError, match="cannot take back 2 rows: slot 0 holds 1"):
        cache.take_back(range(2), 2)


def test_the_memory_is_counted_in_bytes(cache: KVCache) -> None:
    # keys and values, 3 slots of 6 rows, 2 heads of 16 float32 numbers
    assert cache.num_bytes == 2 * 3 * 6 * 2 * 16 * 4


@pytest.fixture
def rings(tiny_drafter_config: DrafterConfig) -> ContextRings:
    config = dataclasses.replace(tiny_drafter_config, num_hidden_layers=1, sliding_window=5)
    return ContextRings(config, num_slots=3, dtype=torch.float32)  # so each has four rows


def append(rings: ContextRings, slots: range, *num_new: int) -> None:
    """The next tokens of each sequence; what is written is their position, and the slot's tens."""
    places = rings.extend(slots, num_new)
    numbers = (places.positions + 100 * places.slots).float()
    keys = numbers.view(1, 1, -1, 1).expand(1, 2, -1, 16)
    rings.write(places, keys, -keys)


def contents(rings: ContextRings, slot: int) -> dict[int, float]:
    """What one slot holds: position -> number."""
    slots = range(slot, slot + 1)
    keys, values = rings.keys(slots)[0, 0], rings.values(slots)[0, 0]
    assert torch.equal(keys, -values)
    return dict(zip(rings.positions(slots)[0].tolist(), held(keys), strict=True))


def test_a_ring_keeps_the_last_window_minus_one_tokens_with_their_positions(
    rings: ContextRings,
) -> None:
    for position in range(11):
        append(rings, range(1), 1)
        last = range(max(0, position - 3), position + 1)
        assert contents(rings, 0) == {p: p for p in last}
    assert rings.num_tokens == [11, 0, 0]


def test_rings_of_a_batch_grow_by_as_many_tokens_as_each_accepted(rings: ContextRings) -> None:
    append(rings, range(1, 3), 3, 1)
    append(rings, range(1, 3), 2, 1)
    assert rings.num_tokens == [0, 5, 2]
    assert contents(rings, 1) == {p: 100 + p for p in (1, 2, 3, 4)}
    # Read together they are as long as the longest; the shorter one says what holds nothing.
    assert rings.positions(range(1, 3))[1].tolist() == [0, 1, NOWHERE, NOWHERE]
    assert held(rings.keys(range(1, 3))[0, 1:]) == [[200, 201, 0, 0]]


def test_of_more_tokens_than_a_ring_holds_the_last_ones_have_places(rings: ContextRings) -> None:
    places = rings.extend(range(2), (9, 2))
    assert places.sequences.tolist() == [0] * 4 + [1] * 2
    assert places.rows.tolist() == [5, 6, 7, 8, 0, 1]
    assert places.positions.tolist() == [5, 6, 7, 8, 0, 1]
    assert rings.num_tokens == [9, 2, 0]


def test_a_reset_ring_holds_nothing(rings: ContextRings) -> None:
    append(rings, range(2), 6, 2)
    rings.reset(0)
    assert rings.num_tokens == [0, 2, 0]
    assert rings.positions(range(2))[0].tolist() == [NOWHERE, NOWHERE]
    assert not rings.keys(range(1)).any()


def test_a_moved_ring_goes_on_in_its_new_slot(rings: ContextRings) -> None:
    append(rings, range(1), 2)
    append(rings, range(2, 3), 6)
    rings.move(2, 0)
    append(rings, range(1), 1)
    assert rings.num_tokens == [7, 0, 0]
    assert contents(rings, 0) == {3: 203, 4: 204, 5: 205, 6: 6}
