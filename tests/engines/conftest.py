"""Tiny pairs for the engine's tests: random weights in float64, so that rounding makes no ties."""

import dataclasses
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeVar

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor, nn

from engines.dflash2.config import (
    DrafterConfig,
    HybridTargetConfig,
    TargetConfig,
    TransformerConfig,
)
from engines.dflash2.drafter import DFlash2Drafter, DFlash2DraftModel
from engines.dflash2.qwen3_5 import Qwen3_5ForCausalLM
from engines.dflash2.target import Qwen3ForCausalLM, Target

SHARED_KEYS = (
    "vocab_size",
    "hidden_size",
    "intermediate_size",
    "num_hidden_layers",
    "num_attention_heads",
    "num_key_value_heads",
    "head_dim",
    "max_position_embeddings",
    "rms_norm_eps",
)
ModelT = TypeVar("ModelT", bound=nn.Module)

TINY_TARGET = TargetConfig(
    vocab_size=96,
    hidden_size=48,
    intermediate_size=64,
    num_hidden_layers=4,
    num_attention_heads=4,
    num_key_value_heads=2,
    head_dim=16,
    max_position_embeddings=512,
    rms_norm_eps=1e-6,
    rope_theta=10_000.0,
    dtype=None,
    tie_word_embeddings=False,
)
TINY_HYBRID = HybridTargetConfig(
    vocab_size=96,
    hidden_size=48,
    intermediate_size=64,
    num_hidden_layers=4,
    num_attention_heads=4,
    num_key_value_heads=2,
    head_dim=16,
    max_position_embeddings=2048,
    rms_norm_eps=1e-6,
    rope_theta=10_000.0,
    dtype=None,
    tie_word_embeddings=False,
    layer_types=("linear_attention", "linear_attention", "linear_attention", "full_attention"),
    partial_rotary_factor=0.25,
    linear_num_key_heads=2,
    linear_num_value_heads=6,
    linear_key_head_dim=16,
    linear_value_head_dim=8,
    linear_conv_kernel_dim=4,
)
TINY_DRAFTER = DrafterConfig(
    vocab_size=96,
    hidden_size=48,
    intermediate_size=64,
    num_hidden_layers=2,
    num_attention_heads=4,
    num_key_value_heads=2,
    head_dim=16,
    max_position_embeddings=512,
    rms_norm_eps=1e-6,
    rope_theta=10_000.0,
    dtype=None,
    num_target_layers=4,
    target_layer_ids=(0, 2),
    block_size=8,
    mask_token_id=95,
    sliding_window=24,  # small, so that every longer test goes around the ring
    conv_kernel_size=2,
    conv_group_size=16,
    selector_rank=8,
    selector_top_k=16,
    input_embedding_scale=1.0,
    output_multiplier=1.0,
    final_logit_softcapping=None,
)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Pair:
    target: Target
    drafter: DFlash2Drafter


@pytest.fixture(scope="session", autouse=True)
def _one_thread() -> Iterator[None]:
    """Tiny matrices gain nothing from threads, and the sums come out the same everywhere."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="session")
def tiny_target_config() -> TargetConfig:
    return TINY_TARGET


@pytest.fixture(scope="session")
def tiny_hybrid_config() -> HybridTargetConfig:
    return TINY_HYBRID


@pytest.fixture(scope="session")
def tiny_drafter_config() -> DrafterConfig:
    return TINY_DRAFTER


@pytest.fixture(scope="session")
def make_target() -> Callable[..., Qwen3ForCausalLM]:
    """make_target(seed, **changes): a random target in float64."""

    def make(seed: int, **changes: Any) -> Qwen3ForCausalLM:
        config = dataclasses.replace(TINY_TARGET, **changes)
        return randomised(Qwen3ForCausalLM(config), seed)

    return make


@pytest.fixture(scope="session")
def make_hybrid() -> Callable[..., Qwen3_5ForCausalLM]:
    """make_hybrid(seed, **changes): a random hybrid target in float64."""

    def make(seed: int, **changes: Any) -> Qwen3_5ForCausalLM:
        config = dataclasses.replace(TINY_HYBRID, **changes)
        return randomised(Qwen3_5ForCausalLM(config), seed)

    return make


@pytest.fixture(scope="session")
def make_drafter() -> Callable[..., DFlash2Drafter]:
    """make_drafter(seed, target, **changes): a random drafter in float64."""

    def make(seed: int, target: Target, **changes: Any) -> DFlash2Drafter:
        config = dataclasses.replace(TINY_DRAFTER, **changes)
        return DFlash2Drafter(randomised(DFlash2DraftModel(config), seed), target)

    return make


@pytest.fixture(scope="session")
def tiny_pair(make_target: Any, make_drafter: Any) -> Pair:
    target = make_target(seed=1)
    return Pair(target=target, drafter=make_drafter(seed=2, target=target))


@pytest.fixture(scope="session")
def hybrid_pair(make_hybrid: Any, make_drafter: Any) -> Pair:
    target = make_hybrid(seed=3)
    drafter = make_drafter(seed=4, target=target, max_position_embeddings=2048)
    return Pair(target=target, drafter=drafter)


@pytest.fixture
def write_checkpoint() -> Callable[[Path, dict[str, Any], dict[str, Tensor]], Path]:
    """write_checkpoint(folder, config, tensors) -> folder, as published checkpoints look."""

    def write(folder: Path, config: dict[str, Any], tensors: dict[str, Tensor]) -> Path:
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "config.json").write_text(json.dumps(config, indent=2))
        save_file(tensors, folder / "model.safetensors")
        return folder

    return write


@pytest.fixture
def target_json() -> dict[str, Any]:
    """The config.json of TINY_TARGET, as transformers 5 writes it."""
    values = _shared_json(TINY_TARGET)
    return {
        "architectures": ["Qwen3ForCausalLM"],
        **values,
        "layer_types": ["full_attention"] * 4,
        "use_sliding_window": False,
        "sliding_window": None,
        "tie_word_embeddings": False,
    }


@pytest.fixture
def hybrid_json() -> dict[str, Any]:
    """The config.json of TINY_HYBRID, as a model that also sees has it."""
    named = ("linear_", "layer_types", "partial_rotary")
    text = dataclasses.asdict(TINY_HYBRID)
    own = {key: value for key, value in text.items() if key.startswith(named)}
    factor = own.pop("partial_rotary_factor")
    return {
        "architectures": ["Qwen3_5ForConditionalGeneration"],
        "model_type": "qwen3_5",
        "tie_word_embeddings": False,
        "vision_config": {},
        "text_config": {
            **_shared_json(TINY_HYBRID),
            **own,
            "model_type": "qwen3_5_text",
            "rope_parameters": {
                "rope_theta": TINY_HYBRID.rope_theta,
                "rope_type": "default",
                "partial_rotary_factor": factor,
                "mrope_section": [1, 1, 0],
            },
        },
    }


@pytest.fixture
def drafter_json() -> dict[str, Any]:
    """The config.json of TINY_DRAFTER, with the keys of the published one."""
    return {
        "architectures": ["DFlash2DraftModel"],
        **_shared_json(TINY_DRAFTER),
        "is_causal": False,
        "layer_types": ["sliding_attention"] * 2,
        "num_target_layers": 4,
        "sliding_window": 24,
        "use_sliding_window": True,
        "dflash_config": {
            "block_size": 8,
            "conv_group_size": 16,
            "conv_kernel_size": 2,
            "mask_token_id": 95,
            "selector_rank": 8,
            "selector_top_k": 16,
            "target_layer_ids": [0, 2],
        },
    }


def _shared_json(config: TransformerConfig) -> dict[str, Any]:
    return {
        **{name: getattr(config, name) for name in SHARED_KEYS},
        "model_type": "qwen3",
        "attention_bias": False,
        "hidden_act": "silu",
        "dtype": "float32",
        "rope_parameters": {"rope_theta": config.rope_theta, "rope_type": "default"},
    }


def randomised(model: ModelT, seed: int) -> ModelT:
    """Weights large enough that tokens differ, attention is uneven and norms are not all ones."""
    generator = torch.Generator().manual_seed(seed)
    model.double().eval().requires_grad_(False)
    for name, parameter in sorted(model.named_parameters()):
        noise = torch.randn(parameter.shape, generator=generator, dtype=torch.float64)
        if name.endswith("norm.weight"):
            parameter.add_(0.1 * noise)  # to one, or to zero where the norm adds one itself
        elif "embed_tokens" in name or "codebook" in name:
            parameter.copy_(noise)
        elif "base_kernel" in name:
            parameter.copy_(0.5 + 0.2 * noise)
        else:
            parameter.copy_(noise * 1.5 / parameter.shape[-1] ** 0.5)
    return model
