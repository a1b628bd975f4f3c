"""Wall-clock time as records hold it. Durations come from `time.perf_counter_ns`, never from
here.
"""

import time
from dataclasses import dataclass
from datetime import UTC, datetime


def utc_now() -> str:
    return _text(datetime.now(UTC))


def _text(moment: datetime) -> str:
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")


@dataclass(frozen=True, kw_only=True)
class Anchor:
    """One reading of both clocks, so that stamps of the monotonic one can be dated afterwards."""

    wall_s: float
    perf_ns: int

    @classmethod
    def now(cls) -> "Anchor":
        return cls(wall_s=time.time(), perf_ns=time.perf_counter_ns())

    def date(self, perf_ns: int) -> str:
        return _text(datetime.fromtimestamp(self.wall_s + (perf_ns - self.perf_ns) / 1e9, UTC))


def slept_s() -> float | None:
    """How long the machine has been suspended since it started; None where the system does not
    tell. No other clock of ours sees it: on Linux the monotonic one stands still meanwhile.
    """
    if not hasattr(time, "CLOCK_BOOTTIME"):
        return None
    return time.clock_gettime(time.CLOCK_BOOTTIME) - time.clock_gettime(time.CLOCK_MONOTONIC)


def slept_since(before_s: float | None) -> float | None:
    """Two clocks are read one after the other, so what is a little below zero is zero."""
    now_s = slept_s()
    return None if before_s is None or now_s is None else max(0.0, now_s - before_s)
