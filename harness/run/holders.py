"""Who holds what an engine needs: a port of this machine, an accelerator.

Asked before a start (a given port), when an engine answers (is it ours that does?) and after a stop
(is everything given back?). Knows processes by their numbers and nothing of engines.
"""

import asyncio
import shutil
import socket
import subprocess
import time
from collections.abc import Collection
from dataclasses import dataclass

import psutil

from harness.errors import BootError, PortInUseError

RELEASE_S = 10.0
"""How long the system may take to give a port or an accelerator's memory back."""

_NAMELESS_S = 0.5
"""A process that ends is gone from the system's list before its sockets are, for a moment."""

_COMMAND_SHOWN = 160  # characters


@dataclass(frozen=True, kw_only=True)
class Holder:
    """A process that listens; `pid` None: another user's, whom this system does not name to us."""

    pid: int | None
    command: str

    def __str__(self) -> str:
        if self.pid is None:
            return "a process of another user"
        return f"process {self.pid} ({self.command[:_COMMAND_SHOWN]})"


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def listeners(port: int) -> tuple[Holder, ...]:
    """Whoever listens on `port`; more than one where a socket is shared (SO_REUSEPORT).

    Empty as well where the system does not tell, as macOS does to a user without rights.
    """
    try:
        found = psutil.net_connections(kind="tcp")
    except psutil.AccessDenied:
        return ()
    pids = {
        each.pid
        for each in found
        if each.status == psutil.CONN_LISTEN and each.laddr and each.laddr.port == port
    }
    return tuple(Holder(pid=pid, command=_command(pid)) for pid in pids)


def _command(pid: int | None) -> str:
    try:
        return "" if pid is None else " ".join(psutil.Process(pid).cmdline())
    except (psutil.NoSuchProcess, psutil.AccessDenied):
        return "which ended meanwhile"


def refuse_held(port: int) -> None:
    """Before anything is started on a port that the matrix gives."""
    held = listeners(port)
    if held:
        raise PortInUseError(
            f"`port: {port}` is held by {told(held)}; end that, write another port, or leave the "
            "key out for one that is free"
        )


def refuse_foreign(port: int, ours: Collection[int]) -> None:
    """When an answer came: from a process of ours, and from no other beside it.

    A second listener on a shared socket would answer some of the requests.
    """
    foreign = _foreign(port, ours)
    if any(each.pid is None for each in foreign):
        time.sleep(_NAMELESS_S)
        foreign = _foreign(port, ours)
    if foreign:
        raise PortInUseError(
            f"port {port} is answered by {told(foreign)}, which the harness did not start; end it, "
            "then `dflashbench resume`"
        )


def _foreign(port: int, ours: Collection[int]) -> list[Holder]:
    return [each for each in listeners(port) if each.pid not in ours]


async def wait_released(port: int | None, pids: Collection[int]) -> None:
    """After a stop: nobody listens on the port, and no accelerator works for these processes."""
    deadline_s = time.perf_counter() + RELEASE_S
    while (held := await asyncio.to_thread(_still_held, port, pids)) is not None:
        if time.perf_counter() > deadline_s:
            raise BootError(f"the engine was stopped, but {held} after {RELEASE_S:g} s; end it")
        await asyncio.sleep(0.2)


def _still_held(port: int | None, pids: Collection[int]) -> str | None:
    held = () if port is None else listeners(port)
    if held:
        return f"{told(held)} still listens on its port {port}"
    busy = sorted(_pids_on_accelerators() & set(pids))
    return f"process {busy[0]} still holds memory of an accelerator" if busy else None


def _pids_on_accelerators() -> set[int]:
    """By nvidia-smi; none on a machine without it."""
    if shutil.which("nvidia-smi") is None:
        return set()
    words = ["nvidia-smi", "--query-compute-apps=pid", "--format=csv,noheader"]
    said = subprocess.run(words, capture_output=True, text=True, check=False).stdout
    return {int(line) for line in said.split() if line.isdecimal()}


def told(held: Collection[Holder]) -> str:
    return " and ".join(str(each) for each in held)
