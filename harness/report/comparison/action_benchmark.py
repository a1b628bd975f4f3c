"""What github-action-benchmark reads: an array of {name, unit, value, range, extra}.

That tool has one direction per file, so there are two: `customBiggerIsBetter` takes the one,
`customSmallerIsBetter` the other.
"""

import json
from collections.abc import Mapping

from harness.compare.compare import Comparison, Row
from harness.compare.night import direction_of
from harness.report.comparison.table import METRICS, change

FILES: Mapping[str, str] = {"higher": "bigger-is-better.json", "lower": "smaller-is-better.json"}


def action_benchmark_json(comparison: Comparison, direction: str) -> str:
    """`direction`: a key of FILES."""
    entries = [_entry(row) for row in comparison.compared if _direction(row) == direction]
    return json.dumps(entries, ensure_ascii=False, indent=1, allow_nan=False) + "\n"


def _direction(row: Row) -> str:
    assert row.metric is not None
    return direction_of(row.metric)


def _entry(row: Row) -> dict[str, str | float]:
    assert row.metric is not None
    assert row.new is not None
    found = row.change
    assert found is not None
    assert found.value is not None
    entry: dict[str, str | float] = {
        "name": f"{row.variant}, {row.work}: {METRICS[row.metric].name}",
        "unit": row.unit,
        "value": row.new,
    }
    if found.low is not None and found.high is not None:
        entry["range"] = f"{change(found.low)} to {change(found.high)}"
    return {**entry, "extra": f"{row.word}, {change(found.value)} to the baseline"}
