"""results/baselines/<name>/<run id>.json: a night per file, written to be read in a review.

A file holds all that a comparison needs, so the run's own folder may go. One figure stands on one
line: what a pull request changes is what it shows. It knows files, not what makes a good baseline
beyond this: only a valid measurement may become one, and somebody says who and why.
"""

import json
import re
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from harness.compare.night import Night
from harness.errors import ResultsError, UsageError
from harness.store import told, write_whole

FORMAT = 1
"""Rises when a reader of the old form would misread the new one."""

_NAME = re.compile(r"[A-Za-z][A-Za-z0-9._-]*")


@dataclass(frozen=True, kw_only=True)
class Promoted:
    """A night that somebody made part of a baseline."""

    format: int
    by: str
    at: str  # ISO 8601, UTC
    why: str
    night: Night


@dataclass(frozen=True, kw_only=True)
class Baseline:
    """`members` by the time of their runs."""

    name: str
    members: tuple[Promoted, ...]

    @property
    def nights(self) -> tuple[Night, ...]:
        return tuple(member.night for member in self.members)


def checked_name(written: str) -> str:
    """A baseline's name is a folder's, and never looks like a run's id."""
    if _NAME.fullmatch(written) is None or written == "latest":
        raise UsageError(
            f"{written!r} cannot name a baseline: letters, digits, '.', '_' and '-', beginning "
            "with a letter, and not `latest`"
        )
    return written


def refuse_unfit(night: Night) -> None:
    """What must not become something to measure others by."""
    if night.purpose != "measurement":
        raise ResultsError(f"{night.run_id}: purpose {night.purpose} never becomes a baseline")
    if night.level == "invalid":
        bad = {f"{item.variant} {item.work}" for item in night.subjects if item.level == "invalid"}
        raise ResultsError(
            f"{night.run_id} has invalid cells and cannot become a baseline: "
            f"{', '.join(sorted(bad))}. `dflashbench report {night.run_id}` says why."
        )


# --- reading --------------------------------------------------------------------------------------


def names(results_dir: Path) -> tuple[str, ...]:
    return tuple(sorted({path.parent.name for path in _root(results_dir).glob("[!.]*/*.json")}))


def load(results_dir: Path, name: str) -> Baseline:
    """A baseline that nobody set is a mistake on the command line."""
    folder = _root(results_dir) / checked_name(name)
    members = [_read(path) for path in sorted(folder.glob("*.json"))]
    if not members:
        known = ", ".join(names(results_dir)) or "there is none"
        raise UsageError(f"there is no baseline {name!r} in {_root(results_dir)} (known: {known})")
    return Baseline(name=name, members=tuple(members))


def _root(results_dir: Path) -> Path:
    return results_dir / "baselines"


def _read(path: Path) -> Promoted:
    with told(path):
        data = path.read_bytes()
    try:
        version = msgspec.json.decode(data, type=dict[str, Any]).get("format")
        if version != FORMAT:
            raise ResultsError(f"{path}: format {version!r}, this dflashbench reads {FORMAT}")
        return msgspec.json.decode(data, type=Promoted)
    except msgspec.DecodeError as error:
        raise ResultsError(f"{path}: {error}; restore it, or set the baseline again") from error


# --- writing --------------------------------------------------------------------------------------


def add(results_dir: Path, name: str, members: Sequence[Promoted]) -> Path:
    """Put nights beside those that are there; one that is there already is written over."""
    folder = _root(results_dir) / checked_name(name)
    _write(folder, members)
    return folder


def replace(results_dir: Path, name: str, members: Sequence[Promoted]) -> Path:
    """These nights and no other. The old ones go when the new ones are on the disk."""
    folder = _root(results_dir) / checked_name(name)
    beside = folder.with_name(f".{name}.new")
    with told(folder):
        shutil.rmtree(beside, ignore_errors=True)  # of a process that was killed here
        _write(beside, members)
        if folder.exists():
            shutil.rmtree(folder)
        beside.rename(folder)
    return folder


def remove(results_dir: Path, name: str, run_id: str | None = None) -> None:
    """A whole baseline, or one night of it."""
    baseline = load(results_dir, name)
    folder = _root(results_dir) / name
    if run_id is None:
        with told(folder):
            shutil.rmtree(folder)
        return
    held = [member.night.run_id for member in baseline.members]
    if run_id not in held:
        raise UsageError(f"baseline {name!r} does not hold {run_id!r}; it holds {', '.join(held)}")
    path = folder / f"{run_id}.json"
    with told(path):
        path.unlink()
        if len(held) == 1:
            folder.rmdir()


def _write(folder: Path, members: Sequence[Promoted]) -> None:
    with told(folder):
        folder.mkdir(parents=True, exist_ok=True)
        for member in members:
            write_whole(folder / f"{member.night.run_id}.json", encoded(member))


LINE_LENGTH = 100


def encoded(record: object) -> bytes:
    """Also of other records that are made to be reviewed."""
    return (_readable(msgspec.to_builtins(record), "") + "\n").encode()


def _readable(value: Any, indent: str) -> str:
    """JSON with what is short on one line, so that a line is a figure."""
    line = json.dumps(value, ensure_ascii=False, allow_nan=False)
    if len(indent) + len(line) <= LINE_LENGTH or not isinstance(value, dict | list | tuple):
        return line
    inner = indent + " "
    if isinstance(value, dict):
        parts = [f"{json.dumps(key)}: {_entry(key, item, inner)}" for key, item in value.items()]
    else:
        parts = [_readable(item, inner) for item in value]
    opening, closing = "{}" if isinstance(value, dict) else "[]"
    joined = f",\n{inner}".join(parts)
    return f"{opening}\n{inner}{joined}\n{indent}{closing}"


def _entry(key: str, value: Any, indent: str) -> str:
    """A cell is one line however long: it is an identity, read only when it changes."""
    if key == "cell":
        return json.dumps(value, ensure_ascii=False, allow_nan=False)
    return _readable(value, indent)
