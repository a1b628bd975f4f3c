"""The C library against the plain functions beside it, computed in float64."""

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from engines.dflash2 import kernels
from engines.dflash2.attention import additive_mask, attention
from engines.dflash2.config import TargetConfig
from engines.dflash2.layers import (
    MLP,
    GroupedDynamicConv,
    Linear,
    NoNorm,
    OffsetRMSNorm,
    RMSNorm,
    Rotary,
    convolve,
    linear_each,
    rotate,
    swiglu,
    turned_heads,
)
from engines.dflash2.target import LlamaForCausalLM, Target
from engines.dflash2.top_k import library_top_candidates

from .conftest import randomised
from .decoding import run_pass

pytestmark = pytest.mark.skipif(kernels.library() is None, reason="there is no gcc here")

UNIT = 2.0**-24  # half a step between two float32 numbers around 1


def noise(*shape: int, seed: int = 1) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


# --- products ---


@pytest.mark.parametrize("size", [16, 48, 320])
@pytest.mark.parametrize("num_rows", [1, 2, 3, 7, 8, 15, 70])
def test_a_product_is_the_float64_product_up_to_the_rounding_of_its_sum(
    num_rows: int, size: int
) -> None:
    x, maps = noise(num_rows, size), [noise(width, size, seed=width) for width in (5, 64, 150)]
    w = torch.cat(maps).double()
    # A sum of n products in any order is off by at most n units of the sum of their sizes.
    limit = size * UNIT * (x.double().abs() @ w.abs().T)
    assert ((kernels.product(x, maps).double() - x.double() @ w.T).abs() <= limit).all()


def test_a_row_is_multiplied_to_the_same_bits_in_any_company() -> None:
    x, maps = noise(23, 96), [noise(40, 96), noise(130, 96)]
    together = kernels.product(x, maps)
    for num_rows in (1, 2, 4, 5, 8, 13):
        parts = [kernels.product(part, maps) for part in x.split(num_rows)]
        assert torch.equal(torch.cat(parts), together)
    alone = [kernels.product(x, [w]) for w in maps]
    assert torch.equal(torch.cat(alone, -1), together)


def test_threads_change_no_bit() -> None:
    x, w = noise(9, 64), noise(1000, 64)
    one = kernels.product(x, [w])
    torch.set_num_threads(2)
    try:
        assert torch.equal(kernels.product(x, [w]), one)
    finally:
        torch.set_num_threads(1)


# --- rows by themselves ---


@pytest.mark.parametrize("kind", [RMSNorm, OffsetRMSNorm])
def test_a_norm_is_the_float64_norm(kind: Callable[..., Any]) -> None:
    norm = kind(80, eps=1e-5).requires_grad_(False)
    norm.weight.copy_(noise(80))
    x = 3 * noise(2, 5, 80)
    expected = norm.double()(x.double())
    torch.testing.assert_close(norm.float()(x).double(), expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("kind", [RMSNorm, OffsetRMSNorm, lambda *_: NoNorm()])
@pytest.mark.parametrize("num_turned", [32, 8])
@pytest.mark.parametrize("by_sequence", [False, True])
def test_heads_are_normalised_and_turned_as_one_after_the_other(
    kind: Callable[..., Any], num_turned: int, by_sequence: bool
) -> None:
    norm = kind(32, 1e-6).requires_grad_(False)
    for weight in norm.parameters():
        weight.copy_(noise(32))
    rotary = Rotary(num_turned, 100.0, 64)
    positions = torch.tensor([[3, 4, 5], [40, 41, 42]]) if by_sequence else torch.arange(7, 10)
    x = noise(2, 3, 5 * 32)[..., 32:].unflatten(-1, (4, 32))  # in a wider row, as products lie
    turned = turned_heads(x, norm, rotary(positions, torch.float32))
    expected = rotate(norm.double()(x.double()).transpose(1, 2), rotary(positions, torch.float64))
    torch.testing.assert_close(turned.double(), expected, rtol=1e-5, atol=1e-5)


def test_swiglu_keeps_its_meaning_at_both_ends() -> None:
    special = [-1e30, -1000.0, -88.0, -20.0, -1.0, 0.0, 1e-30, 1.0, 20.0, 88.0, 1000.0, 1e30]
    gate = torch.tensor([*special, math.nan, 0.5, -0.5, 3.0])
    y = torch.cat((gate, torch.full((16,), 2.0)))
    halves = y[:16], y[16:]
    assert kernels.are_neighbours(*halves)
    expected = F.silu(gate.double()) * 2
    torch.testing.assert_close(
        swiglu(*halves).double(), expected, rtol=1e-6, atol=1e-30, equal_nan=True
    )


def test_a_whole_mlp_is_the_float64_mlp() -> None:
    mlp = MLP(64, 160).requires_grad_(False)
    x = noise(3, 9, 64)
    expected = mlp.double()(x.double())
    torch.testing.assert_close(mlp.float()(x).double(), expected, rtol=1e-5, atol=1e-6)


# --- attention ---


@pytest.mark.parametrize("num_key_value_heads", [1, 2, 6])
@pytest.mark.parametrize("size", [16, 64, 80])
@pytest.mark.parametrize(("num_rows", "num_keys"), [(1, 1), (1, 40), (3, 17), (8, 100)])
def test_attention_behind_a_mask_is_float64_attention(
    num_rows: int, num_keys: int, size: int, num_key_value_heads: int
) -> None:
    q = noise(2, num_rows, 6, size).transpose(1, 2)
    k, v = (
        noise(2, num_key_value_heads, 2 * num_keys, size, seed=s)[:, :, :num_keys] for s in (2, 3)
    )
    visible = noise(2, 1, num_rows, num_keys, seed=4) > 0
    visible[..., 0] = True
    found = attention(q, k, v, additive_mask(visible, torch.float32))
    expected = attention(q.double(), k.double(), v.double(), additive_mask(visible, torch.float64))
    torch.testing.assert_close(found.double(), expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("num_rows", [1, 2, 40])
def test_attention_without_a_mask_is_causal(num_rows: int) -> None:
    q, k, v = (noise(2, 4, num_rows, 32, seed=s) for s in (1, 2, 3))
    expected = attention(q.double(), k.double(), v.double(), None)
    torch.testing.assert_close(attention(q, k, v, None).double(), expected, rtol=1e-5, atol=1e-5)


def test_what_is_masked_weighs_exactly_nothing() -> None:
    q, k, v = (noise(1, 2, 5, 16, seed=s) for s in (1, 2, 3))
    visible = torch.arange(5) < 3
    mask = additive_mask(visible.expand(5, 5), torch.float32)
    expected = attention(q, k[:, :, :3], v[:, :, :3], torch.zeros(5, 3))
    v[:, :, 3:] = 1e30
    assert torch.equal(attention(q, k, v, mask), expected)


def test_a_row_attends_to_the_same_bits_with_rows_behind_it_and_alone() -> None:
    q, k, v = noise(1, 4, 8, 64), noise(1, 2, 50, 64, seed=2), noise(1, 2, 50, 64, seed=3)
    mask = additive_mask(torch.arange(50) <= torch.arange(42, 50).unsqueeze(1), torch.float32)
    together = attention(q, k, v, mask)
    for row in range(8):
        keys, values = (x[:, :, : 43 + row] for x in (k, v))
        assert torch.equal(
            attention(q[:, :, row : row + 1], keys, values, None)[:, :, 0], together[:, :, row]
        )


def test_a_sequence_is_spared_the_rows_that_only_longer_ones_have() -> None:
    q, k, v = noise(2, 6, 1, 64), noise(2, 2, 90, 64, seed=2), noise(2, 2, 90, 64, seed=3)
    k[1, :, 20:] = v[1, :, 20:] = torch.nan  # nobody would forgive a sum over these
    seen = torch.arange(90) < torch.tensor([[90], [20]])
    together = attention(q, k, v, additive_mask(seen, torch.float32)[:, None, None])
    alone = attention(q[1:], k[1:, :, :20], v[1:, :, :20], None)
    assert torch.equal(together[1:], alone)


def test_a_score_that_is_no_number_makes_its_row_none_and_no_other() -> None:
    q, k, v = (noise(1, 1, 3, 16, seed=s) for s in (1, 2, 3))
    q[0, 0, 1, 5] = math.nan
    found = attention(q, k, v, torch.zeros(3, 3))
    assert found.isnan().any(-1).flatten().tolist() == [False, True, False]


def test_a_context_stands_before_the_rows_own_keys() -> None:
    q = noise(2, 4, 8, 64)
    k, v, old_k, old_v = (
        noise(2, 2, n, 64, seed=n + s) for n, s in ((8, 1), (8, 2), (37, 1), (37, 2))
    )
    mask = additive_mask(noise(2, 1, 8, 45, seed=9) > 0, torch.float32)
    mask[..., -1] = 0
    found = attention(q, k, v, mask, (old_k, old_v))
    joined = torch.cat((old_k, k), 2).double(), torch.cat((old_v, v), 2).double()
    torch.testing.assert_close(
        found.double(), attention(q.double(), *joined, mask.double()), rtol=1e-5, atol=1e-5
    )


# --- what only the drafter does ---


def test_a_convolution_is_the_float64_convolution() -> None:
    conv = GroupedDynamicConv(hidden_size=64, kernel_size=3, group_size=16).requires_grad_(False)
    conv.base_kernel.copy_(noise(2, 3, 64))
    x = noise(2, 5, 64)
    found = [convolve(x, kernel).double() for kernel in conv(x)]
    expected = [convolve(x.double(), kernel) for kernel in conv.double()(x.double())]
    for ours, exact in zip(found, expected, strict=True):
        torch.testing.assert_close(ours, exact, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("num_scores", [16, 100, 2048])
def test_the_best_come_in_the_order_of_the_policy(num_scores: int) -> None:
    scores = noise(6, num_scores)
    scores[1] = scores[1].round()  # many equals
    scores[2] = -math.inf
    scores[3, 7:9] = math.nan
    scores[4, ::3] = math.inf
    scores[5] = torch.where(scores[5] > 0, 0.0, -0.0)
    best, indices = kernels.top_candidates(scores, 16)
    expected = library_top_candidates(scores, 16)
    assert torch.equal(indices, expected[1])
    torch.testing.assert_close(best, expected[0], rtol=0, atol=0, equal_nan=True)


# --- whole passes ---


def test_a_verified_block_has_the_bits_of_one_token_after_the_other(make_target: Any) -> None:
    """So greedy decoding says the same with drafts, without, and in any company: no near-ties."""
    target = make_target(seed=1).float()
    ids = (torch.arange(120) * 37 + 11).remainder(96).view(3, 40)
    block, steps = target.new_cache(3, 40), target.new_cache(1, 40)
    run_pass(target, ids[:, :32], block)
    run_pass(target, ids[:1, :32], steps)
    together = target.logits(run_pass(target, ids[:, 32:], block).hidden)
    alone = [
        target.logits(run_pass(target, ids[:1, at : at + 1], steps).hidden) for at in range(32, 40)
    ]
    assert torch.equal(together[:1], torch.cat(alone, 1))


@pytest.mark.parametrize("kind", ["dense", "llama", "hybrid"])
def test_a_target_with_a_cache_is_the_float64_target(
    kind: str, make_target: Any, make_hybrid: Any, tiny_target_config: TargetConfig
) -> None:
    """By whole sequences, and by blocks and single rows of two of different lengths."""
    makers = {
        "dense": make_target,
        "llama": lambda seed: randomised(LlamaForCausalLM(tiny_target_config), seed),
        "hybrid": make_hybrid,
    }
    target, exact = makers[kind](seed=1).float(), makers[kind](seed=1)
    exact.load_state_dict(target.state_dict())
    ids = (torch.arange(60) * 37 + 11).remainder(96).view(2, 30)
    found, expected = (hidden_rows(each, ids) for each in (target, exact))
    # PyTorch alone is up to 7e-5 away for the hybrid, whose recurrence it computes in any case.
    limit = 1e-4 if kind == "hybrid" else 2e-5
    torch.testing.assert_close(found.double(), expected, rtol=0, atol=limit)


def hidden_rows(target: Target, ids: Tensor) -> Tensor:
    cache = target.new_cache(2, 64)
    view = cache.view(range(1, 2))
    target(ids[1:, :11], cache=view)  # a head start of the second sequence
    view.commit([11])
    pieces = [run_pass(target, piece, cache).hidden for piece in ids.split([1, 8, 1, 20], 1)]
    return torch.cat([*pieces, target(ids).hidden], 1)


def test_a_half_layer_by_the_library_is_what_its_parts_make(
    make_target: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    layer = make_target(seed=1).float().model.layers[0]
    x = noise(2, 5, 48)
    expected = x + layer.mlp(layer.post_attention_layernorm(x))
    assert torch.equal(layer.mlp.added(x, layer.post_attention_layernorm), expected)
    monkeypatch.setattr(kernels, "library", lambda: None)
    plain = layer.mlp.added(x, layer.post_attention_layernorm)
    torch.testing.assert_close(plain, expected, rtol=1e-5, atol=1e-5)
    assert not torch.equal(plain, expected)  # or it was the library once more


# --- when it is used ---


def test_gradients_flow_through_the_plain_functions() -> None:
    own = Linear(16, 4)
    own(noise(3, 16)).sum().backward()
    assert own.weight.grad is not None
    with torch.no_grad():
        assert kernels.suits(noise(3, 16), own.weight)
    assert not kernels.suits(noise(3, 16), own.weight)


@pytest.mark.parametrize(
    "x",
    [noise(3, 16).double(), noise(3, 16).bfloat16(), noise(3, 17), noise(3, 16).to("meta")],
    ids=["float64", "bfloat16", "a size that is no multiple of sixteen", "not on the CPU"],
)
def test_everything_else_is_left_to_pytorch(x: Tensor) -> None:
    assert not kernels.suits(x)


def test_a_map_of_another_kind_is_asked_itself() -> None:
    maps = [Linear(16, 2).requires_grad_(False), torch.nn.Identity()]
    x = noise(1, 16)
    assert torch.equal(linear_each(x, maps)[1], x)


@pytest.fixture
def unloaded(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """Nothing compiled yet, and a cache directory of its own."""
    monkeypatch.setattr(kernels, "_found", kernels._found.__wrapped__)
    monkeypatch.setattr(kernels, "num_compiled", 0)
    monkeypatch.setattr(kernels, "compile_s", 0.0)
    monkeypatch.setenv(kernels.CACHE_DIR, str(tmp_path / "cache"))
    return tmp_path / "cache"


def test_a_second_start_compiles_nothing(unloaded: Path) -> None:
    assert kernels.description().startswith("c (gcc ")
    assert (kernels.num_compiled, kernels.compile_s > 0) == (1, True)
    spent_s = kernels.compile_s
    assert kernels.library() is not None
    assert (kernels.num_compiled, kernels.compile_s) == (1, spent_s)
    assert [path.suffix for path in unloaded.iterdir()] == [".so"]


def test_the_switch_turns_it_off(unloaded: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(kernels.SWITCH, "0")
    assert not kernels.suits(noise(1, 16))
    assert kernels.description() == "torch (DFLASH2_KERNELS=0)"
    assert not unloaded.exists()


@pytest.mark.parametrize(
    ("compiler", "problem"),
    [("no-such-compiler", "no no-such-compiler was found"), ("false", "false cannot compile")],
)
def test_without_a_compiler_pytorch_does_it_all_and_stderr_says_so(
    unloaded: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
    compiler: str,
    problem: str,
) -> None:
    monkeypatch.setenv("CC", compiler)
    assert not kernels.suits(noise(1, 16))
    assert kernels.description().startswith(f"torch ({problem}")
    assert f"[dflash2-kernels] {problem}" in capfd.readouterr().err


def test_a_cache_that_cannot_be_written_is_told_and_replaced(
    unloaded: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    unloaded.touch()  # a file where the directory should be
    assert kernels.library() is not None
    assert f"{unloaded} cannot be written" in capfd.readouterr().err
