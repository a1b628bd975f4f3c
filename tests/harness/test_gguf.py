"""What a GGUF file's header says, in the words of a config.json."""

from pathlib import Path

import pytest

from harness.errors import ConfigError
from harness.records import Model
from harness.run import files, gguf

from . import model_files

TARGET = {
    "general.architecture": "qwen3",
    "qwen3.embedding_length": 320,
    "qwen3.block_count": 10,
    "qwen3.context_length": 4096,
    "qwen3.attention.head_count_kv": 2,
    "qwen3.attention.key_length": 64,
    "qwen3.rope.freq_base": 10000.0,
    "tokenizer.ggml.add_bos_token": False,
    "tokenizer.ggml.tokens": ["a", "b", "c"],
    "tokenizer.chat_template": "{{ enable_thinking }}",
}
DRAFTER = {
    "general.architecture": "dflash",
    "dflash.embedding_length": 320,
    "dflash.block_size": 8,
    "dflash.target_layers": [2, 5, 8],
    "dflash.selector_rank": 64,
    "tokenizer.ggml.tokens": ["a", "b", "c"],
    "tokenizer.ggml.mask_token_id": 2,
}


def test_keys_are_told_in_the_words_of_a_config_json(tmp_path: Path) -> None:
    header = gguf.read_header(model_files.gguf(tmp_path / "t.gguf", TARGET))

    assert gguf.config_of(header) == {
        "format": "gguf",
        "model_type": "qwen3",
        "hidden_size": 320,
        "num_hidden_layers": 10,
        "max_position_embeddings": 4096,
        "num_key_value_heads": 2,
        "head_dim": 64,
        "vocab_size": 3,
    }


def test_a_drafter_counts_tapped_layers_from_1_and_is_of_the_second_kind_by_its_selector(
    tmp_path: Path,
) -> None:
    first_kind = {key: value for key, value in DRAFTER.items() if "selector" not in key}

    second = gguf.config_of(gguf.read_header(model_files.gguf(tmp_path / "2.gguf", DRAFTER)))
    first = gguf.config_of(gguf.read_header(model_files.gguf(tmp_path / "1.gguf", first_kind)))

    assert second["architectures"] == ["DFlash2DraftModel"]
    assert first["architectures"] == ["DFlashDraftModel"]
    assert second["dflash_config"] == {
        "block_size": 8,
        "mask_token_id": 2,
        "target_layer_ids": [1, 4, 7],
    }


def test_a_tensor_takes_what_lies_before_the_next(tmp_path: Path) -> None:
    tensors = [
        ("token_embd.weight", (320, 2048), 64),
        ("blk.0.attn_q.weight", (320, 320), 96),
        ("output.weight", (320, 2048), 33),
    ]
    file = model_files.gguf(tmp_path / "t.gguf", TARGET, tensors)

    identity = files.identity(Model(name="t", path=str(file)))

    assert identity["weights"]["bytes"] == {"embedding": 64, "layers": 96, "head": 64}
    assert identity["config"]["vocab_size"] == 2048  # by its embedding, before its tokenizer
    assert identity["template"]["can_think"] is True


def test_a_vocabulary_is_counted_and_not_kept(tmp_path: Path) -> None:
    many = {**TARGET, "tokenizer.ggml.tokens": ["token"] * 5000}
    many["tokenizer.ggml.token_type"] = [1] * 5000

    keys = gguf.read_header(model_files.gguf(tmp_path / "t.gguf", many)).keys

    assert keys["tokenizer.ggml.tokens"] == 5000
    assert keys["tokenizer.ggml.token_type"] == 5000


@pytest.mark.parametrize("content", [b"", b"<html>", b"GGUF", b"GGUF\x03\x00\x00\x00\xff"])
def test_a_file_that_is_none_says_so(tmp_path: Path, content: bytes) -> None:
    broken = tmp_path / "broken.gguf"
    broken.write_bytes(content)

    with pytest.raises(ConfigError, match=r"broken\.gguf has no GGUF header .* fetch it again"):
        files.identity(Model(name="b", path=str(broken)))
