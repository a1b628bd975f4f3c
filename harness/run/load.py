"""Send a repetition's requests in the shape that was asked for, and say how well the client kept
up.

* single  one after the other; `around` may look at the engine between them
* wave    all at once: one `t_sched`, written in one turn of the loop
* closed  c in flight until all are done; the next goes out when a place becomes free

Knows bytes, not their meaning. The garbage collector rests meanwhile.
"""

import asyncio
import gc
import time
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from typing import Protocol

from harness.records import LoadShape
from harness.run.client import Exchange, Pool, new_exchange

TICK_S = 0.05
"""How often late answers are looked for; also the measure of the loop's lag."""


class Around(Protocol):
    """What happens before and after request number `index` of a `single` load, off the clock."""

    async def before(self, index: int) -> None: ...

    async def after(self, index: int) -> None: ...


@dataclass(frozen=True, kw_only=True)
class Load:
    """A repetition as the client saw itself. `window_s`: first send to last end."""

    exchanges: tuple[Exchange, ...]
    window_s: float
    in_flight_max: int
    cpu_share: float | None
    loop_lag_max_s: float | None


async def run_load(
    shape: LoadShape,
    requests: Sequence[bytes],
    pool: Pool,
    *,
    concurrency: int,
    around: Around | None = None,
) -> Load:
    exchanges = tuple(new_exchange(request) for request in requests)
    pool.in_flight_max = 0
    with _gc_at_rest():
        async with _watched(pool) as watch:
            cpu_s, began_ns = time.process_time(), time.perf_counter_ns()
            if shape == "single":
                await _single(exchanges, pool, around)
            elif shape == "wave":
                await _wave(exchanges, pool)
            else:
                await _closed(exchanges, pool, concurrency)
            cpu_s, took_s = time.process_time() - cpu_s, (time.perf_counter_ns() - began_ns) / 1e9
    first_ns = min(exchange.t0_ns for exchange in exchanges)
    last_ns = max(exchange.end_ns for exchange in exchanges)
    return Load(
        exchanges=exchanges,
        window_s=(last_ns - first_ns) / 1e9,
        in_flight_max=pool.in_flight_max,
        cpu_share=cpu_s / took_s if took_s > 0 else None,
        loop_lag_max_s=watch.lag_max_s,
    )


async def _single(exchanges: Sequence[Exchange], pool: Pool, around: Around | None) -> None:
    for index, exchange in enumerate(exchanges):
        if around is not None:
            await around.before(index)
        await pool.prepare(1)
        exchange.t_sched_ns = time.perf_counter_ns()
        await pool.start_anyhow(exchange)
        await exchange.done
        if around is not None:
            await around.after(index)


async def _wave(exchanges: Sequence[Exchange], pool: Pool) -> None:
    await pool.prepare(len(exchanges))
    t_sched_ns = time.perf_counter_ns()
    for exchange in exchanges:
        exchange.t_sched_ns = t_sched_ns
    waiting = [exchange for exchange in exchanges if not pool.start(exchange)]
    await asyncio.gather(*(pool.start_anyhow(exchange) for exchange in waiting))
    await asyncio.gather(*(exchange.done for exchange in exchanges))


async def _closed(exchanges: Sequence[Exchange], pool: Pool, concurrency: int) -> None:
    await pool.prepare(min(concurrency, len(exchanges)))
    left, began_ns = iter(exchanges), time.perf_counter_ns()

    async def place() -> None:
        t_sched_ns = began_ns
        for exchange in left:
            exchange.t_sched_ns = t_sched_ns
            await pool.start_anyhow(exchange)
            await exchange.done
            t_sched_ns = exchange.end_ns  # this place has been free since then

    await asyncio.gather(*(place() for _ in range(concurrency)))


@dataclass(kw_only=True)
class _Watch:
    lag_max_s: float | None = None


@asynccontextmanager
async def _watched(pool: Pool) -> AsyncIterator[_Watch]:
    """Fail requests that wait too long, and note by how much this loop itself was late."""
    watch = _Watch()

    async def tick() -> None:
        while True:
            due_ns = time.perf_counter_ns() + int(TICK_S * 1e9)
            await asyncio.sleep(TICK_S)
            now_ns = time.perf_counter_ns()
            watch.lag_max_s = max(watch.lag_max_s or 0.0, (now_ns - due_ns) / 1e9)
            pool.give_up_late(now_ns)

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
