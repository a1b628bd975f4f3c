"""What a check says of a cell, before the saying has a name."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TypeAlias

from harness.cell_view import CellView
from harness.records import Level


@dataclass(frozen=True, kw_only=True)
class Finding:
    """A verdict before it has a name and a cell. `touches`: see `Verdict`."""

    level: Level
    message: str = ""
    touches: tuple[str, ...] | None = None


OK = Finding(level="ok")
CheckFunction: TypeAlias = Callable[[CellView], Finding]


WAITING = ("ttf", "prefill_rate")
"""Figures of the time before an output."""

ACCEPTANCE = (
    "acceptance",
    "accepted",
    "conditional_acceptance",
    "draft_coverage",
    "fraction_of_ceiling",
    "token_identity",
    "tokens_per_round",
    "tokens_per_step",
)
"""Figures of what was drafted and accepted; no rate is among them."""


def warning(message: str, *, touches: tuple[str, ...] | None = None) -> Finding:
    """`touches`: where it is certain that no other figure is concerned."""
    return Finding(level="warning", message=message, touches=touches)


def invalid(message: str) -> Finding:
    return Finding(level="invalid", message=message)


def alternatives(values: Iterable[int]) -> str:
    """`7 or 8`, for a message."""
    return " or ".join(str(value) for value in sorted(values))
