"""The table of `clients.py`: `python -m benchmarks.scale.results FILE`. Medians over rounds."""

import json
import sys
from collections import defaultdict
from collections.abc import Iterator, Sequence
from pathlib import Path
from statistics import median
from typing import Any

COLUMNS = (
    "load",
    "clients",
    "TTFT p50, ms",
    "of it the client's",
    "TTFT p99, ms",
    "sent late p99, ms",
    "tok/s received",
    "of what was sent",
    "failed",
    "CPU of the busiest, of a core",
)


def table(runs: Sequence[dict[str, Any]]) -> Iterator[str]:
    """Markdown lines."""
    cells: defaultdict[tuple[str, int], list[dict[str, Any]]] = defaultdict(list)
    for run in runs:
        cells[run["load"], run["clients"]].append(run)
    yield "| " + " | ".join(COLUMNS) + " |"
    yield "| :-- |" + " --: |" * (len(COLUMNS) - 1)
    for (load, clients), found in cells.items():
        yield "| " + " | ".join([load, str(clients), *_figures(found)]) + " |"


def _figures(found: Sequence[dict[str, Any]]) -> Iterator[str]:
    def middle(name: str) -> float:
        return median(run[name] for run in found)

    added = median(run["ttft_p50"] - run["true_ttft_p50"] for run in found)
    share = median(run["throughput_tok_per_s"] / run["true_throughput_tok_per_s"] for run in found)
    yield f"{middle('ttft_p50') * 1e3:.1f}"
    yield f"{added * 1e3:.1f}"
    yield f"{middle('ttft_p99') * 1e3:.1f}"
    yield f"{middle('sent_late_p99') * 1e3:.1f}"
    yield f"{middle('throughput_tok_per_s'):.0f}"
    yield f"{share:.2%}"
    yield str(sum(run["num_failed"] for run in found))
    yield f"{middle('cpu_share_worst'):.2f}"


if __name__ == "__main__":
    lines = Path(sys.argv[1]).read_text(encoding="utf-8").splitlines()
    print("\n".join(table([json.loads(line) for line in lines])))
