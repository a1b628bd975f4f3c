"""results/imported/<name>.json: what was read from another tool's files.

Only fields that a reader names enter; a tool's own record of its command line, headers or
environment is never copied, because keys stand in it.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import msgspec

from harness.compare.baselines import encoded
from harness.errors import ResultsError, UsageError
from harness.store import told, write_whole

FORMAT = 1
"""Rises when a reader of the old form would misread the new one."""

_NAME = re.compile(r"[A-Za-z][A-Za-z0-9._-]*")


@dataclass(frozen=True, kw_only=True)
class ImportedFigure:
    """`name` is the tool's, `like` the figure of docs/figures.md that it can be held beside.

    Times are seconds and shares are 0 to 1, whatever the tool wrote.
    """

    name: str
    value: float
    unit: str
    like: str | None = None


@dataclass(frozen=True, kw_only=True)
class ImportedRow:
    """One measurement of the tool. `work` tells it from the others, for reading."""

    subject: str
    work: str
    concurrency: int | None
    num_requests: int | None
    num_failed: int | None
    protocol_id: str
    figures: tuple[ImportedFigure, ...]


@dataclass(frozen=True, kw_only=True)
class Imported:
    """`sources`: file name -> SHA-256; `meanings`: figure -> what the tool means by it."""

    format: int
    tool: str
    tool_version: str | None
    imported_at: str
    sources: Mapping[str, str]
    meanings: Mapping[str, str]
    rows: tuple[ImportedRow, ...]


def checked_name(written: str) -> str:
    if _NAME.fullmatch(written) is None:
        raise UsageError(
            f"{written!r} cannot name an import: letters, digits, '.', '_' and '-', beginning with "
            "a letter"
        )
    return written


def names(results_dir: Path) -> tuple[str, ...]:
    return tuple(sorted(path.stem for path in (results_dir / "imported").glob("[!.]*.json")))


def load(results_dir: Path, name: str) -> Imported:
    path = results_dir / "imported" / f"{checked_name(name)}.json"
    if not path.is_file():
        known = ", ".join(names(results_dir)) or "there is none"
        raise UsageError(f"nothing was imported as {name!r} into {results_dir} (known: {known})")
    with told(path):
        data = path.read_bytes()
    try:
        return msgspec.json.decode(data, type=Imported)
    except msgspec.DecodeError as error:
        raise ResultsError(f"{path}: {error}; import it again") from error


def save(results_dir: Path, name: str, document: Imported) -> Path:
    """An import of that name is written over."""
    path = results_dir / "imported" / f"{checked_name(name)}.json"
    with told(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        write_whole(path, encoded(document))
    return path
