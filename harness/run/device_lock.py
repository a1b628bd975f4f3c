"""One measurement at a time on a device: who comes second waits, and says for whom.

The lock is `flock` on a file in the system's temporary folder, one per device, so the system lets
go of it however a process ends. Runs on two accelerators of one machine do not wait for each other.
It keeps harnesses apart and nothing else: an engine that somebody else started is found by the
checks.
"""

import asyncio
import fcntl
import os
import re
import tempfile
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from urllib.parse import urlsplit

from harness import keys
from harness.errors import ResultsError
from harness.records import Engine

FOLDER_VARIABLE = "DFLASHBENCH_LOCK_DIR"
"""Another folder than the temporary one, for machines whose users do not share it."""

LOOK_AGAIN_S = 0.5

_VISIBLE = ("CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES")
_OF_A_CONTAINER = re.compile(r"device=([\w,-]+)")  # --gpus '"device=0,1"'


# --- which devices --------------------------------------------------------------------------------


def devices_of(
    engines: Iterable[Engine], num_accelerators: int, environment: Mapping[str, str]
) -> tuple[str, ...]:
    """What the engines measure on: accelerators of this machine, its CPU, servers elsewhere.

    environment: ours, which they inherit. An engine that may see all accelerators has them all.
    """
    found: set[str] = set()
    for engine in engines:
        if engine.kind == "attach":
            found.add(f"at-{keys.slug(urlsplit(engine.url or '').netloc)}")
        else:
            found |= {*_own_devices(engine, num_accelerators, environment)}
    return tuple(sorted(found))


def _own_devices(
    engine: Engine, num_accelerators: int, environment: Mapping[str, str]
) -> Iterator[str]:
    visible = _visible(engine, environment)
    names = [str(n) for n in range(num_accelerators)] if visible is None else visible
    if num_accelerators == 0 or not names:
        yield "cpu"
    else:
        yield from (f"accelerator-{keys.slug(name)}" for name in names)


def _visible(engine: Engine, environment: Mapping[str, str]) -> list[str] | None:
    """The numbers or names of those that it may see; None: nobody restricts it."""
    told = _OF_A_CONTAINER.search(" ".join(engine.container_options))
    listed = told.group(1) if told else None
    for variable in _VISIBLE:
        if listed is None:
            listed = {**environment, **engine.environment}.get(variable)
    return None if listed is None else [name.strip() for name in listed.split(",") if name.strip()]


# --- the locks ------------------------------------------------------------------------------------


@asynccontextmanager
async def measuring_alone(
    devices: Iterable[str], run_id: str, tell: Callable[[str], None]
) -> AsyncIterator[None]:
    """Wait until nobody measures on any of the devices, then keep them until the block is left.

    All take them in one order, so that no two wait for each other.
    """
    async with AsyncExitStack() as stack:
        for device in sorted(devices):
            await stack.enter_async_context(_alone_on(device, run_id, tell))
        yield


@asynccontextmanager
async def _alone_on(device: str, run_id: str, tell: Callable[[str], None]) -> AsyncIterator[None]:
    path = lock_path(device)
    descriptor = _opened(path)
    try:
        if not _taken(descriptor):
            tell(f"waiting: {_holder(descriptor)} measures on {device} ({path})")
            while not _taken(descriptor):
                await asyncio.sleep(LOOK_AGAIN_S)
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, f"process {os.getpid()}, run {run_id}".encode(), 0)
        yield
    finally:
        os.close(descriptor)


def lock_path(device: str) -> Path:
    folder = os.environ.get(FOLDER_VARIABLE) or tempfile.gettempdir()
    return Path(folder) / f"dflashbench-{device}.lock"


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
