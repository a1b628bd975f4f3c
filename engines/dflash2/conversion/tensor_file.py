"""The safetensors container: a length, a JSON header, then the tensors' bytes without gaps.

Headers are checked before a single weight is read: what they point at lies inside the file, and
every byte of it belongs to exactly one tensor. Knows no names and no model.
"""

import json
import math
import os
import reprlib
import stat
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from engines.dflash2.config import ModelError

LENGTH_BYTES = 8  # of the header's length, little endian, at the start
MAX_HEADER_BYTES = 100_000_000  # the format's own limit
ITEM_BYTES = {
    "BOOL": 1, "U8": 1, "I8": 1, "F8_E4M3": 1, "F8_E5M2": 1,
    "U16": 2, "I16": 2, "F16": 2, "BF16": 2,
    "U32": 4, "I32": 4, "F32": 4,
    "U64": 8, "I64": 8, "F64": 8,
}  # fmt: skip
METADATA = "__metadata__"
MAX_TENSOR_BYTES = 2**63 - 1  # no file is larger
# First bytes of what is often called model.safetensors by mistake. As a length they are enormous.
FOREIGN = {
    b"PK\x03\x04": "a zip archive, as torch.save writes it; save it as safetensors",
    b"\x80": "a pickle, not safetensors; save it as safetensors",
    b"version ": "a Git LFS pointer, not the file it points at; fetch that with `git lfs pull`",
}


@dataclass(frozen=True, kw_only=True)
class Tensor:
    """One tensor's place; offsets count from the end of the header."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    begin: int
    end: int

    @property
    def num_bytes(self) -> int:
        return self.end - self.begin


@dataclass(frozen=True, kw_only=True)
class TensorFile:
    """A file whose header holds what it promises. Tensors stand in the order of their bytes."""

    path: Path
    num_bytes: int
    data_offset: int  # from the start of the file
    tensors: tuple[Tensor, ...]


def read_tensor_file(path: Path) -> TensorFile:
    """Read and check the header alone; the weights stay unread."""
    descriptor = open_readonly(path)
    try:
        return _read(path, descriptor)
    finally:
        os.close(descriptor)


def open_readonly(path: Path) -> int:
    """A descriptor of the file, or an error in words: missing, a loop of links, no permission."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError as error:
        raise ModelError(
            f"{path}: cannot be opened ({error.strerror}); name the folder of a whole checkpoint"
        ) from error
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise ModelError(f"{path}: is no file; name the folder of a whole checkpoint")
    return descriptor


def encode_header(tensors: Iterable[Tensor]) -> bytes:
    """Length and header as published files have them: compact, unsorted, padded with spaces."""
    entries = {
        tensor.name: {
            "dtype": tensor.dtype,
            "shape": tensor.shape,
            "data_offsets": (tensor.begin, tensor.end),
        }
        for tensor in tensors
    }
    text = json.dumps(entries, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(LENGTH_BYTES, "little") + text


def _read(path: Path, descriptor: int) -> TensorFile:
    num_bytes = os.fstat(descriptor).st_size
    start = os.pread(descriptor, LENGTH_BYTES, 0)
    header_bytes = int.from_bytes(start, "little")
    if len(start) < LENGTH_BYTES or header_bytes > num_bytes - LENGTH_BYTES:
        for magic, what in FOREIGN.items():
            if start.startswith(magic):
                raise ModelError(f"{path}: is {what}")
        raise _error(
            path,
            f"its header is said to have {header_bytes} bytes, but the file has {num_bytes} in all",
        )
    if header_bytes > MAX_HEADER_BYTES:
        raise _error(path, f"its header has {header_bytes} bytes, above {MAX_HEADER_BYTES}")
    entries = _parse(path, os.pread(descriptor, header_bytes, LENGTH_BYTES))
    data_offset = LENGTH_BYTES + header_bytes
    tensors = [_tensor(path, *entry) for entry in entries.items() if entry[0] != METADATA]
    tensors.sort(key=lambda tensor: (tensor.begin, tensor.end))
    _check_cover(path, tensors, num_bytes - data_offset)
    return TensorFile(
        path=path, num_bytes=num_bytes, data_offset=data_offset, tensors=tuple(tensors)
    )


def _parse(path: Path, text: bytes) -> dict[str, Any]:
    def object_without_twins(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        values = dict(pairs)
        if len(values) < len(pairs):
            raise ValueError("a name stands twice")
        return values

    try:
        entries = json.loads(text.decode("utf-8"), object_pairs_hook=object_without_twins)
    except (ValueError, RecursionError) as error:
        raise _error(path, f"its header is not JSON ({error})") from error
    if not isinstance(entries, dict):
        raise _error(path, f"its header holds {type(entries).__name__}, not an object")
    return entries


def _tensor(path: Path, name: str, entry: Any) -> Tensor:
    """One entry with every part of the right kind, its length the product of its shape."""
    if not isinstance(entry, dict) or entry.keys() != {"dtype", "shape", "data_offsets"}:
        found = reprlib.repr(entry)
        raise _error(path, f"{name} needs dtype, shape and data_offsets, it is {found}")
    dtype, shape, offsets = entry["dtype"], entry["shape"], entry["data_offsets"]
    if not isinstance(dtype, str) or dtype not in ITEM_BYTES:
        raise _error(path, f"{name} has the unknown dtype {reprlib.repr(dtype)}")
    if not _are_counts(shape) or not _are_counts(offsets) or len(offsets) != 2:
        places = f"shape {reprlib.repr(shape)} and data_offsets {reprlib.repr(offsets)}"
        raise _error(path, f"{name} has {places}")
    begin, end = offsets
    expected_bytes = math.prod(shape) * ITEM_BYTES[dtype]
    if max(expected_bytes, end) > MAX_TENSOR_BYTES:
        raise _error(path, f"{name} is larger than any file")
    if end - begin != expected_bytes:
        raise _error(
            path, f"{name}, {dtype} {shape}, needs {expected_bytes} bytes and has {end - begin}"
        )
    return Tensor(name=name, dtype=dtype, shape=tuple(shape), begin=begin, end=end)


def _are_counts(values: Any) -> bool:
    return isinstance(values, list) and all(type(value) is int and value >= 0 for value in values)


def _check_cover(path: Path, tensors: list[Tensor], num_data_bytes: int) -> None:
    """Raise unless the tensors, in order, are exactly the bytes behind the header."""
    for tensor, expected in _with_expected_begin(tensors):
        if tensor.begin < expected:
            raise _error(path, f"{tensor.name} overlaps the tensor before it")
        if tensor.begin > expected:
            raise _error(path, f"{tensor.begin - expected} bytes before {tensor.name} are nobody's")
    end = tensors[-1].end if tensors else 0
    if end > num_data_bytes:
        raise _error(
            path, f"it is truncated: its tensors need {end} bytes and {num_data_bytes} are there"
        )
    if end < num_data_bytes:
        raise _error(path, f"{num_data_bytes - end} bytes at its end are nobody's")


def _with_expected_begin(tensors: list[Tensor]) -> Iterator[tuple[Tensor, int]]:
    expected = 0
    for tensor in tensors:
        yield tensor, expected
        expected = tensor.end


def _error(path: Path, problem: str) -> ModelError:
    return ModelError(f"{path}: not a sound safetensors file: {problem}. Fetch the file again.")
