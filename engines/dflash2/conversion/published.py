"""What is published about incoai/Qwen3.8-27B-DFlash2 at dedf8df6: hashes, config and shapes."""

from typing import Any

SOURCE_SHA256 = "67fc76d68dc5a9415511a4f394ef744d67510cd20e93b37cc2cc7d28e4bab65c"
CONVERTED_SHA256 = "cc3b5742f8edf02c4edcc734ef66e7c4c5f660b43438641ee36c5a72f8414188"
CONFIG_SHA256 = "873e3556509b0da06e29654ba00d4944888d4b5e8a33afde25f7eb27d321e980"
CONVERTED_CONFIG_SHA256 = "411ffd1c02c210843385cd9eb5784554d0c982c8878669083c5e58258073a65d"
SOURCE_BYTES, CONVERTED_BYTES = 3_848_817_896, 2_044_950_184
HIDDEN, HEADS, GROUPS, HEAD_DIM, MLP = 5120, 32, 8, 128, 17408
VOCABULARY, RANK, NUM_LAYERS, NUM_TAPS = 248_320, 256, 5, 5

CONFIG: dict[str, Any] = {
    "architectures": ["DFlash2DraftModel"],
    "attention_bias": False,
    "attention_dropout": 0.0,
    "bos_token_id": None,
    "is_causal": False,
    "dflash_config": {
        "block_size": 8,
        "conv_group_size": 16,
        "conv_kernel_size": 2,
        "mask_token_id": 248070,
        "selector_rank": 256,
        "selector_top_k": 16,
        "target_layer_ids": [5, 19, 33, 47, 61],
    },
    "dtype": "bfloat16",
    "eos_token_id": 248044,
    "head_dim": 128,
    "hidden_act": "silu",
    "hidden_size": 5120,
    "initializer_range": 0.02,
    "intermediate_size": 17408,
    "layer_types": [
        "sliding_attention",
        "sliding_attention",
        "sliding_attention",
        "sliding_attention",
        "sliding_attention",
    ],
    "max_position_embeddings": 262144,
    "max_window_layers": 5,
    "model_type": "qwen3",
    "num_attention_heads": 32,
    "num_hidden_layers": 5,
    "num_key_value_heads": 8,
    "num_target_layers": 64,
    "pad_token_id": 248044,
    "rms_norm_eps": 1e-06,
    "rope_parameters": {"rope_theta": 10000000, "rope_type": "default"},
    "sliding_window": 2048,
    "tie_word_embeddings": False,
    "transformers_version": "5.15.0",
    "use_cache": True,
    "use_sliding_window": True,
    "vocab_size": 248320,
}


def source_shapes() -> dict[str, list[int]]:
    """Name to shape, in the order of the file, which is that of the names."""
    kernels = [2 * 2 * HIDDEN // 16, HIDDEN]  # two sides, two taps, groups of 16 channels
    layer = {
        "attention_conv.base_kernel": [2, 2, HIDDEN],
        "attention_conv.kernel_projection.weight": kernels,
        "input_layernorm.weight": [HIDDEN],
        "mlp.down_proj.weight": [HIDDEN, MLP],
        "mlp.gate_proj.weight": [MLP, HIDDEN],
        "mlp.up_proj.weight": [MLP, HIDDEN],
        "mlp_conv.base_kernel": [2, 2, HIDDEN],
        "mlp_conv.kernel_projection.weight": kernels,
        "post_attention_layernorm.weight": [HIDDEN],
        "self_attn.k_norm.weight": [HEAD_DIM],
        "self_attn.k_proj.weight": [GROUPS * HEAD_DIM, HIDDEN],
        "self_attn.o_proj.weight": [HIDDEN, HEADS * HEAD_DIM],
        "self_attn.q_norm.weight": [HEAD_DIM],
        "self_attn.q_proj.weight": [HEADS * HEAD_DIM, HIDDEN],
        "self_attn.v_proj.weight": [GROUPS * HEAD_DIM, HIDDEN],
    }
    shapes = {
        "candidate_selector.hidden_projection.weight": [RANK, HIDDEN],
        "candidate_selector.predecessor_codebook": [VOCABULARY, RANK],
        "candidate_selector.successor_codebook": [VOCABULARY, RANK],
        "fc.weight": [HIDDEN, NUM_TAPS * HIDDEN],
        "hidden_norm.weight": [HIDDEN],
        "norm.weight": [HIDDEN],
    }
    for number in range(NUM_LAYERS):
        shapes |= {f"layers.{number}.{name}": shape for name, shape in layer.items()}
    return dict(sorted(shapes.items()))
