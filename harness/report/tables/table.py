"""What a table is: entries that keep the raw value beside its text.

Markdown and the terminal show the text, CSV takes the value; nothing here knows where a value comes
from.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

from harness.report import format as fmt

Formatter: TypeAlias = Callable[[float], str]


@dataclass(frozen=True, kw_only=True)
class Entry:
    """One cell of a table. `reason` explains a missing value; `mark` is set by a verdict."""

    text: str
    value: float | str | None
    reason: str | None = None
    mark: str = ""
    cell_id: str | None = None  # the cell it was made of


@dataclass(frozen=True, kw_only=True)
class Accusation:
    """What a check has against some of a table's rows, without voiding them."""

    check: str
    whose: str  # the rows, in words
    message: str

    @property
    def sentence(self) -> str:
        return f"{fmt.WARNING_MARK} {self.check} ({self.whose}): {self.message}"


@dataclass(frozen=True, kw_only=True)
class Table:
    """`notes` are sentences under it, `warnings` more, which a page may fold away; the first
    `num_labels` columns are names, not figures.
    """

    name: str
    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[Entry, ...], ...]
    notes: tuple[str, ...] = ()
    num_labels: int = 1
    section: str | None = None  # the workload it belongs to, where several have such a table
    warnings: tuple[Accusation, ...] = ()


def label(text: str) -> Entry:
    return Entry(text=text, value=text)


def missing(reason: str | None) -> Entry:
    return Entry(text=fmt.NOT_AVAILABLE, value=None, reason=reason or "not measured")


def figure(value: float | None, show: Formatter, reason: str | None = None) -> Entry:
    return missing(reason) if value is None else Entry(text=show(value), value=value)


def shown(value: float | None, show: Formatter) -> Entry:
    """A dash, without a reason, where the row itself says why there is no value."""
    return Entry(text=fmt.DASH if value is None else show(value), value=value)


def count(value: int) -> Entry:
    return Entry(text=str(value), value=value)
