"""The header of a GGUF file: its keys and its tensors' sizes, in the words of a config.json.

llama.cpp's names are translated into those of the checkpoints that such files are made from, so
that what is asked of a checkpoint need not know which it is. Weights are never read.
"""

import struct
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

from harness.errors import ConfigError

_SCALARS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q"}
_SCALARS |= {12: "d"}
_TEXT, _ARRAY = 8, 9
_LONGEST_ARRAY = 4096  # longer ones are vocabularies: they are counted, not kept


@dataclass(frozen=True, kw_only=True)
class Tensor:
    name: str
    shape: tuple[int, ...]
    size_bytes: int


@dataclass(frozen=True, kw_only=True)
class Header:
    """`keys`: as the file names them; of an array too long to keep, the number of its items."""

    keys: Mapping[str, Any]
    tensors: tuple[Tensor, ...]


def read_header(file: Path) -> Header:
    try:
        with open(file, "rb") as data:
            return _header(data, file.stat().st_size)
    except (struct.error, ValueError) as error:
        raise ConfigError(
            f"{file} has no GGUF header ({error}), so llama.cpp cannot load it; fetch it again"
        ) from error


def _header(data: BinaryIO, file_bytes: int) -> Header:
    if data.read(4) != b"GGUF":
        raise ValueError("it does not begin with GGUF")
    version = _scalar(data, "I")
    if version not in (2, 3):
        raise ValueError(f"its version is {version}")
    num_tensors, num_keys = _scalar(data, "Q"), _scalar(data, "Q")
    keys = {_text(data): _value(data, _scalar(data, "I")) for _ in range(num_keys)}
    infos = [_info(data) for _ in range(num_tensors)]
    alignment = keys.get("general.alignment", 32)
    begin = -(-data.tell() // alignment) * alignment
    return Header(keys=keys, tensors=_sized(infos, file_bytes - begin))


def _scalar(data: BinaryIO, code: str) -> Any:
    return struct.unpack(f"<{code}", data.read(struct.calcsize(f"<{code}")))[0]


def _text(data: BinaryIO) -> str:
    return data.read(_scalar(data, "Q")).decode("utf-8", errors="replace")


def _value(data: BinaryIO, kind: int) -> Any:
    if kind == _TEXT:
        return _text(data)
    if kind == _ARRAY:
        return _array(data)
    if kind not in _SCALARS:
        raise ValueError(f"it has a value of type {kind}")
    return _scalar(data, _SCALARS[kind])


def _array(data: BinaryIO) -> Any:
    kind, length = _scalar(data, "I"), _scalar(data, "Q")
    if length > _LONGEST_ARRAY and kind in _SCALARS:
        data.seek(length * struct.calcsize(f"<{_SCALARS[kind]}"), 1)
        return length
    values = [_value(data, kind) for _ in range(length)]
    return values if length <= _LONGEST_ARRAY else length


def _info(data: BinaryIO) -> tuple[str, tuple[int, ...], int]:
    """Its name, shape and where it begins."""
    name, num_dimensions = _text(data), _scalar(data, "I")
    shape = tuple(_scalar(data, "Q") for _ in range(num_dimensions))
    _scalar(data, "I")  # its type
    return name, shape, _scalar(data, "Q")


def _sized(infos: list[tuple[str, tuple[int, ...], int]], data_bytes: int) -> tuple[Tensor, ...]:
    """A tensor ends where the next begins: no table of types and their sizes is needed."""
    ordered = sorted(infos, key=lambda info: info[2])
    ends = [*(begin for _, _, begin in ordered), data_bytes][1:]
    return tuple(
        Tensor(name=name, shape=shape, size_bytes=end - begin)
        for (name, shape, begin), end in zip(ordered, ends, strict=True)
    )


# --- in the words of a config.json ----------------------------------------------------------------

_WORDS = {
    "embedding_length": "hidden_size",
    "block_count": "num_hidden_layers",
    "context_length": "max_position_embeddings",
    "attention.head_count": "num_attention_heads",
    "attention.head_count_kv": "num_key_value_heads",
    "attention.key_length": "head_dim",
    "full_attention_interval": "full_attention_interval",
    "nextn_predict_layers": "mtp_num_hidden_layers",
}


def config_of(header: Header) -> dict[str, Any]:
    """`format: gguf` says that it is no config.json; a drafter of DFlash has its `dflash_config`.

    A file has no key for which of the two kinds of DFlash it is: the second has a selector.
    """
    architecture = header.keys.get("general.architecture", "")
    own = {
        name.removeprefix(f"{architecture}."): value
        for name, value in header.keys.items()
        if name.startswith(f"{architecture}.")
    }
    config = {word: own[name] for name, word in _WORDS.items() if name in own}
    vocabulary = _vocabulary_size(header)
    if vocabulary is not None:
        config["vocab_size"] = vocabulary
    if architecture != "dflash":
        return {"format": "gguf", "model_type": architecture, **config}
    kind = "DFlash2DraftModel" if "selector_rank" in own else "DFlashDraftModel"
    return {
        "format": "gguf",
        "architectures": [kind],
        **config,
        "dflash_config": _dflash(own, header.keys),
    }


def _vocabulary_size(header: Header) -> int | None:
    """The rows of its embedding, else the words of its tokenizer."""
    for tensor in header.tensors:
        if tensor.name == "token_embd.weight":
            return tensor.shape[1]
    tokens = header.keys.get("tokenizer.ggml.tokens")
    return len(tokens) if isinstance(tokens, list) else tokens


def _dflash(own: Mapping[str, Any], keys: Mapping[str, Any]) -> dict[str, Any]:
    """llama.cpp counts the layers that are tapped from 1."""
    known = {
        "block_size": own.get("block_size"),
        "mask_token_id": keys.get("tokenizer.ggml.mask_token_id"),
        "target_layer_ids": [layer - 1 for layer in own.get("target_layers", [])] or None,
    }
    return {name: value for name, value in known.items() if value is not None}
