"""What vLLM's start log says of its memory, by the lines that 0.32 writes on a GPU.

The room for keys and values is one pool, shared out among the layers that need different blocks:
a drafter with attention of its own adds a group to it, and every token then takes more.
"""

import re
from collections.abc import Mapping
from typing import Any

from harness.adapters.pages import told


def memory_facts(log: str) -> Mapping[str, Any]:
    return told(
        weights_memory_bytes=_gibibytes(r"Model loading took ([\d.]+) GiB memory", log),
        kv_memory_bytes=_gibibytes(r"Available KV cache memory: ([\d.]+) GiB", log),
        kv_groups=_num_groups(log),
    )


def _gibibytes(pattern: str, log: str) -> int | None:
    found = re.search(pattern, log)
    return round(float(found[1]) * 2**30) if found else None


def _num_groups(log: str) -> int | None:
    """The line has a block size per group: `kv cache group sizes (16, 16)`."""
    found = re.search(r"kv cache group sizes \(([\d, ]+)\)", log)
    return sum(1 for size in found[1].split(",") if size.strip()) if found else None
