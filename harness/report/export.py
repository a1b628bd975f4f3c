"""Figures for programs: the lines of `show --json`, summary.json and the CSV tables.

A gap is null or an empty field, with its reason beside it where the format has room; NaN and
infinity are refused, as they are no JSON.
"""

import json
from collections.abc import Iterator, Mapping
from io import BytesIO
from pathlib import Path
from typing import Any

import msgspec
import pandas as pd

from harness.analysis.summary import Summary
from harness.records import SCHEMA, MetricRow
from harness.report import sentences, tables
from harness.report.requests import write_requests
from harness.report.tables import Table
from harness.store import write_whole


def row_object(row: MetricRow) -> dict[str, Any]:
    """One line of `show --json`; its keys are a promise."""
    return {
        "variant": row.variant,
        "workload": row.workload,
        "kind": row.kind,
        "concurrency": row.concurrency,
        "metric": row.metric,
        "value": row.estimate.value,
        "low": row.estimate.low,
        "high": row.estimate.high,
        "unit": row.estimate.unit,
        "n": row.estimate.n,
        "verdicts": list(row.verdicts),
    }


def json_lines(summary: Summary) -> Iterator[str]:
    for row in summary.rows:
        yield json.dumps(row_object(row), ensure_ascii=False, allow_nan=False)


def summary_object(summary: Summary) -> Mapping[str, Any]:
    """Everything the page shows, with the reasons and methods that `show --json` leaves out."""
    return {
        "schema": SCHEMA,
        "run_id": summary.manifest.run_id,
        "name": summary.manifest.name,
        "purpose": summary.manifest.purpose,
        "verdict": summary.level,
        "headline": sentences.headline(summary),
        "rows": [
            {
                **row_object(row),
                "load": row.load,
                "cell_id": row.cell_id,
                "method": row.estimate.method,
                "reason": row.estimate.reason,
            }
            for row in summary.rows
        ],
        "verdicts": msgspec.to_builtins(summary.verdicts),
        "losslessness": msgspec.to_builtins(summary.losslessness),
        "crossovers": msgspec.to_builtins(summary.crossings),
        "visible_effects": msgspec.to_builtins(summary.visible_effects),
    }


def write_summary(summary: Summary, path: Path) -> None:
    text = json.dumps(summary_object(summary), ensure_ascii=False, indent=1, allow_nan=False)
    write_whole(path, f"{text}\n".encode())


def write_tables(summary: Summary, folder: Path) -> None:
    """Each table of the page, all figures in long form, and the requests they come from."""
    for make in tables.TABLES.values():
        for table in make(summary):
            _write_csv(table_frame(table), folder / f"{table.name}.csv")
    figures = figures_frame(summary)
    _write_csv(figures, folder / "figures.csv")
    _write_parquet(figures, folder / "figures.parquet")
    write_requests(summary.data, folder)


def _write_csv(frame: pd.DataFrame, path: Path) -> None:
    write_whole(path, frame.to_csv(index=False).encode())


def _write_parquet(frame: pd.DataFrame, path: Path) -> None:
    """The same with the types of its columns."""
    buffer = BytesIO()
    frame.to_parquet(buffer, index=False)
    write_whole(path, buffer.getvalue())


def table_frame(table: Table) -> pd.DataFrame:
    """Raw values; a missing one stays empty."""
    rows = [[entry.value for entry in row] for row in table.rows]
    return pd.DataFrame(rows, columns=list(table.columns))


def figures_frame(summary: Summary) -> pd.DataFrame:
    frame = pd.DataFrame([row_object(row) for row in summary.rows])
    frame["verdicts"] = frame["verdicts"].map(" ".join)
    return frame
