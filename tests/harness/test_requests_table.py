"""requests.csv and requests.parquet: a row for every measured request, with its gaps."""

import csv
from dataclasses import replace
from pathlib import Path

import pandas as pd
import pytest

from harness.analysis import dataset
from harness.records import Request
from harness.report import requests
from harness.report.requests import write_requests

from . import synthetic

ODD = 'a,"b"\nc'


def written(results: Path) -> Path:
    """Of a run whose plain cell has a finish reason that needs quotes, round numbers and gaps."""

    def edit(request: Request) -> Request:
        return replace(request, finish_reason=ODD, ttft_s=1.0, ttfa_s=1.5e-7, prompt_tokens=None)

    folder = synthetic.write_run(results, synthetic.matrix(levels=(2,), boots=2), edit=edit)
    write_requests(dataset.load(folder), results)
    return results


def test_csv_and_parquet_hold_the_same_rows(tmp_path: Path) -> None:
    folder = written(tmp_path)

    columns = pd.read_parquet(folder / "requests.parquet")
    lines = pd.read_csv(folder / "requests.csv", keep_default_na=False, na_values=[""])

    assert list(lines) == list(columns)
    for name in ("cell_id", "boot_id", "repetition", "prompt_id", "output_tokens", "wall_s"):
        assert lines[name].tolist() == columns[name].tolist()


def test_csv_quotes_what_needs_it_and_leaves_gaps_empty(tmp_path: Path) -> None:
    folder = written(tmp_path)

    with (folder / "requests.csv").open(encoding="utf-8", newline="") as file:
        row = next(csv.DictReader(file))

    assert row["finish_reason"] == ODD
    assert (row["ttft_s"], float(row["ttfa_s"])) == ("1", 1.5e-7)
    assert row["prompt_tokens"] == ""
    assert row["error"] == ""


def test_rows_that_are_written_in_several_pieces_are_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = (written(tmp_path / "whole") / "requests.csv").read_bytes()

    monkeypatch.setattr(requests, "ROWS_AT_ONCE", 7)
    pieces = (written(tmp_path / "pieces") / "requests.csv").read_bytes()

    assert pieces == whole
