"""A hybrid target over HTTP: loaded from shards as published, the same drafted or not."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from engines.dflash2.config import load_drafter_config, load_target_config
from engines.dflash2.drafter import DFlash2DraftModel
from engines.dflash2.engine import load_engine
from engines.dflash2.qwen3_5 import Qwen3_5ForCausalLM

from .support import (
    SPECIAL_TOKENS,
    VOCAB_SIZE,
    Pair,
    complete,
    in_this_process,
    write_json,
    write_random_tensors,
    write_tokenizer,
)

KV_LEN = 1100
SHARED: dict[str, Any] = {
    "vocab_size": VOCAB_SIZE,
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "max_position_embeddings": 2048,
    "rms_norm_eps": 1e-6,
    "hidden_act": "silu",
}


def write_hybrid_target(folder: Path) -> None:
    """Two shards, with the names of a model that also sees."""
    folder.mkdir()
    write_tokenizer(folder)
    text = {
        **SHARED,
        "model_type": "qwen3_5_text",
        "num_hidden_layers": 4,
        "full_attention_interval": 4,
        "linear_num_key_heads": 2,
        "linear_num_value_heads": 4,
        "linear_key_head_dim": 16,
        "linear_value_head_dim": 16,
        "linear_conv_kernel_dim": 4,
        "rope_parameters": {
            "rope_theta": 1e7,
            "rope_type": "default",
            "partial_rotary_factor": 0.25,
        },
    }
    write_json(
        folder / "config.json",
        {
            "architectures": ["Qwen3_5ForConditionalGeneration"],
            "model_type": "qwen3_5",
            "text_config": text,
            "vision_config": {},
        },
    )
    with torch.device("meta"):
        model = Qwen3_5ForCausalLM(load_target_config(folder))
    noise = torch.Generator().manual_seed(3)
    tensors = {
        name.replace("model.", "model.language_model.", 1): (
            0.3 * torch.randn(tensor.shape, generator=noise)
        ).bfloat16()
        for name, tensor in sorted(model.state_dict().items())
    }
    names = list(tensors)
    shards = {"model-1.safetensors": names[::2], "model-2.safetensors": names[1::2]}
    for shard, held in shards.items():
        save_file({name: tensors[name] for name in held}, folder / shard)
    weight_map = {name: shard for shard, held in shards.items() for name in held}
    write_json(folder / "model.safetensors.index.json", {"weight_map": weight_map})


def write_hybrid_drafter(folder: Path) -> None:
    folder.mkdir()
    write_json(
        folder / "config.json",
        {
            **SHARED,
            "architectures": ["DFlash2DraftModel"],
            "model_type": "qwen3",
            "num_hidden_layers": 2,
            "rope_parameters": {"rope_theta": 1e7, "rope_type": "default"},
            "is_causal": False,
            "layer_types": ["sliding_attention"] * 2,
            "sliding_window": 64,
            "use_sliding_window": True,
            "num_target_layers": 4,
            "dflash_config": {
                "block_size": 8,
                "conv_group_size": 16,
                "conv_kernel_size": 2,
                "mask_token_id": SPECIAL_TOKENS.index("<|mask|>"),
                "selector_rank": 16,
                "selector_top_k": 16,
                "target_layer_ids": [1, 3],
            },
        },
    )
    with torch.device("meta"):
        model = DFlash2DraftModel(load_drafter_config(folder))
    write_random_tensors(model, folder, seed=2)


@pytest.fixture(scope="module")
def hybrid_pair(tmp_path_factory: pytest.TempPathFactory) -> Pair:
    folder = tmp_path_factory.mktemp("hybrid")
    pair = Pair(target=folder / "target", drafter=folder / "drafter")
    write_hybrid_target(pair.target)
    write_hybrid_drafter(pair.drafter)
    return pair


def test_cold_warm_and_undrafted_greedy_requests_of_1024_prompt_tokens_give_the_same_text(
    hybrid_pair: Pair,
) -> None:
    prompt = [4 + (37 * position + position // 11) % (VOCAB_SIZE - 4) for position in range(1024)]
    body = {"temperature": 0, "max_tokens": 16, "ignore_eos": True}
    texts = []
    for drafter in (hybrid_pair.drafter, None):
        engine = load_engine(hybrid_pair.target, drafter, dtype=torch.float64, kv_len=KV_LEN)
        with in_this_process(engine) as client:
            for ids in (prompt, prompt[:300][::-1], prompt):
                answer = complete(client, prompt=ids, **body)
                assert answer["usage"]["prompt_tokens"] == len(ids)
                assert answer["usage"]["completion_tokens"] == 16
                texts.append(answer["choices"][0]["text"])
    cold, other, warm = texts[:3]
    assert cold == warm != other
    assert texts[3:] == texts[:3]
