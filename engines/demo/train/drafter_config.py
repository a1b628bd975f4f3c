"""A demo drafter's config.json, in the published format of DFlash 2."""

from tokenizers import Tokenizer

from engines.demo.train.pairs import Pair
from engines.demo.train.tokenizer import END_OF_TEXT, MASK

NUM_LAYERS = 2
BLOCK_SIZE = 8
WINDOW = 1024


def drafter_config(pair: Pair, tokenizer: Tokenizer) -> dict[str, object]:
    shape = pair.shape
    return {
        "architectures": ["DFlash2DraftModel"],
        "attention_bias": False,
        "attention_dropout": 0.0,
        "bos_token_id": None,
        "dflash_config": {
            "block_size": BLOCK_SIZE,
            "conv_group_size": 16,
            "conv_kernel_size": 2,
            "mask_token_id": tokenizer.token_to_id(MASK),
            "selector_rank": 64,
            "selector_top_k": 16,
            "target_layer_ids": list(pair.target_layer_ids),
        },
        "dtype": "bfloat16",
        "eos_token_id": tokenizer.token_to_id(END_OF_TEXT),
        "head_dim": shape.head_dim,
        "hidden_act": "silu",
        "hidden_size": shape.hidden_size,
        "initializer_range": 0.02,
        "intermediate_size": shape.intermediate_size,
        "is_causal": False,
        "layer_types": ["sliding_attention"] * NUM_LAYERS,
        "max_position_embeddings": shape.max_position_embeddings,
        "max_window_layers": NUM_LAYERS,
        "model_type": "qwen3",
        "num_attention_heads": shape.num_attention_heads,
        "num_hidden_layers": NUM_LAYERS,
        "num_key_value_heads": shape.num_key_value_heads,
        "num_target_layers": shape.num_hidden_layers,
        "pad_token_id": tokenizer.token_to_id(END_OF_TEXT),
        "rms_norm_eps": shape.rms_norm_eps,
        "rope_parameters": {"rope_theta": shape.rope_theta, "rope_type": "default"},
        "sliding_window": WINDOW,
        "tie_word_embeddings": False,
        "use_cache": True,
        "use_sliding_window": True,
        "vocab_size": shape.vocab_size,
    }
