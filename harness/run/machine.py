"""What this machine is, and how it fared second by second. The host's name never leaves it in
clear.
"""

import asyncio
import hashlib
import os
import platform
import shutil
import socket
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

import psutil

from harness.records import MachineFacts, MachineSample, MemorySource, Where
from harness.run.accelerators import Accelerators, watched
from harness.run.clock import utc_now

SAMPLE_EVERY_S = 1.0

# What can move a figure of ours or of the bundled engine.
_PACKAGES = (
    "dflashbench",
    "httpx",
    "msgspec",
    "numpy",
    "pyarrow",
    "safetensors",
    "tokenizers",
    "torch",
    "uvloop",
)


def machine_facts() -> MachineFacts:
    return MachineFacts(
        hostname_hash=hashlib.sha256(socket.gethostname().encode()).hexdigest()[:12],
        system=f"{platform.system()} {platform.release()} {platform.machine()}",
        cpu=_cpu(),
        num_cpus=os.cpu_count() or 1,
        memory_bytes=psutil.virtual_memory().total,
        accelerators=_accelerators(),
        python=platform.python_version(),
        packages={name: version for name in _PACKAGES if (version := installed(name))},
    )


def installed(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def _cpu() -> str:
    info = Path("/proc/cpuinfo")
    if info.exists():
        for line in info.read_text(encoding="utf-8").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


def _accelerators() -> tuple[str, ...]:
    if shutil.which("nvidia-smi") is None:
        return ()
    query = ["nvidia-smi", "--query-gpu=name", "--format=csv,noheader"]
    answer = subprocess.run(query, capture_output=True, text=True, timeout=20, check=False)
    return tuple(answer.stdout.splitlines()) if answer.returncode == 0 else ()


@dataclass(frozen=True, kw_only=True)
class MemoryNow:
    """What is in use at a moment. `accelerators_bytes`: of all; None where one does not tell, as
    where its memory is the host's.
    """

    host_available_bytes: int
    accelerators_bytes: int | None
    num_accelerators: int


def memory_now() -> MemoryNow:
    """To be asked before an engine is started: what it takes is what is gone later."""
    told = _memory_of_accelerators()
    known = [used for used in told if used is not None]
    return MemoryNow(
        host_available_bytes=psutil.virtual_memory().available,
        accelerators_bytes=sum(known) if known and len(known) == len(told) else None,
        num_accelerators=len(told),
    )


def _memory_of_accelerators() -> tuple[int | None, ...]:
    if shutil.which("nvidia-smi") is None:
        return ()
    query = ["nvidia-smi", "--query-gpu=memory.used", "--format=csv,noheader,nounits"]
    answer = subprocess.run(query, capture_output=True, text=True, timeout=20, check=False)
    lines = answer.stdout.splitlines() if answer.returncode == 0 else []
    return tuple(int(line) << 20 if line.strip().isdecimal() else None for line in lines)


@dataclass(frozen=True, kw_only=True)
class MemoryPeak:
    peak_bytes: int
    read_from: MemorySource


def commit_of(checkout: Path) -> tuple[str | None, bool | None]:
    """(commit, whether tracked files differ from it); None, None outside a git checkout."""
    if shutil.which("git") is None:
        return None, None
    commit = _git(checkout, "rev-parse", "HEAD")
    changes = _git(checkout, "status", "--porcelain", "--untracked-files=no")
    return commit, None if commit is None or changes is None else changes != ""


def _git(checkout: Path, *arguments: str) -> str | None:
    command = ["git", "-C", str(checkout), *arguments]
    answer = subprocess.run(command, capture_output=True, encoding="utf-8", timeout=20, check=False)
    return answer.stdout.strip() if answer.returncode == 0 else None


class Sampler:
    """One sample per second while an engine runs, kept in memory until `take`.

    The engine's processes are listed once, when it is ready: walking all of /proc every second
    would stop the client's loop for milliseconds, and so would a flush to disk. How often the CPU
    was slowed down is read beside the loop, for there is a file per core.
    """

    def __init__(
        self, where: Where, engine_pids: Sequence[int], before: MemoryNow | None = None
    ) -> None:
        """before: the memory in use when the engine was not there; None: it always was."""
        self._where = where
        self._before = before
        self._client = psutil.Process()
        self._engine = [psutil.Process(pid) for pid in engine_pids if psutil.pid_exists(pid)]
        self._samples: list[MachineSample] = []
        self._accelerators = Accelerators()
        self._cpu_throttle_count: int | None = None
        self.engine_peak_bytes: int | None = None
        self._accelerators_peak_bytes: int | None = None
        self._host_least_bytes: int | None = None
        psutil.cpu_percent()  # the first call only starts the interval
        psutil.cpu_times_percent()

    async def run(self) -> None:
        async with watched() as self._accelerators:
            while True:
                await asyncio.sleep(SAMPLE_EVERY_S)
                self._cpu_throttle_count = await asyncio.to_thread(cpu_throttle_count)
                self.sample()

    def sample(self) -> None:
        engine_bytes = self._engine_rss()
        if engine_bytes is not None:
            self.engine_peak_bytes = max(self.engine_peak_bytes or 0, engine_bytes)
        available = psutil.virtual_memory().available
        self._host_least_bytes = min(self._host_least_bytes or available, available)
        self._note_accelerators()
        self._samples.append(
            MachineSample(
                where=self._where,
                at=utc_now(),
                host_cpu_share=psutil.cpu_percent() / 100,
                memory_available_bytes=available,
                client_rss_bytes=self._client.memory_info().rss,
                engine_rss_bytes=engine_bytes,
                cpu_throttle_count=self._cpu_throttle_count,
                cpu_steal_share=_steal_share(),
                accelerators=self._accelerators.latest,
            )
        )

    def _note_accelerators(self) -> None:
        told = [each.memory_used_bytes for each in self._accelerators.latest]
        known = [used for used in told if used is not None]
        if known and len(known) == len(told):
            self._accelerators_peak_bytes = max(self._accelerators_peak_bytes or 0, sum(known))

    @property
    def memory_peak(self) -> MemoryPeak | None:
        """The most that the engine took, read where its weights lie: on accelerators that tell what
        they hold; in the host's memory where accelerators share it and tell nothing, for what is
        theirs is in no process's resident set; else in that.
        """
        before = self._before
        if before is not None and before.accelerators_bytes is not None:
            took = (self._accelerators_peak_bytes or 0) - before.accelerators_bytes
            if took > 0:
                return MemoryPeak(peak_bytes=took, read_from="accelerators")
        elif before is not None and before.num_accelerators and self._host_least_bytes is not None:
            took = before.host_available_bytes - self._host_least_bytes
            return MemoryPeak(peak_bytes=took, read_from="host") if took > 0 else None
        if self.engine_peak_bytes is None:
            return None
        return MemoryPeak(peak_bytes=self.engine_peak_bytes, read_from="resident set")

    def take(self) -> list[MachineSample]:
        """The samples since the last call."""
        samples, self._samples = self._samples, []
        return samples

    def _engine_rss(self) -> int | None:
        try:
            return sum(each.memory_info().rss for each in self._engine) if self._engine else None
        except psutil.NoSuchProcess:
            return None


def _steal_share() -> float | None:
    """Since the last call; only Linux tells."""
    steal: float | None = getattr(psutil.cpu_times_percent(), "steal", None)
    return None if steal is None else steal / 100


def cpu_throttle_count(cpus: Path = Path("/sys/devices/system/cpu")) -> int | None:
    """Times that a core or its package was slowed down by its temperature since the machine
    started; None where the kernel does not tell, as in most virtual machines.
    """
    files = [*cpus.glob("cpu[0-9]*/thermal_throttle/*_throttle_count")]
    return sum(int(file.read_text(encoding="ascii")) for file in files) if files else None
