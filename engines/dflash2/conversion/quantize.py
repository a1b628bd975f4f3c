"""The arithmetic: 64 BF16 numbers become 64 codes, a scale and a bias. Nothing is left to chance.

Every step is one IEEE float32 operation of NumPy, none fused with another and none reordered, so
the bytes are the same on every machine. A value is scale * code + bias. Knows no tensors and no
files.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

GROUP_SIZE = 64
PIECE_GROUPS = 2048  # a piece's float32 numbers fill half a megabyte: they stay in a core's cache

Words = NDArray[np.uint16]  # BF16 bit patterns
Floats = NDArray[np.float32]

HIGHEST_CODE = np.float32(255)
SMALLEST_SCALE = np.float32(1e-7)
ZERO, HALF, ONE = np.float32(0), np.float32(0.5), np.float32(1)


class NotFiniteError(ValueError):
    """NaN or infinity among the values: no code can mean it."""


@dataclass(frozen=True, kw_only=True)
class Quantized:
    codes: NDArray[np.uint8]  # [groups, 64]
    scales: Words  # [groups]
    biases: Words  # [groups]


def quantize(words: Words) -> Quantized:
    """words: [groups, 64]. Groups know nothing of each other, so any cut gives the same bytes."""
    num_groups = len(words)
    result = Quantized(
        codes=np.empty((num_groups, GROUP_SIZE), np.uint8),
        scales=np.empty(num_groups, np.uint16),
        biases=np.empty(num_groups, np.uint16),
    )
    for first in range(0, num_groups, PIECE_GROUPS):
        piece = slice(first, first + PIECE_GROUPS)
        values = widen(words[piece])
        scale, bias = _scale_and_bias(values)
        result.scales[piece], result.biases[piece] = _round(scale), _round(bias)
        # Codes are chosen against what is stored, not against what was computed.
        _choose_codes(
            values, widen(result.scales[piece]), widen(result.biases[piece]), result.codes[piece]
        )
    return result


def widen(words: Words) -> Floats:
    """BF16 is the upper half of a float32."""
    return np.left_shift(words, 16, dtype=np.uint32).view(np.float32)


def _scale_and_bias(values: Floats) -> tuple[Floats, Floats]:
    """The line through a group's ends, with the end farther from 0 met exactly."""
    # NumPy's minimum along 64 neighbours is slow; across rows, in a transposed copy, it is not.
    across = np.ascontiguousarray(values.T)
    low, high = across.min(0), across.max(0)
    if not (np.isfinite(low).all() and np.isfinite(high).all()):
        raise NotFiniteError("NaN or infinity")
    # Huge ends overflow to an infinite scale, whose codes are all 0; that is the rule's own answer.
    with np.errstate(over="ignore", under="ignore"):
        is_low_farther = np.abs(low) > np.abs(high)
        scale = np.maximum((high - low) / HIGHEST_CODE, SMALLEST_SCALE)
        scale = np.where(is_low_farther, scale, -scale)
        edge = np.where(is_low_farther, low, high)
        edge_code = _nearest(edge / scale)
        has_code = edge_code != 0
        scale = np.divide(edge, edge_code, out=scale, where=has_code)
    return scale, np.where(has_code, edge, ZERO)


def _choose_codes(values: Floats, scale: Floats, bias: Floats, codes: NDArray[np.uint8]) -> None:
    """codes[...] = nearest((values - bias) / scale), kept within 0..255. Overwrites the values."""
    with np.errstate(over="ignore", under="ignore"):
        inverse = np.divide(ONE, scale, out=np.zeros_like(scale), where=scale != 0)
        values -= bias[:, None]
        values *= inverse[:, None]
        # Nearest, halves away from 0. What is below 0 ends at 0 anyway, so no sign has to be kept,
        # and the cast to an integer is the floor.
        values += HALF
        np.clip(values, ZERO, HIGHEST_CODE, out=values)
    codes[...] = values


def _nearest(x: Floats) -> Floats:
    """To the nearest whole number, halves away from 0."""
    return np.copysign(np.floor(np.abs(x) + HALF), x)


def _round(x: Floats) -> Words:
    """To BF16, halves to the even one."""
    bits = x.view(np.uint32)
    return ((bits + (np.uint32(0x7FFF) + ((bits >> 16) & 1))) >> 16).astype(np.uint16)
