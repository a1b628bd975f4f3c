"""A plain CSV file, by a map that says which column is what:

    tool: my-script                 # names the protocol
    subject: model                  # a column; or {value: Qwen3.8-27B} for all rows
    concurrency: c
    work: prompt_set
    figures:
      decode_tps: {unit: tok/s, like: decode_rate, meaning: "usage tokens / (end - first chunk)"}
      ttft: {unit: ms, like: ttft_p50, meaning: median}

An empty field is no figure. Units are s, ms, us, tok/s, request/s, "%", 1 and tok/round.
"""

import csv
import io
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from harness.analysis.metrics import METRICS
from harness.config.tree import Section, nearest, place_at, project_of, read_yaml
from harness.errors import ConfigError, Place, ResultsError
from harness.interchange.document import ImportedFigure, ImportedRow
from harness.interchange.reading import Read, Source, protocol_id, without_secrets

UNITS: Mapping[str, tuple[str, float]] = {
    "s": ("s", 1.0),
    "ms": ("s", 1e-3),
    "us": ("s", 1e-6),
    "tok/s": ("tok/s", 1.0),
    "request/s": ("request/s", 1.0),
    "%": ("1", 1e-2),
    "1": ("1", 1.0),
    "tok/round": ("tok/round", 1.0),
}
_NEEDED = ("tool", "subject", "figures")
_KEYS = (*_NEEDED, "work", "concurrency")


def read_map(path: Path) -> Section:
    """Checked as a whole, so that no row is read with half a map."""
    found = read_yaml(path, project_of(path))
    for key in found:
        if key not in _KEYS:
            known = ", ".join(_KEYS)
            message = f"`{key}` is none of {known}{nearest(key, _KEYS)}"
            raise ConfigError(message, place=place_at(found, [key], key=True))
    for key in _NEEDED:
        if key not in found:
            raise ConfigError(f"`{key}` is missing", place=found.place)
    figures = found["figures"]
    if not isinstance(figures, Section):
        message = "`figures` are columns with their unit: `ttft: {unit: ms}`"
        raise ConfigError(message, place=place_at(found, ["figures"]))
    for column, told in figures.items():
        _check_figure(column, told, place_at(figures, [column]))
    return found


def _check_figure(column: str, told: object, place: Place) -> None:
    if not isinstance(told, Section) or told.get("unit") not in UNITS:
        raise ConfigError(f"`{column}` needs a `unit`, one of {', '.join(UNITS)}", place=place)
    like = told.get("like")
    if like is not None and like not in METRICS:
        message = f"`{column}` is like {like!r}, which is no figure of docs/figures.md"
        raise ConfigError(message + nearest(str(like), METRICS), place=place)


def read(sources: Sequence[Source], columns: Mapping[str, Any]) -> Read:
    rows = tuple(
        _row(source, number, line, columns)
        for source in sources
        for number, line in enumerate(_lines(source), start=2)
    )
    told = {
        str(name): str(of.get("meaning", "not told")) for name, of in columns["figures"].items()
    }
    return Read(tool_version=None, meanings=told, rows=rows)


def _lines(source: Source) -> list[dict[str, str]]:
    try:
        text = source.data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise ResultsError(f"{source.name} is not UTF-8: {error}") from error
    return list(csv.DictReader(io.StringIO(text, newline="")))


def _row(
    source: Source, number: int, line: Mapping[str, str], columns: Mapping[str, Any]
) -> ImportedRow:
    place = f"{source.name}:{number}"
    concurrency = _cell(place, line, columns.get("concurrency"))
    work = _cell(place, line, columns.get("work")) or "not told"
    tool = str(columns["tool"])
    return ImportedRow(
        subject=without_secrets(_cell(place, line, columns["subject"]) or "unknown"),
        work=without_secrets(work),
        concurrency=round(_number(place, "concurrency", concurrency)) if concurrency else None,
        num_requests=None,
        num_failed=None,
        protocol_id=protocol_id(f"csv-{tool}", work, concurrency),
        figures=tuple(
            _figure(place, str(column), told, line[column])
            for column, told in columns["figures"].items()
            if _cell(place, line, column)
        ),
    )


def _cell(place: str, line: Mapping[str, str], column: object) -> str | None:
    if column is None:
        return None
    if isinstance(column, dict):
        return str(column.get("value"))
    if column not in line:
        raise ResultsError(f"{place}: there is no column {column!r}; there are {', '.join(line)}")
    return (line[str(column)] or "").strip()


def _figure(place: str, column: str, told: Mapping[str, Any], written: str) -> ImportedFigure:
    unit, scale = UNITS[str(told["unit"])]
    value = _number(place, column, written) * scale
    return ImportedFigure(name=column, value=value, unit=unit, like=told.get("like"))


def _number(place: str, column: str, written: str) -> float:
    try:
        value = float(written)
    except ValueError:
        raise ResultsError(f"{place}: `{column}` is {written!r} and no number") from None
    if value != value or value in (float("inf"), float("-inf")):
        raise ResultsError(
            f"{place}: `{column}` is {written!r}; leave it empty where it is unknown"
        )
    return value
