"""One measurement at a time on a device: who comes second waits, and says for whom.

The lock is `flock` on a file in the system's temporary folder, one per kind of device, so the
system lets go of it however a process ends. It keeps harnesses apart and nothing else: an engine
that somebody else started is found by the checks.
"""

import asyncio
import fcntl
import os
import tempfile
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

from harness.errors import ResultsError

FOLDER_VARIABLE = "DFLASHBENCH_LOCK_DIR"
"""Another folder than the temporary one, for machines whose users do not share it."""

LOOK_AGAIN_S = 0.5


@asynccontextmanager
async def measuring_alone(
    device_key: str, run_id: str, tell: Callable[[str], None]
) -> AsyncIterator[None]:
    """Wait until nobody measures on the device, then keep it until the block is left."""
    path = lock_path(device_key)
    descriptor = _opened(path)
    try:
        if not _taken(descriptor):
            tell(f"waiting: {_holder(descriptor)} measures on this device ({path})")
            while not _taken(descriptor):
                await asyncio.sleep(LOOK_AGAIN_S)
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, f"process {os.getpid()}, run {run_id}".encode(), 0)
        yield
    finally:
        os.close(descriptor)


def lock_path(device_key: str) -> Path:
    folder = os.environ.get(FOLDER_VARIABLE) or tempfile.gettempdir()
    return Path(folder) / f"dflashbench-{device_key}.lock"


def _opened(path: Path) -> int:
    """The file is everybody's: whoever is first makes it, and all may write their name into it."""
    try:
        try:
            return os.open(path, os.O_RDWR)
        except FileNotFoundError:
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
            os.fchmod(descriptor, 0o666)  # whatever the umask says
            return descriptor
    except OSError as error:
        raise ResultsError(
            f"{path}: {error.strerror}, so nobody can tell whether somebody else measures here; "
            f"${FOLDER_VARIABLE} names another folder"
        ) from error


def _taken(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _holder(descriptor: int) -> str:
    told = os.pread(descriptor, 200, 0).decode(errors="replace")
    return told or "another dflashbench"
