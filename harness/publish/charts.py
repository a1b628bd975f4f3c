"""A row of nights as a chart: where its points, its baseline's band and its steps lie.

Geometry only, in a box of 1000 x 100 that the page stretches. It knows no colour and no HTML.
"""

from collections.abc import Sequence
from dataclasses import dataclass

WIDTH, HEIGHT = 1000.0, 100.0
MARGIN = 0.08
"""Of the range of values, left free above and below."""


@dataclass(frozen=True, kw_only=True)
class Band:
    """Where the baseline's nights lie; `name` is the baseline's."""

    name: str
    num_nights: int
    low: float
    high: float


@dataclass(frozen=True, kw_only=True)
class Frame:
    """A chart's two scales. `begin` and `end` are of time, in any unit."""

    low: float
    high: float
    begin: float
    end: float

    def x(self, at: float) -> float:
        span = self.end - self.begin
        return round((at - self.begin) / span * WIDTH, 1) if span else WIDTH / 2

    def y(self, value: float) -> float:
        return round((self.high - value) / (self.high - self.low) * HEIGHT, 1)

    @property
    def middle(self) -> float:
        return (self.low + self.high) / 2


def frame(times: Sequence[float], values: Sequence[float], band: Band | None) -> Frame:
    """Around all of them; what never varied gets a tenth of its size."""
    shown = [*values, *((band.low, band.high) if band else ())]
    low, high = min(shown), max(shown)
    margin = (high - low) * MARGIN or abs(high) * 0.1
    return Frame(low=low - margin, high=high + margin, begin=min(times), end=max(times))


def line(points: Sequence[tuple[float, float]]) -> str:
    """An SVG path through the points."""
    return "M" + "L".join(f"{x:g} {y:g}" for x, y in points)


def dots(points: Sequence[tuple[float, float]]) -> str:
    """An SVG path with a line of no length at each point: with round ends it is a dot, whatever the
    box is stretched to.
    """
    return "".join(f"M{x:g} {y:g}h0" for x, y in points)
