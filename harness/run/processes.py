"""Processes of engines: started in a group of their own, ended with everything they started.

Knows nothing of ports, pages and readiness. A group is a session too, so that Ctrl-C in the
terminal does not reach it before we do; on Linux its first process dies with the harness, whatever
ends that.
"""

import asyncio
import atexit
import os
import shutil
import signal
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

import psutil

from harness.errors import BootError
from harness.run import launcher

PROJECT = Path(__file__).parents[2]
"""Where engines start: `python -m engines.dflash2` is found from here."""

GRACE_S = 10.0
"""How long an engine may take to end after SIGTERM."""

_live_groups: set[int] = set()


@atexit.register
def _kill_what_is_left() -> None:
    """Only reached with a live group when our own code failed: no engine outlives the harness."""
    for group in tuple(_live_groups):
        _signal_group(group, signal.SIGKILL)


# --- start ----------------------------------------------------------------------------------------


async def spawn(
    argv: Sequence[str], environment: Mapping[str, str], log_folder: Path, *, engine_name: str
) -> asyncio.subprocess.Process:
    """Its output goes to stdout.log and stderr.log in `log_folder`."""
    words = runnable(argv)
    _found(words[0], engine_name)
    with (
        open(log_folder / "stdout.log", "ab") as stdout,
        open(log_folder / "stderr.log", "ab") as stderr,
    ):
        process = await asyncio.create_subprocess_exec(
            *_dying_with_us(words),
            stdin=asyncio.subprocess.DEVNULL,
            stdout=stdout,
            stderr=stderr,
            env={**os.environ, **environment},
            cwd=PROJECT,
            start_new_session=True,
        )
    _live_groups.add(process.pid)
    return process


def runnable(argv: Sequence[str]) -> tuple[str, ...]:
    """`{python}` is this interpreter; the record keeps the word, as folders are no fact of a
    run.
    """
    return tuple(sys.executable if word == "{python}" else word for word in argv)


def _dying_with_us(argv: Sequence[str]) -> tuple[str, ...]:
    """Elsewhere than on Linux an engine may outlive a killed harness, until `resume`."""
    if sys.platform != "linux":
        return tuple(argv)
    return (sys.executable, "-I", "-S", launcher.__file__, str(os.getpid()), *argv)


def _found(program: str, engine_name: str) -> None:
    """Seen from where engines start."""
    path = program if os.path.isabs(program) or os.sep not in program else str(PROJECT / program)
    if shutil.which(path) is None:
        raise BootError(
            f"engine {engine_name!r}: {program!r} cannot be started: no such program; check "
            "`command` in the engine's file and that it is installed"
        )


def runs(pid: int, argv: Sequence[str]) -> bool:
    """By the whole command line: the number may be another process's by now."""
    try:
        return psutil.Process(pid).cmdline() == list(runnable(argv))
    except (psutil.NoSuchProcess, psutil.AccessDenied):
        return False


def family(pid: int) -> list[int]:
    """The process, all it started and all of its group, as of now."""
    members = [member.pid for member in _members(pid)]
    return list(dict.fromkeys([pid, *(child.pid for child in children(pid)), *members]))


def children(pid: int) -> list[psutil.Process]:
    try:
        return psutil.Process(pid).children(recursive=True)
    except psutil.NoSuchProcess:
        return []


# --- stop -----------------------------------------------------------------------------------------


async def stop_group(group: int) -> None:
    """SIGTERM, time to end, SIGKILL; then make sure that nothing is left."""
    strays = children(group)  # a child may have left the group; its parent is still known now
    for signal_number, patience_s in ((signal.SIGTERM, GRACE_S), (signal.SIGKILL, GRACE_S)):
        _signal_group(group, signal_number)
        for stray in strays:
            _signal(stray, signal_number)
        if await _all_gone(group, strays, patience_s):
            _live_groups.discard(group)
            return
    raise BootError(f"processes of group {group} cannot be ended, not even by SIGKILL; end them")


async def _all_gone(group: int, strays: Sequence[psutil.Process], patience_s: float) -> bool:
    deadline_s = time.perf_counter() + patience_s
    while _members(group) or any(_lives(stray) for stray in strays):
        if time.perf_counter() > deadline_s:
            return False
        await asyncio.sleep(0.05)
    return True


def _members(group: int) -> list[psutil.Process]:
    return [each for each in psutil.process_iter() if _group_of(each) == group and _lives(each)]


def _group_of(process: psutil.Process) -> int | None:
    try:
        return os.getpgid(process.pid)
    except ProcessLookupError:
        return None


def _lives(process: psutil.Process) -> bool:
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def _signal_group(group: int, signal_number: int) -> None:
    try:
        os.killpg(group, signal_number)
    except ProcessLookupError:
        return


def _signal(process: psutil.Process, signal_number: int) -> None:
    try:
        process.send_signal(signal_number)
    except psutil.NoSuchProcess:
        return
