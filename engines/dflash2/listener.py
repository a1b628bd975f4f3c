"""Where the process listens, and how it stops.

Knows sockets, signals and deadlines; knows nothing of what is served.
"""

from __future__ import annotations

import asyncio
import errno
import ipaddress
import math
import socket
import time
from types import FrameType

import uvicorn

from engines.dflash2.arguments import UsageError
from engines.dflash2.limits import STOP_TIMEOUT_S
from engines.dflash2.scheduler import Scheduler
from engines.dflash2.server import Server

# Between the requests of a benchmark a connection may idle for minutes; a server that closes it
# just then makes the next request fail through no fault of anybody.
KEEP_ALIVE_S = 600
# For the last events to reach their clients after everything has ended or failed.
FAREWELL_S = 2
POLL_S = 0.05


def bind(host: str, port: int, *, has_key: bool) -> socket.socket:
    """Take the port; nobody is let in before `listen`."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((host, port))
    except (OSError, OverflowError) as error:
        listener.close()
        raise _cannot_listen(host, port, error) from error
    if not has_key and not _is_loopback(listener):
        listener.close()
        raise UsageError(
            f"--host {host} lets other machines in, and nothing asks them for a key; set "
            "DFLASH2_API_KEY (or --api-key), or listen on 127.0.0.1"
        )
    return listener


def listen(listener: socket.socket, host: str, port: int) -> None:
    # SO_REUSEADDR lets two processes bind a port on which nobody listens yet; the second learns of
    # the first one here.
    try:
        listener.listen()
    except OSError as error:
        raise _cannot_listen(host, port, error) from error


def url_of(listener: socket.socket) -> str:
    host, port = listener.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def _is_loopback(listener: socket.socket) -> bool:
    return ipaddress.ip_address(listener.getsockname()[0]).is_loopback


def _cannot_listen(host: str, port: int, error: Exception) -> UsageError:
    if isinstance(error, OSError) and error.errno == errno.EADDRINUSE:
        return UsageError(
            f"port {port} on {host} is in use; give another --port (0 takes any free one), "
            "or stop the process that has it"
        )
    return UsageError(f"cannot listen on {host} port {port}: {error}; check --host and --port")


class StoppableServer(uvicorn.Server):
    """A server that a first signal stops when its answers are finished, a second one now.

    After the first, connections are refused and what was accepted has `stop_timeout_s` to end;
    the rest then fails with an error that says so, as everything does after the second.
    """

    def __init__(
        self, config: uvicorn.Config, scheduler: Scheduler, *, stop_timeout_s: float
    ) -> None:
        super().__init__(config)
        self._scheduler = scheduler
        self._stop_timeout_s = stop_timeout_s
        self._deadline_s = math.inf

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        if self.should_exit:
            self._deadline_s = -math.inf
        self.should_exit = True

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        self._deadline_s = min(self._deadline_s, time.monotonic() + self._stop_timeout_s)
        failing = asyncio.create_task(self._fail_what_is_late())
        await super().shutdown(sockets)  # returns when the last connection is closed
        failing.cancel()
        await asyncio.wait({failing})
        self._scheduler.stop()

    async def _fail_what_is_late(self) -> None:
        while time.monotonic() < self._deadline_s:
            await asyncio.sleep(POLL_S)
        self._scheduler.stop()
        await asyncio.sleep(FAREWELL_S)
        for connection in [*self.server_state.connections]:
            connection.transport.abort()


def http_server(server: Server, *, stop_timeout_s: float = STOP_TIMEOUT_S) -> StoppableServer:
    """The process's server: `run(sockets=[listener])` returns after SIGINT or SIGTERM."""
    config = uvicorn.Config(
        server.app(),
        http="h11",
        ws="none",
        loop="asyncio",
        lifespan="off",
        log_level="warning",
        access_log=False,
        server_header=False,
        timeout_keep_alive=KEEP_ALIVE_S,
    )
    return StoppableServer(config, server.scheduler, stop_timeout_s=stop_timeout_s)
