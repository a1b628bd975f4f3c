"""The target's cache and the drafter's ring: what they keep, where, and what they refuse."""

import dataclasses

import pytest
import torch
from torch import Tensor

from engines.dflash2.cache import ContextRing, KVCache
from engines.dflash2.config import DrafterConfig, TargetConfig


def rows(*numbers: float) -> Tensor:
    """[1, key-value heads, tokens, head_dim] full of a number per token."""
    return torch.tensor(numbers, dtype=torch.float32).view(1, 1, -1, 1).expand(1, 2, -1, 16)


def held(keys: Tensor) -> list[float]:
    return keys[..., 0, :, 0].flatten().tolist()


@pytest.fixture
def cache(tiny_target_config: TargetConfig) -> KVCache:
    config = dataclasses.replace(tiny_target_config, num_hidden_layers=1)
    return KVCache(config, 6, torch.float32)


def test_rows_rolled_back_are_overwritten_by_the_next_ones(cache: KVCache) -> None:
    cache.append(0, rows(0, 1, 2), rows(0, 1, 2))
    cache.advance(3)
    mark = cache.mark()
    cache.append(0, rows(3, 4, 5), rows(3, 4, 5))
    cache.advance(3)
    cache.roll_back(mark + 1)
    keys, values = cache.append(0, rows(40), rows(41))
    assert held(keys) == [0, 1, 2, 3, 40]
    assert held(values) == [0, 1, 2, 3, 41]


def test_rows_beyond_the_cache_are_refused_and_nothing_is_written(cache: KVCache) -> None:
    cache.append(0, rows(0, 1, 2, 3, 4), rows(0, 1, 2, 3, 4))
    cache.advance(5)
    with pytest.raises(IndexError, match="row 6 does not fit a cache of 6 rows"):
        cache.append(0, rows(5, 6), rows(5, 6))
    assert cache.length == 5


@pytest.mark.parametrize("length", [-1, 4])
def test_rolling_back_to_rows_that_are_not_there_is_refused(cache: KVCache, length: int) -> None:
    cache.append(0, rows(0, 1, 2), rows(0, 1, 2))
    cache.advance(3)
    with pytest.raises(IndexError, match=f"cannot roll back to {length}: the cache holds 3 rows"):
        cache.roll_back(length)


def test_a_reset_cache_holds_nothing(cache: KVCache) -> None:
    cache.append(0, rows(0, 1, 2), rows(0, 1, 2))
    cache.advance(3)
    cache.reset()
    assert held(cache.append(0, rows(7), rows(7))[0]) == [7]


@pytest.fixture
def ring(tiny_drafter_config: DrafterConfig) -> ContextRing:
    config = dataclasses.replace(tiny_drafter_config, num_hidden_layers=1, sliding_window=5)
    return ContextRing(config, torch.float32)  # so it has four rows


def test_a_ring_keeps_the_last_window_minus_one_tokens_with_their_positions(
    ring: ContextRing,
) -> None:
    for position in range(11):
        ring.append(rows(position)[None], rows(position + 100)[None], position)
        last = set(range(max(0, position - 3), position + 1))
        assert set(ring.positions.tolist()) == last
        assert held(ring.keys) == ring.positions.tolist()
        assert held(ring.values) == [p + 100 for p in ring.positions.tolist()]
    assert ring.num_tokens == 11


def test_a_ring_is_filled_the_same_in_pieces_and_token_by_token(ring: ContextRing) -> None:
    ring.append(rows(0, 1, 2)[None], rows(0, 1, 2)[None], 0)
    ring.append(rows(3, 4, 5)[None], rows(3, 4, 5)[None], 3)
    assert sorted(zip(ring.positions.tolist(), held(ring.keys), strict=True)) == [
        (2, 2),
        (3, 3),
        (4, 4),
        (5, 5),
    ]


def test_of_a_long_prompt_the_last_rows_are_enough(ring: ContextRing) -> None:
    ring.append(rows(6, 7, 8, 9)[None], rows(6, 7, 8, 9)[None], 6)
    assert ring.num_tokens == 10
    assert sorted(ring.positions.tolist()) == [6, 7, 8, 9]


def test_a_gap_that_a_block_could_see_is_refused(ring: ContextRing) -> None:
    ring.append(rows(0)[None], rows(0)[None], 0)
    with pytest.raises(IndexError, match="2 tokens from 3 on do not follow the 1 before them"):
        ring.append(rows(3, 4)[None], rows(3, 4)[None], 3)


def test_more_tokens_than_rows_are_refused(ring: ContextRing) -> None:
    with pytest.raises(IndexError, match="in a ring of 4"):
        ring.append(rows(*range(5))[None], rows(*range(5))[None], 0)


def test_a_reset_ring_holds_nothing(ring: ContextRing) -> None:
    ring.append(rows(0, 1)[None], rows(0, 1)[None], 0)
    ring.reset()
    assert ring.positions.tolist() == []
    assert ring.num_tokens == 0
