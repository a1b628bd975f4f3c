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
from importlib import metadata
from pathlib import Path

import psutil

from harness.records import MachineFacts, MachineSample, Where
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

    def __init__(self, where: Where, engine_pids: Sequence[int]) -> None:
        self._where = where
        self._client = psutil.Process()
        self._engine = [psutil.Process(pid) for pid in engine_pids if psutil.pid_exists(pid)]
        self._samples: list[MachineSample] = []
        self._accelerators = Accelerators()
        self._cpu_throttle_count: int | None = None
        self.engine_peak_bytes: int | None = None
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
        self._samples.append(
            MachineSample(
                where=self._where,
                at=utc_now(),
                host_cpu_share=psutil.cpu_percent() / 100,
                memory_available_bytes=psutil.virtual_memory().available,
                client_rss_bytes=self._client.memory_info().rss,
                engine_rss_bytes=engine_bytes,
                cpu_throttle_count=self._cpu_throttle_count,
                cpu_steal_share=_steal_share(),
                accelerators=self._accelerators.latest,
            )
        )

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
