"""Checkpoints made of nothing: the published fixture, by its recipe, and random ones of any shape.

The fixture's bytes come from a linear congruential generator, so they need no file; the sha256 of
its conversion is published.
"""

import json
import math
import random
from collections.abc import Iterable, Iterator
from pathlib import Path
from struct import pack

from .scalar import assemble

FIXTURE_SHA256 = "b30b5547e8107643de122bdb63d0625fd3cece42c50b0aeae97e02e01d6db390"
FIXTURE_BYTES = 13_808
DRAFTER_CONFIG = {"architectures": ["DFlash2DraftModel"], "dtype": "bfloat16"}


def lcg(seed: int) -> Iterator[int]:
    state = seed
    while True:
        state = (state * 6364136223846793005 + 1442695040888963407) % 2**64
        yield state >> 33


class FixtureWords:
    """Random BF16 words, one output of the generator for each part drawn."""

    def __init__(self, seed: int) -> None:
        self._outputs = lcg(seed)

    def draw(self) -> int:
        return next(self._outputs)

    def word(self, low: int, high: int) -> int:
        sign = self.draw() & 1
        exponent = low + self.draw() % (high - low + 1)
        return sign << 15 | exponent << 7 | self.draw() & 0x7F

    def words(self, count: int, low: int, high: int) -> list[int]:
        return [self.word(low, high) for _ in range(count)]

    def edge_groups(self) -> list[int]:
        """Twelve groups at the corners of the arithmetic."""
        groups = [
            [0] * 64,
            [0x8000 * (j % 2) for j in range(64)],
            [0x3FC0] * 64,
            [0xC010] * 64,
            [(self.draw() & 1) << 15 | self.draw() & 0x7F for _ in range(64)],
            self.words(64, 240, 254),
            self._with_outlier(17, 0xC2C8),
            self._with_outlier(40, 0x42C8),
            [bf16(j) for j in range(64)],
            [(j % 2) << 15 | 100 << 7 | self.draw() & 0x7F for j in range(64)],
            [0x4040 if j == 5 else 0 for j in range(64)],
            self.words(64, 1, 254),
        ]
        return [word for group in groups for word in group]

    def _with_outlier(self, at: int, outlier: int) -> list[int]:
        return [outlier if j == at else self.word(100, 125) for j in range(64)]


def fixture() -> bytes:
    """The published fixture's source file."""
    words = FixtureWords(0x5EED)
    tensors = [
        ("fc.weight", [8, 128], words.words(8 * 128, 110, 130)),
        ("norm.weight", [128], words.words(128, 120, 128)),
        ("layers.0.attention_conv.base_kernel", [2, 2, 64], words.words(256, 115, 128)),
        ("candidate_selector.predecessor_codebook", [130, 64], words.words(130 * 64, 100, 135)),
        ("layers.0.mlp.edge.weight", [4, 192], words.edge_groups()),
        ("some.bias", [4, 64], words.words(4 * 64, 110, 125)),
        ("candidate_selector.successor_codebook", [3, 128], words.words(3 * 128, 90, 140)),
    ]
    return bf16_file(tensors)


def bf16_file(tensors: Iterable[tuple[str, list[int], list[int]]]) -> bytes:
    """A safetensors file of (name, shape, BF16 words)."""
    return assemble(
        [(name, "BF16", shape, pack(f"<{len(words)}H", *words)) for name, shape, words in tensors]
    )


def random_file(shapes: dict[str, list[int]], seed: int = 0) -> bytes:
    """Words of every finite kind: weights of usual size, and now and then anything at all."""
    source = random.Random(seed)

    def word() -> int:
        if source.random() < 0.02:
            return source.randrange(2) << 15 | source.randrange(0x7F80)
        return bf16(source.gauss(0, 0.02))

    return bf16_file(
        (name, shape, [word() for _ in range(math.prod(shape))]) for name, shape in shapes.items()
    )


def bf16(x: float) -> int:
    """The upper half of the float32: exact for the small whole numbers used here."""
    return int.from_bytes(pack("<f", x)[2:], "little")


def write_source(folder: Path, weights: bytes, config: dict | None = None) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    text = json.dumps(DRAFTER_CONFIG if config is None else config, indent=2) + "\n"
    (folder / "config.json").write_text(text)
    (folder / "model.safetensors").write_bytes(weights)
    return folder
