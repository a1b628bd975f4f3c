"""The hybrid target against published golden numbers, transformers, and a run without drafts."""

import dataclasses
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import Qwen3_5ForCausalLM as TransformersQwen3_5
from transformers import Qwen3_5TextConfig

from engines.dflash2.cache import HybridCache
from engines.dflash2.config import HybridTargetConfig
from engines.dflash2.decode import generate
from engines.dflash2.qwen3_5 import Qwen3_5ForCausalLM
from engines.dflash2.sampling import SamplingParams

from .decoding import run_pass
from .vectors import uniform

MakeHybrid = Callable[..., Qwen3_5ForCausalLM]
LINEAR, FULL = "linear_attention", "full_attention"

GOLDEN = HybridTargetConfig(
    vocab_size=256,
    hidden_size=64,
    intermediate_size=128,
    num_hidden_layers=8,
    num_attention_heads=4,
    num_key_value_heads=2,
    head_dim=32,
    max_position_embeddings=32768,
    rms_norm_eps=1e-6,
    rope_theta=1e7,
    dtype=None,
    tie_word_embeddings=False,
    layer_types=(LINEAR, LINEAR, LINEAR, FULL) * 2,
    partial_rotary_factor=0.25,
    linear_num_key_heads=2,
    linear_num_value_heads=6,
    linear_key_head_dim=16,
    linear_value_head_dim=16,
    linear_conv_kernel_dim=4,
)
GOLDEN_PROMPT = [(37 * i + 11) % 256 for i in range(70)]
# Layer -> sum of the absolute residual stream after it, and the first values of its last row.
GOLDEN_TAPS = {
    1: (8550.2188, (-2.99518, -2.20956, -0.18933)),
    3: (11468.7509, (-5.29311, -4.60970, 2.95685)),
    5: (14429.9316, (-5.74511, -6.17615, 3.45871)),
}
GOLDEN_TOP = ((60, 2.8729), (28, 2.7909), (98, 2.6301), (215, 2.5959), (182, 2.3973))
GOLDEN_CONTINUATION = (60, 96, 102, 81, 83, 241, 41, 71, 147, 241, 95, 31)


def golden_value(number: int, name: str, shape: tuple[int, ...]) -> Tensor:
    value = uniform(number, shape)
    if name.endswith("linear_attn.norm.weight"):
        return 1 + 0.2 * value
    if "A_log" in name:
        return 0.5 + 0.5 * value
    scales = {"norm": 0.2, "dt_bias": 1.0, "conv1d.weight": 0.6, "embed_tokens": 1.0}
    return next((s for part, s in scales.items() if part in name), 0.25) * value


@pytest.fixture(scope="module")
def golden() -> Qwen3_5ForCausalLM:
    model = Qwen3_5ForCausalLM(GOLDEN).double().requires_grad_(False)
    shapes = {name: tuple(value.shape) for name, value in model.state_dict().items()}
    assert len(shapes) == 109
    model.load_state_dict(
        {name: golden_value(t, name, shapes[name]) for t, name in enumerate(sorted(shapes))}
    )
    return model


def test_taps_are_the_published_ones(golden: Qwen3_5ForCausalLM) -> None:
    features = golden(torch.tensor([GOLDEN_PROMPT]), tap_layer_ids=tuple(GOLDEN_TAPS)).features
    assert features is not None
    for tap, (total, row) in zip(features[0].split(64, -1), GOLDEN_TAPS.values(), strict=True):
        assert float(tap.abs().sum()) == pytest.approx(total, rel=1e-5)
        assert tap[-1, :3].tolist() == pytest.approx(row, abs=1e-3)


def test_logits_and_the_greedy_continuation_are_the_published_ones(
    golden: Qwen3_5ForCausalLM,
) -> None:
    logits = golden.logits(golden(torch.tensor([GOLDEN_PROMPT])).hidden)[0]
    assert float(logits.abs().sum()) == pytest.approx(16887.2441, rel=1e-5)
    best, ids = logits[-1].topk(5)
    assert ids.tolist() == [token for token, _ in GOLDEN_TOP]
    assert best.tolist() == pytest.approx([logit for _, logit in GOLDEN_TOP], abs=1e-3)
    rounds = generate(
        golden,
        None,
        GOLDEN_PROMPT,
        max_tokens=12,
        sampling=SamplingParams(),
        stop_ids=frozenset(),
        kv_len=100,
    )
    assert tuple(token for step in rounds for token in step.tokens) == GOLDEN_CONTINUATION


SHAPES: dict[str, dict[str, Any]] = {
    "three value heads to a key head": {},
    "one value head to a key head": {"linear_num_value_heads": 2, "linear_value_head_dim": 16},
    "two periods, half of a head rotated": {
        "num_hidden_layers": 8,
        "layer_types": (LINEAR, LINEAR, LINEAR, FULL) * 2,
        "partial_rotary_factor": 0.5,
    },
    "a convolution of two taps, tied embedding": {
        "linear_conv_kernel_dim": 2,
        "tie_word_embeddings": True,
    },
    "attention first": {"num_hidden_layers": 2, "layer_types": (FULL, LINEAR)},
}


@pytest.fixture(params=SHAPES)
def target(request: pytest.FixtureRequest, make_hybrid: MakeHybrid) -> Qwen3_5ForCausalLM:
    return make_hybrid(seed=21, **SHAPES[request.param]).float()


@pytest.fixture
def oracle(target: Qwen3_5ForCausalLM) -> TransformersQwen3_5:
    config = target.config
    values = dataclasses.asdict(config)
    rope = {
        "rope_type": "default",
        "rope_theta": config.rope_theta,
        "partial_rotary_factor": config.partial_rotary_factor,
        "mrope_interleaved": True,
        "mrope_section": [config.rotary_dim // 2, 0, 0],
    }
    for ours in ("fp8_block", "model_type", "rope_theta", "partial_rotary_factor", "dtype"):
        del values[ours]
    values["layer_types"] = list(config.layer_types)
    model = TransformersQwen3_5(Qwen3_5TextConfig(**values, rope_parameters=rope))
    weights = dict(target.state_dict())
    weights.setdefault("lm_head.weight", target.head_weight)
    model.eval().requires_grad_(False).load_state_dict(weights)
    return model


def some_ids(num_tokens: int) -> Tensor:
    return (torch.arange(num_tokens) * 37 + 11).remainder(96).unsqueeze(0)


def assert_close(ours: Tensor, theirs: Tensor) -> None:
    # Of 150 rows, ours are up to 2.2e-4 away from the float64 ones, and the oracle's up to 3.2e-4.
    torch.testing.assert_close(ours, theirs, atol=5.4e-4, rtol=0)


@pytest.mark.parametrize("num_tokens", [1, 2, 63, 64, 65, 150])
def test_a_whole_sequence_gives_the_oracles_logits(
    target: Qwen3_5ForCausalLM, oracle: TransformersQwen3_5, num_tokens: int
) -> None:
    ids = some_ids(num_tokens)
    assert_close(target.logits(target(ids).hidden), oracle(ids).logits)


def test_prefill_in_pieces_then_tokens_then_a_block_gives_the_oracles_logits(
    target: Qwen3_5ForCausalLM, oracle: TransformersQwen3_5
) -> None:
    ids = some_ids(190)
    cache = target.new_cache(1, 190)
    pieces = ids.split([66, 64, 17, 1, 1, 1, 8, 30, 2], dim=1)
    seen = [target.logits(run_pass(target, piece, cache).hidden) for piece in pieces]
    assert_close(torch.cat(seen, 1), oracle(ids).logits)


def test_features_are_the_residual_stream_after_each_tapped_layer(
    target: Qwen3_5ForCausalLM, oracle: TransformersQwen3_5
) -> None:
    ids = some_ids(30)
    taps = tuple(range(target.config.num_hidden_layers - 1))
    features = target(ids, tap_layer_ids=taps).features
    hidden_states = oracle(ids, output_hidden_states=True).hidden_states
    assert features is not None
    assert_close(features, torch.cat([hidden_states[tap + 1] for tap in taps], -1))


def states_of(cache: HybridCache, config: HybridTargetConfig) -> list[Tensor]:
    linear = [n for n, kind in enumerate(config.layer_types) if kind == LINEAR]
    states = [cache.states[layer] for layer in linear]
    return [x for state in states for x in (state.S, state.convolved)]


@pytest.mark.parametrize("num_accepted", range(8))
def test_after_a_rollback_the_state_is_that_of_a_run_that_never_drafted(
    make_hybrid: MakeHybrid, num_accepted: int
) -> None:
    target = make_hybrid(seed=22).float()
    ids = some_ids(60)
    drafted = ids[:, 40:48].clone()
    drafted[:, 1 + num_accepted :] = 95 - drafted[:, 1 + num_accepted :]
    cache, fresh = target.new_cache(1, 60), target.new_cache(1, 60)
    num_kept = 1 + num_accepted  # the anchor and the accepted drafts
    run_pass(target, ids[:, :40], cache)
    run_pass(target, drafted, cache, num_kept=num_kept)
    run_pass(target, ids[:, : 40 + num_kept], fresh)
    for ours, theirs in zip(
        states_of(cache, target.config), states_of(fresh, target.config), strict=True
    ):
        torch.testing.assert_close(ours, theirs, atol=1e-5, rtol=1e-5)
    rest = ids[:, 40 + num_kept :]
    assert_close(run_pass(target, rest, cache).hidden, run_pass(target, rest, fresh).hidden)


def test_a_block_that_is_taken_back_whole_can_be_replaced(make_hybrid: MakeHybrid) -> None:
    target = make_hybrid(seed=23)
    ids = some_ids(60)
    cache = target.new_cache(1, 60)
    run_pass(target, ids[:, :40], cache)
    for wrong in (1, 2, 3):
        run_pass(target, (ids[:, 40:48] + wrong) % 96, cache, num_kept=0)
    seen = run_pass(target, ids[:, 40:], cache).hidden
    torch.testing.assert_close(seen, target(ids).hidden[:, 40:])


def test_a_reset_cache_remembers_nothing_of_the_sequence_before(make_hybrid: MakeHybrid) -> None:
    target = make_hybrid(seed=24)
    ids = some_ids(30)
    cache = target.new_cache(1, 60)
    run_pass(target, (ids + 5) % 96, cache)
    run_pass(target, ids[:, :8], cache)
    cache.reset(0)
    assert torch.equal(run_pass(target, ids, cache).hidden, target(ids).hidden)


@pytest.mark.parametrize(
    ("num_rows", "num_kept", "message"),
    [
        (8, 9, "9 rows cannot stay: the pass had 8"),
        (1, 0, r"\(0,\) rows cannot stay: the recurrent states contain all 1"),
        (65, 64, r"\(64,\) rows cannot stay: the recurrent states contain all 65"),
    ],
)
def test_rows_that_are_in_the_state_cannot_be_taken_back(
    make_hybrid: MakeHybrid, num_rows: int, num_kept: int, message: str
) -> None:
    target = make_hybrid(seed=25)
    cache = target.new_cache(1, 200)
    run_pass(target, some_ids(40), cache)
    with pytest.raises(IndexError, match=message):
        run_pass(target, some_ids(num_rows), cache, num_kept=num_kept)
    assert cache.lengths == [40]


def test_features_outlive_the_passes_after_them(make_hybrid: MakeHybrid) -> None:
    target = make_hybrid(seed=26)
    cache = target.new_cache(1, 60)
    features = run_pass(target, some_ids(8), cache, num_kept=3, tap_layer_ids=(1,)).features
    assert features is not None
    before = features.clone()
    run_pass(target, some_ids(30), cache, tap_layer_ids=(1,))
    assert torch.equal(features, before)


def test_sequences_of_a_batch_do_not_see_each_other(target: Qwen3_5ForCausalLM) -> None:
    ids = torch.cat((some_ids(20), some_ids(20).flip(1)))
    together = target(ids).hidden
    for row, hidden in zip(ids, together, strict=True):
        assert_close(hidden, target(row[None]).hidden[0])


def test_keys_and_values_are_kept_for_the_attention_layers_alone(make_hybrid: MakeHybrid) -> None:
    cache = make_hybrid(seed=27).new_cache(2, 50)
    assert cache.keys.shape == (1, 2, 2, 50, 16)
    assert list(cache.states) == [0, 1, 2]
    state = cache.states[0]
    assert state.S.shape == (2, 6, 16, 8)
    assert state.convolved.shape == (2, 3, 2 * 2 * 16 + 6 * 8)
    # Float64: keys and values, and of each of the three other layers its states.
    assert cache.num_bytes == 8 * (2 * 2 * 2 * 50 * 16 + 3 * 2 * (6 * 16 * 8 + 3 * 112))
