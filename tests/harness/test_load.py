"""The load shapes, as the server saw them."""

import asyncio
import gc

import pytest

from harness.run.client import Endpoint, Pool, Timeouts
from harness.run.load import run_load
from harness.scripted_server import DONE, Received, Script, ScriptedServer, chunk, serving


def held(_: Received) -> Script:
    return Script(sends=[(0.1, chunk({"content": "a"}) + DONE)])


def pool_for(server: ScriptedServer) -> Pool:
    return Pool(Endpoint.of(server.url, "/", {}), Timeouts())


class Noted:
    """Keeps what happened around each request."""

    def __init__(self) -> None:
        self.seen: list[str] = []

    async def before(self, index: int) -> None:
        self.seen.append(f"before {index}")

    async def after(self, index: int) -> None:
        self.seen.append(f"after {index}")


async def test_single_sends_one_after_the_other_with_a_look_around_each():
    noted = Noted()
    with serving(held) as server:
        pool = pool_for(server)
        requests = [pool.endpoint.encode(b"%d" % i) for i in range(3)]
        load = await run_load("single", requests, pool, concurrency=1, around=noted)
        pool.abort()
    assert server.in_flight_max == 1
    assert [received.body for received in server.received] == [b"0", b"1", b"2"]
    expected = [f"{moment} {i}" for i in range(3) for moment in ("before", "after")]
    assert noted.seen == expected
    assert load.in_flight_max == 1


@pytest.mark.parametrize("concurrency", [1, 2, 4, 128])
async def test_a_wave_is_c_requests_at_once(concurrency):
    with serving(held) as server:
        pool = pool_for(server)
        requests = [pool.endpoint.encode(b"{}")] * concurrency
        load = await run_load("wave", requests, pool, concurrency=concurrency)
        pool.abort()
    assert server.in_flight_max == concurrency
    assert load.in_flight_max == concurrency
    assert len({exchange.t_sched_ns for exchange in load.exchanges}) == 1
    assert all(exchange.t0_ns >= exchange.t_sched_ns for exchange in load.exchanges)
    assert all(exchange.connect_s is None for exchange in load.exchanges)


@pytest.mark.parametrize("concurrency", [1, 2, 4])
async def test_closed_keeps_c_in_flight_until_all_are_done(concurrency):
    with serving(held) as server:
        pool = pool_for(server)
        requests = [pool.endpoint.encode(b"{}")] * (3 * concurrency)
        load = await run_load("closed", requests, pool, concurrency=concurrency)
        pool.abort()
    assert server.in_flight_max == concurrency
    assert server.num_connections == concurrency
    assert len(server.received) == 3 * concurrency
    assert load.in_flight_max == concurrency
    assert load.window_s == pytest.approx(0.3, abs=0.15)


async def test_closed_with_fewer_requests_than_places():
    with serving(held) as server:
        pool = pool_for(server)
        load = await run_load("closed", [pool.endpoint.encode(b"{}")], pool, concurrency=4)
        pool.abort()
    assert load.in_flight_max == 1


async def test_a_server_that_is_gone_fails_every_request_and_nothing_hangs():
    pool = Pool(Endpoint.of("http://127.0.0.1:9", "/", {}), Timeouts())
    for shape in ("single", "wave", "closed"):
        load = await run_load(shape, [b"x"] * 3, pool, concurrency=2)
        kinds = [exchange.error.kind for exchange in load.exchanges if exchange.error]
        assert kinds == ["connect"] * 3


async def test_one_stuck_request_does_not_hold_the_others():
    def respond(received: Received) -> Script:
        stuck = received.body == b"0"
        return (
            Script(sends=[(0, chunk({"content": "a"}))], end="stall") if stuck else held(received)
        )

    with serving(respond) as server:
        pool = Pool(Endpoint.of(server.url, "/", {}), Timeouts(idle_s=0.3))
        requests = [pool.endpoint.encode(b"%d" % i) for i in range(4)]
        load = await run_load("wave", requests, pool, concurrency=4)
        pool.abort()
    errors = [exchange.error and exchange.error.kind for exchange in load.exchanges]
    assert errors == ["timeout", None, None, None]


async def test_the_client_tells_how_busy_it_was_and_collects_no_garbage_meanwhile():
    collecting: list[bool] = []

    class Looks(Noted):
        async def before(self, index: int) -> None:
            collecting.append(gc.isenabled())

    with serving(held) as server:
        pool = pool_for(server)
        request = pool.endpoint.encode(b"{}")
        load = await run_load("single", [request], pool, concurrency=1, around=Looks())
        pool.abort()
    assert collecting == [False]
    assert gc.isenabled()
    assert load.cpu_share is not None
    assert load.cpu_share < 1
    assert load.loop_lag_max_s is not None


@pytest.mark.parametrize("shape", ["single", "wave", "closed"])
async def test_a_stop_in_mid_flight_is_only_a_stop(shape):
    with serving(held) as server:
        pool = pool_for(server)
        requests = [pool.endpoint.encode(b"{}")] * 2
        sending = asyncio.create_task(run_load(shape, requests, pool, concurrency=2))
        while not server.in_flight:
            await asyncio.sleep(0.01)
        sending.cancel()
        with pytest.raises(asyncio.CancelledError):
            await sending
        pool.abort()
    assert gc.isenabled()
