"""How the accelerators fare second by second, from one `nvidia-smi` that stays.

Its lines are read off the load's clock: a start each second would cost more than what is measured.
Machines without it, and drivers that do not know a field asked for here, tell nothing.
"""

import asyncio
import shutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from harness.records import AcceleratorSample

EVERY_S = 1
_FIELDS = (
    "index,clocks.sm,power.draw,temperature.gpu,memory.used,clocks_event_reasons.active"  # in order
)
# NVML's bits. The power limit (4) is left out: an accelerator at its limit is at work, and where
# the limit moved during a run its clock says so.
_SLOWED_BY = {
    0x08: "hardware slowdown",
    0x20: "temperature (driver)",
    0x40: "temperature (hardware)",
    0x80: "power brake",
}


class Accelerators:
    """`latest` is what the last second said, by the accelerator's number."""

    def __init__(self) -> None:
        self._latest: dict[int, AcceleratorSample] = {}

    @property
    def latest(self) -> tuple[AcceleratorSample, ...]:
        return tuple(self._latest[index] for index in sorted(self._latest))

    def take(self, line: str) -> None:
        """A line of nvidia-smi; one that holds something else is left out."""
        fields = [field.strip() for field in line.split(",")]
        if len(fields) != len(_FIELDS.split(",")) or not fields[0].isdecimal():
            return
        index, clock, power, temperature, memory, reasons = fields
        memory_mib = _number(memory)
        self._latest[int(index)] = AcceleratorSample(
            clock_mhz=_number(clock),
            power_w=_number(power),
            temperature_c=_number(temperature),
            memory_used_bytes=None if memory_mib is None else round(memory_mib * 2**20),
            slowed_by=_slowed_by(reasons),
        )


def _number(text: str) -> float | None:
    """`[N/A]` and its kin are no numbers."""
    try:
        return float(text)
    except ValueError:
        return None


def _slowed_by(reasons: str) -> tuple[str, ...] | None:
    """The bits come as hexadecimal."""
    try:
        bits = int(reasons, 16)
    except ValueError:
        return None
    return tuple(word for bit, word in _SLOWED_BY.items() if bits & bit)


@asynccontextmanager
async def watched() -> AsyncIterator[Accelerators]:
    """Kept up to date as long as the block lasts."""
    accelerators = Accelerators()
    if shutil.which("nvidia-smi") is None:
        yield accelerators
        return
    process = await asyncio.create_subprocess_exec(
        *("nvidia-smi", f"--query-gpu={_FIELDS}"),
        *("--format=csv,noheader,nounits", f"--loop={EVERY_S}"),
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.DEVNULL,
    )
    reading = asyncio.create_task(_read(process, accelerators))
    try:
        yield accelerators
    finally:
        reading.cancel()
        if process.returncode is None:
            process.kill()
        await process.wait()


async def _read(process: asyncio.subprocess.Process, accelerators: Accelerators) -> None:
    assert process.stdout is not None
    async for line in process.stdout:
        accelerators.take(line.decode(errors="replace"))
