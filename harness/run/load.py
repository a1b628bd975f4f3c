"""Send a repetition's requests in the shape that was asked for, and say how well the client kept
up.

* single    one after the other; `around` may look at the engine between them
* wave      all at once: one `t_sched`, written in one turn of the loop
* closed    c in flight until all are done; the next goes out when a place becomes free
* constant, poisson    each at its own moment after the begin, whatever became of those before; at
  most c in flight: what arrives then waits for a place, and its lateness says how long

Knows bytes, not their meaning. The garbage collector rests meanwhile.
"""

import asyncio
import gc
import time
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from itertools import count
from typing import Protocol

from asyncio_throttle.throttler import Throttler

from harness.records import ClientShare, LoadShape, RequestError, Timeouts
from harness.run.client import Endpoint, Exchange, Transport, new_exchange
from harness.run.spool import Spool

TICK_S = 0.05
"""How often late answers are looked for and reads go to the disk; also the measure of the loop's
lag.
"""

RETRY_AFTER_S = 1.0
"""Where a server that turned a request away does not say when to come back."""

LONGEST_RETRY_AFTER_S = 120.0
"""A server that asks for more has said no."""

_TURNED_AWAY = (429, 503)
_SILENT = ("timeout", "stall")


class Around(Protocol):
    """What happens before and after request number `index` of a `single` load, off the clock."""

    async def before(self, index: int) -> None: ...

    async def after(self, index: int) -> None: ...


@dataclass(kw_only=True)
class Patience:
    """How many requests in a row may go unanswered before no more are sent. Lives as long as a
    cell, so that a hung engine ends it in bounded time.
    """

    limit: int
    unanswered: int = 0  # in a row, until now

    @property
    def exhausted(self) -> bool:
        return self.unanswered >= self.limit

    def note(self, exchange: Exchange) -> None:
        silent = exchange.error is not None and exchange.error.kind in _SILENT
        self.unanswered = self.unanswered + 1 if silent else 0

    @classmethod
    def for_concurrency(cls, concurrency: int) -> "Patience":
        """One stuck request is that request's trouble; all that were in flight are the engine's."""
        return cls(limit=max(2, concurrency))


@dataclass(frozen=True, kw_only=True)
class Load:
    """A repetition as the client saw itself. `window_s`: first send to last end."""

    exchanges: tuple[Exchange, ...]
    window_s: float
    in_flight_max: int
    cpu_share: float | None
    loop_lag_max_s: float | None
    clients: tuple[ClientShare, ...] = ()  # where several shared the requests


class Fleet(Protocol):
    """Several clients that share a repetition: `harness.cluster.clients`."""

    async def run_load(
        self,
        shape: LoadShape,
        requests: Sequence[bytes],
        *,
        clients: int,
        endpoint: Endpoint,
        timeouts: Timeouts,
        concurrency: int,
        arrivals_s: Sequence[float],
        retries: int,
        patience: "Patience",
        spool: Spool,
    ) -> Load:
        """As `run_load`, with all moments on this process's clock."""


async def run_load(
    shape: LoadShape,
    requests: Sequence[bytes],
    transport: Transport,
    *,
    concurrency: int,
    arrivals_s: Sequence[float] = (),
    around: Around | None = None,
    retries: int = 0,
    max_rate_per_s: float | None = None,
    patience: Patience | None = None,
    spool: Spool | None = None,
    begin_ns: int | None = None,
) -> Load:
    """`arrivals_s`: of a constant or poisson load, seconds after the begin, one per request.

    begin_ns: when it begins, where that was agreed with other clients; None: at once.

    retries: how often a request is sent again that 429 or 503 turned away, not before the server's
    Retry-After; its clock starts anew, and the first attempt's stands beside it.
    """
    exchanges = tuple(new_exchange(each, n, spool) for n, each in enumerate(requests))
    transport.in_flight_max = 0
    sender = _Sender(
        transport=transport,
        retries=retries,
        throttler=_throttler(max_rate_per_s),
        patience=patience or Patience.for_concurrency(concurrency),
        numbers=count(len(exchanges)),
        begin_ns=begin_ns,
    )
    with _gc_at_rest():
        async with _watched(transport, spool) as watch:
            cpu_s, began_ns = time.process_time(), time.perf_counter_ns()
            if shape == "single":
                await sender.single(exchanges, around)
            elif shape == "wave":
                await sender.wave(exchanges)
            elif shape == "closed":
                await sender.closed(exchanges, concurrency)
            else:
                await sender.open(exchanges, arrivals_s, concurrency)
            cpu_s, took_s = time.process_time() - cpu_s, (time.perf_counter_ns() - began_ns) / 1e9
    first_ns = min(exchange.t0_ns for exchange in exchanges)
    last_ns = max(exchange.end_ns for exchange in exchanges)
    return Load(
        exchanges=exchanges,
        window_s=(last_ns - first_ns) / 1e9,
        in_flight_max=transport.in_flight_max,
        cpu_share=cpu_s / took_s if took_s > 0 else None,
        loop_lag_max_s=watch.lag_max_s,
    )


def _throttler(max_rate_per_s: float | None) -> Throttler | None:
    """One request per period: the even spacing that a limit per second means to a server."""
    if max_rate_per_s is None:
        return None
    return Throttler(rate_limit=1, period=1 / max_rate_per_s)


# --- shapes ---------------------------------------------------------------------------------------


@dataclass(kw_only=True)
class _Sender:
    transport: Transport
    retries: int
    throttler: Throttler | None
    patience: Patience
    numbers: Iterator[int]  # for the reads of further attempts
    begin_ns: int | None

    async def _begun_ns(self) -> int:
        """The moment from which everything is counted, when it has come."""
        if self.begin_ns is None:
            return time.perf_counter_ns()
        await _until(self.begin_ns)
        return self.begin_ns

    async def single(self, exchanges: Sequence[Exchange], around: Around | None) -> None:
        for index, exchange in enumerate(exchanges):
            if self._is_given_up(exchange):
                continue
            if around is not None:
                await around.before(index)
            await self.transport.prepare(1)
            await self._allowed()
            exchange.t_sched_ns = time.perf_counter_ns()
            await self._carry(exchange)
            if around is not None:
                await around.after(index)

    async def wave(self, exchanges: Sequence[Exchange]) -> None:
        await self.transport.prepare(len(exchanges))
        t_sched_ns = await self._begun_ns()
        for exchange in exchanges:
            exchange.t_sched_ns = t_sched_ns
        waiting = [exchange for exchange in exchanges if not self.transport.start(exchange)]
        await asyncio.gather(*(self.transport.start_anyhow(exchange) for exchange in waiting))
        await asyncio.gather(*(self._finished(exchange) for exchange in exchanges))

    async def closed(self, exchanges: Sequence[Exchange], concurrency: int) -> None:
        await self.transport.prepare(min(concurrency, len(exchanges)))
        left, began_ns = iter(exchanges), await self._begun_ns()

        async def place() -> None:
            t_sched_ns = began_ns
            for exchange in left:
                exchange.t_sched_ns = t_sched_ns
                await self._carry(exchange)
                t_sched_ns = exchange.end_ns  # this place has been free since then

        await asyncio.gather(*(place() for _ in range(concurrency)))

    async def open(
        self, exchanges: Sequence[Exchange], arrivals_s: Sequence[float], concurrency: int
    ) -> None:
        """Moments are counted from one begin: a late send moves none of those after it."""
        await self.transport.prepare(min(concurrency, len(exchanges)))
        places, began_ns = asyncio.Semaphore(concurrency), await self._begun_ns()

        async def arrive(exchange: Exchange) -> None:
            async with places:
                await self._allowed()
                await self._carry(exchange)

        async with asyncio.TaskGroup() as arrived:
            for exchange, at_s in zip(exchanges, arrivals_s, strict=True):
                exchange.t_sched_ns = began_ns + round(at_s * 1e9)
                await _until(exchange.t_sched_ns)
                arrived.create_task(arrive(exchange))

    # --- one request ------------------------------------------------------------------------------

    async def _allowed(self) -> None:
        if self.throttler is not None:
            async with self.throttler:
                pass

    async def _carry(self, exchange: Exchange) -> None:
        if not self._is_given_up(exchange):
            await self.transport.start_anyhow(exchange)
            await self._finished(exchange)

    def _is_given_up(self, exchange: Exchange) -> bool:
        """A hung engine is not asked any more, nor are its counters."""
        if self.patience.exhausted:
            exchange.finish(_not_sent(self.patience), time.perf_counter_ns())
        return self.patience.exhausted

    async def _finished(self, exchange: Exchange) -> None:
        await exchange.done
        while exchange.error is None and exchange.http_status in _TURNED_AWAY:
            exchange.throttled += 1
            wait_s = _retry_after_s(exchange)
            if exchange.attempts > self.retries or wait_s > LONGEST_RETRY_AFTER_S:
                break
            await _until(exchange.end_ns + round(wait_s * 1e9))
            exchange.begin_again(next(self.numbers))
            await self.transport.start_anyhow(exchange)
            await exchange.done
        self.patience.note(exchange)


async def _until(due_ns: int) -> None:
    """Never early: a loop's timers may fire up to a millisecond before their time."""
    while (left_ns := due_ns - time.perf_counter_ns()) > 0:
        await asyncio.sleep(left_ns / 1e9)


def _not_sent(patience: Patience) -> RequestError:
    message = f"not sent: the {patience.unanswered} requests before it went unanswered"
    return RequestError(kind="cancelled", message=message)


def _retry_after_s(exchange: Exchange) -> float:
    """Seconds or a date, as RFC 9110 has it; counted from the end of the answer that said so."""
    written = exchange.headers.get("retry-after", "")
    if written.isdecimal():
        return float(written)
    try:
        until = parsedate_to_datetime(written)
    except ValueError:
        return RETRY_AFTER_S
    return max(0.0, (until - datetime.now(UTC)).total_seconds())


# --- watching -------------------------------------------------------------------------------------


@dataclass(kw_only=True)
class _Watch:
    lag_max_s: float | None = None


@asynccontextmanager
async def _watched(transport: Transport, spool: Spool | None) -> AsyncIterator[_Watch]:
    """Fail requests that wait too long, let reads go, and note by how much this loop was late."""
    watch = _Watch()

    async def tick() -> None:
        while True:
            due_ns = time.perf_counter_ns() + int(TICK_S * 1e9)
            await asyncio.sleep(TICK_S)
            now_ns = time.perf_counter_ns()
            watch.lag_max_s = max(watch.lag_max_s or 0.0, (now_ns - due_ns) / 1e9)
            transport.give_up_late(now_ns)
            if spool is not None:
                spool.hand_over()

    ticking = asyncio.create_task(tick())
    try:
        yield watch
    finally:
        ticking.cancel()
        await asyncio.wait([ticking])


@contextmanager
def _gc_at_rest() -> Iterator[None]:
    """A collection in mid-repetition would stop the loop for milliseconds."""
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()
