"""Requests in columns: one kind of value of all of them at a time, and records where one is asked
for.

A column costs a hundredth of the records it is of, so figures and checks walk columns. This module
knows no file: where records come from is a callable's business, and a table may be dropped and
fetched again at any time.
"""

from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from operator import attrgetter
from typing import Any, Protocol, TypeAlias, TypeVar, overload

import msgspec
import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from harness import measures
from harness.records import Request, Where

T = TypeVar("T")
Rows: TypeAlias = NDArray[np.int64]
Wanted: TypeAlias = tuple[tuple[str, frozenset[str | None]], ...]
"""Column and the words that a request must have there, narrower from left to right."""
Groups: TypeAlias = dict[str | None, NDArray[Any]]

SECONDS = (
    "send_lateness_s",
    "connect_s",
    "ttfr_s",
    "ttft_s",
    "ttfa_s",
    "t_last_s",
    "wall_s",
    "since_first_attempt_s",
)
COUNTS = (
    "index",
    "t0_ns",
    "output_tokens",
    "first_tokens",
    "prompt_tokens",
    "cached_tokens",
    "num_output_events",
    "num_reads",
)
WORDS = (
    "prompt_id",
    "kind",
    "status",
    "output_tokens_source",
    "first_tokens_source",
    "event_tokens_source",
    "finish_reason",
    "text_sha256",
    "salt",
)
RATES = ("decode_rate", "decode_rate_strict", "tpot", "prefill_rate")
"""What measures.py makes of one request alone, made once."""

OF_THE_PLACE = ("session_id", "block_id", "boot_id")

_PLAIN = (*SECONDS, "distinct_4gram_share", *COUNTS, *WORDS)
_SCHEMA = pa.schema(
    [
        *((name, pa.float64()) for name in (*SECONDS, "distinct_4gram_share", *RATES)),
        *((name, pa.int64()) for name in (*COUNTS, "place", "line")),
        *((name, pa.string()) for name in (*WORDS, "flags", "error")),
        ("engine_timings", pa.binary()),
    ]
)


@dataclass(frozen=True, kw_only=True)
class Column:
    """`values` is 0 where `known` is False."""

    values: NDArray[Any]
    known: NDArray[np.bool_]


@dataclass(frozen=True, kw_only=True)
class Words:
    """`labels` in order of first appearance; a request's is `labels[codes[row]]`."""

    labels: tuple[str | None, ...]
    codes: NDArray[np.int32]


# --- records into columns -------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Columns:
    """`places`: what the column `place` counts; a place is a `Where` without its request."""

    table: pa.Table
    places: tuple[Where, ...]


def columns_of(requests: Iterable[tuple[int, Request]]) -> Columns:
    """Of requests with what tells where each can be read again (the column `line`)."""
    plain = attrgetter(*_PLAIN)
    places: dict[tuple[object, ...], int] = {}
    first: list[Where] = []
    rows = []
    for line, request in requests:
        where = request.where
        key = (where.session_id, where.block_id, where.boot_id, where.cell_id, where.repetition)
        place = places.setdefault(key, len(places))
        if place == len(first):
            first.append(replace(where, request_id=None))
        rows.append((*plain(request), *_rates(request), *_rest(request), place, line))
    names = (*_PLAIN, *RATES, "flags", "error", "engine_timings", "place", "line")
    columns = dict(zip(names, zip(*rows, strict=True) if rows else [()] * len(names), strict=True))
    table = pa.table([_array(name, columns[name]) for name in _SCHEMA.names], _SCHEMA.names)
    return Columns(table=table, places=tuple(first))


def _array(name: str, values: Sequence[Any]) -> pa.Array:
    array = pa.array(values, type=_SCHEMA.field(name).type)
    return array.dictionary_encode() if array.type == pa.string() else array


def _rates(request: Request) -> tuple[float | None, ...]:
    stream = (request.output_tokens, request.first_tokens, request.ttft_s, request.t_last_s)
    return (
        measures.decode_rate(*stream, request.wall_s),
        measures.decode_rate_strict(*stream),
        measures.tpot(*stream),
        measures.prefill_rate(request.prompt_tokens, request.cached_tokens, request.ttft_s),
    )


def _rest(request: Request) -> tuple[str | bytes | None, ...]:
    timings = request.engine_timings
    return (
        " ".join(request.flags) or None,
        request.error.kind if request.error else None,
        None if timings is None else msgspec.json.encode(timings),
    )


# --- columns of some of them ----------------------------------------------------------------------


class RequestTable:
    """Columns of requests, made when they are asked for and kept as long as the table is.

    `read`: the requests of these values of the column `line`.
    """

    def __init__(
        self, columns: Columns, read: Callable[[Sequence[int]], Iterator[Request]]
    ) -> None:
        self.places = columns.places
        self._table = columns.table
        self._read = read
        self._kept: dict[Hashable, Any] = {}

    def remembered(self, key: Hashable, make: Callable[[], T]) -> T:
        if key not in self._kept:
            self._kept[key] = make()
        found: T = self._kept[key]
        return found

    def rows(self, wanted: Wanted) -> Rows:
        return self.remembered(("rows", wanted), lambda: self._rows(wanted))

    def _rows(self, wanted: Wanted) -> Rows:
        if not wanted:
            return np.arange(self._table.num_rows)
        *before, (name, values) = wanted
        rows = self.rows(tuple(before))
        words = self.words(name, ())
        narrowed: Rows = rows[_of_labels(words.labels, values.__contains__)[words.codes[rows]]]
        return narrowed

    def column(self, name: str, wanted: Wanted) -> Column:
        return self.remembered((name, wanted), lambda: self._column(name, wanted))

    def _column(self, name: str, wanted: Wanted) -> Column:
        if wanted:
            whole, rows = self.column(name, ()), self.rows(wanted)
            return Column(values=whole.values[rows], known=whole.known[rows])
        array = self.array(name)
        known = array.is_valid().to_numpy(zero_copy_only=False)
        return Column(values=array.fill_null(0).to_numpy(zero_copy_only=False), known=known)

    def words(self, name: str, wanted: Wanted) -> Words:
        return self.remembered((name, wanted), lambda: self._words(name, wanted))

    def _words(self, name: str, wanted: Wanted) -> Words:
        if wanted:
            whole = self.words(name, ())
            return _in_order(whole.labels, whole.codes[self.rows(wanted)])
        if name in OF_THE_PLACE:
            labels = [getattr(place, name) for place in self.places]
            return _in_order(labels, self.column("place", ()).values)
        array = self.array(name)
        labels = [*array.dictionary.to_pylist(), None]
        codes = array.indices.fill_null(len(labels) - 1).to_numpy(zero_copy_only=False)
        return _in_order(labels, codes)

    def timings(self, wanted: Wanted) -> Iterator[Mapping[str, Any] | None]:
        """The engine's own, of one request after the other."""
        for told in self.array("engine_timings").take(pa.array(self.rows(wanted))).to_pylist():
            yield None if told is None else msgspec.json.decode(told)

    def records(self, rows: Rows) -> Iterator[Request]:
        return self._read(self.column("line", ()).values[rows].tolist())

    def array(self, name: str) -> pa.Array:
        column = self._table[name]
        if pa.types.is_dictionary(column.type):
            column = column.unify_dictionaries()
        return column.combine_chunks() if column.num_chunks != 1 else column.chunk(0)


def _in_order(labels: Sequence[str | None], codes: NDArray[Any]) -> Words:
    """The labels that occur, equal ones as one, in order of first appearance."""
    numbers: dict[str | None, int] = {}
    merged = np.array([numbers.setdefault(label, len(numbers)) for label in labels], dtype=np.int64)
    own = merged[codes]
    first = np.full(len(numbers), len(own), dtype=np.int64)
    first[own[::-1]] = np.arange(len(own))[::-1]  # the last that is written is the first there is
    order = np.argsort(first, kind="stable")[: int(np.sum(first < len(own)))]
    place = np.zeros(len(numbers), dtype=np.int32)
    place[order] = np.arange(len(order), dtype=np.int32)
    names = list(numbers)
    return Words(labels=tuple(names[each] for each in order), codes=place[own])


def _of_labels(
    labels: Sequence[str | None], test: Callable[[str | None], bool]
) -> NDArray[np.bool_]:
    return np.fromiter(map(test, labels), dtype=np.bool_, count=len(labels))


def middle(values: NDArray[Any] | Sequence[float]) -> float:
    """The median, of one value or more."""
    ordered = np.sort(values)
    half = len(ordered) // 2
    if len(ordered) % 2:
        return float(ordered[half])
    return float((ordered[half - 1] + ordered[half]) / 2)


# --- what a view holds ----------------------------------------------------------------------------


class RequestSource(Protocol):
    """Where the requests of a cell come from."""

    def __len__(self) -> int:
        """How many they are, which wants no table."""

    def table(self) -> RequestTable:
        """It may have been dropped since the last time, and is another then."""


@dataclass(frozen=True, kw_only=True)
class _Held:
    """In memory."""

    held: RequestTable

    def __len__(self) -> int:
        return len(self.held.rows(()))

    def table(self) -> RequestTable:
        return self.held


class Requests(Sequence[Request]):
    """Some requests of a cell: a sequence of records that are read one at a time, and columns."""

    def __init__(self, source: RequestSource, wanted: Wanted = ()) -> None:
        self._source = source
        self._wanted = wanted

    @classmethod
    def of(cls, records: Iterable[Request]) -> "Requests":
        """Of records that are in memory."""
        held = tuple(records)
        table = RequestTable(
            columns_of(enumerate(held)), lambda lines: (held[line] for line in lines)
        )
        return cls(_Held(held=table))

    def where(self, name: str, *words: str | None) -> "Requests":
        """Those that have one of these words in a column."""
        return Requests(self._source, (*self._wanted, (name, frozenset(words))))

    def remembered(self, key: Hashable, make: Callable[[], T]) -> T:
        """Made once, and dropped with the table."""
        return self._source.table().remembered((key, self._wanted), make)

    # --- records ----------------------------------------------------------------------------------

    def __len__(self) -> int:
        return len(self._rows) if self._wanted else len(self._source)

    def __iter__(self) -> Iterator[Request]:
        return self._source.table().records(self._rows)

    @overload
    def __getitem__(self, index: int) -> Request: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[Request]: ...
    def __getitem__(self, index: int | slice) -> Request | Sequence[Request]:
        if isinstance(index, slice):
            return tuple(self._source.table().records(self._rows[index]))
        return next(self._source.table().records(self._rows[index : index + 1 or None]))

    @property
    def _rows(self) -> Rows:
        return self._source.table().rows(self._wanted)

    # --- columns ----------------------------------------------------------------------------------

    def column(self, name: str) -> Column:
        return self._source.table().column(name, self._wanted)

    def known(self, name: str) -> NDArray[Any]:
        """The values that there are, in order."""
        column = self.column(name)
        return column.values[column.known]

    def lacks(self, name: str) -> bool:
        """Whether one of them has no such value."""
        return not bool(self.column(name).known.all())

    def values(self, name: str) -> list[Any]:
        """A value for each; None where there is none."""
        column = self.column(name)
        found: list[Any] = column.values.tolist()
        for row in np.flatnonzero(~column.known).tolist():
            found[row] = None
        return found

    def codes(self, name: str) -> Words:
        return self._source.table().words(name, self._wanted)

    def words(self, name: str) -> list[str | None]:
        """A word for each."""
        words = self.codes(name)
        return [words.labels[code] for code in words.codes.tolist()]

    def labels(self, name: str) -> tuple[str | None, ...]:
        """Every word once, in order of first appearance."""
        return self.codes(name).labels

    def counts(self, name: str) -> dict[str | None, int]:
        """How many have each word, in order of first appearance."""
        words = self.codes(name)
        counts = np.bincount(words.codes, minlength=len(words.labels)).tolist()
        return dict(zip(words.labels, counts, strict=True))

    def has(self, name: str, word: str) -> NDArray[np.bool_]:
        """Which of them have this word in a column."""
        return self._labelled(name, lambda label: label == word)

    def flagged(self, flag: str) -> NDArray[np.bool_]:
        """Which of them carry a flag."""
        return self._labelled("flags", lambda label: label is not None and flag in label.split())

    def _labelled(self, name: str, test: Callable[[str | None], bool]) -> NDArray[np.bool_]:
        words = self.codes(name)
        return _of_labels(words.labels, test)[words.codes]

    def places(self) -> tuple[tuple[Where, ...], NDArray[np.int64]]:
        """Places, and the number of each request's among them."""
        return self._source.table().places, self.column("place").values

    def ids(self) -> list[str]:
        """Their request ids, as docs/results-format.md makes them."""
        return self.remembered("ids", self._ids)

    def _ids(self) -> list[str]:
        places, numbers = self.places()
        names = [f"{each.cell_id}.{each.boot_id}.{each.repetition}" for each in places]
        pairs = zip(numbers.tolist(), self.column("index").values.tolist(), strict=True)
        return [f"{names[number]}.{index}" for number, index in pairs]

    def array(self, name: str) -> pa.Array:
        """As it is stored, for whoever writes a table."""
        if name in OF_THE_PLACE or name == "repetition":
            places, numbers = self.places()
            values = [getattr(place, name) for place in places]
            return pa.array(values).take(pa.array(numbers))
        return self._source.table().array(name).take(pa.array(self._rows))

    def timings(self) -> list[Mapping[str, Any] | None]:
        return list(self._source.table().timings(self._wanted))

    def by(self, name: str, values: NDArray[Any], known: NDArray[np.bool_]) -> Groups:
        """The values that are known, by the word that their requests have in a column; `values`
        and `known` have a place for each of these requests.
        """
        words = self.codes(name)
        # sixteen bits are sorted by their digits, which is many times faster
        codes = words.codes[known].astype(np.int16 if len(words.labels) < 2**15 else np.int32)
        order = np.argsort(codes, kind="stable")
        ends = np.cumsum(np.bincount(codes, minlength=len(words.labels)))
        parts = np.split(values[known][order], ends[:-1])
        return {label: part for label, part in zip(words.labels, parts, strict=False) if len(part)}

    def grouped(self, name: str, by: str = "prompt_id") -> Groups:
        """A column's values by word of another; a word without a value is left out."""
        column = self.column(name)
        return self.by(by, column.values, column.known)
