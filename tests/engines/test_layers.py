"""The parts both models are made of, on numbers worked out by hand."""

import math

import pytest
import torch

from engines.dflash2.layers import (
    GatedRMSNorm,
    GroupedDynamicConv,
    OffsetRMSNorm,
    RMSNorm,
    Rotary,
    convolve,
    rotate,
)

# The published hand vector: hidden 4 in groups of 2, three rows, two taps.
X = torch.tensor([[1.0, 2, 3, 4], [5, 6, 7, 8], [1, 0, -1, 2]])
BASE = torch.tensor([[1.0, 1, 1, 1], [0.5, 0, -0.5, 1]])
CORRECTION = torch.tensor([[[0.1, 0.2], [9, 9]], [[0, 0], [0.1, -0.1]], [[0.5, 0], [0, 1]]])
Y = torch.tensor([[1.1, 2.2, 3.6, 4.8], [5.6, 6.2, 5.2, 11.6], [4, 0, 2.5, 18]])


def test_convolution_gives_the_hand_vector() -> None:
    kernel = BASE + CORRECTION.repeat_interleave(2, -1)
    torch.testing.assert_close(convolve(X, kernel), Y)


def test_convolution_starts_afresh_in_each_block_of_a_batch() -> None:
    kernel = BASE + CORRECTION.repeat_interleave(2, -1)
    other = 100 + X
    batch = convolve(torch.stack((other, X)), torch.stack((kernel, kernel)))
    torch.testing.assert_close(batch[1], Y)


def test_three_taps_reach_two_rows_back() -> None:
    kernel = torch.tensor([1.0, 10, 100]).view(3, 1).expand(4, 3, 1)
    x = torch.tensor([[1.0], [2], [3], [4]])
    assert convolve(x, kernel).flatten().tolist() == [1, 12, 123, 234]


def test_kernels_of_both_sides_come_from_the_row_and_the_channels_group() -> None:
    conv = GroupedDynamicConv(hidden_size=4, kernel_size=2, group_size=2).requires_grad_(False)
    conv.base_kernel.copy_(torch.arange(16.0).view(2, 2, 4))
    # Row r of the projection is (side, tap, group); it answers 100 r to a row that starts with 1.
    conv.kernel_projection.weight.zero_()[:, 0] = 100 * torch.arange(8.0)
    before, after = conv(torch.tensor([[[1.0, 0, 0, 0]]]))
    assert before.tolist() == [[[[0, 1, 102, 103], [204, 205, 306, 307]]]]
    assert after.tolist() == [[[[408, 409, 510, 511], [612, 613, 714, 715]]]]


def test_norm_divides_by_the_root_mean_square_and_multiplies_by_the_weight() -> None:
    norm = RMSNorm(2, eps=0.0).requires_grad_(False)
    norm.weight.copy_(torch.tensor([1.0, 10.0]))
    # rms of (1, 7) is 5
    torch.testing.assert_close(norm(torch.tensor([1.0, 7.0])), torch.tensor([0.2, 14.0]))


def test_an_offset_norm_multiplies_by_one_more_than_its_weight() -> None:
    norm = OffsetRMSNorm(2, eps=0.0).requires_grad_(False)
    norm.weight.copy_(torch.tensor([0.0, 9.0]))
    torch.testing.assert_close(norm(torch.tensor([1.0, 7.0])), torch.tensor([0.2, 14.0]))


def test_a_gated_norm_is_multiplied_by_silu_of_its_gate() -> None:
    norm = GatedRMSNorm(2, eps=0.0).requires_grad_(False)
    norm.weight.copy_(torch.tensor([1.0, 10.0]))
    gated = norm(torch.tensor([1.0, 7.0]), torch.tensor([0.0, math.log(3)]))
    # silu(0) = 0; silu(ln 3) = ln 3 * 3 / 4
    torch.testing.assert_close(gated, torch.tensor([0.0, 14 * math.log(3) * 0.75]))


def test_norm_of_bfloat16_is_computed_in_float32_and_stays_bfloat16() -> None:
    norm = RMSNorm(4096, eps=1e-6).bfloat16()
    y = norm(torch.full((4096,), 3.0, dtype=torch.bfloat16))  # summed in bfloat16 it would stall
    assert y.dtype == torch.bfloat16
    assert y.float().tolist() == [1.0] * 4096


def test_rotary_turns_channel_i_together_with_channel_i_plus_half() -> None:
    rotary = Rotary(head_dim=4, theta=100.0, num_positions=8)
    x = torch.tensor([1.0, 0, 0, 1]).view(1, 1, 1, 4)
    y = rotate(x, rotary(torch.tensor([3]), torch.float32)).flatten().tolist()
    # Angles at position 3: 3 for the pair (0, 2), 3 / 100 ** (2 / 4) = 0.3 for the pair (1, 3).
    assert y == pytest.approx([math.cos(3), -math.sin(0.3), math.sin(3), math.cos(0.3)])


def test_a_head_wider_than_the_tables_is_turned_in_its_first_channels_only() -> None:
    rotary = Rotary(head_dim=2, theta=100.0, num_positions=8)
    x = torch.tensor([1.0, 0, 5, 6]).view(1, 1, 1, 4)
    y = rotate(x, rotary(torch.tensor([3]), torch.float32)).flatten().tolist()
    assert y == pytest.approx([math.cos(3), math.sin(3), 5, 6])


def test_rotary_angles_keep_float32_accuracy_when_activations_are_bfloat16() -> None:
    cos, _ = Rotary(head_dim=2, theta=1.0, num_positions=100_001)(
        torch.tensor([100_000]), torch.bfloat16
    )
    assert float(cos[0, 0, 0]) == pytest.approx(math.cos(100_000), abs=0.004)
