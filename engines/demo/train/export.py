"""Writes a training checkpoint as a published target: bfloat16 weights and its configs.

Knows the formats of transformers and of servers that read them, and nothing of training.

    python -m engines.demo.train.export --work build/demo
    python -m engines.demo.train.export --pair hybrid --work build/demo-hybrid
"""

import argparse
import json
from dataclasses import asdict
from pathlib import Path

import torch
from safetensors.torch import save_file
from tokenizers import Tokenizer
from torch import Tensor

from engines.demo.train.hybrid_model import HybridShape
from engines.demo.train.model import TargetShape
from engines.demo.train.pack import TARGET as TOKENIZER_HOME
from engines.demo.train.pairs import add_pair
from engines.demo.train.tokenizer import END_OF_TEXT, TURN_END

NUM_MTP_LAYERS = 1


def target_config(shape: TargetShape | HybridShape, tokenizer: Tokenizer) -> dict[str, object]:
    if isinstance(shape, HybridShape):
        return hybrid_config(shape, tokenizer)
    values = asdict(shape)
    theta = values.pop("rope_theta")
    return {
        "architectures": ["Qwen3ForCausalLM"],
        "attention_bias": False,
        "attention_dropout": 0.0,
        "bos_token_id": None,
        "dtype": "bfloat16",
        "eos_token_id": tokenizer.token_to_id(TURN_END),
        "hidden_act": "silu",
        "initializer_range": 0.02,
        "layer_types": ["full_attention"] * shape.num_hidden_layers,
        "max_window_layers": shape.num_hidden_layers,
        "model_type": "qwen3",
        "pad_token_id": tokenizer.token_to_id(END_OF_TEXT),
        "rope_parameters": {"rope_theta": theta, "rope_type": "default"},
        "sliding_window": None,
        "tie_word_embeddings": True,
        "use_cache": True,
        "use_sliding_window": False,
        **values,
    }


def hybrid_config(shape: HybridShape, tokenizer: Tokenizer) -> dict[str, object]:
    """As published for a qwen3_5, the text part alone."""
    values = asdict(shape)
    theta, factor = values.pop("rope_theta"), values.pop("partial_rotary_factor")
    return {
        "architectures": ["Qwen3_5ForCausalLM"],
        "attention_bias": False,
        "attention_dropout": 0.0,
        "attn_output_gate": True,
        "bos_token_id": None,
        "dtype": "bfloat16",
        "eos_token_id": tokenizer.token_to_id(TURN_END),
        "hidden_act": "silu",
        "initializer_range": 0.02,
        "layer_types": list(shape.layer_types),
        "mamba_ssm_dtype": "float32",
        "model_type": "qwen3_5_text",
        "mtp_num_hidden_layers": NUM_MTP_LAYERS,
        "mtp_use_dedicated_embeddings": False,
        "pad_token_id": tokenizer.token_to_id(END_OF_TEXT),
        "rope_parameters": {
            "mrope_interleaved": True,
            "mrope_section": mrope_section(shape.rotary_dim // 2),
            "partial_rotary_factor": factor,
            "rope_theta": theta,
            "rope_type": "default",
        },
        "tie_word_embeddings": True,
        "use_cache": True,
        **values,
    }


def mrope_section(num_pairs: int) -> list[int]:
    """Rotary pairs shared out among time, height and width; text turns all of them alike."""
    width = height = num_pairs // 3
    return [num_pairs - height - width, height, width]


def generation_config(tokenizer: Tokenizer) -> dict[str, object]:
    return {
        "do_sample": False,
        "eos_token_id": [tokenizer.token_to_id(TURN_END), tokenizer.token_to_id(END_OF_TEXT)],
        "pad_token_id": tokenizer.token_to_id(END_OF_TEXT),
    }


def write_json(path: Path, values: dict[str, object]) -> None:
    path.write_text(json.dumps(values, indent=2, sort_keys=True) + "\n", encoding="utf-8")


def write_weights(path: Path, tensors: dict[str, Tensor]) -> None:
    rounded = {name: tensor.to(torch.bfloat16).contiguous() for name, tensor in tensors.items()}
    save_file(rounded, path, metadata={"format": "pt"})


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    add_pair(parser)
    parser.add_argument("--work", type=Path, required=True)
    parser.add_argument("--target", type=Path, help="where to; default: the pair's")
    options = parser.parse_args()
    folder = options.target or options.pair.target
    saved = torch.load(options.work / "checkpoint" / "model.pt")
    tokenizer = Tokenizer.from_file(str(TOKENIZER_HOME / "tokenizer.json"))
    folder.mkdir(parents=True, exist_ok=True)
    for name in ("tokenizer.json", "tokenizer_config.json"):
        (folder / name).write_bytes((TOKENIZER_HOME / name).read_bytes())
    write_json(folder / "config.json", target_config(options.pair.shape, tokenizer))
    write_json(folder / "generation_config.json", generation_config(tokenizer))
    write_weights(folder / "model.safetensors", saved["model"])
    print(json.dumps(saved["progress"]))


if __name__ == "__main__":
    main()
