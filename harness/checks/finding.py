"""What a check says of a cell, before the saying has a name."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TypeAlias

from harness.cell_view import CellView
from harness.records import Level


@dataclass(frozen=True, kw_only=True)
class Finding:
    """A verdict before it has a name and a cell."""

    level: Level
    message: str = ""


OK = Finding(level="ok")
CheckFunction: TypeAlias = Callable[[CellView], Finding]


def warning(message: str) -> Finding:
    return Finding(level="warning", message=message)


def invalid(message: str) -> Finding:
    return Finding(level="invalid", message=message)


def alternatives(values: Iterable[int]) -> str:
    """`7 or 8`, for a message."""
    return " or ".join(str(value) for value in sorted(values))
