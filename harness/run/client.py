"""One HTTP request at a time on a connection of its own: bytes and the moments they came.

Nothing is parsed here but HTTP's framing: a read is stamped, appended, and looked at after the
repetition. A connection is plain asyncio, not httpx: measured side by side at 256 streams, httpx
0.28 delays sends by seconds and costs ten times the CPU (httpx does everything that is not timed).

Rules: connections are opened before they are needed; no proxy is taken from the environment; the
body is asked for uncompressed; once a byte was sent nothing is sent again.
"""

import asyncio
import ssl
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from urllib.parse import urlsplit

from harness.records import RequestError
from harness.run.http1 import FramingError, Response

# Servers close idle connections (uvicorn after 5 s); a request sent at that moment is lost. A
# connection idle for longer than this is replaced before the next request's clock starts.
IDLE_REUSE_S = 2.0


@dataclass(frozen=True, kw_only=True)
class Timeouts:
    """Each its own: a long prefill is no dead connection. A comment (keep-alive) is no first
    event.
    """

    connect_s: float = 10.0
    first_event_s: float = 600.0
    idle_s: float = 120.0


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

    def encode(self, body: bytes) -> bytes:
        """The whole request as it goes over the wire."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        head = {
            "Host": f"{host}:{self.port}",
            "Content-Type": "application/json",
            "Accept": "text/event-stream",
            "Accept-Encoding": "identity",
            "Content-Length": str(len(body)),
            **self.headers,
        }
        lines = "".join(f"{name}: {value}\r\n" for name, value in head.items())
        return f"POST {self.path} HTTP/1.1\r\n{lines}\r\n".encode("latin-1") + body


@dataclass(kw_only=True)
class Exchange:
    """One request and what came back; filled while it runs, read-only once `done` is set."""

    request: bytes
    t_sched_ns: int = 0
    t0_ns: int = 0
    end_ns: int = 0
    connect_s: float | None = None  # None: the connection was open before
    response: Response = field(default_factory=Response)
    reads: list[tuple[int, bytes]] = field(default_factory=list)
    seen_event: bool = False
    last_read_ns: int = 0
    error: RequestError | None = None
    done: asyncio.Future[None]


def new_exchange(request: bytes) -> Exchange:
    return Exchange(request=request, done=asyncio.get_running_loop().create_future())


class Connection(asyncio.Protocol):
    """A socket that carries one exchange at a time."""

    def __init__(self, pool: "Pool") -> None:
        self._pool = pool
        self.exchange: Exchange | None = None
        self.idle_since_ns = time.perf_counter_ns()
        self._transport: asyncio.Transport | None = None
        self.closed = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def send(self, exchange: Exchange) -> None:
        """asyncio hands what the socket takes to the kernel inside `write`: `t0` stands before
        it.
        """
        assert self._transport is not None
        self.exchange = exchange
        self._pool.sent(self)
        exchange.t0_ns = time.perf_counter_ns()
        self._transport.write(exchange.request)
        exchange.last_read_ns = exchange.t0_ns

    def data_received(self, data: bytes) -> None:
        at_ns = time.perf_counter_ns()
        exchange = self.exchange
        if exchange is None:  # an answer to nothing: this connection is out of step
            self.abort()
            return
        try:
            body = exchange.response.feed(data)
        except FramingError as error:
            self._finish(RequestError(kind="parse", message=str(error)), at_ns)
            return
        exchange.last_read_ns = at_ns
        if body:
            exchange.reads.append((at_ns, body))
            exchange.seen_event = exchange.seen_event or b"data:" in body
        if exchange.response.complete:
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
        if exchange.response.end():
            self._finish(None, time.perf_counter_ns())
            return
        count = len(exchange.reads)
        after = f"after {count} reads" if count else "without an answer"
        self.fail(RequestError(kind="truncated", message=f"{how} {after}"))

    def _finish(self, error: RequestError | None, at_ns: int) -> None:
        exchange, self.exchange = self.exchange, None
        assert exchange is not None
        exchange.error, exchange.end_ns = error, at_ns
        self.idle_since_ns = at_ns
        if error is not None or not exchange.response.keeps_connection:
            self.abort()
        self._pool.finished(self)
        if not exchange.done.done():  # cancelled, when who waited for it was stopped
            exchange.done.set_result(None)


class Pool:
    """Connections to one endpoint: as many as are wanted at once, opened before they are needed."""

    def __init__(self, endpoint: Endpoint, timeouts: Timeouts) -> None:
        self.endpoint = endpoint
        self.timeouts = timeouts
        self.in_flight_max = 0
        self._idle: list[Connection] = []
        self._busy: set[Connection] = set()

    async def prepare(self, count: int) -> None:
        """Have `count` live connections ready. What the server refuses, the requests will tell."""
        self._drop_stale()
        missing = count - len(self._idle)
        opened = await asyncio.gather(*(self.open() for _ in range(missing)))
        self._idle += [each for each in opened if isinstance(each, Connection)]

    async def open(self) -> Connection | RequestError:
        loop = asyncio.get_running_loop()
        where = f"{self.endpoint.host}:{self.endpoint.port}"
        try:
            async with asyncio.timeout(self.timeouts.connect_s):
                _, connection = await loop.create_connection(
                    lambda: Connection(self),
                    self.endpoint.host,
                    self.endpoint.port,
                    ssl=ssl.create_default_context() if self.endpoint.tls else None,
                )
        except TimeoutError:
            message = f"{where} took no connection in {self.timeouts.connect_s:g} s"
            return RequestError(kind="connect", message=message)
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
        """Send, opening a connection first where none is ready; the time for that is kept apart."""
        if self.start(exchange):
            return
        began_ns = time.perf_counter_ns()
        connection = await self.open()
        if isinstance(connection, Connection):
            exchange.connect_s = (time.perf_counter_ns() - began_ns) / 1e9
            connection.send(exchange)
            return
        exchange.error = connection
        exchange.t0_ns = exchange.end_ns = time.perf_counter_ns()
        exchange.done.set_result(None)

    def give_up_late(self, now_ns: int) -> None:
        """Fail what has waited too long; called a few times per second."""
        for connection in tuple(self._busy):
            exchange = connection.exchange
            assert exchange is not None
            error = _lateness(exchange, now_ns, self.timeouts)
            if error is not None:
                connection.fail(error)

    def abort(self) -> None:
        """Close everything at once; what was in flight is cancelled."""
        for connection in tuple(self._busy):
            connection.fail(RequestError(kind="cancelled", message="the run was stopped"))
        for connection in self._idle:
            connection.abort()
        self._idle.clear()

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


def _lateness(exchange: Exchange, now_ns: int, timeouts: Timeouts) -> RequestError | None:
    if not exchange.seen_event:
        if now_ns - exchange.t0_ns > timeouts.first_event_s * 1e9:
            message = f"no event in {timeouts.first_event_s:g} s (first-event timeout)"
            return RequestError(kind="timeout", message=message)
    elif now_ns - exchange.last_read_ns > timeouts.idle_s * 1e9:
        message = f"no byte for {timeouts.idle_s:g} s in mid-stream (idle timeout)"
        return RequestError(kind="timeout", message=message)
    return None
