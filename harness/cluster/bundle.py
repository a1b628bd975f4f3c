"""How what a node wrote joins the run: whole lines and whole files, each once, in a safe order.

A line says what lies on the disk before it: a repetition's end follows its requests and its events,
a cell's end follows its repetitions. So files are looked at from the last written to the first, and
joined from the first to the last: however a node or the head ends, the run's folder never tells of
something that it does not hold. Knows no Ray.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from harness.records import (
    Boot,
    CellEnd,
    LogEntry,
    MachineSample,
    PlannedCell,
    RepetitionEnd,
    Request,
    Rescore,
    Session,
    Snapshot,
)
from harness.store import FILES, Record, RunFolder, told, write_whole

JOINED_IN_ORDER: tuple[type[Record], ...] = (
    Session,
    LogEntry,
    Boot,
    PlannedCell,
    MachineSample,
    Request,
    Snapshot,
    RepetitionEnd,
    CellEnd,
    Rescore,
)

FOLDERS = ("events", "pages", "servers")  # logs of servers grow; the rest has its name when whole


@dataclass(frozen=True, kw_only=True)
class Seen:
    """How far the head has come: bytes by record file, and size by other file."""

    lines: Mapping[str, int] = field(default_factory=dict)
    files: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Bundle:
    """What a folder holds beyond a `Seen`, and the `Seen` with it."""

    lines: Mapping[str, bytes]
    files: Mapping[str, bytes]
    seen: Seen

    @property
    def is_empty(self) -> bool:
        return not self.lines and not self.files


def gather(folder: Path, seen: Seen) -> Bundle:
    """Everything new in a part's folder."""
    lines = {
        name: new
        for kind in reversed(JOINED_IN_ORDER)
        if (new := _new_lines(folder / (name := FILES[kind]), seen.lines.get(name, 0)))
    }
    files = {
        name: path.read_bytes()
        for name, path in _whole_files(folder)
        if seen.files.get(name) != path.stat().st_size
    }
    return Bundle(
        lines=lines,
        files=files,
        seen=Seen(
            lines={
                **seen.lines,
                **{name: seen.lines.get(name, 0) + len(new) for name, new in lines.items()},
            },
            files={**seen.files, **{name: len(data) for name, data in files.items()}},
        ),
    )


def _new_lines(path: Path, offset: int) -> bytes:
    """Whole lines behind `offset`; what follows the last line end is not written yet."""
    if not path.exists():
        return b""
    with open(path, "rb") as file:
        file.seek(offset)
        data = file.read()
    return data[: data.rfind(b"\n") + 1]


def _whole_files(folder: Path) -> Iterable[tuple[str, Path]]:
    """Files with their final names; one that is being written has a name that begins with a dot."""
    for name in FOLDERS:
        for path in sorted((folder / name).rglob("*")):
            if path.is_file() and not path.name.startswith("."):
                yield str(path.relative_to(folder)), path


def join(folder: RunFolder, bundle: Bundle) -> tuple[Record, ...]:
    """Bring a bundle into the run's folder; the records that came with it, in the order joined."""
    for name, data in bundle.files.items():
        path = folder.path / name
        with told(path):
            path.parent.mkdir(parents=True, exist_ok=True)
            write_whole(path, data)
    records = tuple(
        msgspec.json.decode(line, type=kind)
        for kind in JOINED_IN_ORDER
        for line in bundle.lines.get(FILES[kind], b"").split(b"\n")[:-1]
    )
    folder.append(*records)
    return records
