"""What the machine itself can do: memory's read rate and the rate of a bare matrix product.

    python -m benchmarks.engine.machine

Both are measured in the run whose figures are held against them. A read rate is the fastest of
several ways to look at every byte of a buffer four times the last-level cache, because each way
has its own reason to be slow; a test that also writes, or that allocates, shows a fraction of it.
"""

import argparse
import json
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import torch

CACHES = Path("/sys/devices/system/cpu/cpu0/cache")
BUFFER_PER_CACHE = 4
NUM_TRIES = 7
PRODUCT_SIZE = 2048
_BYTES_OF_UNIT = {"K": 1 << 10, "M": 1 << 20}


@dataclass(frozen=True, kw_only=True)
class Machine:
    read_bytes_per_s: float
    read_by: str  # which way of reading was the fastest
    product_flop_per_s: float  # float32


def last_level_cache_bytes(caches: Path = CACHES) -> int:
    """The largest of the cache's levels, as the kernel tells them."""
    sizes = [path.read_text().strip() for path in caches.glob("index*/size")]
    if not sizes:
        raise SystemExit(f"{caches}: the kernel tells no cache sizes; the buffer needs one")
    return max(int(size[:-1]) * _BYTES_OF_UNIT[size[-1]] for size in sizes)


def measure_machine(buffer_bytes: int, num_threads: int) -> Machine:
    torch.set_num_threads(num_threads)
    buffer = torch.ones(buffer_bytes // 4)
    seconds = {name: fastest_s(read) for name, read in _ways_to_read(buffer, num_threads).items()}
    read_by = min(seconds, key=seconds.__getitem__)
    left, right = torch.randn(2, PRODUCT_SIZE, PRODUCT_SIZE)
    product_s = fastest_s(lambda: left @ right)
    return Machine(
        read_bytes_per_s=buffer_bytes / seconds[read_by],
        read_by=read_by,
        product_flop_per_s=2 * PRODUCT_SIZE**3 / product_s,
    )


def fastest_s(act: Callable[[], object], num_tries: int = NUM_TRIES) -> float:
    """Of several tries, after one that nobody counts."""
    act()
    times_s = []
    for _ in range(num_tries):
        started_at_s = time.perf_counter()
        act()
        times_s.append(time.perf_counter() - started_at_s)
    return min(times_s)


def _ways_to_read(buffer: torch.Tensor, num_threads: int) -> Mapping[str, Callable[[], object]]:
    rows, vector = buffer.view(-1, 4096), torch.ones(4096)
    parts = np.array_split(buffer.numpy(), num_threads)
    words = [part.view(np.int64) for part in parts]
    return {
        "torch.sum": buffer.sum,
        "torch.amax": buffer.amax,
        "torch matrix by vector": lambda: rows @ vector,
        "numpy.sum in threads": lambda: _in_threads(np.sum, parts),
        "numpy.max in threads": lambda: _in_threads(np.max, parts),
        "numpy bitwise or in threads": lambda: _in_threads(np.bitwise_or.reduce, words),
    }


def _in_threads(act: Callable[[np.ndarray], object], parts: list[np.ndarray]) -> None:
    threads = [threading.Thread(target=act, args=(part,)) for part in parts]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--threads", type=int, default=2)
    buffer_bytes = BUFFER_PER_CACHE * last_level_cache_bytes()
    print(json.dumps(asdict(measure_machine(buffer_bytes, parser.parse_args().threads))))


if __name__ == "__main__":
    main()
