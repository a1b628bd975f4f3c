"""A drafter's folder as the converter meets it: what it is, where it came from, its weights' hash.

Reads config.json and the header of the weights, never the weights. Knows nothing of caches.
"""

import json
import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeGuard

from engines.dflash2.config import DRAFTER_ARCHITECTURE, ModelError
from engines.dflash2.conversion.layout import Layout, NotConvertibleError, converted_layout
from engines.dflash2.conversion.tensor_file import TensorFile, open_readonly, read_tensor_file

CONFIG, WEIGHTS, MANIFEST = "config.json", "model.safetensors", "source-repository.json"
INDEX = "model.safetensors.index.json"
ORIGIN_FILE = "hf-origin.json"
QUANTIZATION = {"bits": 8, "group_size": 64, "mode": "affine"}
FORMAT = "MLX affine Q8 group64"
CONVERSION = "FP32 min/max; BF16 scale and bias; codes selected against stored scale/bias"
REFERENCE_IMPLEMENTATION = (
    "https://github.com/z-lab/dflash/blob/07ebd93db9f472af339b644bb70221ad8428328a/"
    "dflash/model_mlx.py"
)
SHA256 = re.compile("[0-9a-f]{64}")
HUB_SNAPSHOT = re.compile(r"/models--([^/]+?)--([^/]+)/snapshots/([^/]+)$")


@dataclass(frozen=True, kw_only=True)
class Origin:
    repository: str
    revision: str


@dataclass(frozen=True, kw_only=True)
class SourceCheckpoint:
    """A BF16 drafter that can be converted."""

    folder: Path
    stamp: str  # of the weights' file, taken before anything in it was read
    file: TensorFile
    layout: Layout
    converted_config: str  # the text of the converted config.json
    origin: Origin | None  # None: nobody knows

    @property
    def weights(self) -> Path:
        return self.file.path

    @property
    def name(self) -> str:
        """The folder's own, also where it was given as "." or ".."."""
        return os.path.basename(os.path.abspath(self.folder))


@dataclass(frozen=True, kw_only=True)
class Manifest:
    """What a conversion says about itself, in source-repository.json."""

    source_repository: str
    source_revision: str
    source_sha256: str
    num_bytes: int
    sha256: str
    num_tensors: int

    def text(self) -> str:
        return as_published(
            {
                "source_repository": self.source_repository,
                "source_revision": self.source_revision,
                "source_sha256": self.source_sha256,
                "reference_implementation": REFERENCE_IMPLEMENTATION,
                "format": FORMAT,
                "conversion": CONVERSION,
                "bytes": self.num_bytes,
                "sha256": self.sha256,
                "tensors": self.num_tensors,
            }
        )


def read_source(folder: Path) -> SourceCheckpoint:
    """Check everything about a BF16 drafter that can be checked without reading its weights."""
    config = read_json_object(folder / CONFIG)
    if config.get("architectures") != [DRAFTER_ARCHITECTURE]:
        raise ModelError(
            f"{folder / CONFIG}: architectures is {config.get('architectures')!r}; only drafters "
            f"of {DRAFTER_ARCHITECTURE!r} are converted"
        )
    if is_quantized(config):
        raise ModelError(f"{folder}: is quantised already; use it as it is")
    weights = weights_file(folder)
    stamp = stat_stamp(weights)
    file = read_tensor_file(weights)
    return SourceCheckpoint(
        folder=folder,
        stamp=stamp,
        file=file,
        layout=converted_layout(file),
        converted_config=converted_config(config),
        origin=read_origin(folder),
    )


def is_quantized(config: dict[str, Any]) -> bool:
    return config.get("quantization") is not None


def converted_config(config: dict[str, Any]) -> str:
    """The source's config.json with the quantisation as its last key."""
    return as_published({**_without(config, "quantization"), "quantization": QUANTIZATION})


def as_published(values: dict[str, Any]) -> str:
    return json.dumps(values, indent=2) + "\n"


def weights_file(folder: Path) -> Path:
    """The one file of weights, or what to do about the ones that are there instead."""
    weights = folder / WEIGHTS
    if os.path.lexists(weights):
        return weights
    if os.path.lexists(folder / INDEX):
        raise NotConvertibleError(
            f"{folder}: its weights are sharded ({INDEX}); only a single {WEIGHTS} can be "
            "converted, so save it as one file"
        )
    if pickles := sorted(path.name for path in folder.glob("*.bin")):
        raise ModelError(
            f"{folder}: has {pickles[0]}, a pickle, and no {WEIGHTS}; save it as safetensors"
        )
    raise ModelError(f"{folder}: has no {WEIGHTS}; name the folder of a checkpoint")


def read_origin(folder: Path) -> Origin | None:
    """Repository and revision, from a hub snapshot's path or else from hf-origin.json."""
    if found := HUB_SNAPSHOT.search(os.path.realpath(folder)):
        owner, name, revision = found.groups()
        return Origin(repository=f"{owner}/{name}", revision=revision)
    path = folder / ORIGIN_FILE
    if not path.exists():
        return None
    values = read_json_object(path)
    repository, revision = values.get("repository"), values.get("revision")
    if not _is_name(repository) or not _is_name(revision):
        raise ModelError(
            f"{path}: holds {values!r}; it needs repository and revision, both as printable text"
        )
    return Origin(repository=repository, revision=revision)


def _is_name(value: Any) -> TypeGuard[str]:
    return isinstance(value, str) and value != "" and value.isprintable()


def stat_stamp(path: Path) -> str:
    """What changes whenever the file is written or replaced: device, inode, size and time."""
    descriptor = open_readonly(path)
    try:
        found = os.fstat(descriptor)
    finally:
        os.close(descriptor)
    return f"{found.st_dev}:{found.st_ino}:{found.st_size}:{found.st_mtime_ns}"


def blob_sha256(weights: Path) -> str | None:
    """The hash that a hub cache names the file by; None outside of one."""
    target = os.path.basename(os.path.realpath(weights))
    return target if weights.is_symlink() and SHA256.fullmatch(target) else None


def read_json_object(path: Path) -> dict[str, Any]:
    descriptor = open_readonly(path)
    with open(descriptor, encoding="utf-8") as file:
        try:
            values = json.load(file)
        except (ValueError, RecursionError) as error:
            raise ModelError(f"{path}: not JSON ({error}); fetch the checkpoint again") from error
    if not isinstance(values, dict):
        raise ModelError(f"{path}: holds {type(values).__name__}, not a JSON object")
    return values


def _without(values: dict[str, Any], key: str) -> dict[str, Any]:
    return {name: value for name, value in values.items() if name != key}
