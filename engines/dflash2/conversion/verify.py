"""Is this folder what it says it is? Hashes everything and compares; changes nothing."""

import hashlib
import os
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from engines.dflash2.config import ModelError
from engines.dflash2.conversion import published
from engines.dflash2.conversion.checkpoint import (
    CONFIG,
    FORMAT,
    MANIFEST,
    WEIGHTS,
    is_quantized,
    read_json_object,
    weights_file,
)
from engines.dflash2.conversion.convert import COPY_BYTES, file_sha256
from engines.dflash2.conversion.progress import Report
from engines.dflash2.conversion.tensor_file import open_readonly, read_tensor_file


@dataclass(frozen=True, kw_only=True)
class Check:
    """One comparison: what was compared, and what differs. problem None: nothing does."""

    subject: str
    problem: str | None


def verify(folder: Path, reference: Path | None, report: Report) -> list[Check]:
    """All that can be compared; never empty, because a check of nothing would pass."""
    config = read_json_object(folder / CONFIG)
    file = read_tensor_file(weights_file(folder))
    sha256 = file_sha256(file.path, partial(report, "hash-source"))
    config_sha256 = hashlib.sha256((folder / CONFIG).read_bytes()).hexdigest()
    checks = []
    if is_quantized(config):
        manifest = read_json_object(folder / MANIFEST)
        found = {
            "format": FORMAT,
            "bytes": file.num_bytes,
            "sha256": sha256,
            "tensors": len(file.tensors),
        }
        checks += [_equal(f"manifest's {key}", manifest.get(key), it) for key, it in found.items()]
        if manifest.get("source_sha256") == published.SOURCE_SHA256:
            checks += [
                _equal("published conversion", published.CONVERTED_SHA256, sha256),
                _equal("published config", published.CONVERTED_CONFIG_SHA256, config_sha256),
            ]
    elif config_sha256 == published.CONFIG_SHA256 or sha256 == published.SOURCE_SHA256:
        checks += [
            _equal("published checkpoint", published.SOURCE_SHA256, sha256),
            _equal("published config", published.CONFIG_SHA256, config_sha256),
        ]
    if reference is not None:
        names = [WEIGHTS, CONFIG, *([MANIFEST] if is_quantized(config) else [])]
        checks += [_same_bytes(folder / name, reference / name) for name in names]
    if not checks:
        raise ModelError(
            f"{folder}: there is nothing to compare it with: it is not the published checkpoint "
            f"and no conversion. Its weights have sha256 {sha256}; give --reference DIR."
        )
    return checks


def _equal(subject: str, expected: object, found: object) -> Check:
    problem = None if expected == found else f"{expected} is expected, {found} was found"
    return Check(subject=subject, problem=problem)


def _same_bytes(path: Path, reference: Path) -> Check:
    at = _first_difference(path, reference)
    problem = None if at is None else f"differs from {reference} at byte {at}"
    return Check(subject=f"{path.name} against the reference", problem=problem)


def _first_difference(path: Path, reference: Path) -> int | None:
    """Where two files begin to differ; the shorter one's end counts. None: they do not."""
    descriptors = [open_readonly(path), open_readonly(reference)]
    try:
        num_bytes = max(os.fstat(descriptor).st_size for descriptor in descriptors)
        for at in range(0, num_bytes, COPY_BYTES):
            ours, theirs = (os.pread(descriptor, COPY_BYTES, at) for descriptor in descriptors)
            if ours != theirs:
                pairs = enumerate(zip(ours, theirs, strict=False))
                shorter = min(len(ours), len(theirs))
                return at + next((i for i, (one, other) in pairs if one != other), shorter)
    finally:
        for descriptor in descriptors:
            os.close(descriptor)
    return None
