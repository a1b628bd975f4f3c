"""Prompt sets of others, from a file that the user has, as prompt sets of ours.

Only the shape of a file is read here; nothing is fetched, and what its licence allows is for the
user to know: a set is imported under the source and licence that they write.
"""

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeAlias

from harness.errors import ConfigError, Place
from harness.records import Prompt

Record: TypeAlias = Mapping[str, Any]


def read(path: Path, shape: str, *, source: str, licence: str, publish: bool) -> tuple[Prompt, ...]:
    """One per record of `path`; first turns alone, for a second one would need an answer."""
    take = SHAPES[shape]
    found = []
    for number, record in enumerate(_records(path), start=1):
        place = Place(path=str(path), line=number, column=1)
        try:
            prompt_id, kind, text = take(record, number)
        except (KeyError, IndexError, TypeError, AttributeError) as error:
            raise ConfigError(
                f"record {number} is not of shape {shape} ({type(error).__name__}: {error}); "
                f"shapes are {', '.join(SHAPES)}",
                place=place,
            ) from error
        if text.strip():
            found.append(
                Prompt(
                    prompt_id=prompt_id,
                    kind=kind,
                    messages=({"role": "user", "content": text},),
                    source=source,
                    licence=licence,
                    publish=publish,
                )
            )
    return tuple(found)


def _records(path: Path) -> Iterator[Record]:
    """Of a JSON array, or of a line each."""
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path} is not UTF-8: {error.reason}") from error
    if text.lstrip().startswith("["):
        yield from _decoded(text, path, 1)
        return
    for number, line in enumerate(text.split("\n"), start=1):
        if line.strip():
            yield _decoded(line, path, number)


def _decoded(text: str, path: Path, line: int) -> Any:
    try:
        return json.loads(text)
    except json.JSONDecodeError as error:
        place = Place(path=str(path), line=line + error.lineno - 1, column=error.colno)
        raise ConfigError(f"this is no JSON: {error.msg}", place=place) from error


# --- shapes ---------------------------------------------------------------------------------------


def _turns(record: Record, number: int) -> tuple[str, str, str]:
    """Spec-Bench, MT-bench and SPEED-Bench: an id, a category and turns."""
    identity = record.get("question_id", record.get("id", number))
    return str(identity), str(record["category"]), _text(record["turns"][0])


def _conversation(record: Record, number: int) -> tuple[str, str, str]:
    """ShareGPT: the first thing that the human says; such records have no category."""
    said: Sequence[Record] = record["conversations"]
    first = next((each for each in said if each["from"] in ("human", "user")), None)
    text = "" if first is None else str(first["value"])
    return str(record.get("id", number)), "chat", text


def _text(turn: object) -> str:
    """A turn is a text, or a message with one."""
    return str(turn["content"]) if isinstance(turn, Mapping) else str(turn)


SHAPES: Mapping[str, Callable[[Record, int], tuple[str, str, str]]] = {
    "spec-bench": _turns,
    "mt-bench": _turns,
    "speed-bench": _turns,
    "sharegpt": _conversation,
}
