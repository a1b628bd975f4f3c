"""Bencher's metric format: benchmark name -> measure -> value with its bounds.

Only figures of the run, in the units of docs/figures.md; Bencher keeps its own history.
"""

import json
from collections import defaultdict
from typing import Any

from harness.compare.compare import Comparison, Row


def bencher_json(comparison: Comparison) -> str:
    benchmarks: dict[str, dict[str, Any]] = defaultdict(dict)
    for row in comparison.compared:
        assert row.metric is not None
        benchmarks[f"{row.variant}/{row.work}"][row.metric] = _metric(row)
    return json.dumps(benchmarks, ensure_ascii=False, indent=1, allow_nan=False) + "\n"


def _metric(row: Row) -> dict[str, float | None]:
    """The bounds are those of the change, on the run's figure."""
    assert row.new is not None
    assert row.change is not None
    low, high = row.change.low, row.change.high
    if low is None or high is None:
        return {"value": row.new}
    assert row.baseline is not None
    return {
        "value": row.new,
        "lower_value": row.baseline * (1 + low),
        "upper_value": row.baseline * (1 + high),
    }
