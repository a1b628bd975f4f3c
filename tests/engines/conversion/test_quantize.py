"""The quantiser against the published vectors and against a scalar implementation of the rules."""

import random
from collections.abc import Callable

import numpy as np
import pytest

from engines.dflash2.conversion.quantize import NotFiniteError, quantize, widen

from . import scalar
from .fixture import FixtureWords, bf16

DESCENDING = [255, 251, 247, 243, 239, 235], [12, 8, 4, 0]
ALL_ZERO = [0] * 6, [0] * 4


@pytest.mark.parametrize(
    ("value", "scale", "bias", "codes"),
    [
        (lambda j: j, 0xBE7D, 0x427C, DESCENDING),
        (lambda j: -j, 0x3E7D, 0xC27C, DESCENDING),
        (lambda j: 0, 0xB3D7, 0x0000, ALL_ZERO),
        (lambda j: 1.5, 0xB3D7, 0x3FC0, ALL_ZERO),
        (lambda j: (j - 20) / 64, 0xBB7D, 0x3F2C, DESCENDING),
    ],
    ids=["rising", "falling", "zero", "constant", "around zero"],
)
def test_published_vectors(
    value: Callable[[int], float], scale: int, bias: int, codes: tuple[list[int], list[int]]
) -> None:
    found = quantize(np.array([[bf16(value(j)) for j in range(64)]], np.uint16))
    assert (int(found.scales[0]), int(found.biases[0])) == (scale, bias)
    assert (found.codes[0, :6].tolist(), found.codes[0, -4:].tolist()) == codes


def groups_of_every_kind() -> list[list[int]]:
    source = random.Random(5)
    edges = FixtureWords(seed=1).edge_groups()
    groups = [edges[at : at + 64] for at in range(0, len(edges), 64)]
    groups += [[bf16(source.gauss(0, 0.02)) for _ in range(64)] for _ in range(100)]
    for _ in range(100):  # a narrow band of exponents anywhere, both signs or one
        low = source.randrange(255)
        high = min(254, low + source.randrange(12))
        sign = source.choice([0, 0x8000, None])
        groups.append(
            [
                (source.randrange(2) << 15 if sign is None else sign)
                | source.randint(low, high) << 7
                | source.randrange(128)
                for _ in range(64)
            ]
        )
    return groups


def test_every_group_equals_the_scalar_implementation() -> None:
    groups = groups_of_every_kind()
    found = quantize(np.array(groups, np.uint16))
    for number, group in enumerate(groups):
        expected = scalar.quantize_group(group)
        theirs = (
            int(found.scales[number]),
            int(found.biases[number]),
            found.codes[number].tolist(),
        )
        assert theirs == expected, [hex(word) for word in group]


def test_groups_know_nothing_of_each_other() -> None:
    # 5,000 groups cross the internal pieces twice; one at a time they cross none.
    words = np.random.default_rng(0).integers(0x3C00, 0x3F00, (5000, 64)).astype(np.uint16)
    together = quantize(words)
    for number in (0, 2047, 2048, 4095, 4096, 4999):
        alone = quantize(words[number : number + 1])
        assert np.array_equal(alone.codes[0], together.codes[number])
        assert alone.scales[0] == together.scales[number]
        assert alone.biases[0] == together.biases[number]


def test_a_value_is_off_by_half_a_step_and_near_the_end_by_what_the_scale_lost() -> None:
    values = np.random.default_rng(1).standard_normal((400, 64)).astype(np.float32)
    words = (values.view(np.uint32) >> 16).astype(np.uint16)
    found = quantize(words)
    scale, bias = widen(found.scales)[:, None], widen(found.biases)[:, None]
    steps = np.abs(scale * found.codes - (widen(words) - bias)) / np.abs(scale)
    is_inside = (found.codes > 0) & (found.codes < 255)
    assert is_inside.any()
    assert (steps[is_inside] <= 0.501).all()
    # Making the far end (at least 128 steps from 0) whole steps changes the scale by at most
    # 1/256, rounding it to BF16's 8 bits by 1/256: the last of 255 steps moves by two.
    assert (steps <= 2.5).all()


@pytest.mark.parametrize("word", [0x7FC0, 0xFFC1, 0x7F80, 0xFF80])
def test_nan_and_infinity_are_refused(word: int) -> None:
    words = np.zeros((3, 64), np.uint16)
    words[1, 7] = word
    with pytest.raises(NotFiniteError):
        quantize(words)
