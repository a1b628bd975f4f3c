"""What a model's files are: enough to tell two checkpoints of one name apart without reading
gigabytes.
"""

import hashlib
import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from harness import keys
from harness.errors import ConfigError
from harness.records import Matrix, Model

_KINDS = (".safetensors", ".gguf", ".json", ".model", ".jinja")
_WHOLE_BYTES = 1 << 20  # files up to this size are hashed whole
_NUM_BLOCKS, _BLOCK_BYTES = 64, 4096


def models_of(matrix: Matrix) -> dict[str, Model]:
    """Every target and drafter model of the matrix, by name."""
    found = {variant.target.name: variant.target for variant in matrix.variants}
    drafters = [v.drafter.model for v in matrix.variants if v.drafter and v.drafter.model]
    return found | {model.name: model for model in drafters}


def identity(model: Model) -> dict[str, Any]:
    """`hash` over all files that decide outputs; None where the path is no file of this machine."""
    path = Path(model.path)
    files = {file.name: _fingerprint(file) for file in _files(path)}
    return {
        "path": model.path,
        "published": model.published,
        "hash": keys.short_hash(files) if files else None,
        "bytes": sum(entry["bytes"] for entry in files.values()) if files else None,
        "config": _config(path / "config.json"),
        "weights": _weights(path),
        "files": files,
    }


def hashes(identities: Mapping[str, Mapping[str, Any]]) -> dict[str, str]:
    """model name -> hash, for the plan's subject keys; models elsewhere are known by name."""
    return {name: entry["hash"] for name, entry in identities.items() if entry["hash"]}


def _files(path: Path) -> Iterable[Path]:
    if path.is_file():
        return [path]
    if not path.is_dir():
        return []
    return sorted(file for file in path.iterdir() if file.suffix in _KINDS and file.is_file())


def _fingerprint(file: Path) -> dict[str, Any]:
    """Small files whole; of large ones the head and 64 blocks spread evenly."""
    size = file.stat().st_size
    digest = hashlib.sha256()
    with open(file, "rb") as data:
        if size <= _WHOLE_BYTES:
            digest.update(data.read())
            return {"bytes": size, "sha256": digest.hexdigest()}
        head = hashlib.sha256(data.read(_head_bytes(file))).hexdigest()
        for block in range(_NUM_BLOCKS):
            data.seek(block * (size - _BLOCK_BYTES) // (_NUM_BLOCKS - 1))
            digest.update(data.read(_BLOCK_BYTES))
    return {"bytes": size, "header_sha256": head, "blocks_sha256": digest.hexdigest()}


def _head_bytes(file: Path) -> int:
    """A safetensors header with its length field; of other files a block."""
    if file.suffix != ".safetensors":
        return _BLOCK_BYTES
    with open(file, "rb") as data:
        return 8 + int.from_bytes(data.read(8), "little")


_PARTS = (  # a part of the model, and what in a tensor's name tells it; the first that fits
    ("head", "lm_head."),
    ("vision", "visual."),
    ("vision", "vision_tower."),
    ("mtp", "mtp."),
    ("experts", ".experts."),
    ("embedding", "embed_tokens."),
)


def _weights(path: Path) -> dict[str, Any] | None:
    """Bytes by part of the model, and the head's tensors with their types; from headers alone."""
    if not path.is_dir():
        return None
    tensors = [item for file in sorted(path.glob("*.safetensors")) for item in _tensors(file)]
    if not tensors:
        return None
    part_bytes: dict[str, int] = {}
    for name, entry in tensors:
        begin, end = entry["data_offsets"]
        part_bytes[_part(name)] = part_bytes.get(_part(name), 0) + end - begin
    head = {name: entry["dtype"] for name, entry in tensors if _part(name) == "head"}
    return {"bytes": part_bytes, "head": head}


def _part(name: str) -> str:
    return next((part for part, mark in _PARTS if mark in f"{name}."), "layers")


def _tensors(file: Path) -> Iterable[tuple[str, Mapping[str, Any]]]:
    with open(file, "rb") as data:
        text = data.read(_head_bytes(file))[8:]
    try:
        header = json.loads(text)
    except ValueError as error:
        raise ConfigError(
            f"{file} has no safetensors header ({error}), so no engine can load it; fetch the "
            "model again"
        ) from error
    return [(name, entry) for name, entry in header.items() if name != "__metadata__"]


def _config(file: Path) -> Any:
    if not file.is_file():
        return None
    return json.loads(file.read_text(encoding="utf-8"))
