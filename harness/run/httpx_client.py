"""The same exchanges carried by httpx: for what our own client does not speak, and to check it.

It costs about seven times the CPU per event (benchmarks/client), and httpx opens connections only
with a request, so `prepare` can do nothing: the first requests of a cell have a `connect_s`. Stamps
come from httpcore's trace hooks: `t0` just before the request's head is written.
"""

import asyncio
import ssl
import time
from collections.abc import Mapping
from typing import Any

import httpx

from harness.records import RequestError, Timeouts
from harness.run.client import IDLE_REUSE_S, STOPPED, Endpoint, Exchange, overdue


class HttpxTransport:
    """One client, as many connections as requests are in flight."""

    def __init__(self, endpoint: Endpoint, timeouts: Timeouts) -> None:
        scheme = "https" if endpoint.tls else "http"
        self._url = f"{scheme}://{endpoint.authority}{endpoint.path}"
        self._headers = endpoint.head()
        self._timeouts = timeouts
        self._client = httpx.AsyncClient(
            trust_env=False,
            timeout=httpx.Timeout(None, connect=timeouts.connect_s),
            limits=httpx.Limits(max_connections=None, keepalive_expiry=IDLE_REUSE_S),
        )
        self._tasks: dict[Exchange, asyncio.Task[None]] = {}
        self.in_flight_max = 0

    def encode(self, body: bytes) -> bytes:
        return body

    async def prepare(self, count: int) -> None:
        """httpx has no way to open a connection without a request."""

    def start(self, exchange: Exchange) -> bool:
        self._tasks[exchange] = asyncio.get_running_loop().create_task(self._carry(exchange))
        self.in_flight_max = max(self.in_flight_max, len(self._tasks))
        return True

    async def start_anyhow(self, exchange: Exchange) -> None:
        self.start(exchange)

    def give_up_late(self, now_ns: int) -> None:
        for exchange in tuple(self._tasks):
            sent = exchange.t0_ns > 0
            error = overdue(exchange, now_ns, self._timeouts) if sent else None
            if error is not None:
                self._give_up(exchange, error)

    def fail_all(self, error: RequestError) -> None:
        for exchange in tuple(self._tasks):
            self._give_up(exchange, error)

    async def aclose(self) -> None:
        tasks = tuple(self._tasks.values())
        self.fail_all(STOPPED)
        await asyncio.gather(*tasks, return_exceptions=True)
        await self._client.aclose()

    def _give_up(self, exchange: Exchange, error: RequestError) -> None:
        self._tasks.pop(exchange).cancel()
        exchange.finish(error, time.perf_counter_ns())

    async def _carry(self, exchange: Exchange) -> None:
        error = await self._attempt(exchange)
        at_ns = time.perf_counter_ns()
        if error is not None and _closed_while_idle(error, exchange):
            exchange.reconnects = 1
            error = await self._attempt(exchange)
            at_ns = time.perf_counter_ns()
        del self._tasks[exchange]  # before anybody who waits for it sends the next
        exchange.finish(error, at_ns)

    async def _attempt(self, exchange: Exchange) -> RequestError | None:
        try:
            async with self._client.stream(
                "POST",
                self._url,
                content=exchange.request,
                headers=self._headers,
                extensions={"trace": _trace(exchange)},
            ) as response:
                exchange.http_status = response.status_code
                exchange.headers = response.headers
                async for data in response.aiter_raw():
                    exchange.take(time.perf_counter_ns(), data)
        except httpx.HTTPError as error:
            return _request_error(error, exchange)
        return None


def _closed_while_idle(error: RequestError, exchange: Exchange) -> bool:
    """A connection that was open before, and not a byte came back."""
    no_answer = exchange.http_status is None
    return error.kind == "truncated" and no_answer and exchange.connect_s is None


def _trace(exchange: Exchange) -> Any:
    began_ns = 0

    async def note(event: str, _: Mapping[str, Any]) -> None:
        nonlocal began_ns
        now_ns = time.perf_counter_ns()
        if event == "connection.connect_tcp.started":
            began_ns = now_ns
        elif event in ("connection.connect_tcp.complete", "connection.start_tls.complete"):
            exchange.connect_s = (now_ns - began_ns) / 1e9
        elif event == "http11.send_request_headers.started":
            exchange.t0_ns = exchange.last_read_ns = now_ns

    return note


def _request_error(error: httpx.HTTPError, exchange: Exchange) -> RequestError:
    told = str(error) or type(error).__name__
    if isinstance(error, httpx.ConnectError | httpx.ConnectTimeout):
        return RequestError(kind="tls" if _is_tls(error) else "connect", message=told)
    after = f"after {exchange.num_reads} reads" if exchange.num_reads else "without an answer"
    return RequestError(kind="truncated", message=f"{told} {after}")


def _is_tls(error: BaseException | None) -> bool:
    """httpx keeps the first cause at the end of a chain."""
    while error is not None:
        if isinstance(error, ssl.SSLError):
            return True
        error = error.__cause__ or error.__context__
    return False
