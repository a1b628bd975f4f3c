"""What the readers of other tools' files share: files as JSON, fields with their meaning, and text
that holds no key.
"""

import hashlib
import json
import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

from harness import keys
from harness.errors import ResultsError
from harness.interchange.document import ImportedFigure, ImportedRow

Json: TypeAlias = Mapping[str, Any]

_SECRET = re.compile(
    r"(sk-|hf_)[A-Za-z0-9_-]{8,}|(?<=Bearer )\S+|(?<=://)[^/\s@]*:[^/\s@]*(?=@)"
    r"|(?<=key=)[^&\s]+|(?<=token=)[^&\s]+|(?<=secret=)[^&\s]+|(?<=password=)[^&\s]+",
    re.IGNORECASE,
)


@dataclass(frozen=True, kw_only=True)
class Source:
    """A file that was named on the command line, or found in a folder that was."""

    name: str
    data: bytes

    @property
    def sha256(self) -> str:
        return hashlib.sha256(self.data).hexdigest()


@dataclass(frozen=True, kw_only=True)
class Field:
    """A figure of a tool: where it stands, what it is multiplied by to be in our units, what our
    figure like it is (None: there is none), and what the tool means by it.
    """

    name: str
    unit: str
    meaning: str
    like: str | None = None
    scale: float = 1.0


@dataclass(frozen=True, kw_only=True)
class Read:
    """What a reader made of its sources."""

    tool_version: str | None
    meanings: Mapping[str, str]
    rows: tuple[ImportedRow, ...]


def sources(paths: Sequence[Path], pattern: str) -> tuple[Source, ...]:
    """Files as named; of a folder those that match `pattern`, below it too."""
    found = [
        (file, file.relative_to(path).as_posix() if path.is_dir() else file.name)
        for path in paths
        for file in (sorted(path.rglob(pattern)) if path.is_dir() else (path,))
    ]
    if not found:
        raise ResultsError(f"no {pattern} in {', '.join(map(str, paths))}")
    try:
        return tuple(
            Source(name=without_secrets(name), data=file.read_bytes()) for file, name in found
        )
    except OSError as error:
        raise ResultsError(f"{error.filename}: {error.strerror}") from error


def objects(source: Source) -> Iterator[Json]:
    """A JSON object, a list of them, or one on each line."""
    try:
        text = source.data.decode()
        try:
            found = json.loads(text)
        except json.JSONDecodeError:
            found = [json.loads(line) for line in text.split("\n") if line.strip()]
    except (UnicodeDecodeError, json.JSONDecodeError) as error:
        raise ResultsError(
            f"{source.name}: neither JSON nor a JSON object per line: {error}"
        ) from error
    for item in found if isinstance(found, list) else [found]:
        if not isinstance(item, dict):
            raise ResultsError(f"{source.name}: {str(item)[:40]!r} is no JSON object")
        yield item


def section(source: Source, found: Json, *names: str) -> Json:
    """The object under a name, or under a name in that; empty where the file has none."""
    for name in names:
        value = found.get(name)
        if value is not None and not isinstance(value, dict):
            raise ResultsError(
                f"{source.name}: `{name}` is {_short(value)}, where an object belongs; let the "
                "tool write the file again"
            )
        found = value or {}
    return found


def items(source: Source, found: Json, name: str) -> Sequence[Any]:
    """The list under a name; empty where the file has none."""
    value = found.get(name)
    if value is not None and not isinstance(value, list):
        raise ResultsError(
            f"{source.name}: `{name}` is {_short(value)}, where a list belongs; let the tool write "
            "the file again"
        )
    return value or ()


def _short(value: object) -> str:
    return without_secrets(json.dumps(value, ensure_ascii=False))[:40]


def figures(found: Json, fields: Sequence[Field]) -> tuple[ImportedFigure, ...]:
    """Those that the file has; null, NaN and infinity are none."""
    return tuple(
        ImportedFigure(name=field.name, value=value * field.scale, unit=field.unit, like=field.like)
        for field in fields
        if (value := number(found.get(field.name))) is not None
    )


def benchmarks(source: Source, report: Json, tool: str) -> list[Json]:
    """Of a report that keeps its measurements in a list of that name."""
    if "benchmarks" not in report:
        raise ResultsError(f"{source.name}: no `benchmarks`, so it is no report of {tool}")
    found = [*items(source, report, "benchmarks")]
    for each in found:
        if not isinstance(each, dict):
            raise ResultsError(f"{source.name}: {_short(each)} among `benchmarks` is no object")
    return found


def shared_version(versions: Iterable[str]) -> str | None:
    """The one of all rows. None: there are several, or nobody tells any."""
    found = set(versions)
    return found.pop() if len(found) == 1 else None


def meanings(fields: Sequence[Field]) -> Mapping[str, str]:
    return {field.name: field.meaning for field in fields}


def number(value: object) -> float | None:
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        return None
    return float(value)


def count(value: object) -> int | None:
    found = number(value)
    return None if found is None else round(found)


def protocol_id(tool: str, *parts: object) -> str:
    """Of all that the file tells of how its numbers were made; never equal to one of ours."""
    return f"{tool}-{keys.short_hash([tool, *parts])}"


def text(value: object) -> str:
    return without_secrets(str(value)) if value else "unknown"


def without_secrets(written: str) -> str:
    return _SECRET.sub("(left out)", written)
