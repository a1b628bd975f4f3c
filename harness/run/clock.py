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
