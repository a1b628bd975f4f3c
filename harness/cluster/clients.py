"""Several clients that share the requests of one repetition: Ray actors, one process each.

Each measures with the ordinary client on its own clock and begins at one agreed moment. How its
clock reads against ours is found before and after, from the shortest of many round trips, and every
moment is translated; half that round trip is the most by which it can be wrong. Latencies are
differences on one clock, so none of this touches them.
"""

import asyncio
import gc
import time
from collections.abc import Awaitable, Coroutine, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from threading import Thread
from typing import Any, TypeVar

import ray
from ray.exceptions import RayError
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from harness.errors import HarnessError
from harness.records import ClientShare, LoadShape, RequestError, Timeouts, TransportName
from harness.run.client import Endpoint, Exchange, new_exchange
from harness.run.load import Load, Patience, run_load
from harness.run.loops import loop_factory
from harness.run.spool import Spool
from harness.run.transports import TRANSPORTS

T = TypeVar("T")

PINGS = 25
MARGIN_S = 0.5
"""Between the last client that is ready and the begin: a message has to reach them all."""


class ClientLostError(HarnessError):
    exit_code = 3


# --- on the node of a client ----------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Share:
    """What one client sends. `numbers`: of its requests among all of the repetition."""

    shape: LoadShape
    numbers: tuple[int, ...]
    requests: tuple[bytes, ...]
    arrivals_s: tuple[float, ...]
    concurrency: int
    retries: int


@dataclass(frozen=True, kw_only=True)
class Carried:
    """An exchange as it crosses the network, on the clock of its client."""

    number: int
    t_sched_ns: int
    t0_ns: int
    end_ns: int
    first_t0_ns: int | None
    connect_s: float | None
    reconnects: int
    attempts: int
    throttled: int
    http_status: int | None
    headers: dict[str, str]
    reads: tuple[tuple[int, bytes], ...]
    error: RequestError | None


@dataclass(frozen=True, kw_only=True)
class Done:
    exchanges: tuple[Carried, ...]
    cpu_share: float | None
    loop_lag_max_s: float | None


class Client:
    """The actor. Its loop runs in a thread of its own, so that connections outlive a call."""

    def __init__(
        self, endpoint: Endpoint, timeouts: Timeouts, transport_name: TransportName
    ) -> None:
        factory = loop_factory() or asyncio.new_event_loop
        self._loop = factory()
        Thread(target=self._loop.run_forever, name="client", daemon=True).start()
        self._transport = self._do(_made(transport_name, endpoint, timeouts))
        gc.freeze()  # what Ray made lives on: no collection before a begin looks at it again

    def now_ns(self) -> int:
        return time.perf_counter_ns()

    def node(self) -> str:
        return str(ray.util.get_node_ip_address())  # type: ignore[no-untyped-call]

    def prepare(self, count: int) -> None:
        """Connections for `count` requests at once."""
        self._do(self._transport.prepare(count))

    def run(self, share: Share, begin_ns: int) -> Done:
        """`begin_ns`: on this client's clock."""
        return self._do(self._run(share, begin_ns))

    async def _run(self, share: Share, begin_ns: int) -> Done:
        load = await run_load(
            share.shape,
            share.requests,
            self._transport,
            concurrency=share.concurrency,
            arrivals_s=share.arrivals_s,
            retries=share.retries,
            begin_ns=begin_ns,
        )
        carried = zip(share.numbers, load.exchanges, strict=True)
        return Done(
            exchanges=tuple(_carried(number, exchange) for number, exchange in carried),
            cpu_share=load.cpu_share,
            loop_lag_max_s=load.loop_lag_max_s,
        )

    def _do(self, work: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result()


async def _made(name: TransportName, endpoint: Endpoint, timeouts: Timeouts) -> Any:
    return TRANSPORTS[name](endpoint, timeouts)


def _carried(number: int, exchange: Exchange) -> Carried:
    return Carried(
        number=number,
        t_sched_ns=exchange.t_sched_ns,
        t0_ns=exchange.t0_ns,
        end_ns=exchange.end_ns,
        first_t0_ns=exchange.first_t0_ns,
        connect_s=exchange.connect_s,
        reconnects=exchange.reconnects,
        attempts=exchange.attempts,
        throttled=exchange.throttled,
        http_status=exchange.http_status,
        headers=dict(exchange.headers),
        reads=tuple(exchange.reads),
        error=exchange.error,
    )


# --- on ours --------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Clock:
    """Another process's clock read at our moment 0, and by how much that may be wrong."""

    offset_ns: int
    bound_ns: int

    def ours(self, theirs_ns: int) -> int:
        return theirs_ns - self.offset_ns

    def theirs(self, ours_ns: int) -> int:
        return ours_ns + self.offset_ns


@dataclass(kw_only=True)
class RayFleet:
    """The clients of one server at a time, as many as were asked for so far.

    near: the node whose engine listens on loopback, for an engine that we start; None: a server
    that all nodes reach, and clients are spread over them.
    """

    transport_name: TransportName
    near: str | None
    _asked: tuple[Endpoint, Timeouts] | None = None
    _actors: list[Any] = field(default_factory=list)

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
        patience: Patience,
        spool: Spool,
    ) -> Load:
        shares = shares_of(shape, requests, clients, concurrency, arrivals_s, retries)
        try:
            done, clocks, told = await self._carry(self._ready(clients, endpoint, timeouts), shares)
        except RayError as error:
            self.close()  # the others' requests are worth nothing without its share
            raise ClientLostError(
                f"one of {clients} clients was lost ({str(error).splitlines()[0]}), and with it "
                "the repetition; `dflashbench resume --on ray` measures it again"
            ) from error
        exchanges = _merged(done, clocks, spool)
        for exchange in sorted(exchanges, key=lambda each: each.end_ns):
            patience.note(exchange)
        return _load(exchanges, told)

    async def _carry(
        self, actors: Sequence[Any], shares: Sequence[Share]
    ) -> tuple[list[Done], list[Clock], tuple[ClientShare, ...]]:
        """One begin for all, as soon as the last one is ready."""
        await _all(a.prepare.remote(s.concurrency) for a, s in zip(actors, shares, strict=True))
        before = [await read_clock(actor) for actor in actors]
        begin_ns = time.perf_counter_ns() + round(MARGIN_S * 1e9)
        done: list[Done] = await _all(
            actor.run.remote(share, clock.theirs(begin_ns))
            for actor, share, clock in zip(actors, shares, before, strict=True)
        )
        after = [await read_clock(actor) for actor in actors]
        clocks = [_between(*each) for each in zip(before, after, strict=True)]
        names = await _all(actor.node.remote() for actor in actors)
        told = (
            _told(f"client {n}", *each)
            for n, each in enumerate(zip(names, shares, clocks, done, strict=True), start=1)
        )
        return done, clocks, tuple(told)

    def _ready(self, count: int, endpoint: Endpoint, timeouts: Timeouts) -> list[Any]:
        if self._asked != (endpoint, timeouts):
            self.close()
            self._asked = (endpoint, timeouts)
        while len(self._actors) < count:
            made = ray.remote(Client).options(num_cpus=0, scheduling_strategy=self._where())
            self._actors.append(made.remote(endpoint, timeouts, self.transport_name))
        return self._actors[:count]

    def _where(self) -> NodeAffinitySchedulingStrategy | str:
        if self.near is None:
            return "SPREAD"
        return NodeAffinitySchedulingStrategy(self.near, soft=False)

    def close(self) -> None:
        for actor in self._actors:
            ray.kill(actor)
        self._actors.clear()


def shares_of(
    shape: LoadShape,
    requests: Sequence[bytes],
    clients: int,
    concurrency: int,
    arrivals_s: Sequence[float],
    retries: int,
) -> list[Share]:
    """Requests dealt out in turn, and c in equal shares: none twice, none left out."""
    places = [concurrency // clients + (n < concurrency % clients) for n in range(clients)]
    return [
        Share(
            shape=shape,
            numbers=tuple(range(n, len(requests), clients)),
            requests=tuple(requests[n::clients]),
            arrivals_s=tuple(arrivals_s[n::clients]),
            concurrency=places[n],
            retries=retries,
        )
        for n in range(clients)
    ]


async def read_clock(actor: Any) -> Clock:
    """From the shortest of `PINGS` round trips: the answer was made somewhere between its ends."""
    trips = []
    for _ in range(PINGS):
        sent_ns = time.perf_counter_ns()
        theirs_ns = await actor.now_ns.remote()
        trips.append((time.perf_counter_ns() - sent_ns, sent_ns, theirs_ns))
    took_ns, sent_ns, theirs_ns = min(trips)
    return Clock(offset_ns=theirs_ns - (sent_ns + took_ns // 2), bound_ns=(took_ns + 1) // 2)


def _between(before: Clock, after: Clock) -> Clock:
    """The middle, and what drift added to the bound."""
    apart_ns = abs(after.offset_ns - before.offset_ns)
    return Clock(
        offset_ns=(before.offset_ns + after.offset_ns) // 2,
        bound_ns=max(before.bound_ns, after.bound_ns) + apart_ns // 2,
    )


async def _all(answers: Any) -> list[Any]:
    return list(await asyncio.gather(*(_answered(each) for each in answers)))


async def _answered(reference: Awaitable[T]) -> T:
    return await reference


def _merged(done: Sequence[Done], clocks: Sequence[Clock], spool: Spool) -> tuple[Exchange, ...]:
    """In the order of the repetition, on our clock; their reads go to the spool."""
    exchanges = [
        _on_our_clock(carried, clock, spool)
        for each, clock in zip(done, clocks, strict=True)
        for carried in each.exchanges
    ]
    return tuple(sorted(exchanges, key=lambda exchange: exchange.number))


def _on_our_clock(carried: Carried, clock: Clock, spool: Spool) -> Exchange:
    exchange = new_exchange(b"", carried.number, spool)
    exchange.t_sched_ns = clock.ours(carried.t_sched_ns)
    exchange.t0_ns = clock.ours(carried.t0_ns)
    exchange.first_t0_ns = None if carried.first_t0_ns is None else clock.ours(carried.first_t0_ns)
    exchange.connect_s, exchange.reconnects = carried.connect_s, carried.reconnects
    exchange.attempts, exchange.throttled = carried.attempts, carried.throttled
    exchange.http_status, exchange.headers = carried.http_status, carried.headers
    for at_ns, data in carried.reads:
        spool.append(carried.number, clock.ours(at_ns), data)
    exchange.finish(carried.error, clock.ours(carried.end_ns))
    return exchange


def _told(client: str, node: str, share: Share, clock: Clock, done: Done) -> ClientShare:
    return ClientShare(
        client=client,
        node=node,
        num_requests=len(share.numbers),
        concurrency=share.concurrency,
        cpu_share=done.cpu_share,
        loop_lag_max_s=done.loop_lag_max_s,
        clock_offset_s=clock.offset_ns / 1e9,
        clock_bound_s=clock.bound_ns / 1e9,
    )


def _load(exchanges: tuple[Exchange, ...], clients: tuple[ClientShare, ...]) -> Load:
    """What judges a client judges the busiest and the latest of them."""
    first_ns = min(exchange.t0_ns for exchange in exchanges)
    last_ns = max(exchange.end_ns for exchange in exchanges)
    return Load(
        exchanges=exchanges,
        window_s=(last_ns - first_ns) / 1e9,
        in_flight_max=_most_at_once([(each.t0_ns, each.end_ns) for each in exchanges]),
        cpu_share=max((c.cpu_share for c in clients if c.cpu_share is not None), default=None),
        loop_lag_max_s=max(
            (c.loop_lag_max_s for c in clients if c.loop_lag_max_s is not None), default=None
        ),
        clients=clients,
    )


def _most_at_once(spans: Sequence[tuple[int, int]]) -> int:
    """Of half-open spans: one that ends at a moment makes room for one that begins then."""
    steps = sorted([(begin, 1) for begin, _ in spans] + [(end, -1) for _, end in spans])
    return max(accumulate(step for _, step in steps))
