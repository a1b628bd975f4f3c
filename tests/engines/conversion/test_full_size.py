"""The published shapes and sizes, converted once: bytes, tensors, memory, and groups at random.

Nine gigabytes of disk and about a minute; `benchmarks/convert/full_size.py` makes the checkpoint.
"""

import json
import os
import random
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from engines.dflash2.conversion.convert import file_sha256
from engines.dflash2.conversion.tensor_file import TensorFile, read_tensor_file

from . import scalar

CHECKOUT = Path(__file__).parents[3]
NEEDED_BYTES = 11_000_000_000
MAX_PEAK_RSS_BYTES = 150_000_000


def words_at(file: TensorFile, name: str, first: int, count: int) -> list[int]:
    tensor = next(tensor for tensor in file.tensors if tensor.name == name)
    with file.path.open("rb") as stream:
        stream.seek(file.data_offset + tensor.begin + 2 * first)
        data = stream.read(2 * count)
    return [int.from_bytes(data[at : at + 2], "little") for at in range(0, len(data), 2)]


def codes_at(file: TensorFile, name: str, first: int, count: int) -> list[int]:
    """Codes are bytes; two of them are read as one word, the lower byte first."""
    words = words_at(file, name, first // 2, count // 2)
    return [code for word in words for code in (word & 255, word >> 8)]


@pytest.mark.slow
def test_a_full_size_checkpoint_in_bounded_memory(tmp_path: Path) -> None:
    if shutil.disk_usage(tmp_path).free < NEEDED_BYTES:
        pytest.skip(f"{NEEDED_BYTES:,} bytes of disk are needed in {tmp_path}")
    command = [sys.executable, "benchmarks/convert/full_size.py", "--work", str(tmp_path)]
    ended = subprocess.run(
        [*command, "--runs", "1", "--keep"],
        cwd=CHECKOUT,
        env={**os.environ, "PYTHONPATH": str(CHECKOUT)},
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    result = json.loads(ended.stdout.splitlines()[-1])
    source = read_tensor_file(tmp_path / "source" / "model.safetensors")
    converted = read_tensor_file(tmp_path / "converted" / "model.safetensors")
    assert source.num_bytes == 3_848_817_896
    assert converted.num_bytes == result["manifest"]["bytes"] == 2_044_950_184
    assert len(converted.tensors) == result["manifest"]["tensors"] == 179
    assert result["peak_rss_bytes"] < MAX_PEAK_RSS_BYTES
    for file, key in ((source, "source_sha256"), (converted, "sha256")):
        assert file_sha256(file.path, lambda done, total: None) == result["manifest"][key]
    check_random_groups(source, converted)
    shutil.rmtree(tmp_path)


def check_random_groups(source: TensorFile, converted: TensorFile) -> None:
    """Ten groups of every matrix, the first and the last among them, against the scalar rules."""
    generator = random.Random(7)
    for tensor in converted.tensors:
        if tensor.dtype != "U32":
            continue
        stem = tensor.name.removesuffix(".weight")
        bare = stem if stem.endswith("codebook") else tensor.name
        num_groups = tensor.num_bytes // 64
        for group in {0, num_groups - 1, *(generator.randrange(num_groups) for _ in range(8))}:
            found = (
                words_at(converted, f"{stem}.scales", group, 1)[0],
                words_at(converted, f"{stem}.biases", group, 1)[0],
                codes_at(converted, tensor.name, 64 * group, 64),
            )
            assert found == scalar.quantize_group(words_at(source, bare, 64 * group, 64))
