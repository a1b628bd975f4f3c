"""Cases B145 to B149: a checkpoint that is not whole is refused, in words."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor

from engines.dflash2.checkpoint import open_checkpoint
from engines.dflash2.config import ModelError
from engines.dflash2.weights import load_target

Json = dict[str, Any]
Write = Callable[[Path, Json, dict[str, Tensor]], Path]


@pytest.fixture
def tensors(tiny_pair: Any) -> dict[str, Tensor]:
    return {name: value.float() for name, value in tiny_pair.target.state_dict().items()}


# --- B145: a file that is not what its header says ---


@pytest.fixture
def one_tensor(tmp_path: Path) -> Path:
    path = tmp_path / "model.safetensors"
    save_file({"a": torch.ones(256, 256)}, path)
    return path


def test_b145_a_truncated_file_is_refused_with_both_sizes(one_tensor: Path) -> None:
    data = one_tensor.read_bytes()
    one_tensor.write_bytes(data[:-1000])
    with pytest.raises(ModelError, match=r"truncated: .* need 262144 bytes and 261144 are there"):
        open_checkpoint(one_tensor.parent)


def test_b145_bytes_behind_the_last_tensor_are_refused(one_tensor: Path) -> None:
    with one_tensor.open("ab") as file:
        file.write(bytes(1000))
    with pytest.raises(ModelError, match=r"model\.safetensors: .* 1000 bytes at its end"):
        open_checkpoint(one_tensor.parent)


def test_b145_overlapping_tensors_are_refused(tmp_path: Path) -> None:
    header = {
        "a": {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]},
        "b": {"dtype": "F32", "shape": [2], "data_offsets": [4, 12]},
    }
    text = json.dumps(header).encode()
    path = tmp_path / "model.safetensors"
    path.write_bytes(len(text).to_bytes(8, "little") + text + bytes(12))
    with pytest.raises(ModelError, match="b overlaps the tensor before it"):
        open_checkpoint(tmp_path)


# --- B146: an index and its shards ---


@pytest.fixture
def sharded(tmp_path: Path, target_json: Json, tensors: dict[str, Tensor]) -> Path:
    (tmp_path / "config.json").write_text(json.dumps(target_json))
    shard_of = {
        name: f"model-0000{1 + number % 2}-of-00002.safetensors"
        for number, name in enumerate(sorted(tensors))
    }
    for shard in set(shard_of.values()):
        save_file({n: tensors[n] for n in tensors if shard_of[n] == shard}, tmp_path / shard)
    index = tmp_path / "model.safetensors.index.json"
    index.write_text(json.dumps({"metadata": {}, "weight_map": shard_of}))
    return tmp_path


def test_b146_a_shard_that_is_not_there_is_named(sharded: Path) -> None:
    (sharded / "model-00002-of-00002.safetensors").unlink()
    with pytest.raises(ModelError, match=r"not there: model-00002-of.*is the download complete"):
        load_target(sharded)


def test_b146_a_tensor_that_its_shard_lacks_is_named_with_it(
    sharded: Path, tensors: dict[str, Tensor]
) -> None:
    path = sharded / "model-00002-of-00002.safetensors"
    kept = sorted(tensors)[1::2]
    save_file({name: tensors[name] for name in kept[1:]}, path)
    with pytest.raises(ModelError) as caught:
        load_target(sharded)
    assert f"says that {kept[0]} is in {path.name}, and it is not" in str(caught.value)


def test_b146_a_file_that_the_index_does_not_name_is_ignored_with_a_note(
    sharded: Path, tensors: dict[str, Tensor]
) -> None:
    save_file({"x": torch.zeros(1)}, sharded / "model-00003-of-00002.safetensors")
    said: list[str] = []
    loaded = load_target(sharded, say=said.append).state_dict()
    assert said == ["model-00003-of-00002.safetensors is not named by the index and is ignored"]
    assert loaded.keys() == tensors.keys()  # every parameter, once
    assert all(torch.equal(loaded[name], tensor) for name, tensor in tensors.items())


# --- B149: the head, tied, missing or quantised ---


def test_b149_a_tied_head_is_the_embedding(
    tmp_path: Path, target_json: Json, tensors: dict[str, Tensor], write_checkpoint: Write
) -> None:
    del tensors["lm_head.weight"]
    folder = write_checkpoint(tmp_path, {**target_json, "tie_word_embeddings": True}, tensors)
    target = load_target(folder)
    assert target.head_weight is target.embedding_weight


def test_b149_an_untied_head_that_is_missing_is_an_error(
    tmp_path: Path, target_json: Json, tensors: dict[str, Tensor], write_checkpoint: Write
) -> None:
    del tensors["lm_head.weight"]
    with pytest.raises(ModelError, match=r"1 missing \(lm_head\.weight\)"):
        load_target(write_checkpoint(tmp_path, target_json, tensors))


def test_b149_a_head_that_the_index_promises_and_the_shard_lacks_is_an_error(
    sharded: Path,
) -> None:
    index = sharded / "model.safetensors.index.json"
    values = json.loads(index.read_text())
    place = values["weight_map"]["lm_head.weight"]
    other = next(shard for shard in values["weight_map"].values() if shard != place)
    values["weight_map"]["lm_head.weight"] = other
    index.write_text(json.dumps(values))
    with pytest.raises(ModelError, match=rf"says that lm_head\.weight is in {other}, and it is"):
        load_target(sharded)


@pytest.mark.parametrize("companion", ["lm_head.weight_scale", "lm_head.weight_packed"])
def test_b149_a_quantised_head_is_refused_before_any_weight_is_read(
    tmp_path: Path,
    target_json: Json,
    tensors: dict[str, Tensor],
    write_checkpoint: Write,
    companion: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    tensors |= {companion: torch.ones(96)}
    folder = write_checkpoint(tmp_path, target_json, tensors)
    monkeypatch.setattr("engines.dflash2.checkpoint._mapped", never)
    with pytest.raises(ModelError, match=rf"has {companion}; .* need an unquantised target head"):
        load_target(folder)


def never(path: Path) -> None:
    raise AssertionError(f"{path} was read")
