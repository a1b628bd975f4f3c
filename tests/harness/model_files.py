"""Models as they lie on a disk, small enough to write in a test: headers that are true, weights of
zeros.
"""

import json
import struct
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TypeAlias

Tensors: TypeAlias = Mapping[str, tuple[str, int]]
"""Name -> type and bytes."""

HEAD: Tensors = {"lm_head.weight": ("BF16", 64)}
QUANTISED_HEAD: Tensors = {"lm_head.weight": ("U8", 32), "lm_head.weight_scale": ("F8_E4M3", 4)}


def safetensors(file: Path, tensors: Tensors) -> None:
    header, at = {}, 0
    for name, (dtype, size) in tensors.items():
        header[name] = {"dtype": dtype, "shape": [size], "data_offsets": [at, at + size]}
        at += size
    text = json.dumps({"__metadata__": {"format": "pt"}, **header}).encode()
    file.write_bytes(len(text).to_bytes(8, "little") + text + bytes(at))


def folder(path: Path, config: Mapping[str, Any], head: Tensors = HEAD) -> Path:
    """A model in two shards, with its index; 64 bytes of layers and the head."""
    path.mkdir(parents=True)
    (path / "config.json").write_text(json.dumps(config))
    layers: Tensors = {"model.layers.0.weight": ("BF16", 64)}
    safetensors(path / "model-00001-of-00002.safetensors", layers)
    safetensors(path / "model-00002-of-00002.safetensors", head)
    index = dict.fromkeys(layers, "model-00001-of-00002.safetensors")
    index |= dict.fromkeys(head, "model-00002-of-00002.safetensors")
    (path / "model.safetensors.index.json").write_text(json.dumps({"weight_map": index}))
    return path


def nothing(path: Path) -> Path:
    """A model that is whole and holds nothing, for engines that read none."""
    path.mkdir()
    (path / "config.json").write_text("{}")
    safetensors(path / "model.safetensors", {})
    return path


def in_hub_cache(
    cache: Path,
    name: str,
    config: Mapping[str, Any],
    head: Tensors = HEAD,
    revision: str = "abc123",
) -> Path:
    """As the hub's own programs leave what they fetched."""
    repository = cache / f"models--{name.replace('/', '--')}"
    snapshot = folder(repository / "snapshots" / "abc123", config, head)
    (repository / "refs").mkdir()
    (repository / "refs" / "main").write_text("abc123")
    return snapshot


# --- GGUF, by the specification of its version 3 --------------------------------------------------


def gguf(
    file: Path, keys: Mapping[str, Any], tensors: Sequence[tuple[str, tuple[int, ...], int]] = ()
) -> Path:
    """Tensors: name, shape, bytes; each begins at a multiple of 32."""
    head = b"GGUF" + struct.pack("<IQQ", 3, len(tensors), len(keys))
    head += b"".join(_text(name) + _typed(value) for name, value in keys.items())
    offset = 0
    for name, shape, size in tensors:
        head += _text(name) + struct.pack("<I", len(shape))
        head += struct.pack(f"<{len(shape)}Q", *shape) + struct.pack("<IQ", 12, offset)
        offset += -(-size // 32) * 32
    file.write_bytes(head + bytes(-len(head) % 32) + bytes(offset))
    return file


def _text(value: str) -> bytes:
    return struct.pack("<Q", len(value.encode())) + value.encode()


def _typed(value: Any) -> bytes:
    """A value behind its type's number."""
    if isinstance(value, str):
        return struct.pack("<I", 8) + _text(value)
    if isinstance(value, list) and value and isinstance(value[0], str):
        return struct.pack("<IIQ", 9, 8, len(value)) + b"".join(map(_text, value))
    if isinstance(value, list):
        return struct.pack(f"<IIQ{len(value)}i", 9, 5, len(value), *value)
    if isinstance(value, bool):
        return struct.pack("<I?", 7, value)
    return (
        struct.pack("<If", 6, value) if isinstance(value, float) else struct.pack("<II", 4, value)
    )
