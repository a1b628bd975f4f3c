"""The target against transformers' Qwen3, an independent implementation of the same model."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import Qwen3Config
from transformers import Qwen3ForCausalLM as TransformersQwen3

from engines.dflash2.config import TargetConfig
from engines.dflash2.target import Qwen3ForCausalLM

from .decoding import run_pass

MakeTarget = Callable[..., Qwen3ForCausalLM]

SHAPES: dict[str, dict[str, Any]] = {
    "grouped heads": {},
    "one key-value head": {"num_key_value_heads": 1},
    "as many key-value heads": {"num_key_value_heads": 4, "rope_theta": 1e6},
    "head size unlike hidden over heads": {"head_dim": 32, "num_hidden_layers": 2},
    "tied embedding": {"tie_word_embeddings": True},
}


@pytest.fixture(params=SHAPES)
def target(request: pytest.FixtureRequest, make_target: MakeTarget) -> Qwen3ForCausalLM:
    return make_target(seed=11, **SHAPES[request.param]).float()


@pytest.fixture
def oracle(target: Qwen3ForCausalLM) -> TransformersQwen3:
    model = TransformersQwen3(transformers_config(target.config)).eval().requires_grad_(False)
    weights = dict(target.state_dict())
    weights.setdefault("lm_head.weight", target.head_weight)
    model.load_state_dict(weights)
    return model


def transformers_config(config: TargetConfig) -> Qwen3Config:
    return Qwen3Config(
        vocab_size=config.vocab_size,
        hidden_size=config.hidden_size,
        intermediate_size=config.intermediate_size,
        num_hidden_layers=config.num_hidden_layers,
        num_attention_heads=config.num_attention_heads,
        num_key_value_heads=config.num_key_value_heads,
        head_dim=config.head_dim,
        max_position_embeddings=config.max_position_embeddings,
        rms_norm_eps=config.rms_norm_eps,
        rope_parameters={"rope_theta": config.rope_theta, "rope_type": "default"},
        tie_word_embeddings=config.tie_word_embeddings,
    )


def some_ids(num_tokens: int) -> Tensor:
    return (torch.arange(num_tokens) * 37 + 11).remainder(96).unsqueeze(0)


def assert_close(ours: Tensor, theirs: Tensor) -> None:
    torch.testing.assert_close(ours, theirs, atol=1e-4, rtol=1e-4)


def test_a_whole_sequence_gives_the_oracles_logits(
    target: Qwen3ForCausalLM, oracle: TransformersQwen3
) -> None:
    ids = some_ids(60)
    assert_close(target.logits(target(ids).hidden), oracle(ids).logits)


def test_prefill_in_chunks_then_tokens_then_a_block_gives_the_oracles_logits(
    target: Qwen3ForCausalLM, oracle: TransformersQwen3
) -> None:
    ids = some_ids(60)
    cache = target.new_cache(1, 60)
    pieces = ids.split([20, 17, 1, 1, 1, 8, 12], dim=1)
    seen = [target.logits(run_pass(target, piece, cache).hidden) for piece in pieces]
    assert_close(torch.cat(seen, 1), oracle(ids).logits)


def test_rolled_back_rows_leave_no_trace(
    target: Qwen3ForCausalLM, oracle: TransformersQwen3
) -> None:
    ids = some_ids(70)
    cache = target.new_cache(1, 70)
    run_pass(target, ids[:, :20], cache)
    for num_kept in range(1, 9):  # every number of rows a verified block can keep
        (mark,) = cache.lengths
        block = (ids[:, mark : mark + 8] + 1) % 96
        block[:, :num_kept] = ids[:, mark : mark + num_kept]
        run_pass(target, block, cache, num_kept=num_kept)
    assert cache.lengths == [20 + 36]
    rest = target.logits(run_pass(target, ids[:, 56:], cache).hidden)
    assert_close(rest, oracle(ids).logits[:, 56:])


def test_features_are_the_residual_stream_after_each_tapped_layer(
    target: Qwen3ForCausalLM, oracle: TransformersQwen3
) -> None:
    ids = some_ids(30)
    # The last entry of hidden_states is normed, so the last layer itself cannot be compared.
    taps = tuple(range(target.config.num_hidden_layers - 1))
    features = target(ids, tap_layer_ids=taps).features
    hidden_states = oracle(ids, output_hidden_states=True).hidden_states
    assert features is not None
    assert_close(features, torch.cat([hidden_states[tap + 1] for tap in taps], -1))


def test_features_outlive_the_passes_after_them(target: Qwen3ForCausalLM) -> None:
    cache = target.new_cache(1, 40)
    features = run_pass(target, some_ids(8), cache, tap_layer_ids=(0, 1)).features
    assert features is not None
    before = features.clone()
    cache.reset(0)
    run_pass(target, some_ids(30), cache, tap_layer_ids=(0, 1))
    assert torch.equal(features, before)


def test_nothing_is_tapped_unless_asked(target: Qwen3ForCausalLM) -> None:
    assert target(some_ids(3)).features is None


def test_sequences_of_a_batch_do_not_see_each_other(target: Qwen3ForCausalLM) -> None:
    ids = torch.cat((some_ids(20), some_ids(20).flip(1)))
    together = target(ids).hidden
    for row, hidden in zip(ids, together, strict=True):
        assert_close(hidden, target(row[None]).hidden[0])
