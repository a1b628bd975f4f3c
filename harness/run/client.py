"""One HTTP request at a time on a connection of its own: bytes and the moments they came.

Nothing is parsed here but HTTP's framing: a read is stamped and handed on, and looked at after the
repetition. A connection is plain asyncio, not httpx: measured side by side at 256 streams, httpx
0.28 delays sends by seconds and costs seven times the CPU (httpx does everything that is not timed,
and stays selectable: `transports`).

Rules: connections are opened before they are needed; no proxy is taken from the environment; the
body is asked for uncompressed; what was sent is sent again in one case only, when a connection that
stood idle turns out to be closed: not a byte came back, and the server never saw a request that
it meant to answer.
"""

import asyncio
import os
import ssl
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol, cast
from urllib.parse import urlsplit

from harness.records import RequestError, Timeouts
from harness.run.http1 import FramingError, Response
from harness.run.spool import Spool

# Servers close idle connections (uvicorn after 5 s); a request sent at that moment is lost. A
# connection idle for longer than this is replaced before the next request's clock starts.
IDLE_REUSE_S = 2.0

OPENED_AT_ONCE = 64
"""Below the listen backlog of every server we know: what overflows it is tried again after 1 s."""


@dataclass(frozen=True, kw_only=True)
class Endpoint:
    """Where requests go, and what stands in the head of each."""

    host: str
    port: int
    tls: bool
    path: str
    headers: Mapping[str, str]

    @classmethod
    def of(cls, base_url: str, path: str, headers: Mapping[str, str]) -> "Endpoint":
        """base_url: scheme, host and port, with or without a path before `path`."""
        parts = urlsplit(base_url)
        tls = parts.scheme == "https"
        return cls(
            host=parts.hostname or "127.0.0.1",
            port=parts.port or (443 if tls else 80),
            tls=tls,
            path=parts.path.rstrip("/") + path,
            headers=headers,
        )

    @property
    def authority(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{host}:{self.port}"

    def head(self) -> dict[str, str]:
        """The headers of every request, beside its length."""
        return {
            "Host": self.authority,
            "Content-Type": "application/json",
            "Accept": "text/event-stream",
            "Accept-Encoding": "identity",
            **self.headers,
        }

    def encode(self, body: bytes) -> bytes:
        """The whole request as it goes over the wire."""
        head = {**self.head(), "Content-Length": str(len(body))}
        lines = "".join(f"{name}: {value}\r\n" for name, value in head.items())
        return f"POST {self.path} HTTP/1.1\r\n{lines}\r\n".encode("latin-1") + body


@dataclass(kw_only=True, eq=False)
class Exchange:
    """One request and what came back; filled while it runs, read-only once `done` is set."""

    request: bytes  # as its transport's `encode` made it
    number: int = 0  # names its reads in the spool
    spool: Spool | None = None  # takes the reads; None: they stay in `reads`
    t_sched_ns: int = 0
    t0_ns: int = 0
    end_ns: int = 0
    connect_s: float | None = None  # None: the connection was open before
    reconnects: int = 0
    attempts: int = 1
    throttled: int = 0
    first_t0_ns: int | None = None  # of the attempt before all others
    http_status: int | None = None
    headers: Mapping[str, str] = field(default_factory=dict)
    reads: list[tuple[int, bytes]] = field(default_factory=list)
    num_reads: int = 0
    seen_event: bool = False
    last_read_ns: int = 0
    error: RequestError | None = None
    done: asyncio.Future[None]

    def take(self, at_ns: int, body: bytes) -> None:
        """Body bytes of one read. This runs once per event of the whole load."""
        self.last_read_ns = at_ns
        self.num_reads += 1
        if not self.seen_event:
            self.seen_event = b"data:" in body
        if self.spool is None:
            self.reads.append((at_ns, body))
        else:
            self.spool.append(self.number, at_ns, body)

    def finish(self, error: RequestError | None, at_ns: int) -> None:
        self.error, self.end_ns = error, at_ns
        if self.t0_ns == 0:  # it was never sent
            self.t0_ns = at_ns
        if not self.done.done():  # cancelled, when who waited for it was stopped
            self.done.set_result(None)

    def begin_again(self, number: int) -> None:
        """Another attempt, with reads of its own; what the last one measured is forgotten."""
        self.first_t0_ns = self.first_t0_ns or self.t0_ns
        self.attempts += 1
        self.number, self.t0_ns = number, 0
        self.connect_s = self.http_status = self.error = None
        self.headers, self.reads = {}, []
        self.num_reads, self.seen_event = 0, False
        self.done = asyncio.get_running_loop().create_future()


def new_exchange(request: bytes, number: int = 0, spool: Spool | None = None) -> Exchange:
    done = asyncio.get_running_loop().create_future()
    return Exchange(request=request, number=number, spool=spool, done=done)


class Transport(Protocol):
    """What carries exchanges to one endpoint; `load` knows no more of it. `transports` lists them.

    An exchange that was started is always finished: with what came, or with an error.
    """

    in_flight_max: int

    def encode(self, body: bytes) -> bytes:
        """What an exchange of this transport has as its request."""

    async def prepare(self, count: int) -> None:
        """Have `count` connections ready, as far as can be done before a request."""

    def start(self, exchange: Exchange) -> bool:
        """Send without waiting for anything; False if that cannot be."""

    async def start_anyhow(self, exchange: Exchange) -> None:
        """Send, opening a connection first where none is ready; the time for that is kept apart."""

    def give_up_late(self, now_ns: int) -> None:
        """Fail what has waited too long; called a few times per second."""

    def fail_all(self, error: RequestError) -> None:
        """Fail whatever is in flight."""

    async def aclose(self) -> None:
        """Close everything at once; what was in flight is cancelled."""


def overdue(exchange: Exchange, now_ns: int, timeouts: Timeouts) -> RequestError | None:
    """Why an exchange in flight has waited too long; None while it has not."""
    since_send_s = (now_ns - exchange.t0_ns) / 1e9
    if timeouts.request_s is not None and since_send_s > timeouts.request_s:
        message = f"not complete in {timeouts.request_s:g} s (request timeout)"
        return RequestError(kind="timeout", message=message)
    if not exchange.seen_event:
        if since_send_s > timeouts.first_event_s:
            message = f"no event in {timeouts.first_event_s:g} s (first-event timeout)"
            return RequestError(kind="timeout", message=message)
    elif now_ns - exchange.last_read_ns > timeouts.idle_s * 1e9:
        message = f"no byte for {timeouts.idle_s:g} s in mid-stream (idle timeout)"
        return RequestError(kind="stall", message=message)
    return None


STOPPED = RequestError(kind="cancelled", message="the run was stopped")


# --- plain asyncio --------------------------------------------------------------------------------


class Connection(asyncio.Protocol):
    """A socket that carries one exchange at a time."""

    def __init__(self, pool: "Pool") -> None:
        self._pool = pool
        self._transport: asyncio.Transport | None = None
        self._response = Response()
        self._descriptor: int | None = None  # of the socket, where bytes go through unchanged
        self.exchange: Exchange | None = None
        self.idle_since_ns = time.perf_counter_ns()
        self.closed = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's is none by its class
        if transport.get_extra_info("sslcontext") is None:
            self._descriptor = transport.get_extra_info("socket").fileno()

    def send(self, exchange: Exchange) -> None:
        self.exchange = exchange
        self._response = Response()
        self._pool.sent(self)
        exchange.t0_ns = exchange.last_read_ns = time.perf_counter_ns()
        try:
            self._write(exchange.request)
        except OSError as error:
            self.closed = True
            self._ended(f"the request could not be written ({error.strerror})")

    def _write(self, request: bytes) -> None:
        """Into the kernel at once: uvloop's own `write` waits for the end of the loop's turn, which
        in a wave would put all other sends between `t0` and the bytes.
        """
        assert self._transport is not None
        written = 0
        if self._descriptor is not None:
            try:
                written = os.write(self._descriptor, request)
            except BlockingIOError:
                written = 0
        if written < len(request):
            self._transport.write(request[written:])

    def data_received(self, data: bytes) -> None:
        at_ns = time.perf_counter_ns()
        exchange = self.exchange
        if exchange is None:  # an answer to nothing: this connection is out of step
            self.abort()
            return
        try:
            body = self._response.feed(data)
        except FramingError as error:
            self._finish(RequestError(kind="parse", message=str(error)), at_ns)
            return
        if body:
            exchange.take(at_ns, body)
        if self._response.complete:
            self._finish(None, at_ns)

    def eof_received(self) -> None:
        self.closed = True
        self._ended("the server ended the connection")

    def connection_lost(self, exc: Exception | None) -> None:
        self.closed = True
        self._ended(f"connection lost ({exc or 'closed'})")

    def fail(self, error: RequestError) -> None:
        """Give the exchange up, and the connection with it."""
        self._finish(error, time.perf_counter_ns())

    def abort(self) -> None:
        self.closed = True
        if self._transport is not None:
            self._transport.abort()

    def _ended(self, how: str) -> None:
        exchange = self.exchange
        if exchange is None:
            return
        stood_idle = exchange.connect_s is None
        if self._response.end():
            self._finish(None, time.perf_counter_ns())
        elif stood_idle and not self._response.begun and not exchange.reconnects:
            self.exchange = None
            self._pool.send_again(self, exchange)
        else:
            count = exchange.num_reads
            after = f"after {count} reads" if count else "without an answer"
            self.fail(RequestError(kind="truncated", message=f"{how} {after}"))

    def _finish(self, error: RequestError | None, at_ns: int) -> None:
        exchange, self.exchange = self.exchange, None
        assert exchange is not None
        exchange.http_status = self._response.status
        exchange.headers = self._response.headers
        self.idle_since_ns = at_ns
        if error is not None or not self._response.keeps_connection:
            self.abort()
        self._pool.finished(self)
        exchange.finish(error, at_ns)


class Pool:
    """Connections to one endpoint: as many as are wanted at once, opened before they are needed."""

    def __init__(self, endpoint: Endpoint, timeouts: Timeouts) -> None:
        self.endpoint = endpoint
        self.timeouts = timeouts
        self.in_flight_max = 0
        self._tls = ssl.create_default_context() if endpoint.tls else None
        self._idle: list[Connection] = []
        self._busy: set[Connection] = set()
        self._reopening: set[asyncio.Task[None]] = set()

    def encode(self, body: bytes) -> bytes:
        return self.endpoint.encode(body)

    async def prepare(self, count: int) -> None:
        """What the server refuses, the requests will tell."""
        self._drop_stale()
        missing, places = count - len(self._idle), asyncio.Semaphore(OPENED_AT_ONCE)

        async def one() -> None:
            async with places:
                connection = await self.open()
            if isinstance(connection, Connection):
                self._idle.append(connection)

        await asyncio.gather(*(one() for _ in range(missing)))

    async def open(self) -> Connection | RequestError:
        loop = asyncio.get_running_loop()
        where = f"{self.endpoint.host}:{self.endpoint.port}"
        try:
            async with asyncio.timeout(self.timeouts.connect_s):
                _, connection = await loop.create_connection(
                    lambda: Connection(self), self.endpoint.host, self.endpoint.port, ssl=self._tls
                )
        except TimeoutError:
            message = f"{where} took no connection in {self.timeouts.connect_s:g} s"
            return RequestError(kind="connect", message=message)
        except ssl.SSLError as error:
            return RequestError(kind="tls", message=f"{where}: {error}")
        except OSError as error:
            return RequestError(kind="connect", message=f"{where}: {error}")
        return connection

    def start(self, exchange: Exchange) -> bool:
        """Send on a ready connection; False if there is none."""
        while self._idle:
            connection = self._idle.pop()
            if not connection.closed:
                connection.send(exchange)
                return True
        return False

    async def start_anyhow(self, exchange: Exchange) -> None:
        if not self.start(exchange):
            await self._open_and_send(exchange)

    async def _open_and_send(self, exchange: Exchange) -> None:
        began_ns = time.perf_counter_ns()
        connection = await self.open()
        if isinstance(connection, Connection):
            exchange.connect_s = (time.perf_counter_ns() - began_ns) / 1e9
            connection.send(exchange)
        else:
            exchange.finish(connection, time.perf_counter_ns())

    def send_again(self, connection: Connection, exchange: Exchange) -> None:
        """Once, on a new connection: `exchange` was sent on one that the server had closed."""
        exchange.reconnects = 1
        self._busy.discard(connection)
        task = asyncio.get_running_loop().create_task(self._open_and_send(exchange))
        self._reopening.add(task)  # a task that nobody holds may be collected
        task.add_done_callback(self._reopening.discard)

    def give_up_late(self, now_ns: int) -> None:
        for connection in tuple(self._busy):
            exchange = connection.exchange
            assert exchange is not None
            error = overdue(exchange, now_ns, self.timeouts)
            if error is not None:
                connection.fail(error)

    def fail_all(self, error: RequestError) -> None:
        for connection in tuple(self._busy):
            connection.fail(error)

    async def aclose(self) -> None:
        for task in tuple(self._reopening):
            task.cancel()
        self.fail_all(STOPPED)
        for connection in self._idle:
            connection.abort()
        self._idle.clear()
        await asyncio.sleep(0)  # asyncio closes an aborted socket in the loop's next turn

    def sent(self, connection: Connection) -> None:
        self._busy.add(connection)
        self.in_flight_max = max(self.in_flight_max, len(self._busy))

    def finished(self, connection: Connection) -> None:
        self._busy.discard(connection)
        if not connection.closed:
            self._idle.append(connection)

    def _drop_stale(self) -> None:
        oldest_ns = time.perf_counter_ns() - int(IDLE_REUSE_S * 1e9)
        for connection in self._idle:
            if connection.idle_since_ns < oldest_ns:
                connection.abort()
        self._idle = [each for each in self._idle if not each.closed]
