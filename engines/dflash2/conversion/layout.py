"""What lies where: which tensors become which in the converted file, and in what cuts.

The converted file keeps the source's order. A matrix becomes its codes, four to a U32 word, then
its scales, then its biases; everything else passes through. Knows shapes and names, no values.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from engines.dflash2.config import ModelError
from engines.dflash2.conversion.quantize import GROUP_SIZE
from engines.dflash2.conversion.tensor_file import Tensor, TensorFile, encode_header

BLOCK_ROWS = 128
MAX_BLOCK_BYTES = 4 << 20  # of source: bounds the memory however wide a matrix is
SOURCE_ITEM_BYTES = 2
GROUP_BYTES = GROUP_SIZE * SOURCE_ITEM_BYTES
# Published files store the codebooks bare; converted, they are matrices by name too.
CODEBOOKS = ("candidate_selector.predecessor_codebook", "candidate_selector.successor_codebook")


class NotConvertibleError(ModelError):
    """A sound checkpoint that Q8 in groups of 64 cannot hold."""


@dataclass(frozen=True, kw_only=True)
class Part:
    """A tensor of the source and what it becomes; a passing one is all in `main`."""

    source: Tensor
    main: Tensor  # the codes, or the tensor itself
    scales: Tensor | None
    biases: Tensor | None


@dataclass(frozen=True, kw_only=True)
class Layout:
    parts: tuple[Part, ...]
    header: bytes
    num_bytes: int  # of the whole converted file

    @property
    def num_tensors(self) -> int:
        return sum(1 if part.scales is None else 3 for part in self.parts)


@dataclass(frozen=True, kw_only=True)
class Block:
    """A run of source bytes that is read, hashed and converted at once; whole groups."""

    part: Part
    begin: int  # within the tensor's bytes
    num_bytes: int


def converted_layout(source: TensorFile) -> Layout:
    """The converted file of a BF16 file, or an error that names the tensor in the way."""
    parts: list[Part] = []
    end = 0
    for tensor in source.tensors:
        part = _part(source.path, tensor, end)
        parts.append(part)
        end = (part.biases or part.main).end
    tensors = [tensor for part in parts for tensor in _tensors(part)]
    names = [tensor.name for tensor in tensors]
    if len(set(names)) < len(names):
        twice = next(name for name in names if names.count(name) > 1)
        raise ModelError(f"{source.path}: two tensors would become {twice}; remove one of them")
    header = encode_header(tensors)
    return Layout(parts=tuple(parts), header=header, num_bytes=len(header) + end)


def blocks(layout: Layout) -> Iterator[Block]:
    """The source's tensors in cuts, in the order of the file: 128 rows of a matrix at most."""
    for part in layout.parts:
        block_bytes = MAX_BLOCK_BYTES
        if part.scales is not None:
            row_bytes = part.source.shape[1] * SOURCE_ITEM_BYTES
            # A matrix without columns has no bytes to cut.
            block_bytes = min(BLOCK_ROWS * row_bytes, MAX_BLOCK_BYTES) or MAX_BLOCK_BYTES
        for begin in range(0, part.source.num_bytes, block_bytes):
            num_bytes = min(block_bytes, part.source.num_bytes - begin)
            yield Block(part=part, begin=begin, num_bytes=num_bytes)


def _part(path: Path, tensor: Tensor, begin: int) -> Part:
    if tensor.dtype != "BF16":
        raise NotConvertibleError(
            f"{path}: {tensor.name} is {tensor.dtype}; only BF16 checkpoints can be converted, "
            "so save it as BF16"
        )
    name = f"{tensor.name}.weight" if tensor.name in CODEBOOKS else tensor.name
    if len(tensor.shape) != 2 or not name.endswith(".weight"):
        return Part(
            source=tensor, main=_place(name, "BF16", tensor.shape, begin), scales=None, biases=None
        )
    num_rows, width = tensor.shape
    if width % GROUP_SIZE:
        raise NotConvertibleError(
            f"{path}: {tensor.name} has rows of {width}, which is no multiple of {GROUP_SIZE}; "
            f"Q8 in groups of {GROUP_SIZE} cannot hold it"
        )
    stem = name.removesuffix(".weight")
    codes = _place(name, "U32", (num_rows, width // 4), begin)
    groups = (num_rows, width // GROUP_SIZE)
    scales = _place(f"{stem}.scales", "BF16", groups, codes.end)
    biases = _place(f"{stem}.biases", "BF16", groups, scales.end)
    return Part(source=tensor, main=codes, scales=scales, biases=biases)


def _place(name: str, dtype: str, shape: tuple[int, ...], begin: int) -> Tensor:
    item_bytes = 4 if dtype == "U32" else SOURCE_ITEM_BYTES
    return Tensor(
        name=name,
        dtype=dtype,
        shape=shape,
        begin=begin,
        end=begin + math.prod(shape) * item_bytes,
    )


def _tensors(part: Part) -> tuple[Tensor, ...]:
    return tuple(tensor for tensor in (part.main, part.scales, part.biases) if tensor is not None)
