"""A folder of safetensors: what it holds, and each tensor when it is asked for.

Knows files, shards and how numbers are stored, and no model. Headers are read and checked first;
the bytes of a tensor are mapped, made into the dtype to compute in, and let go, one at a time. So
a load needs the memory of the model and of one tensor, however large the files are.
"""

import json
import mmap
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from engines.dflash2.config import ModelError
from engines.dflash2.conversion.tensor_file import read_tensor_file

SINGLE, INDEX = "model.safetensors", "model.safetensors.index.json"
SCALE_SUFFIX = "_scale_inv"  # beside an FP8 weight; to be multiplied by, whatever the name says
FLOATS = {
    "F64": torch.float64,
    "F32": torch.float32,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "F8_E4M3": torch.float8_e4m3fn,
}
DTYPES = {**FLOATS, "U32": torch.uint32}  # U32: words of four codes in a converted drafter


@dataclass(frozen=True, kw_only=True)
class StoredTensor:
    name: str
    dtype: str  # as the file spells it
    shape: tuple[int, ...]
    path: Path
    offset: int  # of its first byte in the file
    num_bytes: int

    @property
    def is_fp8(self) -> bool:
        return self.dtype == "F8_E4M3"


@dataclass(frozen=True, kw_only=True)
class Checkpoint:
    """The tensors of a folder by name, in the order of files and bytes; no byte of them is read."""

    folder: Path
    tensors: dict[str, StoredTensor]
    ignored_files: tuple[str, ...]  # weights that the index does not name

    def read(
        self,
        names: Iterable[str],
        dtype: torch.dtype | None = None,
        fp8_block: tuple[int, int] | None = None,
    ) -> Iterator[tuple[str, Tensor]]:
        """These tensors, each in memory of its own, in the order of the files.

        dtype: to compute in; None: as stored. fp8_block: rows and columns of a weight that share
        a scale; None where nothing is FP8.
        """
        wanted = set(names)
        ordered = [tensor for name, tensor in self.tensors.items() if name in wanted]
        for path in dict.fromkeys(tensor.path for tensor in ordered):
            with _mapped(path) as file:
                for tensor in ordered:
                    if tensor.path == path:
                        yield tensor.name, self._computable(tensor, file, dtype, fp8_block)
                        _let_go(file, tensor)

    def _computable(
        self,
        tensor: StoredTensor,
        file: mmap.mmap,
        dtype: torch.dtype | None,
        fp8_block: tuple[int, int] | None,
    ) -> Tensor:
        stored = _view(tensor, file)
        if dtype is None:
            return stored.clone()
        if not tensor.is_fp8:
            return stored.to(dtype, copy=True)
        scale = self.tensors.get(tensor.name + SCALE_SUFFIX)
        if scale is None or fp8_block is None:
            raise ModelError(
                f"{tensor.path}: {tensor.name} is FP8, but its {SCALE_SUFFIX} or config.json's "
                "quantization_config is missing; fetch the checkpoint again"
            )
        with _mapped(scale.path) as scale_file:
            return dequantize_fp8(stored, _view(scale, scale_file).float(), fp8_block, dtype)


def open_checkpoint(folder: Path) -> Checkpoint:
    """Read the headers of the one file, or of the shards that an index names."""
    single, index = folder / SINGLE, folder / INDEX
    if single.is_file():
        return Checkpoint(folder=folder, tensors=_headers([single]), ignored_files=())
    if not index.is_file():
        raise ModelError(f"{folder}: has neither {SINGLE} nor {INDEX}")
    shard_of = _weight_map(index)
    names = sorted(set(shard_of.values()))
    absent = [name for name in names if not (folder / name).is_file()]
    if absent:
        raise ModelError(
            f"{index}: names files that are not there: {', '.join(absent)}; is the download "
            "complete?"
        )
    tensors = _headers([folder / name for name in names])
    for name, shard in shard_of.items():
        if name not in tensors or tensors[name].path.name != shard:
            raise ModelError(
                f"{index}: says that {name} is in {shard}, and it is not; fetch both again"
            )
    others = sorted({path.name for path in folder.glob("*.safetensors")} - set(names))
    return Checkpoint(folder=folder, tensors=tensors, ignored_files=tuple(others))


def dequantize_fp8(
    weight: Tensor, scale: Tensor, block: tuple[int, int], dtype: torch.dtype
) -> Tensor:
    """Each block of the weight times its scale, in float32 and a row of blocks at a time.

    weight: [rows, columns]; scale: [rows / block rows, columns / block columns], both rounded up.
    """
    block_rows, block_columns = block
    needed = tuple(-(-size // of) for size, of in zip(weight.shape, block, strict=True))
    if tuple(scale.shape) != needed:
        raise ModelError(
            f"an FP8 weight of shape {list(weight.shape)} in blocks of {list(block)} needs "
            f"{list(needed)} scales and has {list(scale.shape)}"
        )
    wide = torch.empty(weight.shape, dtype=dtype)
    scale = scale.repeat_interleave(block_columns, 1)[:, : weight.shape[1]]
    for number, row in enumerate(scale):
        rows = slice(number * block_rows, (number + 1) * block_rows)
        wide[rows] = weight[rows].float() * row
    return wide


def _weight_map(index: Path) -> dict[str, str]:
    try:
        shard_of = json.loads(index.read_text(encoding="utf-8"))["weight_map"]
    except (ValueError, KeyError, TypeError) as error:
        raise ModelError(f"{index}: has no weight_map; fetch it again") from error
    if not isinstance(shard_of, dict) or not all(isinstance(v, str) for v in shard_of.values()):
        raise ModelError(f"{index}: its weight_map names no files; fetch it again")
    return shard_of


def _headers(paths: Iterable[Path]) -> dict[str, StoredTensor]:
    tensors: dict[str, StoredTensor] = {}
    for path in paths:
        file = read_tensor_file(path)
        for entry in file.tensors:
            if entry.name in tensors:
                raise ModelError(
                    f"{path}: {entry.name} is in {tensors[entry.name].path.name}, too; "
                    "fetch the checkpoint again"
                )
            tensors[entry.name] = StoredTensor(
                name=entry.name,
                dtype=entry.dtype,
                shape=entry.shape,
                path=path,
                offset=file.data_offset + entry.begin,
                num_bytes=entry.num_bytes,
            )
    return tensors


@contextmanager
def _mapped(path: Path) -> Iterator[mmap.mmap]:
    # A private mapping can be written to as far as torch is concerned, which warns otherwise.
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY) as mapped:
        yield mapped


def _view(tensor: StoredTensor, file: mmap.mmap) -> Tensor:
    """The mapped bytes themselves, which are gone when the mapping is."""
    count = tensor.num_bytes // DTYPES[tensor.dtype].itemsize
    flat = torch.frombuffer(file, dtype=DTYPES[tensor.dtype], count=count, offset=tensor.offset)
    return flat.view(tensor.shape)


def _let_go(file: mmap.mmap, tensor: StoredTensor) -> None:
    """Tell the system that these pages will not be read again."""
    start = tensor.offset - tensor.offset % mmap.PAGESIZE
    file.madvise(mmap.MADV_DONTNEED, start, tensor.offset + tensor.num_bytes - start)
