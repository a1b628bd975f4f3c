"""When to convert and where to keep it: a drafter's folder in, the folder to load out.

A conversion is kept beside its source or in a cache directory, and is used again as long as its
manifest names the source's hash. That hash comes from the name of a hub blob or from a stamp, so
a warm start reads no weights. Says what it decided; decides nothing in silence.
"""

import os
import shutil
from collections.abc import Callable, Mapping
from functools import cache, partial
from pathlib import Path
from typing import Any

from engines.dflash2.config import ModelError
from engines.dflash2.conversion.checkpoint import (
    CONFIG,
    FORMAT,
    MANIFEST,
    SHA256,
    WEIGHTS,
    Manifest,
    Origin,
    SourceCheckpoint,
    blob_sha256,
    is_quantized,
    read_json_object,
    read_source,
    stat_stamp,
    weights_file,
)
from engines.dflash2.conversion.convert import claim, convert, file_sha256
from engines.dflash2.conversion.layout import NotConvertibleError
from engines.dflash2.conversion.progress import Report
from engines.dflash2.conversion.tensor_file import read_tensor_file

AUTOCONVERT = "DFLASH2_AUTOCONVERT"
CACHE_DIR = "DFLASH2_CACHE_DIR"
OWN_NAME, LSE_NAME = "q8g64", "lse-q8g64"
UNKNOWN_REVISION = "unknown"
OUR_FILES = {CONFIG, WEIGHTS, MANIFEST}

Say = Callable[[str], None]
Environment = Mapping[str, str]


def folder_to_load(folder: Path, environment: Environment, say: Say, report: Report) -> Path:
    """The folder itself, or the Q8 conversion of the BF16 drafter in it, made now if need be."""
    if not _converts(environment):
        return folder
    try:
        source = read_source(folder) if _is_source(folder) else None
    except NotConvertibleError as error:
        raise ModelError(f"{error}; {AUTOCONVERT}=0 loads it unconverted") from error
    if source is None:
        return folder
    destination = _destination(source, environment)
    source_sha256 = cache(partial(_source_sha256, source, destination, say, report))
    for candidate in _places(source, destination):
        if not os.path.lexists(candidate):
            continue
        problem = _problem(candidate, source, source_sha256())
        if problem is None:
            say(f"using the conversion in {candidate}")
            return candidate
        say(f"{candidate} is not used: {problem}")
    if destination.parent != source.folder and not environment.get(CACHE_DIR):
        say(f"{source.folder} cannot be written, so its conversion goes to a cache directory")
    return _convert_once(source, destination, source_sha256, say, report)


def convert_to(
    folder: Path, destination: Path, origin: Origin | None, say: Say, report: Report
) -> Manifest:
    """Convert into a folder that does not exist yet. origin None: as the source itself says."""
    _check_new(destination)
    source = read_source(folder)
    origin = origin or source.origin
    if origin is None:
        raise ModelError(
            f"{folder}: where it comes from is unknown; give --source-repository and "
            "--source-revision"
        )
    with claim(destination, lambda: say(_waiting(destination))) as partial_folder:
        _check_new(destination)  # once more: another process may have been faster
        return convert(source, partial_folder, destination, origin, report)


def _check_new(destination: Path) -> None:
    if os.path.lexists(destination):
        raise ModelError(f"{destination}: is there already; name a folder that does not exist")


def _converts(environment: Environment) -> bool:
    written = environment.get(AUTOCONVERT, "1")
    if written not in ("0", "1"):
        raise ModelError(
            f"{AUTOCONVERT} is {written!r}; write 0 to load BF16 drafters as they are, 1 to "
            "convert them"
        )
    return written == "1"


def _is_source(folder: Path) -> bool:
    """Whether the folder holds BF16 (or float16, which is then refused), and nothing converted."""
    if is_quantized(read_json_object(folder / CONFIG)):
        return False
    tensors = read_tensor_file(weights_file(folder)).tensors
    return any(tensor.dtype in ("BF16", "F16") for tensor in tensors)


def _destination(source: SourceCheckpoint, environment: Environment) -> Path:
    """Inside the source, unless a cache directory is set or the source cannot be written."""
    if written := environment.get(CACHE_DIR):
        return Path(written).expanduser() / _cache_key(source)
    if _is_writable(source.folder):
        return source.folder / OWN_NAME
    home = environment.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    return Path(home) / "dflash2" / _cache_key(source)


def _places(source: SourceCheckpoint, destination: Path) -> list[Path]:
    """Where a conversion of this source may lie, each once."""
    places = (destination, source.folder / OWN_NAME, source.folder / LSE_NAME)
    return list(dict.fromkeys(places))


def _cache_key(source: SourceCheckpoint) -> str:
    if source.origin is None:
        key = f"{source.name}-{_fnv1a64(os.path.abspath(source.weights)):016x}"
    else:
        key = f"{source.origin.repository}@{source.origin.revision}"
    return key.translate(str.maketrans("/\\:", "---")) + "-q8g64"


def _convert_once(
    source: SourceCheckpoint,
    destination: Path,
    source_sha256: Callable[[], str],
    say: Say,
    report: Report,
) -> Path:
    """Convert, or wait for the process that is at it and take what it made."""
    _make_folder(destination.parent)
    with claim(destination, lambda: say(_waiting(destination))) as partial_folder:
        if os.path.lexists(destination):
            if _problem(destination, source, source_sha256()) is None:
                say(f"using the conversion in {destination}")
                return destination
            _remove_old(destination, partial_folder)
        say(f"converting {source.weights} to Q8 in {destination}")
        origin = source.origin or Origin(repository=source.name, revision=UNKNOWN_REVISION)
        manifest = convert(source, partial_folder, destination, origin, report)
        _write_stamp(source, destination, manifest.source_sha256, say)
    return destination


def _make_folder(folder: Path) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ModelError(
            f"{folder}: cannot be made ({error.strerror}); set {CACHE_DIR} to a writable folder"
        ) from error


def _problem(folder: Path, source: SourceCheckpoint, source_sha256: str) -> str | None:
    """Why the folder is not this source's conversion; None if it is."""
    try:
        manifest = read_json_object(folder / MANIFEST)
        config = (folder / CONFIG).read_text(encoding="utf-8")
        weights = (folder / WEIGHTS).stat()
    except (ModelError, OSError, ValueError) as error:
        return f"is no whole conversion ({error})"
    if manifest.get("format") != FORMAT:
        return f"its format is {manifest.get('format')!r}, not {FORMAT!r}"
    if manifest.get("bytes") != weights.st_size:
        expected_bytes = manifest.get("bytes")
        return f"its weights have {weights.st_size} bytes, its manifest says {expected_bytes}"
    if manifest.get("source_sha256") != source_sha256:
        return "the source is another one now"
    if config != source.converted_config:
        return "its config.json is not the source's"
    return _problem_of_edited_weights(folder, manifest)


def _problem_of_edited_weights(folder: Path, manifest: dict[str, Any]) -> str | None:
    """Weights are written before their manifest; newer ones have been touched and are hashed."""
    manifest_path, weights = folder / MANIFEST, folder / WEIGHTS
    if _last_touched_ns(weights) <= _last_touched_ns(manifest_path):
        return None
    if file_sha256(weights, lambda done, total: None) != manifest.get("sha256"):
        return "its weights have been edited"
    if _is_writable(manifest_path):
        os.utime(manifest_path)  # vouched for: the next start need not hash them again
    return None


def _last_touched_ns(path: Path) -> int:
    """Of the file's two times the second one cannot be set, so older bytes copied here show."""
    found = path.stat()
    return max(found.st_mtime_ns, found.st_ctime_ns)


def _source_sha256(source: SourceCheckpoint, destination: Path, say: Say, report: Report) -> str:
    """The hash of the source's weights, which are read only if no name and no stamp tells it."""
    known = blob_sha256(source.weights) or _stamped_sha256(source, destination)
    if known is not None:
        return known
    sha256 = file_sha256(source.weights, partial(report, "hash-source"))
    _write_stamp(source, destination, sha256, say)
    return sha256


def _stamped_sha256(source: SourceCheckpoint, destination: Path) -> str | None:
    for converted in _places(source, destination):
        try:
            stamp, sha256 = _stamp_path(converted).read_text(encoding="utf-8").split()
        except (OSError, ValueError):
            continue  # none here, or half of one: another place has it, or the weights are hashed
        if stamp == source.stamp and SHA256.fullmatch(sha256):
            return sha256
    return None


def _write_stamp(source: SourceCheckpoint, destination: Path, source_sha256: str, say: Say) -> None:
    """Keep the hash for the next start, if the file it belongs to is still the same."""
    if stat_stamp(source.weights) != source.stamp:
        return
    path = _stamp_path(destination)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        # Half a line, if the process ends here, is read as none.
        path.write_text(f"{source.stamp} {source_sha256}\n", encoding="utf-8")
    except OSError as error:
        say(f"{path} cannot be written ({error.strerror}), so the next start hashes the source")


def _stamp_path(destination: Path) -> Path:
    return destination.with_name(f"{destination.name}.source-stat")


def _remove_old(destination: Path, partial_folder: Path) -> None:
    """Take an invalid conversion away at one stroke, then delete it."""
    old = partial_folder / "old"
    try:
        is_folder = destination.is_dir() and not destination.is_symlink()
        if not is_folder or not set(os.listdir(destination)) <= OUR_FILES:
            raise ModelError(
                f"{destination}: stands where the conversion belongs and is none; move it away"
            )
        os.rename(destination, old)
        shutil.rmtree(old)
    except OSError as error:
        raise ModelError(
            f"{destination}: cannot be replaced ({error.strerror}); move it away"
        ) from error


def _is_writable(path: Path) -> bool:
    return os.access(path, os.W_OK, effective_ids=os.access in os.supports_effective_ids)


def _waiting(destination: Path) -> str:
    return f"another process is converting to {destination}; waiting for it"


def _fnv1a64(text: str) -> int:
    """Fowler-Noll-Vo's hash, which names folders of sources without an origin."""
    value = 0xCBF29CE484222325
    for byte in os.fsencode(text):
        value = (value ^ byte) * 0x100000001B3 % 2**64
    return value
