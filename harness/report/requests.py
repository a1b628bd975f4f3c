"""requests.csv and requests.parquet: every measured request, written as it is read.

Floats of requests.csv are in Arrow's notation, the same numbers in fewer signs than other tables
have: 1 for 1.0, 1e-7 for 1e-07.
"""

from collections.abc import Iterable, Iterator
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
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
    replace_file(
        folder / "requests.csv",
        lambda lines: replace_file(
            folder / "requests.parquet", lambda columns: _write(data, lines, columns)
        ),
    )


def _write(data: Dataset, lines: Path, columns: Path) -> None:
    schema = _of_pandas(REQUEST_COLUMNS)
    with open(lines, "wb") as file, pq.ParquetWriter(columns, schema) as writer:
        file.write(f"{','.join(REQUEST_COLUMNS.names)}\n".encode())
        file.writelines(in_order(_lines_of, _also_written(_tables(data), writer)))


def _also_written(tables: Iterable[pa.Table], writer: pq.ParquetWriter) -> Iterator[pa.Table]:
    for table in tables:
        writer.write_table(table.cast(writer.schema), row_group_size=ROWS_AT_ONCE)
        yield table


def _tables(data: Dataset) -> Iterator[pa.Table]:
    """Cells in the plan's order, many requests at once."""
    together = [REQUEST_COLUMNS.empty_table()]
    for view in data.views:
        together.append(requests_table(view.afresh()))
        if sum(table.num_rows for table in together) >= ROWS_AT_ONCE:
            yield pa.concat_tables(together)
            together = [REQUEST_COLUMNS.empty_table()]
    yield pa.concat_tables(together)


def _of_pandas(schema: pa.Schema) -> pa.Schema:
    """With what tells pandas that a count may be unknown and is a whole number all the same."""
    frame = schema.empty_table().to_pandas(types_mapper=_NULLABLE.get)
    return pa.Schema.from_pandas(frame, preserve_index=False)


# --- CSV ------------------------------------------------------------------------------------------


def _lines_of(table: pa.Table) -> bytes:
    """What is not known stays empty, and only what needs quotes has some: Arrow's own writer puts
    every word in quotes.
    """
    return b"".join(map(_lines_of_batch, table.combine_chunks().to_batches(ROWS_AT_ONCE)))


def _lines_of_batch(batch: pa.RecordBatch) -> memoryview:
    fields = [_told(column) for column in batch.columns]
    rows = pc.binary_join_element_wise(*fields, ",", null_handling="replace", null_replacement="")
    lines = pc.binary_join_element_wise(rows, "\n", "")
    _, ends, text = lines.buffers()  # of an array of strings the text lies in one piece
    return memoryview(text)[: np.frombuffer(ends, np.int32)[len(lines)]]


def _told(column: pa.Array) -> pa.Array:
    if not pa.types.is_string(column.type):
        return column.cast(pa.string())
    words = column.dictionary_encode()
    labels = pa.array(map(_quoted, words.dictionary.to_pylist()), type=pa.string())
    return labels.take(words.indices)


def _quoted(word: str) -> str:
    if any(sign in word for sign in ',"\r\n'):
        return '"' + word.replace('"', '""') + '"'
    return word
