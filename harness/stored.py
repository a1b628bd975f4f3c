"""A run's largest files, read in one pass and held by none: requests as columns, other records cell
by cell as they are asked for.

requests.jsonl is cut into ranges of bytes; each becomes columns in a temporary file, on as many
cores as there are. A cell is put together from the ranges that it lies in, whatever the order of
the lines, and dropped when others were asked for. Which records count is store.py's business.
"""

import shutil
import weakref
from array import array
from collections import OrderedDict, defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import MISSING, dataclass, fields
from functools import cached_property, lru_cache, partial
from itertools import groupby
from pathlib import Path
from tempfile import mkdtemp
from typing import Any, Generic, TypeVar, get_type_hints, overload

import msgspec
import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from harness.errors import ResultsError
from harness.parallel import in_order
from harness.records import RepetitionEnd, Request, Snapshot, Where
from harness.requests import SECONDS, Columns, Requests, RequestTable, columns_of
from harness.store import RunFolder, decode, lines, read_again

RANGE_BYTES = 16 << 20
CHUNKS_OPEN = 8  # neighbouring cells lie in the same ones
TABLES_HELD = 4  # a cell, its reference, a control and what that repeats

R = TypeVar("R", bound=Snapshot)


# --- requests -------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True, eq=False)
class _Chunk:
    """The columns of a range. `run_places`: the places of neighbouring requests of one place;
    `run_starts`: each run's first row, and the number of rows behind them.
    """

    columns: pa.Table | Path  # in memory, or in this file
    places: tuple[Where, ...]
    run_places: NDArray[np.int64]
    run_starts: NDArray[np.int64]
    is_negative: bool  # some duration in it


@dataclass(frozen=True, kw_only=True)
class _Part:
    """Neighbouring rows of one chunk and one place."""

    chunk: _Chunk
    place: Where
    start: int
    stop: int


class StoredRequests:
    """The requests of a run that count, by cell. Warm-ups are those of a repetition below 0."""

    def __init__(self, folder: RunFolder, counts: Callable[[Where], bool]) -> None:
        self._path = folder.path_of(Request)
        self._open = lru_cache(CHUNKS_OPEN)(_opened)
        self._parts: dict[str, list[_Part]] = defaultdict(list)
        self._held: OrderedDict[tuple[str, bool], RequestTable] = OrderedDict()
        for chunk in self._chunks(folder.end_of(Request)):
            for part in filter(lambda part: counts(part.place), _parts(chunk)):
                if chunk.is_negative:
                    self._refuse_negative(part)
                self._parts[str(part.place.cell_id)].append(part)

    def _refuse_negative(self, part: _Part) -> None:
        lying = self._open(part.chunk)["line"].to_numpy()[part.start : part.stop]
        for request in read_again(self._path, Request, lying.tolist()):
            refuse_negative(request)

    def _chunks(self, end: int) -> Iterator[_Chunk]:
        ranges = list(_ranges(self._path, end))
        if len(ranges) == 1:  # nothing to be gained by a file
            columns = _columns(self._path, ranges[0])
            yield _chunk(columns, columns.table)
        else:
            beside = Path(mkdtemp(prefix="dflashbench-"))
            weakref.finalize(self, shutil.rmtree, beside)  # at the end of the process, too
            yield from in_order(partial(_spilled, self._path, beside), ranges)

    @property
    def cell_ids(self) -> tuple[str, ...]:
        """In order of first appearance."""
        return tuple(self._parts)

    def places(self, cell_id: str) -> tuple[Where, ...]:
        """Boots and repetitions of the cell's measured requests, in order of first appearance."""
        parts = self._parts.get(cell_id, ())
        return tuple(dict.fromkeys(part.place for part in parts if is_measured(part.place)))

    def measured(self, cell_id: str) -> Requests:
        return Requests(_StoredCell(self, cell_id, measured=True))

    def warmups(self, cell_id: str) -> Requests:
        return Requests(_StoredCell(self, cell_id, measured=False))

    def table(self, cell_id: str, *, measured: bool) -> RequestTable:
        key = (cell_id, measured)
        if key not in self._held:
            parts = [p for p in self._parts.get(cell_id, ()) if is_measured(p.place) is measured]
            read = partial(read_again, self._path, Request)
            self._held[key] = RequestTable(_together(parts, self._open), read)
            while len(self._held) > TABLES_HELD:
                self._held.popitem(last=False)
        self._held.move_to_end(key)
        return self._held[key]


class _StoredCell:
    """One cell's, measured or of its warm-ups."""

    def __init__(self, stored: StoredRequests, cell_id: str, *, measured: bool) -> None:
        self.table = partial(stored.table, cell_id, measured=measured)

    def __len__(self) -> int:
        return self._length

    @cached_property
    def _length(self) -> int:
        return len(self.table().rows(()))


def is_measured(place: Where) -> bool:
    return place.repetition is not None and place.repetition >= 0


def _ranges(path: Path, end: int) -> Iterator[tuple[int, int]]:
    """Whole lines each, about as long as one another."""
    start = 0
    while start < end:
        stop = end
        if start + RANGE_BYTES < end:
            with open(path, "rb") as file:
                file.seek(start + RANGE_BYTES)
                file.readline()
                stop = min(file.tell(), end)
        yield start, stop
        start = stop


def _columns(path: Path, between: tuple[int, int]) -> Columns:
    rows = ((at, decode(line, _Row, path, at)) for at, line in lines(path, *between))
    return columns_of(rows)


def _slots(kind: type[Any]) -> Iterator[tuple[str, Any] | tuple[str, Any, Any]]:
    hints = get_type_hints(kind)
    for each in fields(kind):
        has_default = each.default is not MISSING
        yield (each.name, hints[each.name], *([each.default] if has_default else []))


# a request that is looked at once: slots are filled in half the time of a record's dictionary
_Row: Any = msgspec.defstruct("_Row", list(_slots(Request)), kw_only=True, gc=False)


def _chunk(columns: Columns, lying: pa.Table | Path) -> _Chunk:
    places = columns.table["place"].to_numpy()
    begins = np.flatnonzero(np.diff(places, prepend=-1))
    seconds = [columns.table[name].to_numpy() for name in SECONDS]
    return _Chunk(
        columns=lying,
        places=columns.places,
        run_places=places[begins],
        run_starts=np.append(begins, len(places)),
        is_negative=any(bool(np.any(values < 0)) for values in seconds),
    )


def _spilled(path: Path, folder: Path, between: tuple[int, int]) -> _Chunk:
    columns = _columns(path, between)
    beside = folder / f"{between[0]}.arrow"
    with pa.OSFile(str(beside), "wb") as file, pa.ipc.new_file(file, columns.table.schema) as out:
        out.write_table(columns.table)
    return _chunk(columns, beside)


def _parts(chunk: _Chunk) -> Iterator[_Part]:
    starts = chunk.run_starts.tolist()
    runs = zip(chunk.run_places.tolist(), starts, starts[1:], strict=False)
    for place, start, stop in runs:
        yield _Part(chunk=chunk, place=chunk.places[place], start=start, stop=stop)


def _opened(chunk: _Chunk) -> pa.Table:
    if not isinstance(chunk.columns, Path):
        return chunk.columns
    with pa.memory_map(str(chunk.columns)) as file:
        return pa.ipc.open_file(file).read_all()


def _together(parts: Sequence[_Part], opened: Callable[[_Chunk], pa.Table]) -> Columns:
    """One table of all parts, without the lines that stand twice."""
    places: dict[Where, int] = {}
    tables, numbers = [], []
    for chunk, own in groupby(parts, key=lambda part: part.chunk):
        table, neighbours = opened(chunk), list(own)
        for start, stop in _joined(neighbours):
            tables.append(table.slice(start, stop - start))
        for part in neighbours:
            number = places.setdefault(part.place, len(places))
            numbers.append(np.full(part.stop - part.start, number))
    if not tables:
        return columns_of(())
    table = pa.concat_tables(tables)
    where = table.schema.get_field_index("place")
    table = table.set_column(where, "place", pa.array(np.concatenate(numbers)))
    return Columns(table=_each_once(table), places=tuple(places))


def _joined(parts: Sequence[_Part]) -> Iterator[tuple[int, int]]:
    """Rows from and to, neighbouring parts as one."""
    start = stop = parts[0].start
    for part in parts:
        if part.start != stop:
            yield start, stop
            start = part.start
        stop = part.stop
    yield start, stop


def _each_once(table: pa.Table) -> pa.Table:
    """A request that was written twice (parsed again after a crash) keeps its place; its last line
    counts.
    """
    names = (table["place"].to_numpy() << 32) + table["index"].to_numpy()
    if len(np.unique(names)) == len(names):
        return table
    last = {name: row for row, name in enumerate(names.tolist())}
    return table.take(pa.array(last.values()))


def refuse_negative(record: Request | RepetitionEnd) -> None:
    """To show a negative duration as 0 or to leave it out would hide a clock that steps."""
    for field in fields(record):
        value = getattr(record, field.name)
        if field.name.endswith("_s") and isinstance(value, float) and value < 0:
            raise ResultsError(
                f"{record.where.request_id or record.where.cell_id}: `{field.name}` is "
                f"{value:g} s, and no time is negative; its clock or its record is broken, so "
                "measure the cell again"
            )


# --- other records --------------------------------------------------------------------------------


class _Placed(msgspec.Struct):
    """What every record begins with."""

    where: Where


class StoredRecords(Generic[R]):
    """The measured records of one type that count, by cell: only where they lie is held."""

    def __init__(self, folder: RunFolder, kind: type[R], counts: Callable[[Where], bool]) -> None:
        self._path, self._kind = folder.path_of(kind), kind
        self._lines: dict[str, array[int]] = defaultdict(lambda: array("q"))
        for at, line in lines(self._path, 0, folder.end_of(kind)):
            where = decode(line, _Placed, self._path, at).where
            if is_measured(where) and counts(where):
                self._lines[str(where.cell_id)].append(at)

    def of_cell(self, cell_id: str) -> Sequence[R]:
        return _Lines(self._path, self._kind, self._lines.get(cell_id, array("q")))


class _Lines(Sequence[R]):
    """Records that are read when they are asked for, each time again."""

    def __init__(self, path: Path, kind: type[R], at: Sequence[int]) -> None:
        self._path, self._kind, self._at = path, kind, at

    def __len__(self) -> int:
        return len(self._at)

    def __iter__(self) -> Iterator[R]:
        return read_again(self._path, self._kind, self._at)

    @overload
    def __getitem__(self, index: int) -> R: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[R]: ...
    def __getitem__(self, index: int | slice) -> R | Sequence[R]:
        if isinstance(index, slice):
            return tuple(read_again(self._path, self._kind, self._at[index]))
        return next(read_again(self._path, self._kind, [self._at[index]]))
