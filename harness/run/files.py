"""What a model's files are: enough to tell two checkpoints of one name apart without reading
gigabytes, and what its configs and headers say of it.
"""

import hashlib
import json
import os
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from harness import keys
from harness.errors import ConfigError
from harness.records import Matrix, Model
from harness.run import gguf

_KINDS = (".safetensors", ".gguf", ".json", ".model", ".jinja")
_WHOLE_BYTES = 1 << 20  # files up to this size are hashed whole
_NUM_BLOCKS, _BLOCK_BYTES = 64, 4096


def models_of(matrix: Matrix) -> dict[str, Model]:
    """Every target and drafter model of the matrix, by name."""
    found = {variant.target.name: variant.target for variant in matrix.variants}
    drafters = [v.drafter.model for v in matrix.variants if v.drafter and v.drafter.model]
    return found | {model.name: model for model in drafters}


def identity(model: Model) -> dict[str, Any]:
    """`hash` over all files that decide outputs; None where the path is no file of this machine.

    A model of the hub has none: an engine may fetch it while a run goes on, and it would be
    another one then. What its config and headers say is known as soon as the hub's cache has them.
    """
    path = Path(model.path)
    files = {file.name: _fingerprint(file) for file in _files(path)}
    read = path if files else _in_hub_cache(model.path)
    return {
        "path": model.path,
        "published": model.published,
        "hash": keys.short_hash(files) if files else None,
        "bytes": sum(entry["bytes"] for entry in files.values()) if files else None,
        "config": None if read is None else _config(read),
        "weights": None if read is None else _weights(read),
        "files": files,
        "revision": None if files or read is None else read.name,
        "template": None if read is None else _template(read),
    }


def _in_hub_cache(name: str) -> Path | None:
    """The snapshot of `owner/model` that the hub's own programs fetched; None where they did
    not.
    """
    folder = _hub_cache() / f"models--{name.replace('/', '--')}"
    main = folder / "refs" / "main"
    if not main.is_file():
        return None
    snapshot = folder / "snapshots" / main.read_text(encoding="ascii").strip()
    return snapshot if snapshot.is_dir() else None


def _hub_cache() -> Path:
    home = Path(os.environ.get("HF_HOME", "~/.cache/huggingface")).expanduser()
    return Path(os.environ.get("HF_HUB_CACHE", home / "hub"))


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


def _template(path: Path) -> dict[str, Any] | None:
    """The chat template's hash, and whether it can be told not to think; None: there is none."""
    text = _template_text(path)
    if not isinstance(text, str):
        return None
    return {
        "sha256": hashlib.sha256(text.encode()).hexdigest(),
        "can_think": "enable_thinking" in text,
    }


def _template_text(path: Path) -> Any:
    """A file of its own comes before the tokenizer's key."""
    if path.suffix == ".gguf":
        return gguf.read_header(path).keys.get("tokenizer.chat_template")
    own, tokenizer = path / "chat_template.jinja", path / "tokenizer_config.json"
    if own.is_file():
        return own.read_text(encoding="utf-8")
    return (_json(tokenizer) or {}).get("chat_template")


_PARTS = (  # a part of the model, and what in a tensor's name tells it; the first that fits
    ("head", "lm_head."),
    ("vision", "visual."),
    ("vision", "vision_tower."),
    ("mtp", "mtp."),
    ("experts", ".experts."),
    ("embedding", "embed_tokens."),
)


def _weights(path: Path) -> dict[str, Any] | None:
    """Bytes by part of the model, the head's tensors with their types, and the files that its index
    names or their numbers promise and that are not here; from headers and the index alone.
    """
    if path.suffix == ".gguf":
        return _gguf_weights(path) if path.is_file() else None
    found = sorted(path.glob("*.safetensors"))
    index = _index(path)
    if not found and not index and not _is_model(path):
        return None
    tensors = [item for file in found for item in _tensors(file)]
    part_bytes: dict[str, int] = {}
    for name, entry in tensors:
        begin, end = entry["data_offsets"]
        part_bytes[_part(name)] = part_bytes.get(_part(name), 0) + end - begin
    return {
        "bytes": part_bytes,
        "head": {name: entry["dtype"] for name, entry in tensors if _part(name) == "head"},
        "head_by_index": [name for name in index if _part(name) == "head"],
        "missing": [
            *sorted(_promised(found, index) - {file.name for file in _files(path)}),
            *(f"the end of {file.name}" for file in found if _is_cut_off(file)),
        ],
    }


def _is_cut_off(file: Path) -> bool:
    """Its header, which comes first, promises more than there is."""
    ends = [entry["data_offsets"][1] for _, entry in _tensors(file)]
    return file.stat().st_size < _head_bytes(file) + max(ends, default=0)


def _is_model(path: Path) -> bool:
    """A folder that has a config and weights of no kind that is read here, or none."""
    return (path / "config.json").is_file() and not any(path.glob("*.bin"))


_INDEX = "model.safetensors.index.json"
_SHARD = re.compile(r"(.*)-(\d{5})-of-(\d{5})(\.safetensors)")


def _index(path: Path) -> Mapping[str, str]:
    """Tensor: its file."""
    file = path / _INDEX
    if not file.is_file():
        return {}
    try:
        names: Mapping[str, str] = json.loads(file.read_text(encoding="utf-8"))["weight_map"]
    except (ValueError, KeyError, TypeError) as error:
        raise ConfigError(
            f"{file} is no index of safetensors ({error!r}), so no engine can load the model; "
            "fetch it again"
        ) from error
    return names


def _promised(found: Iterable[Path], index: Mapping[str, str]) -> set[str]:
    """Of `model-00002-of-00003.safetensors` there are three, and an index."""
    promised = set(index.values())
    shards = [shard for file in found if (shard := _SHARD.fullmatch(file.name))]
    for shard in shards:
        every = range(1, int(shard[3]) + 1)
        promised |= {f"{shard[1]}-{number:05d}-of-{shard[3]}{shard[4]}" for number in every}
    return promised | ({_INDEX} if shards and not index else set()) or {"model.safetensors"}


def _gguf_weights(file: Path) -> dict[str, Any]:
    header = gguf.read_header(file)
    part_bytes: dict[str, int] = {}
    for tensor in header.tensors:
        part = _GGUF_PARTS.get(tensor.name, "layers")
        part_bytes[part] = part_bytes.get(part, 0) + tensor.size_bytes
    # llama.cpp takes any head, so nothing is asked of its type
    return {"bytes": part_bytes, "head": {}, "head_by_index": [], "missing": []}


_GGUF_PARTS = {"output.weight": "head", "token_embd.weight": "embedding"}


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


def _config(path: Path) -> Any:
    """A folder's config.json; of a GGUF file what its header says, in the same words."""
    if path.suffix == ".gguf" and path.is_file():
        return gguf.config_of(gguf.read_header(path))
    return _json(path / "config.json")


def _json(file: Path) -> Any:
    if not file.is_file():
        return None
    try:
        return json.loads(file.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ConfigError(f"{file} is no JSON ({error}); fetch the model again") from error
