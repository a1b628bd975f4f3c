"""Cases B36 to B54, which other tools got wrong: HTTP errors, resets, timeouts, proxies and pools.

Each asserts the Right value and that the Wrong one does not come out, on a real socket, and in the
report where it would show. Policies that a case leaves open: docs/terms.md, "The network".
"""

import json
import re
import time
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import httpx
import pytest

from harness.records import CellEnd, RepetitionEnd, Request, Snapshot, Timeouts
from harness.run.client import Endpoint, Pool
from harness.run.load import Load, run_load
from harness.run.transports import TRANSPORTS
from harness.scripted_server import (
    DONE,
    FakeEngine,
    Law,
    Received,
    Respond,
    Script,
    ScriptedServer,
    in_band_error,
    keep_alive_race,
    refused,
    serving,
)
from tests.harness.cases.end_to_end import (
    FIN,
    READY,
    ROLE,
    C,
    Outcome,
    U,
    measure,
    measure_process,
    prompt_of,
)

FINE = [(0.05, C("a")), (0.1, C("b")), (0.15, FIN("stop") + U(5, 2) + DONE)]
NOISE_S = 1.5
"""How long a shared machine may stop a test."""


async def load_on(
    server: ScriptedServer, shape: Any, num_requests: int, concurrency: int, **options: Any
) -> Load:
    endpoint = Endpoint.of(server.url, "/v1/chat/completions", {})
    transport = TRANSPORTS[options.get("transport", "asyncio")](endpoint, Timeouts())
    try:
        requests = [transport.encode(b"{}")] * num_requests
        return await run_load(shape, requests, transport, concurrency=concurrency)
    finally:
        await transport.aclose()


def held(for_s: float) -> Respond:
    return lambda _: Script(sends=[(for_s, C("a") + FIN("stop") + U(5, 1) + DONE)])


# --- a run on a bad day: B36, B38 without retries, B41 --------------------------------------------


@pytest.fixture(scope="module")
def bad_day(tmp_path_factory) -> Outcome:
    """Every prompt fails in its own way but `fine`, which is asked last."""
    three = [(0.1, C("a")), (0.2, C("b")), (0.3, C("c"))]
    answers = {
        "B36": in_band_error("context too long", at_s=0.1),
        "B38": lambda count: (
            refused(429, "slow down", retry_after_s=2) if count == 0 else Script(sends=FINE)
        ),
        "B41 closed": Script(sends=three, end="truncate"),
        "B41 reset": Script(sends=three, end="reset"),
        "fine": Script(sends=FINE),
    }
    return measure(tmp_path_factory.mktemp("bad_day"), answers)


def times_asked(outcome: Outcome, prompt: str) -> int:
    return sum(prompt_of(request) == prompt for request in outcome.received)


@pytest.mark.parametrize("prompt", ["B36", "B38", "B41 closed", "B41 reset"])
def test_b36_b38_b41_a_failed_request_is_counted_and_in_no_figure(bad_day, prompt):
    assert bad_day.request(prompt).status == "failed"
    for metric in ("decode_rate", "ttft_p50", "wall_p50", "output_tokens_median"):
        assert bad_day.row(metric, kind=prompt)["value"] is None
    assert bad_day.row("failed_share", kind=prompt)["value"] == 1.0
    assert bad_day.row("failed_share")["value"] == 0.8
    (verdict,) = bad_day.verdicts("failed_share")
    assert verdict["level"] == "invalid"
    assert "4 of 5 requests failed" in verdict["message"]
    assert "4 of 5 requests failed" in bad_day.page


def test_b36_an_error_object_in_a_200_stream_is_a_failure_with_its_message(bad_day):
    request = bad_day.request("B36")
    assert request.error is not None
    assert request.error.kind == "in_band"
    assert "context too long" in request.error.message
    assert request.http_status == 200
    assert request.ttft_s is None
    assert request.output_tokens is None  # neither 0 nor what was asked for


def test_b38_without_retries_a_429_is_one_failed_request_and_nothing_else(bad_day):
    request = bad_day.request("B38")
    assert request.error is not None
    assert (request.error.kind, request.error.http_status) == ("http", 429)
    assert "slow down" in request.error.message
    assert (request.attempts, request.throttled) == (1, 1)
    assert request.ttft_s is None
    assert times_asked(bad_day, "B38") == 1


@pytest.mark.parametrize("prompt", ["B41 closed", "B41 reset"])
def test_b41_a_connection_lost_in_mid_stream_fails_one_request_and_is_not_replayed(bad_day, prompt):
    request = bad_day.request(prompt)
    assert request.error is not None
    assert request.error.kind == "truncated"
    assert re.search(r"after [123] reads", request.error.message)
    assert request.ttft_s is not None  # the partial timing is kept
    assert request.ttft_s >= 0.1
    assert request.wall_s is None
    assert request.output_tokens is None  # not 3
    assert times_asked(bad_day, prompt) == 1


def test_b41_even_with_retries_nothing_is_sent_again_once_an_answer_began(tmp_path):
    """It would double the server's counters, and hide the failure."""
    broken = {
        "closed": Script(sends=[(0.05, C("a"))], end="truncate"),
        "reset": Script(sends=[(0.05, C("a"))], end="reset"),
        "in band": in_band_error("out of memory", at_s=0.05),
        "server error": refused(500, "no"),
    }
    workload = "{kind: generate, prompts: cases, repetitions: 1, max_tokens: 64, retries: 3}"
    outcome = measure(tmp_path, broken, workloads=[workload])
    for prompt in broken:
        request = outcome.request(prompt)
        assert request.status == "failed"
        assert (request.attempts, request.throttled, request.reconnects) == (1, 0, 0)
        assert times_asked(outcome, prompt) == 1


def test_b41_the_others_go_on(bad_day):
    assert bad_day.request("fine").status == "ok"
    assert bad_day.request("fine").output_tokens == 2


def test_b38_with_retries_both_attempts_are_told(tmp_path):
    throttled, answered = refused(429, "slow down", retry_after_s=2), Script(sends=LATER)
    answers = {"B38": lambda count: throttled if count == 0 else answered}
    workload = "{kind: generate, prompts: cases, repetitions: 1, max_tokens: 4096, retries: 1}"
    outcome = measure(tmp_path, answers, workloads=[workload])
    request = outcome.request("B38")
    first, second = outcome.received
    assert request.status == "ok"
    assert (request.attempts, request.throttled) == (2, 1)
    assert second.at_ns - first.at_ns >= 2e9  # not before the server's Retry-After
    assert request.ttft_s is not None
    assert request.since_first_attempt_s is not None
    assert 0.3 <= request.ttft_s < 0.3 + NOISE_S  # of the attempt
    assert 2.3 <= request.since_first_attempt_s + request.ttft_s < 2.3 + 2 * NOISE_S  # the user's


LATER = [(0.3, C("a")), (0.4, FIN("stop") + U(5, 1) + DONE)]


# --- B40, B42: engines that come late, or go early ------------------------------------------------

CLOSED = (
    "{{kind: concurrency, load: closed, prompts: cases, levels: [{c}], repetitions: 1, "
    "num_requests: {n}, max_tokens: 16}}"
)


def test_b40_an_engine_that_lists_its_models_while_it_loads_is_waited_for(tmp_path):
    outcome = measure_process(
        tmp_path, ["--loading-s", "3", "--prefill-ms", "100"], CLOSED.format(c=2, n=4)
    )
    (boot,) = outcome.folder.boots()
    (end,) = outcome.folder.read(RepetitionEnd)
    assert boot.ready_s is not None
    assert boot.ready_s > 2.5
    assert [request.status for request in outcome.requests] == ["ok"] * 4
    assert end.window_s < 2.5  # no second of the loading is in it
    for request in outcome.requests:
        assert request.ttft_s is not None
        assert 0.1 <= request.ttft_s < 0.1 + NOISE_S
    assert [end.outcome for end in outcome.folder.read(CellEnd)] == ["finished"]


READINESS = 1
"""The one-token answer that every boot begins with."""


def test_b42_a_server_that_dies_in_mid_run_leaves_an_incomplete_cell_and_no_success(tmp_path):
    deadly = ["--die-after-answers", str(READINESS + 7), "--round-ms", "10"]
    outcome = measure_process(tmp_path, deadly, CLOSED.format(c=2, n=20))
    by_status = [request.status for request in outcome.folder.read(Request)]
    assert (by_status.count("ok"), by_status.count("failed")) == (7, 13)
    kinds = {r.error.kind for r in outcome.folder.read(Request) if r.error}
    assert kinds <= {"connect", "truncated", "cancelled"}
    assert outcome.exit_code == 3
    (end,) = outcome.folder.read(CellEnd)
    assert end.outcome == "unavailable"
    assert "dying as asked" in str(end.message)  # the log's last lines
    assert "died" in outcome.page
    (verdict,) = outcome.verdicts("available")
    assert verdict["level"] in ("warning", "invalid")


def test_b42_a_server_that_answers_nothing_has_no_figure_and_no_zero(tmp_path):
    deadly = ["--die-after-answers", str(READINESS)]
    outcome = measure_process(tmp_path, deadly, CLOSED.format(c=2, n=4))
    assert outcome.exit_code == 3
    figures = ("aggregate_throughput", "ttft_p50", "wall_p50")
    values = [row["value"] for row in outcome.summary["rows"] if row["metric"] in figures]
    assert values
    assert set(values) == {None}  # not 0.0
    (verdict,) = outcome.verdicts("available")
    assert verdict["level"] in ("warning", "invalid")
    for snapshot in outcome.folder.read(Snapshot):
        assert snapshot.counters is None
        assert snapshot.error is not None


# --- B43, B44: silence ----------------------------------------------------------------------------


def test_b43_a_stream_that_falls_silent_fails_alone_and_in_bounded_time(tmp_path):
    silent = Script(sends=[(0.1, C("a")), (0.2, C("b"))], end="stall")
    answers = {"silent": silent, **dict.fromkeys(("x", "y", "z"), Script(sends=FINE))}
    wave = (
        "{kind: concurrency, load: wave, prompts: cases, levels: [4], repetitions: 1, "
        "max_tokens: 16}"
    )
    outcome = measure(tmp_path, answers, workloads=[wave], timeouts=Timeouts(idle_s=1.0))
    request = outcome.request("silent")
    assert request.error is not None
    assert request.error.kind == "stall"
    assert "idle timeout" in request.error.message
    assert request.ttft_s is not None
    assert [outcome.request(prompt).status for prompt in "xyz"] == ["ok"] * 3
    (end,) = outcome.folder.read(RepetitionEnd)
    assert 1.2 <= end.window_s < 1.2 + 2 * NOISE_S
    (verdict,) = outcome.verdicts("failed_share")
    assert "1 of 4 requests failed (stall 1)" in verdict["message"]


def test_b43_an_engine_that_hangs_ends_its_cells_in_bounded_time_with_its_last_words(tmp_path):
    """Wrong: six requests that wait for their time-out each, or for ever."""
    workload = (
        "{kind: generate, prompts: cases, repetitions: 3, max_tokens: 16, "
        "timeouts: {first_event_s: 1}}"
    )
    began_s = time.monotonic()
    outcome = measure_process(
        tmp_path, ["--hang-at-request", str(READINESS + 2), "--round-ms", "1"], workload
    )
    assert time.monotonic() - began_s < 60
    kinds = [request.error and request.error.kind for request in outcome.folder.read(Request)]
    assert kinds == [None, "timeout", "timeout", "cancelled"]  # the third repetition never began
    (end,) = outcome.folder.read(CellEnd)
    assert end.outcome == "unavailable"
    assert "2 requests in a row went unanswered" in str(end.message)
    assert "hanging as asked" in str(end.message)  # the log's last line
    assert "hanging as asked" in outcome.page
    assert outcome.exit_code == 3


def test_b44_a_first_byte_after_6_5_s_is_a_success(tmp_path):
    late = [(6.5, ROLE + C("a")), (6.6, C("b") + FIN("stop") + U(60000, 2) + DONE)]
    request = measure(tmp_path, {"B44": late}).request("B44")
    assert request.status == "ok"
    assert request.ttft_s is not None
    assert 6.5 <= request.ttft_s < 6.5 + NOISE_S
    assert request.prompt_tokens == 60000


def test_b44_the_time_to_a_first_event_is_a_setting_of_its_own(tmp_path):
    late = [(2.0, C("a") + FIN("stop") + U(5, 1) + DONE)]
    patient = measure(
        tmp_path, {"B44": late}, timeouts=Timeouts(connect_s=5, idle_s=0.5, first_event_s=60)
    )
    assert patient.request("B44").status == "ok"


# --- B46, B47: proxies ----------------------------------------------------------------------------

NOWHERE, SOCKS = "http://127.0.0.1:9", "socks5://127.0.0.1:9"


@pytest.mark.parametrize(
    "environment",
    [
        pytest.param({"HTTP_PROXY": NOWHERE, "NO_PROXY": "localhost"}, id="b46_http_proxy"),
        pytest.param({"ALL_PROXY": SOCKS, "NO_PROXY": ""}, id="b46_all_proxy"),
        pytest.param(
            {"HTTP_PROXY": NOWHERE, "NO_PROXY": "::1,127.0.0.0/8,localhost"}, id="b47_cidr"
        ),
        pytest.param({"HTTP_PROXY": NOWHERE, "NO_PROXY": "*"}, id="b47_star"),
    ],
)
async def test_b46_b47_no_proxy_of_the_environment_is_used(monkeypatch, environment):
    _set_proxies(monkeypatch, environment)
    with serving(held(0.0)) as server:
        if environment["NO_PROXY"] != "*":  # a client that heeds it gets nowhere
            with pytest.raises((httpx.HTTPError, ImportError)):
                httpx.post(server.url)
        for transport in TRANSPORTS:
            load = await load_on(server, "single", 1, 1, transport=transport)
            assert [exchange.error for exchange in load.exchanges] == [None]


def test_b46_b47_a_whole_run_uses_no_proxy_of_the_environment(tmp_path, monkeypatch):
    environment = {"HTTP_PROXY": NOWHERE, "ALL_PROXY": SOCKS, "NO_PROXY": "::1,127.0.0.0/8"}
    _set_proxies(monkeypatch, environment)
    outcome = measure(tmp_path, {"fine": FINE})
    assert outcome.request("fine").status == "ok"
    assert outcome.row("failed_share")["value"] == 0


def _set_proxies(monkeypatch: pytest.MonkeyPatch, environment: Mapping[str, str]) -> None:
    for name in ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "NO_PROXY"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.lower(), raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)


# --- B48, B52: connections ------------------------------------------------------------------------


def chat_by(respond: Respond) -> Mapping[str, Respond]:
    return {"/v1/chat/completions": respond}


def test_b48_a_connection_that_closes_unheard_is_replaced_once_and_the_request_is_marked(
    tmp_path, monkeypatch
):
    monkeypatch.setattr("harness.run.client.IDLE_REUSE_S", 60.0)  # however busy the machine is
    seen: list[Received] = []
    race = keep_alive_race(Script(sends=FINE))

    def respond(request: Received) -> Script:
        if prompt_of(request) not in ("one", "two"):
            return READY
        seen.append(request)
        return race(request)

    outcome = measure(tmp_path, {"one": FINE, "two": FINE}, pages=chat_by(respond))
    one, two = outcome.request("one"), outcome.request("two")
    assert (one.status, two.status) == ("ok", "ok")
    assert (one.reconnects, two.reconnects) == (0, 1)
    assert "reconnected" in two.flags
    assert "reconnected" not in one.flags
    assert two.connect_s is not None
    measured = [(request.connection, request.nth) for request in seen]
    assert [nth for _, nth in measured] == [1, 2, 1]  # answered, unheard, answered elsewhere
    assert measured[0][0] == measured[1][0] != measured[2][0]
    (verdict,) = outcome.verdicts("reconnected")
    assert verdict["level"] == "warning"


async def test_b48_after_an_idle_gap_the_connection_is_fresh_before_the_clock_starts(monkeypatch):
    monkeypatch.setattr("harness.run.client.IDLE_REUSE_S", 0.1)

    class Pauses:
        async def before(self, index: int) -> None:
            time.sleep(0.3 * index)

        async def after(self, index: int) -> None:
            pass

    with serving(keep_alive_race(Script(sends=FINE))) as server:
        pool = Pool(Endpoint.of(server.url, "/", {}), Timeouts())
        request = pool.encode(b"{}")
        load = await run_load("single", [request] * 2, pool, concurrency=1, around=Pauses())
        await pool.aclose()
    assert [exchange.error for exchange in load.exchanges] == [None, None]
    assert [exchange.reconnects for exchange in load.exchanges] == [0, 0]
    assert [(request.connection, request.nth) for request in server.received] == [(1, 1), (2, 1)]


async def test_b52_a_slow_accept_is_paid_by_the_first_request_alone():
    answer = Script(sends=[(0.05, C("a") + FIN("stop") + U(5, 1) + DONE)])
    with serving(lambda _: answer, accept_delay_s=3.0) as server:
        load = await load_on(server, "single", 5, 1)
    ttfts_s = [(each.reads[0][0] - each.t0_ns) / 1e9 for each in load.exchanges]
    assert ttfts_s[0] > 2.0
    assert max(ttfts_s[1:]) < 2.0  # 3.05 for all five is the wrong answer
    assert server.num_connections == 1


def test_b52_a_boot_whose_first_measured_request_may_pay_for_it_is_marked(bad_day):
    (verdict,) = bad_day.verdicts("warmed_up")
    assert verdict["level"] == "warning"
    assert "No warm-up request succeeded" in verdict["message"]
    assert {request.connect_s for request in bad_day.requests if request.index == 0} == {None}


# --- B49, B51: as many at once as were asked for --------------------------------------------------


@pytest.mark.parametrize("transport", ["asyncio", "httpx"])
async def test_b49_128_at_once_are_128_at_once(transport):
    with serving(held(3.0)) as server:
        load = await load_on(server, "wave", 128, 128, transport=transport)
    assert server.in_flight_max == 128  # not 100
    assert load.in_flight_max == 128
    assert all(exchange.error is None for exchange in load.exchanges)
    sent_ns = [exchange.t0_ns for exchange in load.exchanges]
    answered_ns = [exchange.reads[0][0] for exchange in load.exchanges]
    assert max(sent_ns) < min(answered_ns)  # no second wave


@pytest.mark.parametrize("concurrency", [1, 2, 4])
async def test_b51_the_most_in_flight_is_the_label(concurrency):
    with serving(held(0.2)) as server:
        load = await load_on(server, "closed", 3 * concurrency, concurrency)
    assert server.in_flight_max == concurrency
    assert load.in_flight_max == concurrency
    assert len(server.received) == 3 * concurrency


def test_b51_the_report_tells_how_full_the_places_were(tmp_path):
    answers = dict.fromkeys(("x", "y"), Script(sends=FINE))
    levels = (
        "{kind: concurrency, load: closed, prompts: cases, levels: [1, 2, 4], repetitions: 1, "
        "num_requests: 12, max_tokens: 16}"
    )
    outcome = measure(tmp_path, answers, workloads=[levels])
    cells = {cell.cell_id: cell.concurrency for cell in outcome.folder.manifest.plan.cells}
    reached = {
        cells[str(end.where.cell_id)]: end.in_flight_max
        for end in outcome.folder.read(RepetitionEnd)
    }
    assert reached == {1: 1, 2: 2, 4: 4}
    for concurrency in (1, 2, 4):
        occupancy = outcome.row("occupancy", concurrency=concurrency)["value"]
        assert 0.3 < occupancy <= 1
    assert {verdict["level"] for verdict in outcome.verdicts("in_flight_is_c")} == {"ok"}


# --- B54: the ghost -------------------------------------------------------------------------------

GHOST_S = 4.0
HAUNTED = {"slow": FINE, "next": FINE}  # in this order; `one_slot` answers them


def one_slot(*, tells: bool) -> Mapping[str, Respond]:
    """An engine with one slot, where the prompt `slow` takes `GHOST_S`, whoever waits for it."""
    engine = FakeEngine(Law(served_name="model", slots=1, prefill_ms=50, num_tokens=3))

    def respond(request: Received) -> Script:
        body = request.json()
        if prompt_of(request) == "slow":
            body["scripted"] = {"prefill_ms": GHOST_S * 1e3}
        return engine.respond(replace(request, body=json.dumps(body).encode()))

    told = {"/health": engine.respond, "/metrics": engine.respond} if tells else {}
    return {**chat_by(respond), **told}


def test_b54_after_a_timeout_the_next_request_waits_until_the_engine_is_quiet(tmp_path):
    outcome = measure(
        tmp_path,
        HAUNTED,
        adapter="dflash2",
        pages=one_slot(tells=True),
        timeouts=Timeouts(first_event_s=0.5),
    )
    slow, following = outcome.request("slow"), outcome.request("next")
    assert slow.error is not None
    assert slow.error.kind == "timeout"
    assert following.status == "ok"
    assert following.ttft_s is not None
    assert following.ttft_s < GHOST_S - 0.5 - NOISE_S / 2  # the ghost is in no statistics
    assert following.t0_ns - slow.t0_ns >= GHOST_S * 1e9
    assert "after_failure" not in following.flags


def test_b54_where_the_engine_cannot_say_that_it_is_quiet_the_next_request_is_marked(tmp_path):
    outcome = measure(
        tmp_path,
        HAUNTED,
        pages=one_slot(tells=False),
        timeouts=Timeouts(first_event_s=GHOST_S - 1.0),
    )
    following = outcome.request("next")
    assert outcome.request("slow").status == "failed"
    assert following.status == "ok"
    assert "after_failure" in following.flags
    (verdict,) = outcome.verdicts("after_failure")
    assert verdict["level"] == "warning"
