"""Loading: every tensor of the file is used, every one of the model is there, or it is an error."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor

from engines.dflash2.config import ModelError
from engines.dflash2.weights import load_drafter, load_target

from .decoding import ONE, new_context, take_in

Json = dict[str, Any]
Write = Callable[[Path, Json, dict[str, Tensor]], Path]


@pytest.fixture
def target_tensors(tiny_pair: Any) -> dict[str, Tensor]:
    return {name: value.float() for name, value in tiny_pair.target.state_dict().items()}


@pytest.fixture
def drafter_tensors(tiny_pair: Any) -> dict[str, Tensor]:
    return {name: value.float() for name, value in tiny_pair.drafter.model.state_dict().items()}


def test_a_drafter_of_two_layers_has_the_published_names(
    drafter_tensors: dict[str, Tensor],
) -> None:
    per_layer = {
        "attention_conv.base_kernel",
        "attention_conv.kernel_projection.weight",
        "input_layernorm.weight",
        "mlp.down_proj.weight",
        "mlp.gate_proj.weight",
        "mlp.up_proj.weight",
        "mlp_conv.base_kernel",
        "mlp_conv.kernel_projection.weight",
        "post_attention_layernorm.weight",
        "self_attn.k_norm.weight",
        "self_attn.k_proj.weight",
        "self_attn.o_proj.weight",
        "self_attn.q_norm.weight",
        "self_attn.q_proj.weight",
        "self_attn.v_proj.weight",
    }
    assert drafter_tensors.keys() == {
        "candidate_selector.hidden_projection.weight",
        "candidate_selector.predecessor_codebook",
        "candidate_selector.successor_codebook",
        "fc.weight",
        "hidden_norm.weight",
        "norm.weight",
        *(f"layers.{i}.{name}" for i in (0, 1) for name in per_layer),
    }


def test_a_saved_pair_computes_what_the_pair_in_memory_computes(
    tmp_path: Path,
    tiny_pair: Any,
    target_json: Json,
    drafter_json: Json,
    write_checkpoint: Write,
) -> None:
    target_folder = write_checkpoint(
        tmp_path / "target", target_json, tiny_pair.target.state_dict()
    )
    drafter_folder = write_checkpoint(
        tmp_path / "drafter", drafter_json, tiny_pair.drafter.model.state_dict()
    )
    target = load_target(target_folder, torch.float64)
    drafter = load_drafter(drafter_folder, target, torch.float64)
    ids = torch.arange(40).unsqueeze(0)
    outputs = [t(ids, tap_layer_ids=(0, 2)) for t in (target, tiny_pair.target)]
    assert torch.equal(outputs[0].hidden, outputs[1].hidden)
    hidden = []
    for one, output in zip((drafter, tiny_pair.drafter), outputs, strict=True):
        contexts = new_context(one)
        take_in(one, output.features, contexts)
        hidden.append(one.hidden([5], contexts, ONE))
    assert torch.equal(*hidden)


def test_bfloat16_files_are_computed_in_the_dtype_asked_for(
    tmp_path: Path, target_json: Json, target_tensors: dict[str, Tensor], write_checkpoint: Write
) -> None:
    stored = {name: value.bfloat16() for name, value in target_tensors.items()}
    folder = write_checkpoint(tmp_path, target_json, stored)
    loaded = load_target(folder, torch.float32)
    for name, value in loaded.state_dict().items():
        assert value.dtype == torch.float32
        assert torch.equal(value, stored[name].float())


def test_a_sharded_file_is_read_through_its_index(
    tmp_path: Path, target_json: Json, target_tensors: dict[str, Tensor]
) -> None:
    (tmp_path / "config.json").write_text(json.dumps(target_json))
    shards = {
        name: f"model-0000{1 + number % 2}-of-00002.safetensors"
        for number, name in enumerate(sorted(target_tensors))
    }
    for shard in set(shards.values()):
        save_file({n: v for n, v in target_tensors.items() if shards[n] == shard}, tmp_path / shard)
    index = tmp_path / "model.safetensors.index.json"
    index.write_text(json.dumps({"metadata": {}, "weight_map": shards}))
    loaded = load_target(tmp_path).state_dict()
    assert all(torch.equal(loaded[name], value) for name, value in target_tensors.items())
    (tmp_path / "model-00002-of-00002.safetensors").unlink()
    with pytest.raises(ModelError, match=r"not there: model-00002-of-00002\.safetensors"):
        load_target(tmp_path)


def test_codebooks_are_read_with_and_without_weight_in_their_names(
    tmp_path: Path,
    tiny_pair: Any,
    drafter_json: Json,
    drafter_tensors: dict[str, Tensor],
    write_checkpoint: Write,
) -> None:
    renamed = {n + ".weight" * n.endswith("codebook"): v for n, v in drafter_tensors.items()}
    folder = write_checkpoint(tmp_path, drafter_json, renamed)
    loaded = load_drafter(folder, tiny_pair.target).model.state_dict()
    for name in ("predecessor_codebook", "successor_codebook"):
        name = f"candidate_selector.{name}"
        assert torch.equal(loaded[name], drafter_tensors[name])


def test_missing_left_over_and_misshapen_tensors_are_listed_by_name(
    tmp_path: Path,
    tiny_pair: Any,
    drafter_json: Json,
    drafter_tensors: dict[str, Tensor],
    write_checkpoint: Write,
) -> None:
    del drafter_tensors["candidate_selector.predecessor_codebook"]
    drafter_tensors["layers.2.mlp.up_proj.weight"] = torch.zeros(2, 2)
    drafter_tensors["fc.weight"] = torch.zeros(48, 144)
    folder = write_checkpoint(tmp_path, drafter_json, drafter_tensors)
    with pytest.raises(ModelError) as caught:
        load_drafter(folder, tiny_pair.target)
    message = str(caught.value)
    assert "1 missing (candidate_selector.predecessor_codebook)" in message
    assert "1 not used by this model (layers.2.mlp.up_proj.weight)" in message
    assert "1 of the wrong shape (fc.weight [48, 144] instead of [48, 96])" in message


def test_a_long_list_of_names_is_cut_and_counted(
    tmp_path: Path, target_json: Json, target_tensors: dict[str, Tensor], write_checkpoint: Write
) -> None:
    kept = {"lm_head.weight": target_tensors["lm_head.weight"]}
    folder = write_checkpoint(tmp_path, target_json, kept)
    with pytest.raises(ModelError, match=r"46 missing \(model\.embed_tokens.* and 38 more\)"):
        load_target(folder)


def test_a_drafter_of_another_target_is_refused_before_its_weights_are_read(
    tmp_path: Path, tiny_pair: Any, drafter_json: Json, write_checkpoint: Write
) -> None:
    folder = write_checkpoint(tmp_path, {**drafter_json, "hidden_size": 64}, {})
    with pytest.raises(ModelError, match="hidden_size is 64 in the drafter and 48 in the target"):
        load_drafter(folder, tiny_pair.target)


def test_a_tied_target_needs_no_head_and_ignores_an_equal_one(
    tmp_path: Path, target_json: Json, target_tensors: dict[str, Tensor], write_checkpoint: Write
) -> None:
    config = {**target_json, "tie_word_embeddings": True}
    head = target_tensors.pop("lm_head.weight")
    embedding = target_tensors["model.embed_tokens.weight"]
    without = load_target(write_checkpoint(tmp_path / "without", config, target_tensors))
    assert torch.equal(without.head_weight, embedding)
    twice = {**target_tensors, "lm_head.weight": embedding.clone()}
    assert torch.equal(
        load_target(write_checkpoint(tmp_path / "twice", config, twice)).head_weight, embedding
    )
    other = {**target_tensors, "lm_head.weight": head}
    with pytest.raises(ModelError, match=r"lm_head\.weight differs from model\.embed"):
        load_target(write_checkpoint(tmp_path / "other", config, other))


def test_quantised_tensors_are_refused(
    tmp_path: Path, target_json: Json, target_tensors: dict[str, Tensor], write_checkpoint: Write
) -> None:
    target_tensors["model.norm.weight"] = torch.ones(48, dtype=torch.int8)
    folder = write_checkpoint(tmp_path, target_json, target_tensors)
    with pytest.raises(ModelError, match=r"model.norm.weight is I8; this engine reads F64, F32"):
        load_target(folder)


def test_a_folder_without_weights_is_named(tmp_path: Path, target_json: Json) -> None:
    (tmp_path / "config.json").write_text(json.dumps(target_json))
    with pytest.raises(
        ModelError, match=r"has neither model\.safetensors nor model\.safetensors\."
    ):
        load_target(tmp_path)


def test_a_torn_file_is_named(tmp_path: Path, target_json: Json) -> None:
    (tmp_path / "config.json").write_text(json.dumps(target_json))
    (tmp_path / "model.safetensors").write_bytes(b"\x10\x00\x00\x00\x00\x00\x00\x00{}")
    with pytest.raises(ModelError, match=r"model\.safetensors: .* header .*Fetch the file again"):
        load_target(tmp_path)


def test_float16_is_refused_because_it_overflows(
    tmp_path: Path, target_json: Json, target_tensors: dict[str, Tensor], write_checkpoint: Write
) -> None:
    folder = write_checkpoint(tmp_path, target_json, target_tensors)
    with pytest.raises(ModelError, match=r"cannot compute in torch\.float16"):
        load_target(folder, torch.float16)
