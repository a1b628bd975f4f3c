"""Who sees whom, listed from the rule, and grouped heads against a loop over them."""

import math

import pytest
import torch

from engines.dflash2.attention import Attention, additive_mask, sees_past, sees_window
from engines.dflash2.config import TargetConfig


@pytest.mark.parametrize("num_context", [0, 1, 2040, 2047, 2048, 2055, 5000])
def test_each_row_of_a_block_sees_the_window_before_it_and_the_whole_block(
    num_context: int,
) -> None:
    block = torch.arange(num_context, num_context + 8)
    keys = torch.arange(num_context + 8)
    visible = sees_window(block, keys, 2048)
    for j in range(8):
        first = max(0, num_context + j - 2047)
        seen = keys[visible[j]].tolist()
        assert seen == list(range(first, num_context + 8))


def test_the_anchor_sees_one_key_less_than_the_window_and_each_mask_one_less_again() -> None:
    visible = sees_window(torch.arange(5000, 5008), torch.arange(5000), 2048)
    assert visible.sum(-1).tolist() == [2047, 2046, 2045, 2044, 2043, 2042, 2041, 2040]


def test_keys_may_lie_in_any_order_because_positions_decide() -> None:
    positions = torch.tensor([30, 31, 2, 29])
    assert sees_window(torch.tensor([32]), positions, 3).tolist() == [[True, True, False, False]]


def test_the_target_sees_itself_and_the_past() -> None:
    visible = sees_past(torch.tensor([2, 3]), torch.arange(4))
    assert visible.tolist() == [[True, True, True, False], [True, True, True, True]]


def test_mask_is_zero_where_visible_and_minus_infinity_elsewhere() -> None:
    mask = additive_mask(torch.tensor([[True, False]]), torch.float64)
    assert mask.dtype == torch.float64
    assert mask.tolist() == [[0, -math.inf]]


def test_each_key_value_head_serves_neighbouring_query_heads(
    tiny_target_config: TargetConfig,
) -> None:
    attention = Attention(tiny_target_config).double().requires_grad_(False)
    generator = torch.Generator().manual_seed(0)
    q, k, v = (
        torch.randn(1, heads, length, 16, generator=generator, dtype=torch.float64)
        for heads, length in ((4, 3), (2, 5), (2, 5))
    )
    mask = additive_mask(sees_past(torch.arange(2, 5), torch.arange(5)), torch.float64)
    by_head = [
        torch.softmax(q[0, head] @ k[0, head // 2].T / 4 + mask, -1) @ v[0, head // 2]
        for head in range(4)
    ]
    expected = attention.o_proj(torch.cat(by_head, -1))
    torch.testing.assert_close(attention.attend(q, k, v, mask)[0], expected)
