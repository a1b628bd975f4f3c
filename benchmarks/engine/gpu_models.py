"""Qwen3.8-27B and its DFlash 2 drafter in their true shapes, with random weights; and tiny ones.

Built as the loader builds them: on no device first, then every tensor assigned. What such models
say means nothing and drafts are never accepted, but every step reads and multiplies as much as the
real ones do. The drafter is there in BF16 and as affine Q8.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from engines.dflash2.config import DrafterConfig, HybridTargetConfig
from engines.dflash2.conversion.published import CONFIG as PUBLISHED
from engines.dflash2.drafter import DFlash2Drafter, DFlash2DraftModel
from engines.dflash2.quantized import GROUP_SIZE, quantize_matrices
from engines.dflash2.target import Target
from engines.dflash2.weights import TARGETS, WIDE


@dataclass(frozen=True, kw_only=True)
class Shapes:
    target: HybridTargetConfig
    drafter: DrafterConfig


def _shapes(target: dict[str, Any], drafter: dict[str, Any], num_layers: int) -> Shapes:
    """What both have in common stands in `drafter`; a fourth of the layers are full attention."""
    shared = {
        name: drafter[name]
        for name in (
            *("vocab_size", "hidden_size", "intermediate_size", "max_position_embeddings"),
            *("rms_norm_eps", "rope_theta", "dtype"),
        )
    }
    kinds = [
        "full_attention" if n % 4 == 0 else "linear_attention" for n in range(1, num_layers + 1)
    ]
    return Shapes(
        target=HybridTargetConfig(
            **shared,
            **target,
            num_hidden_layers=num_layers,
            tie_word_embeddings=False,
            layer_types=tuple(kinds),
            partial_rotary_factor=0.25,
        ),
        drafter=DrafterConfig(**drafter, num_target_layers=num_layers),
    )


def full_shapes() -> Shapes:
    """The drafter's from its published config.json, the target's from Qwen3.8-27B's."""
    draft, rope = PUBLISHED["dflash_config"], PUBLISHED["rope_parameters"]
    names = (
        *("vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers"),
        *("num_attention_heads", "num_key_value_heads", "head_dim", "max_position_embeddings"),
        *("rms_norm_eps", "dtype", "sliding_window"),
    )
    drafter = {
        **{name: PUBLISHED[name] for name in names},
        **{name: value for name, value in draft.items() if name != "target_layer_ids"},
        "target_layer_ids": tuple(draft["target_layer_ids"]),
        "rope_theta": float(rope["rope_theta"]),
        **_SCALES,
    }
    target = {
        "num_attention_heads": 24,
        "num_key_value_heads": 4,
        "head_dim": 256,
        "linear_num_key_heads": 16,
        "linear_num_value_heads": 48,
        "linear_key_head_dim": 128,
        "linear_value_head_dim": 128,
        "linear_conv_kernel_dim": 4,
    }
    return _shapes(target, drafter, num_layers=64)


def small_shapes() -> Shapes:
    """The same kinds of layers, small enough to rehearse on a CPU in seconds."""
    drafter = {
        "vocab_size": 512,
        "hidden_size": 128,
        "intermediate_size": 256,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 32,
        "max_position_embeddings": 1024,
        "rms_norm_eps": 1e-6,
        "rope_theta": 1e7,
        "dtype": "bfloat16",
        "sliding_window": 64,
        "block_size": 8,
        "conv_group_size": 16,
        "conv_kernel_size": 2,
        "mask_token_id": 500,
        "selector_rank": 64,
        "selector_top_k": 16,
        "target_layer_ids": (1, 3, 5),
        **_SCALES,
    }
    target = {
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 32,
        "linear_num_key_heads": 2,
        "linear_num_value_heads": 4,
        "linear_key_head_dim": 32,
        "linear_value_head_dim": 32,
        "linear_conv_kernel_dim": 4,
    }
    return _shapes(target, drafter, num_layers=8)


_SCALES = {
    "input_embedding_scale": 1.0,
    "output_multiplier": 1.0,
    "final_logit_softcapping": None,
}


def random_target(shapes: Shapes, dtype: torch.dtype, device: torch.device) -> Target:
    with torch.device("meta"):
        model = TARGETS["qwen3_5"](shapes.target)

    def tensor(name: str, shape: torch.Size) -> Tensor:
        return _random(name, shape, torch.float32 if name.endswith(WIDE) else dtype, device)

    return _assigned(model, tensor).to(device)


def random_drafter(
    shapes: Shapes, target: Target, dtype: torch.dtype, *, is_q8: bool
) -> DFlash2Drafter:
    device = target.embedding_weight.device
    with torch.device("meta"):
        model = DFlash2DraftModel(shapes.drafter)
        if is_q8:
            quantize_matrices(model)
    kept = torch.float32 if is_q8 else dtype
    wanted = model.state_dict()

    def tensor(name: str, shape: torch.Size) -> Tensor:
        if wanted[name].dtype == torch.uint8:
            return torch.randint(256, shape, dtype=torch.uint8, device=device)
        if is_q8 and name.endswith((".scales", ".biases")):
            return _of_codes(name, shape, device)
        return _random(name, shape, kept, device)

    return DFlash2Drafter(_assigned(model, tensor).to(device), target)


def _of_codes(name: str, shape: torch.Size, device: torch.device) -> Tensor:
    """Scales and biases with which random codes are weights around 0, as large as `_random`'s."""
    deviation_of_codes = 256 / math.sqrt(12)
    scale = 1 / (deviation_of_codes * math.sqrt(shape[-1] * GROUP_SIZE))
    value = scale if name.endswith(".scales") else -127.5 * scale
    return torch.full(shape, value, dtype=torch.bfloat16, device=device)


def _random(name: str, shape: torch.Size, dtype: torch.dtype, device: torch.device) -> Tensor:
    """Matrices that keep a vector's length, norms of 1, decays that neither stop nor forget."""
    if len(shape) == 1:
        of_a_norm = "norm" in name
        return torch.full(shape, 1.0 if of_a_norm else 0.0, dtype=dtype, device=device)
    tensor = torch.empty(shape, dtype=dtype, device=device)
    return tensor.normal_(0, 1 / math.sqrt(shape[-1]))


def _assigned(model: nn.Module, tensor: Callable[[str, torch.Size], Tensor]) -> Any:
    tensors = {name: tensor(name, value.shape) for name, value in model.state_dict().items()}
    model.load_state_dict(tensors, assign=True)
    return model.eval().requires_grad_(False)


def num_bytes(model: nn.Module, *, without: tuple[str, ...]) -> int:
    """Of the tensors that a step reads whole."""
    return sum(
        tensor.numel() * tensor.element_size()
        for name, tensor in model.state_dict().items()
        if not any(part in name for part in without)
    )
