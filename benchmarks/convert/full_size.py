"""Converts a checkpoint of the published shapes and sizes, beside a plain copy of the same bytes.

    python benchmarks/convert/full_size.py --work DIR [--runs 5] [--keep]

The weights are random BF16 from a seed: 3.8 GB, and with the conversion and the copy 9.7 GB of
disk. Runs alternate between `cp` and the converter, each with its fsync, the source in the page
cache. A conversion is a process of its own, as a user would start it; its peak memory is the
kernel's count. The last line is one JSON document; the lines before it are for people.
"""

import argparse
import json
import math
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median

import numpy as np

from engines.dflash2.conversion.checkpoint import CONFIG, MANIFEST, WEIGHTS, as_published
from engines.dflash2.conversion.published import CONFIG as PUBLISHED_CONFIG
from engines.dflash2.conversion.published import SOURCE_BYTES, source_shapes
from engines.dflash2.conversion.tensor_file import Tensor, encode_header

SEED = 2026
CHUNK_BYTES = 1 << 25


@dataclass(frozen=True, kw_only=True)
class Run:
    copy_s: float  # cp and fsync of the source
    convert_s: float  # the whole process, interpreter included
    peak_rss_bytes: int
    cpu_s: float  # of the conversion, both kinds, all threads


def main() -> None:
    options = _parser().parse_args()
    source = options.work / "source"
    if not (source / WEIGHTS).exists():
        write_source(source)
    runs = []
    for number in range(options.runs):
        runs.append(measure(source, options.work))
        print(f"run {number + 1}: {_line(runs[-1])}", flush=True)
    result = {**summary(runs), "runs": [asdict(run) for run in runs]}
    result["manifest"] = json.loads((options.work / "converted" / MANIFEST).read_text())
    if not options.keep:
        for name in ("source", "converted"):
            shutil.rmtree(options.work / name)
    print(json.dumps(result))


def write_source(folder: Path) -> None:
    """Random weights between 2**-31 and 2, either sign, the same ones every time."""
    folder.mkdir(parents=True)
    (folder / CONFIG).write_text(as_published(PUBLISHED_CONFIG))
    random = np.random.default_rng(SEED)
    with (folder / WEIGHTS).open("wb") as file:
        file.write(encode_header(_tensors()))
        left = SOURCE_BYTES - file.tell()
        while left:
            words = np.frombuffer(bytearray(random.bytes(min(CHUNK_BYTES, left))), "<u2")
            words &= 0x8FFF  # of the exponent, the lower five bits stay random
            words |= 0x3000
            left -= file.write(words.data)
        file.flush()
        os.fsync(file.fileno())


def measure(source: Path, work: Path) -> Run:
    copy_s = _copy_s(source / WEIGHTS, work / "copy")
    converted = work / "converted"
    if converted.exists():
        shutil.rmtree(converted)
        os.sync()
    arguments = ("convert", source, converted, "--source-repository", "synthetic/full-size")
    command = [sys.executable, "-m", "engines.dflash2", *arguments, "--source-revision", str(SEED)]
    started_at_s = time.perf_counter()
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    _, status, usage = os.wait4(process.pid, 0)
    convert_s = time.perf_counter() - started_at_s
    if status:
        raise SystemExit(f"{' '.join(map(str, command))}: ended with status {status}")
    return Run(
        copy_s=copy_s,
        convert_s=convert_s,
        peak_rss_bytes=usage.ru_maxrss * 1024,
        cpu_s=usage.ru_utime + usage.ru_stime,
    )


def summary(runs: list[Run]) -> dict[str, float]:
    """Medians over the runs; the share is the median of each run's own."""
    return {
        "copy_MB_per_s": SOURCE_BYTES / 1e6 / median(run.copy_s for run in runs),
        "convert_MB_per_s": SOURCE_BYTES / 1e6 / median(run.convert_s for run in runs),
        "share_of_copy": median(run.copy_s / run.convert_s for run in runs),
        "peak_rss_bytes": max(run.peak_rss_bytes for run in runs),
    }


def _copy_s(path: Path, copy: Path) -> float:
    os.sync()
    started_at_s = time.perf_counter()
    # No reflink: it would copy no byte where the file system can share them.
    subprocess.run(["cp", "--reflink=never", path, copy], check=True)
    descriptor = os.open(copy, os.O_RDONLY)
    os.fsync(descriptor)
    copy_s = time.perf_counter() - started_at_s
    os.close(descriptor)
    copy.unlink()
    os.sync()
    return copy_s


def _tensors() -> Iterator[Tensor]:
    end = 0
    for name, shape in source_shapes().items():
        begin, end = end, end + 2 * math.prod(shape)
        yield Tensor(name=name, dtype="BF16", shape=tuple(shape), begin=begin, end=end)


def _line(run: Run) -> str:
    return (
        f"copy {SOURCE_BYTES / 1e6 / run.copy_s:.0f} MB/s, "
        f"convert {SOURCE_BYTES / 1e6 / run.convert_s:.0f} MB/s in {run.convert_s:.1f} s "
        f"({run.cpu_s:.1f} s of CPU), {run.copy_s / run.convert_s:.0%} of the copy, "
        f"peak {run.peak_rss_bytes / 1e6:.0f} MB"
    )


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description="convert a full-size synthetic checkpoint")
    parser.add_argument("--work", type=Path, required=True, help="an empty folder on a disk")
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--keep", action="store_true", help="leave source and conversion there")
    return parser


if __name__ == "__main__":
    main()
