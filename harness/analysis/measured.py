"""A figure of one cell before it has a name, a unit or an interval."""

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Measured:
    """`n`: how many observations it rests on. `reason` says why `value` is None."""

    value: float | None
    n: int
    reason: str | None = None


def not_measured(reason: str) -> Measured:
    return Measured(value=None, n=0, reason=reason)
