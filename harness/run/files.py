"""What a model's files are: enough to tell two checkpoints of one name apart without reading
gigabytes.
"""

import hashlib
import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from harness import keys
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
        "hash": keys.short_hash(files) if files else None,
        "bytes": sum(entry["bytes"] for entry in files.values()) if files else None,
        "config": _config(path / "config.json"),
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


def _config(file: Path) -> Any:
    if not file.is_file():
        return None
    return json.loads(file.read_text(encoding="utf-8"))
