"""The load shapes, as the server saw them."""

import asyncio
import gc
import time
from itertools import pairwise

import pytest

from harness.records import Timeouts
from harness.run.client import Endpoint, Pool
from harness.run.load import Patience, run_load
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
        await pool.aclose()
    assert server.in_flight_max == 1
    assert [received.body for received in server.received] == [b"0", b"1", b"2"]
    expected = [f"{moment} {i}" for i in range(3) for moment in ("before", "after")]
    assert noted.seen == expected
    assert load.in_flight_max == 1


@pytest.mark.parametrize("concurrency", [1, 2, 4, 128, 1024])
async def test_b49_a_wave_is_c_requests_at_once(concurrency):
    with serving(held) as server:
        pool = pool_for(server)
        requests = [pool.endpoint.encode(b"{}")] * concurrency
        load = await run_load("wave", requests, pool, concurrency=concurrency)
        await pool.aclose()
    assert server.in_flight_max == concurrency
    assert load.in_flight_max == concurrency
    assert len({exchange.t_sched_ns for exchange in load.exchanges}) == 1
    assert all(exchange.t0_ns >= exchange.t_sched_ns for exchange in load.exchanges)
    assert all(exchange.connect_s is None for exchange in load.exchanges)


@pytest.mark.parametrize("concurrency", [1, 2, 4])
async def test_b51_closed_keeps_c_in_flight_until_all_are_done(concurrency):
    with serving(held) as server:
        pool = pool_for(server)
        requests = [pool.endpoint.encode(b"{}")] * (3 * concurrency)
        load = await run_load("closed", requests, pool, concurrency=concurrency)
        await pool.aclose()
    assert server.in_flight_max == concurrency
    assert server.num_connections == concurrency
    assert len(server.received) == 3 * concurrency
    assert load.in_flight_max == concurrency
    assert load.window_s == pytest.approx(0.3, abs=0.15)


async def test_b51_a_thousand_places_are_all_in_use():
    with serving(held) as server:
        pool = pool_for(server)
        requests = [pool.endpoint.encode(b"{}")] * 2048
        load = await run_load("closed", requests, pool, concurrency=1024)
        await pool.aclose()
    assert server.in_flight_max == load.in_flight_max == 1024
    assert server.num_connections == 1024
    assert len(server.received) == 2048
    assert all(exchange.error is None for exchange in load.exchanges)


async def test_closed_with_fewer_requests_than_places():
    with serving(held) as server:
        pool = pool_for(server)
        load = await run_load("closed", [pool.endpoint.encode(b"{}")], pool, concurrency=4)
        await pool.aclose()
    assert load.in_flight_max == 1


async def test_a_server_that_is_gone_fails_every_request_and_nothing_hangs():
    pool = Pool(Endpoint.of("http://127.0.0.1:9", "/", {}), Timeouts())
    for shape in ("single", "wave", "closed"):
        load = await run_load(shape, [b"x"] * 3, pool, concurrency=2)
        kinds = [exchange.error.kind for exchange in load.exchanges if exchange.error]
        assert kinds == ["connect"] * 3


async def test_b43_one_stuck_request_does_not_hold_the_others():
    def respond(received: Received) -> Script:
        stuck = received.body == b"0"
        return (
            Script(sends=[(0, chunk({"content": "a"}))], end="stall") if stuck else held(received)
        )

    with serving(respond) as server:
        pool = Pool(Endpoint.of(server.url, "/", {}), Timeouts(idle_s=0.3))
        requests = [pool.endpoint.encode(b"%d" % i) for i in range(4)]
        load = await run_load("wave", requests, pool, concurrency=4)
        await pool.aclose()
    errors = [exchange.error and exchange.error.kind for exchange in load.exchanges]
    assert errors == ["stall", None, None, None]


async def test_the_client_tells_how_busy_it_was_and_collects_no_garbage_meanwhile():
    collecting: list[bool] = []

    class Looks(Noted):
        async def before(self, index: int) -> None:
            collecting.append(gc.isenabled())

    with serving(held) as server:
        pool = pool_for(server)
        request = pool.endpoint.encode(b"{}")
        load = await run_load("single", [request], pool, concurrency=1, around=Looks())
        await pool.aclose()
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
        await pool.aclose()
    assert gc.isenabled()


# --- arrivals -------------------------------------------------------------------------------------


async def test_arrivals_come_at_their_moments_whatever_became_of_those_before():
    """Each answer takes 0.1 s, and another request arrives every 0.04 s."""
    arrivals_s = [0.04 * i for i in range(6)]
    with serving(held) as server:
        pool = pool_for(server)
        requests = [pool.encode(b"%d" % i) for i in range(6)]
        load = await run_load("constant", requests, pool, concurrency=6, arrivals_s=arrivals_s)
        await pool.aclose()
    begin_ns = load.exchanges[0].t_sched_ns
    wanted = [(exchange.t_sched_ns - begin_ns) / 1e9 for exchange in load.exchanges]
    assert wanted == pytest.approx(arrivals_s)
    assert all(exchange.t0_ns >= exchange.t_sched_ns for exchange in load.exchanges)
    assert load.in_flight_max > 1
    assert server.num_connections <= 6
    assert load.window_s == pytest.approx(0.3, abs=0.2)


async def test_an_arrival_that_finds_c_in_flight_waits_and_its_lateness_says_how_long():
    with serving(held) as server:
        pool = pool_for(server)
        requests = [pool.encode(b"{}")] * 3
        load = await run_load("poisson", requests, pool, concurrency=1, arrivals_s=[0, 0.01, 0.02])
        await pool.aclose()
    assert server.in_flight_max == 1
    assert load.in_flight_max == 1
    late_s = [(each.t0_ns - each.t_sched_ns) / 1e9 for each in load.exchanges]
    assert late_s[1] > 0.08  # the first answer took 0.1 s
    assert late_s[2] > 0.16
    for before, after in pairwise(load.exchanges):
        assert after.t0_ns >= before.end_ns


async def test_a_limit_of_somebody_elses_server_spaces_requests_evenly():
    with serving(lambda _: Script(sends=[(0, DONE)])) as server:
        pool = pool_for(server)
        requests = [pool.encode(b"{}")] * 3
        load = await run_load("single", requests, pool, concurrency=1, max_rate_per_s=5)
        await pool.aclose()
    for before, after in pairwise(load.exchanges):
        assert (after.t0_ns - before.t0_ns) / 1e9 > 0.19
    # the wait stands before the request's moment, it is no lateness of the client
    assert all(each.t0_ns - each.t_sched_ns < 0.15e9 for each in load.exchanges)


# --- requests that are turned away ----------------------------------------------------------------


def busy_at_first(times: int, retry_after: str | None = "1", status: int = 429):
    """Turns requests away before it answers one."""
    left = [times]

    def respond(_: Received) -> Script:
        if not left[0]:
            return Script(sends=[(0, chunk({"content": "a"}, "stop") + DONE)])
        left[0] -= 1
        headers = {} if retry_after is None else {"Retry-After": retry_after}
        return Script(sends=[(0, b'{"error": "slow down"}')], status=status, headers=headers)

    return respond


async def test_b38_without_retries_a_request_is_sent_once_and_the_answer_is_the_result():
    with serving(busy_at_first(1)) as server:
        pool = pool_for(server)
        load = await run_load("single", [pool.encode(b"{}")], pool, concurrency=1)
        await pool.aclose()
    (exchange,) = load.exchanges
    assert (exchange.http_status, exchange.attempts, exchange.throttled) == (429, 1, 1)
    assert len(server.received) == 1


@pytest.mark.parametrize("status", [429, 503])
@pytest.mark.parametrize("shape", ["single", "wave", "closed", "constant"])
async def test_b38_with_retries_it_is_sent_again_not_before_retry_after(shape, status):
    with serving(busy_at_first(1, status=status)) as server:
        pool = pool_for(server)
        requests = [pool.encode(b"{}")]
        load = await run_load(shape, requests, pool, concurrency=1, retries=1, arrivals_s=[0.0])
        await pool.aclose()
    (exchange,) = load.exchanges
    assert (exchange.http_status, exchange.attempts, exchange.throttled) == (200, 2, 1)
    assert exchange.first_t0_ns is not None
    assert exchange.t0_ns - exchange.first_t0_ns >= 1e9
    first, second = server.received
    assert second.at_ns - first.at_ns >= 1e9
    assert b"".join(data for _, data in exchange.reads).startswith(b"data:")  # not the first body


async def test_no_more_attempts_than_asked_and_none_when_the_server_wants_too_long_a_wait():
    for respond, retries, attempts in (
        (busy_at_first(9, retry_after="0"), 2, 3),
        (busy_at_first(9, retry_after="3600"), 2, 1),
        (busy_at_first(9, retry_after="Wed, 21 Oct 2015 07:28:00 GMT"), 1, 2),
    ):
        with serving(respond) as server:
            pool = pool_for(server)
            requests = [pool.encode(b"{}")]
            load = await run_load("single", requests, pool, concurrency=1, retries=retries)
            await pool.aclose()
        (exchange,) = load.exchanges
        assert (exchange.http_status, exchange.attempts) == (429, attempts)
        assert exchange.throttled == len(server.received) == attempts


# --- engines that answer nothing any more ---------------------------------------------------------


async def test_after_some_unanswered_requests_in_a_row_no_more_are_sent():
    patience = Patience.for_concurrency(1)
    with serving(lambda _: Script(sends=[], end="stall")) as server:
        pool = Pool(Endpoint.of(server.url, "/", {}), Timeouts(first_event_s=0.2))
        requests = [pool.encode(b"{}")] * 4
        began_s = time.monotonic()
        load = await run_load("single", requests, pool, concurrency=1, patience=patience)
        took_s = time.monotonic() - began_s
        await pool.aclose()
    assert [exchange.error.kind for exchange in load.exchanges] == [
        "timeout",
        "timeout",
        "cancelled",
        "cancelled",
    ]
    assert len(server.received) == 2
    assert patience.exhausted
    assert took_s < 3


async def test_an_answer_between_restores_patience():
    def respond(received: Received) -> Script:
        return held(received) if received.body == b"1" else Script(sends=[], end="stall")

    patience = Patience.for_concurrency(1)
    with serving(respond) as server:
        pool = Pool(Endpoint.of(server.url, "/", {}), Timeouts(first_event_s=0.4))
        requests = [pool.encode(b"%d" % i) for i in range(3)]
        load = await run_load("single", requests, pool, concurrency=1, patience=patience)
        await pool.aclose()
    kinds = [exchange.error and exchange.error.kind for exchange in load.exchanges]
    assert kinds == ["timeout", None, "timeout"]
    assert not patience.exhausted
