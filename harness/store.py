"""A run's folder: create, append, read back. It knows files, not meanings, and computes nothing.

Records are JSON lines, one `write` each, flushed to the disk before `append` returns, never changed
afterwards. What a crash leaves is a last line without its end: readers leave it out and say so in
`notes`, and the next append first moves it to `<file>.torn`. A broken line anywhere else is an
error. Whole files (manifest, status, events, pages) are written beside their place and renamed.

The unit of redo is (block, cell). When a later boot has finished a cell, what earlier boots left of
it is superseded: it stays in the files, and `usable` leaves it out. So does what an amended plan
wants no more.
"""

import errno
import fcntl
import gzip
import json
import os
import re
import shutil
from collections import defaultdict
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from typing import Any, TypeAlias, TypeVar, cast

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq

from harness.errors import ResultsError
from harness.records import (
    SCHEMA,
    Amendment,
    Boot,
    CellEnd,
    LogEntry,
    MachineSample,
    Manifest,
    PlannedCell,
    RepetitionEnd,
    Request,
    Rescore,
    Session,
    Snapshot,
    Where,
)
from harness.turns import Place, asked_of

Record: TypeAlias = (
    Session
    | Amendment
    | Boot
    | PlannedCell
    | Request
    | Snapshot
    | RepetitionEnd
    | CellEnd
    | MachineSample
    | LogEntry
    | Rescore
)
R = TypeVar("R", bound=Record)
T = TypeVar("T")

FILES: Mapping[type[Any], str] = {
    Session: "sessions.jsonl",
    Amendment: "amendments.jsonl",
    Boot: "boots.jsonl",
    PlannedCell: "cells.jsonl",
    Request: "requests.jsonl",
    Snapshot: "counters.jsonl",
    RepetitionEnd: "repetitions.jsonl",
    CellEnd: "ends.jsonl",
    MachineSample: "machine.jsonl",
    LogEntry: "log.jsonl",
    Rescore: "rescores.jsonl",
}

LEFT_OUT = b"(left out)"
SHORTEST_KEY = 8
READ_BYTES = 1 << 20

_RUN_NAME = re.compile(r"\d{8}-\d{6}-")  # results/ also holds baselines/ and published/

_EVENTS_SCHEMA = pa.schema(
    [
        pa.field("request_id", pa.string(), nullable=False),
        pa.field("offset_ns", pa.list_(pa.int64()), nullable=False),
        pa.field("tokens", pa.list_(pa.int32()), nullable=False),
        pa.field("text", pa.string()),
        pa.field("token_ids", pa.list_(pa.int32())),
    ]
)


@dataclass(frozen=True, kw_only=True)
class EventRow:
    """What one request received: per output event its time after `t0` and the tokens it carried."""

    request_id: str
    offset_ns: tuple[int, ...]
    tokens: tuple[int | None, ...]  # None: the engine does not tell
    text: str | None
    token_ids: tuple[int, ...] | None


def new_run_id(results_dir: Path, matrix_name: str, now: datetime) -> str:
    """`<UTC yyyymmdd-hhmmss>-<matrix name>`, with -2, -3, ... when that second is taken."""
    wanted = f"{now.astimezone(UTC):%Y%m%d-%H%M%S}-{matrix_name}"
    run_id, number = wanted, 2
    while (results_dir / run_id).exists():
        run_id, number = f"{wanted}-{number}", number + 1
    return run_id


def latest_run(results_dir: Path) -> Path:
    """The folder of the newest run; run ids begin with the time, so the last name is the newest."""
    runs = sorted(
        folder
        for folder in (results_dir.iterdir() if results_dir.is_dir() else ())
        if _RUN_NAME.match(folder.name) and (folder / "manifest.json").is_file()
    )
    if not runs:
        raise ResultsError(f"no run in {results_dir}; `dflashbench run MATRIX` makes one")
    return runs[-1]


class RunFolder:
    """One run's folder, read by anybody and written by one process at a time."""

    def __init__(self, path: Path, manifest: Manifest) -> None:
        """Use `create` or `open`."""
        self.path = path
        self.manifest = manifest
        self._descriptors: dict[str, int] = {}
        self._lock: int | None = None
        self._notes: dict[str, None] = {}  # ordered, each once
        self._planned: set[Place] | None = None  # (block, cell); None: all that there is

    @classmethod
    def create(cls, results_dir: Path, manifest: Manifest) -> "RunFolder":
        """A new folder with its manifest. An existing one is never written into."""
        path = results_dir / manifest.run_id
        with told(path):
            results_dir.mkdir(parents=True, exist_ok=True)
            try:
                path.mkdir()
            except FileExistsError:
                raise ResultsError(
                    f"{path} exists already: another run has this id; start again"
                ) from None
            write_whole(path / "manifest.json", _encode(manifest))
        return cls(path, manifest)

    @classmethod
    def open(cls, path: Path) -> "RunFolder":
        """An existing run, to read or to go on with."""
        folder = cls(path, _read_manifest(path))
        for amendment in folder.read(Amendment)[-1:]:
            folder._take_over(amendment)
        return folder

    def amend(self, amendment: Amendment) -> None:
        """From here on its manifest counts, for every reader."""
        self.append(amendment)
        self._take_over(amendment)

    def _take_over(self, amendment: Amendment) -> None:
        self.manifest = amendment.manifest
        self._planned = {
            (block.block_id, cell_id)
            for block in self.manifest.plan.blocks
            for cell_id in block.cell_ids
        }

    @property
    def notes(self) -> tuple[str, ...]:
        """What reading found and left out, a sentence each."""
        return tuple(self._notes)

    # --- records ----------------------------------------------------------------------------------

    def append(self, *records: Record) -> None:
        """Write each record as one line; all are on the disk when this returns."""
        touched: dict[Path, int] = {}
        for record in records:
            path = self.path / FILES[type(record)]
            with told(path):
                descriptor = self._descriptor(path)
                _write_line(descriptor, self._without_keys(_encode(record)) + b"\n")
            touched[path] = descriptor
        for path, descriptor in touched.items():
            with told(path):
                os.fsync(descriptor)

    def read(self, kind: type[R]) -> list[R]:
        """All records of one type, oldest first, superseded ones too. A torn last line is noted."""
        path = self.path_of(kind)
        whole = lines(path, 0, self.end_of(kind))
        return [decode(line, kind, path, at) for at, line in whole]

    def path_of(self, kind: type[Any]) -> Path:
        return self.path / FILES[kind]

    def end_of(self, kind: type[Any]) -> int:
        """Where the last whole line ends; what a crash left behind it is noted."""
        path = self.path_of(kind)
        with told(path):
            size = path.stat().st_size if path.exists() else 0
            end = _end_of_whole_lines(path, size) if size else 0
        if end < size:
            self._notes[f"{path}: the last line was cut off by a crash and is left out"] = None
        return end

    def boots(self) -> list[Boot]:
        """Every boot once, in order of start, as its last record tells it."""
        last: dict[str | None, Boot] = {boot.where.boot_id: boot for boot in self.read(Boot)}
        return list(last.values())

    def finished_cells(self) -> set[Place]:
        """The (block id, cell id) pairs that a resumed run need not do again."""
        asked = asked_of(self.manifest.plan)
        return {
            place for place, there in self.measured().items() if asked.get(place, there) <= there
        }

    def measured(self, *, whatever_plan: bool = False) -> dict[Place, frozenset[int]]:
        """(block, cell) -> the repetitions that the boot which finished it wrote wholly; with
        `whatever_plan` of places, too, that an amended plan has no more.
        """
        whole: dict[tuple[str | None, ...], set[int]] = defaultdict(set)
        for end in self.read(RepetitionEnd):
            where = end.where
            if where.repetition is not None and where.repetition >= 0:
                whole[where.block_id, where.cell_id, where.boot_id].add(where.repetition)
        return {
            place: frozenset(whole[*place, boot_id])
            for place, boot_id in self._finishing_boots().items()
            if whatever_plan or self._planned is None or place in self._planned
        }

    def usable(self, kind: type[R]) -> list[R]:
        """The records that figures may use, oldest first.

        Left out are records of a (block, cell) that another boot finished or that an amended plan
        has no more, and those of a measured repetition that was never wholly written. Warm-up
        requests stay, marked by a repetition below 0.
        When one request was written twice (parsed again after a crash), the last stands.
        """
        counts = self.counting()
        records: dict[object, R] = {}
        for number, record in enumerate(self.read(kind)):
            if counts(record.where):
                records[record.where.request_id if kind is Request else number] = record
        return list(records.values())

    def counting(self) -> Callable[[Where], bool]:
        """Whether what was recorded there may be used: the rules of `usable`, by place."""
        kept_boot = self._finishing_boots()
        whole = {_repetition_of(end.where) for end in self.read(RepetitionEnd)}

        def counts(where: Where) -> bool:
            if _superseded(where, kept_boot) or self._is_wanted_no_more(where):
                return False
            return not _is_measured(where) or _repetition_of(where) in whole

        return counts

    def _is_wanted_no_more(self, where: Where) -> bool:
        if self._planned is None or where.block_id is None or where.cell_id is None:
            return False
        return (where.block_id, where.cell_id) not in self._planned

    def _finishing_boots(self) -> dict[Place, str]:
        """(block, cell) -> the boot that finished it last."""
        return {
            (_known(end.where.block_id), _known(end.where.cell_id)): _known(end.where.boot_id)
            for end in self.read(CellEnd)
            if end.outcome == "finished"
        }

    # --- whole files ------------------------------------------------------------------------------

    def write_status(self, status: Mapping[str, Any]) -> None:
        """Replace status.json; a reader sees the old one or the new one."""
        path = self.path / "status.json"
        with told(path):
            write_whole(path, self._without_keys(_encode(status)))

    def read_status(self) -> dict[str, Any] | None:
        """None when the run never wrote one."""
        path = self.path / "status.json"
        if not path.exists():
            return None
        with told(path):
            data = path.read_bytes()
        return decode(data, dict[str, Any], path)

    def write_events(
        self, cell_id: str, boot_id: str, repetition: int, rows: Sequence[EventRow]
    ) -> Path:
        """The events of one repetition, a row per request."""
        path = self.events_path(cell_id, boot_id, repetition)
        rows = [replace(row, text=self._text_without_keys(row.text)) for row in rows]
        columns = {name: [getattr(row, name) for row in rows] for name in _EVENTS_SCHEMA.names}
        table = pa.table(columns, schema=_EVENTS_SCHEMA)
        with told(path):
            path.parent.mkdir(exist_ok=True)
            replace_file(path, lambda beside: pq.write_table(table, beside, compression="zstd"))
        return path

    def read_events(self, cell_id: str, boot_id: str, repetition: int) -> list[EventRow]:
        path = self.events_path(cell_id, boot_id, repetition)
        with told(path):
            try:
                table = pq.read_table(pa.py_buffer(path.read_bytes()), schema=_EVENTS_SCHEMA)
            except pa.ArrowInvalid as error:
                raise ResultsError(f"{path} is no events file: {error}") from error
        return [
            EventRow(
                request_id=row["request_id"],
                offset_ns=tuple(row["offset_ns"]),
                tokens=tuple(row["tokens"]),
                text=row["text"],
                token_ids=None if row["token_ids"] is None else tuple(row["token_ids"]),
            )
            for row in table.to_pylist()
        ]

    def event_files(self) -> frozenset[str]:
        """Names of the events files that there are."""
        folder = self.path / "events"
        with told(folder):
            return frozenset(os.listdir(folder)) if folder.is_dir() else frozenset()

    def write_page(self, cell_id: str, boot_id: str, page: bytes) -> Path:
        """The whole metrics page as scraped, once per cell and boot."""
        path = self.path / "pages" / f"{cell_id}.{boot_id}.prom.gz"
        with told(path):
            path.parent.mkdir(exist_ok=True)
            # equal pages, equal bytes
            write_whole(path, gzip.compress(self._without_keys(page), mtime=0))
        return path

    # --- where the runner puts what it streams ----------------------------------------------------

    def events_path(self, cell_id: str, boot_id: str, repetition: int) -> Path:
        return self.path / "events" / f"{cell_id}.{boot_id}.{repetition}.parquet"

    def spool_path(self, cell_id: str, boot_id: str, repetition: int) -> Path:
        """Raw reads of a repetition; the runner removes them once they are parsed."""
        return self._folder("spool") / f"{cell_id}.{boot_id}.{repetition}.bin"

    def server_folder(self, boot_id: str) -> Path:
        """For the engine's stdout.log and stderr.log."""
        return self._folder(f"servers/{boot_id}")

    def _folder(self, name: str) -> Path:
        folder = self.path / name
        with told(folder):
            folder.mkdir(parents=True, exist_ok=True)
        return folder

    # --- writing ----------------------------------------------------------------------------------

    def close(self) -> None:
        """Let another process write."""
        for descriptor in self._descriptors.values():
            os.close(descriptor)
        self._descriptors.clear()
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    def _without_keys(self, data: bytes) -> bytes:
        """Engines repeat API keys in their messages and pages."""
        for key in self._keys():
            data = data.replace(json.dumps(key, ensure_ascii=False)[1:-1].encode(), LEFT_OUT)
        return data

    def _text_without_keys(self, text: str | None) -> str | None:
        return text and self._without_keys(text.encode()).decode()

    def _keys(self) -> list[str]:
        """Their values, in whatever process; a word such as EMPTY is no secret."""
        values = [os.environ.get(name, "") for name in self.manifest.key_variables]
        return [value for value in values if len(value) >= SHORTEST_KEY]

    def _descriptor(self, path: Path) -> int:
        self._take_lock()
        if path.name not in self._descriptors:
            _set_torn_line_aside(path)
            flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT
            self._descriptors[path.name] = os.open(path, flags, 0o644)
        return self._descriptors[path.name]

    def _take_lock(self) -> None:
        """Held until `close` or the end of the process, however it ends."""
        if self._lock is not None:
            return
        descriptor = os.open(self.path, os.O_RDONLY)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(descriptor)
            holder = (self.read_status() or {}).get("pid", "unknown")
            raise ResultsError(
                f"{self.path}: another dflashbench (process {holder}) is writing into this run; "
                "wait until it ends or stop it"
            ) from None
        self._lock = descriptor


def _repetition_of(where: Where) -> tuple[str | None, str | None, int | None]:
    return where.boot_id, where.cell_id, where.repetition


def _is_measured(where: Where) -> bool:
    return where.repetition is not None and where.repetition >= 0


def _superseded(where: Where, kept_boot: Mapping[tuple[str, str], str]) -> bool:
    if where.block_id is None or where.cell_id is None or where.boot_id is None:
        return False
    return kept_boot.get((where.block_id, where.cell_id), where.boot_id) != where.boot_id


def _known(identifier: str | None) -> str:
    assert identifier is not None, "the end of a cell names its block, cell and boot"
    return identifier


# --- JSON -----------------------------------------------------------------------------------------


def _encode(record: object) -> bytes:
    # not msgspec's own encoder: it turns NaN into null, which would read as "not measured"
    plain = msgspec.to_builtins(record)
    text = json.dumps(plain, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    return text.encode()


def decode(data: bytes, kind: type[T], path: Path, at: int | None = None) -> T:
    """`at`: the byte of `path` at which the line begins; None: it is the whole file."""
    try:
        found: T = _decoder(cast(Hashable, kind)).decode(data)
    except msgspec.DecodeError as error:
        place = str(path) if at is None else f"{path}:{_line_number(path, at)}"
        raise ResultsError(
            f"{place}: {error}: {data[:60]!r}; it was changed after it was written, restore it"
        ) from error
    return found


@cache
def _decoder(kind: Any) -> msgspec.json.Decoder[Any]:
    return msgspec.json.Decoder(kind)


def _read_manifest(folder: Path) -> Manifest:
    path = folder / "manifest.json"
    if not path.is_file():
        raise ResultsError(
            f"{folder} has no manifest.json: not a run's folder; runs lie in results/<run id>/"
        )
    with told(path):
        data = path.read_bytes()
    schema = decode(data, dict[str, Any], path).get("schema")
    if isinstance(schema, int) and schema > SCHEMA:
        raise ResultsError(
            f"{path}: written by a newer dflashbench (schema {schema}, this one reads {SCHEMA}); "
            "update dflashbench to read it"
        )
    return decode(data, Manifest, path)


# --- bytes ----------------------------------------------------------------------------------------


@contextmanager
def told(path: Path) -> Iterator[None]:
    """Say of an operating system's refusal which file it was about and what can be done."""
    try:
        yield
    except OSError as error:
        reason = error.strerror or error
        raise ResultsError(f"{path}: {reason}{_advice(error, path)}") from error


_NO_ROOM = (errno.ENOSPC, errno.EDQUOT)
_NOT_ALLOWED = (errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOENT, errno.ENOTDIR)


def _advice(error: OSError, path: Path) -> str:
    if error.errno in _NO_ROOM:
        there = next(folder for folder in path.parents if folder.exists())
        free_MB = shutil.disk_usage(there).free / 1e6
        return (
            f" ({free_MB:.0f} MB free); make room and try again; `dflashbench resume` goes on with "
            "a run"
        )
    if error.errno in _NOT_ALLOWED:
        return "; choose a folder that you may read and write"
    return ""


def lines(path: Path, start: int, stop: int) -> Iterator[tuple[int, bytes]]:
    """The lines that begin between two bytes of a file, each with its own first byte.

    A file of bytes has lines that end with LF alone: U+2028 and U+0085 inside a string are no ends.
    """
    if start >= stop:
        return
    with told(path), open(path, "rb", buffering=READ_BYTES) as file:
        file.seek(start)
        at = start
        for line in file:
            yield at, line[:-1]
            at += len(line)
            if at >= stop:
                return


def read_again(path: Path, kind: type[T], at: Sequence[int]) -> Iterator[T]:
    """The records whose lines begin at these bytes."""
    if not at:
        return  # there may be no file
    with told(path), open(path, "rb") as file:
        for byte in at:
            file.seek(byte)
            yield decode(file.readline()[:-1], kind, path, byte)


def _line_number(path: Path, at: int) -> int:
    return 1 + sum(1 for _ in lines(path, 0, at))


def _end_of_whole_lines(path: Path, size: int) -> int:
    with open(path, "rb") as file:
        for start in range(size - 1, -1, -READ_BYTES):
            first = max(0, start + 1 - READ_BYTES)
            file.seek(first)
            last = file.read(start + 1 - first).rfind(b"\n")
            if last >= 0:
                return first + last + 1
    return 0


def _write_line(descriptor: int, line: bytes) -> None:
    """One line in one write; what did not fit is taken back, so that no half record is left."""
    size = os.fstat(descriptor).st_size
    try:
        written = os.write(descriptor, line)
        while written < len(line):  # a disk that fills up takes a part, and then says why not more
            written += os.write(descriptor, line[written:])
    except OSError:
        with suppress(
            OSError
        ):  # the user needs the first error; what is left is read as a torn line
            os.ftruncate(descriptor, size)
        raise


def _set_torn_line_aside(path: Path) -> None:
    """Move what follows the last line end to `<file>.torn`, so that nothing is appended to it."""
    if not path.exists() or _ends_whole(path):
        return
    data = path.read_bytes()
    whole = data.rfind(b"\n") + 1
    with open(path.with_name(path.name + ".torn"), "ab") as torn:
        torn.write(data[whole:] + b"\n")
        torn.flush()
        os.fsync(torn.fileno())
    os.truncate(path, whole)


def _ends_whole(path: Path) -> bool:
    size = path.stat().st_size
    with open(path, "rb") as file:
        file.seek(max(size - 1, 0))
        return size == 0 or file.read(1) == b"\n"


def write_whole(path: Path, data: bytes) -> None:
    """`path` holds all of `data` afterwards, or what it held before."""
    replace_file(path, lambda beside: beside.write_bytes(data))


def replace_file(path: Path, write: Callable[[Path], object]) -> None:
    """Let `write` make the file beside `path`, bring it to the disk, then rename it into place."""
    beside = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        write(beside)
        with open(beside, "rb") as written:
            os.fsync(written.fileno())
        os.replace(beside, path)
    finally:
        beside.unlink(missing_ok=True)
