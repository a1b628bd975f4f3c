"""What is published about the checkpoint and its conversion, rebuilt to the byte."""

import hashlib
import json
import math

from engines.dflash2.conversion.checkpoint import Manifest, as_published, converted_config
from engines.dflash2.conversion.layout import (
    BLOCK_ROWS,
    GROUP_BYTES,
    MAX_BLOCK_BYTES,
    Layout,
    blocks,
    converted_layout,
)
from engines.dflash2.conversion.published import CONFIG, SOURCE_BYTES, source_shapes
from engines.dflash2.conversion.tensor_file import Tensor, TensorFile, encode_header


def sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def source_tensors() -> list[Tensor]:
    tensors, at = [], 0
    for name, shape in source_shapes().items():
        end = at + 2 * math.prod(shape)
        tensors.append(Tensor(name=name, dtype="BF16", shape=tuple(shape), begin=at, end=end))
        at = end
    return tensors


def published_layout(tmp_path) -> Layout:
    tensors = tuple(source_tensors())
    return converted_layout(
        TensorFile(
            path=tmp_path / "model.safetensors",
            num_bytes=SOURCE_BYTES,
            data_offset=8 + 8_928,
            tensors=tensors,
        )
    )


def test_the_source_header_is_the_published_one() -> None:
    tensors = source_tensors()
    header = encode_header(tensors)[8:]
    assert len(tensors) == 81
    assert len(header) == 8_928
    assert sha256(header) == "0c2c70601b30f8d1ca7d5794b817779ba2dcf1956cfc7d4f83e87091e1ab7c8c"
    assert 8 + len(header) + tensors[-1].end == SOURCE_BYTES


def test_the_converted_header_and_file_have_the_published_sizes(tmp_path) -> None:
    layout = published_layout(tmp_path)
    assert len(layout.header) - 8 == 19_616
    assert layout.num_tensors == 179
    assert layout.num_bytes == 2_044_950_184
    names = list(json.loads(layout.header[8:]))
    assert names[3:6] == [
        f"candidate_selector.predecessor_codebook.{part}" for part in ("weight", "scales", "biases")
    ]


def test_both_configs_are_the_published_ones() -> None:
    source = as_published(CONFIG).encode()
    assert len(source) == 1_239
    assert sha256(source) == "873e3556509b0da06e29654ba00d4944888d4b5e8a33afde25f7eb27d321e980"
    converted = converted_config(CONFIG).encode()
    assert len(converted) == 1_322
    assert sha256(converted) == "411ffd1c02c210843385cd9eb5784554d0c982c8878669083c5e58258073a65d"


def test_the_manifest_is_the_published_one() -> None:
    manifest = Manifest(
        source_repository="incoai/Qwen3.8-27B-DFlash2",
        source_revision="dedf8df68adfb1afeaf7b7480c0a0243108177b4",
        source_sha256="67fc76d68dc5a9415511a4f394ef744d67510cd20e93b37cc2cc7d28e4bab65c",
        num_bytes=2_044_950_184,
        sha256="cc3b5742f8edf02c4edcc734ef66e7c4c5f660b43438641ee36c5a72f8414188",
        num_tensors=179,
    )
    text = manifest.text().encode()
    assert len(text) == 592
    assert sha256(text) == "e85ae6a22b772666a068cb5669ec409b1ffae3a51c73210e9d288b8e9f138959"


def test_blocks_follow_the_file_without_gaps_and_are_small_and_whole(tmp_path) -> None:
    expected = 0
    for block in blocks(published_layout(tmp_path)):
        tensor = block.part.source
        assert tensor.begin + block.begin == expected
        expected += block.num_bytes
        assert 0 < block.num_bytes <= MAX_BLOCK_BYTES
        if block.part.scales is not None:
            assert block.num_bytes % GROUP_BYTES == 0
            assert block.num_bytes <= BLOCK_ROWS * 2 * tensor.shape[1]
    assert 8 + 8_928 + expected == SOURCE_BYTES
