"""Start a client and follow what all of its processes use: processor time and memory.

By /proc of Linux. A client is started as a session of its own, and every process of that session
is the client; children that ended are counted through the parent that waited for them.
"""

import os
import subprocess
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

SAMPLE_EVERY_S = 0.25

_TICKS_PER_S = os.sysconf("SC_CLK_TCK")
_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")


@dataclass(frozen=True, kw_only=True)
class Sample:
    at_ns: int  # perf_counter_ns
    cpu_s: float  # user and system, of all processes since their start
    resident_bytes: int


@dataclass(frozen=True, kw_only=True)
class Usage:
    samples: Sequence[Sample]
    exit_code: int

    def cpu_s(self, window_ns: tuple[int, int]) -> float:
        """Used between two moments, linearly between samples."""
        at_ns = [sample.at_ns for sample in self.samples]
        begin_s, end_s = np.interp(window_ns, at_ns, [sample.cpu_s for sample in self.samples])
        return float(end_s - begin_s)

    def resident_bytes(self, at_ns: int) -> int:
        """At the last sample before a moment."""
        before = [sample for sample in self.samples if sample.at_ns <= at_ns]
        return (before or self.samples)[-1].resident_bytes

    @property
    def resident_max_bytes(self) -> int:
        return max(sample.resident_bytes for sample in self.samples)


def run_pinned(
    command: Sequence[str],
    *,
    core: int,
    environment: Mapping[str, str],
    output: Path,
    limit_s: float,
) -> Usage:
    """Run to the end on one core, its words to a file; after `limit_s` all of it is ended."""
    samples: list[Sample] = []
    with output.open("wb") as file:
        process = subprocess.Popen(
            ["taskset", "--cpu-list", str(core), *command],
            env={**os.environ, **environment},
            stdin=subprocess.DEVNULL,
            stdout=file,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        deadline_s = time.monotonic() + limit_s
        while process.poll() is None:
            samples.append(_sample(process.pid))
            if time.monotonic() > deadline_s:
                os.killpg(process.pid, 9)
            time.sleep(SAMPLE_EVERY_S)
    return Usage(samples=samples, exit_code=process.returncode)


def _sample(session: int) -> Sample:
    at_ns, ticks, pages = time.perf_counter_ns(), 0, 0
    for folder in os.scandir("/proc"):
        if folder.name.isdecimal():
            used = _used(folder.path, session)
            ticks, pages = ticks + used[0], pages + used[1]
    return Sample(at_ns=at_ns, cpu_s=ticks / _TICKS_PER_S, resident_bytes=pages * _PAGE_BYTES)


def _used(folder: str, session: int) -> tuple[int, int]:
    """Ticks and resident pages of a process, if it belongs to the session (proc(5), stat)."""
    try:
        stat = Path(folder, "stat").read_text()
    except OSError:  # it ended
        return 0, 0
    fields = stat.rpartition(")")[2].split()  # the name before may hold spaces; fields from 3 on
    if int(fields[3]) != session:
        return 0, 0
    return sum(map(int, fields[11:15])), int(fields[21])
