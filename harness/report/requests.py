"""requests.csv and requests.parquet: every measured request, written as it is read."""

import csv
from collections.abc import Iterable, Iterator, Sequence
from io import StringIO
from pathlib import Path

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq

from harness.analysis.dataset import REQUEST_COLUMNS, Dataset, requests_table
from harness.parallel import in_order
from harness.store import replace_file

ROWS_AT_ONCE = 50_000

_NULLABLE = {
    pa.int64(): pd.Int64Dtype(),
    pa.float64(): pd.Float64Dtype(),
    pa.string(): pd.StringDtype(),
}


def write_requests(data: Dataset, folder: Path) -> None:
    replace_file(folder / "requests.parquet", lambda beside: _write_parquet(data, beside))
    replace_file(folder / "requests.csv", lambda beside: _write_csv(data, beside))


def _tables(data: Dataset) -> Iterator[pa.Table]:
    """Cells in the plan's order, many requests at once."""
    together: list[pa.Table] = []
    for view in data.views:
        together.append(requests_table(view.afresh()))
        if sum(table.num_rows for table in together) >= ROWS_AT_ONCE:
            yield pa.concat_tables(together)
            together = []
    yield pa.concat_tables([REQUEST_COLUMNS.empty_table(), *together])


def _write_parquet(data: Dataset, path: Path) -> None:
    """With what tells pandas that a count may be unknown and is a whole number all the same."""
    frame = REQUEST_COLUMNS.empty_table().to_pandas(types_mapper=_NULLABLE.get)
    schema = pa.Schema.from_pandas(frame, preserve_index=False)
    with pq.ParquetWriter(path, schema) as writer:
        for table in _tables(data):
            writer.write_table(table.cast(schema))


def _write_csv(data: Dataset, path: Path) -> None:
    with open(path, "wb") as file:
        file.write(_csv_lines([REQUEST_COLUMNS.names]))
        file.writelines(in_order(_csv_of, _tables(data)))


def _csv_of(table: pa.Table) -> bytes:
    return _csv_lines(zip(*(column.to_pylist() for column in table.columns), strict=True))


def _csv_lines(rows: Iterable[Sequence[object]]) -> bytes:
    """What is not known stays empty."""
    text = StringIO(newline="")
    csv.writer(text, lineterminator="\n").writerows(rows)
    return text.getvalue().encode()
