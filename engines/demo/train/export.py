"""Writes a training checkpoint as the published pair's target: bfloat16 weights and its configs.

Knows the formats of transformers and of servers that read them, and nothing of training.

    python -m engines.demo.train.export --work build/demo
"""

import argparse
import json
from dataclasses import asdict
from pathlib import Path

import torch
from safetensors.torch import save_file
from tokenizers import Tokenizer
from torch import Tensor

from engines.demo.train.model import TargetShape
from engines.demo.train.tokenizer import END_OF_TEXT, TURN_END

TARGET = Path("engines/demo/dense/target")


def target_config(shape: TargetShape, tokenizer: Tokenizer) -> dict[str, object]:
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
    parser.add_argument("--work", type=Path, required=True)
    parser.add_argument("--target", type=Path, default=TARGET)
    options = parser.parse_args()
    saved = torch.load(options.work / "checkpoint" / "model.pt")
    tokenizer = Tokenizer.from_file(str(TARGET / "tokenizer.json"))
    options.target.mkdir(parents=True, exist_ok=True)
    for name in ("tokenizer.json", "tokenizer_config.json"):
        (options.target / name).write_bytes((TARGET / name).read_bytes())
    write_json(options.target / "config.json", target_config(TargetShape(), tokenizer))
    write_json(options.target / "generation_config.json", generation_config(tokenizer))
    write_weights(options.target / "model.safetensors", saved["model"])
    print(json.dumps(saved["progress"]))


if __name__ == "__main__":
    main()
