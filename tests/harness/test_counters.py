"""Snapshots are taken when the engine is quiet, and say so when it is not or cannot tell."""

import json
from collections.abc import Iterator
from itertools import repeat

import httpx
import pytest

from harness.adapters import ADAPTERS, Adapter
from harness.records import Snapshot, Where
from harness.run import counters
from harness.run.counters import CounterReader

WHERE = Where(run_id="r", session_id="s1")


def reader(answers: dict[str, Iterator[str]], adapter: Adapter, **options) -> CounterReader:
    """Each page gives its next text; a page that is not there is a 404."""

    def answer(request: httpx.Request) -> httpx.Response:
        if request.url.path not in answers:
            return httpx.Response(404)
        return httpx.Response(200, text=next(answers[request.url.path]))

    http = httpx.AsyncClient(base_url="http://engine", transport=httpx.MockTransport(answer))
    return CounterReader(http, adapter, **options)


async def snapshot(of: CounterReader) -> Snapshot:
    return await of.snapshot(WHERE, "request", "before")


def health(*quiet: bool) -> Iterator[str]:
    return (json.dumps({"quiet": value}) for value in quiet)


def drafts(*counts: int) -> Iterator[str]:
    return (f"dflash2:spec_decode_num_drafts_total {count}\n" for count in counts)


async def test_it_waits_until_the_engine_is_quiet():
    pages = {"/health": health(False, False, True), "/metrics": drafts(5)}
    taken = await snapshot(reader(pages, ADAPTERS["dflash2"]))
    assert taken.quiet is True
    assert taken.counters is not None
    assert taken.counters.drafts == 5
    assert taken.error is None


async def test_an_engine_that_never_rests_is_read_all_the_same_and_told():
    pages = {"/health": health(*[False] * 99), "/metrics": drafts(5)}
    taken = await snapshot(reader(pages, ADAPTERS["dflash2"], patience_s=0.1))
    assert taken.quiet is False
    assert taken.settle_s >= 0.1
    assert taken.counters is not None


async def test_where_nobody_can_tell_two_equal_scrapes_must_do(monkeypatch):
    monkeypatch.setattr(counters, "EQUAL_SCRAPES_APART_S", 0.01)
    # asked for quiet (4), then scraped until equal (4, 7, 7), then the reading itself
    pages = {"/metrics": drafts(4, 4, 7, 7, 7)}
    taken = await snapshot(reader(pages, ADAPTERS["openai"]))
    assert taken.quiet is None
    assert taken.counters is not None
    assert taken.counters.drafts == 7


async def test_counters_that_never_stand_still_are_not_quiet(monkeypatch):
    monkeypatch.setattr(counters, "EQUAL_SCRAPES_APART_S", 0.01)
    pages = {"/metrics": drafts(*range(999))}
    taken = await snapshot(reader(pages, ADAPTERS["openai"], patience_s=0.1))
    assert taken.quiet is False
    assert taken.counters is not None


async def test_an_engine_without_metrics_is_no_failure_of_the_run():
    taken = await snapshot(reader({}, ADAPTERS["openai"]))
    assert taken.counters is None
    assert taken.error == "/metrics cannot be read: HTTP 404"


async def test_an_engine_that_is_gone_is_told_at_once():
    http = httpx.AsyncClient(base_url="http://127.0.0.1:9", trust_env=False)
    taken = await snapshot(CounterReader(http, ADAPTERS["dflash2"]))
    await http.aclose()
    assert taken.counters is None
    assert taken.error is not None
    assert taken.settle_s < 5


async def test_the_whole_page_is_kept():
    pages = {"/health": health(True), "/metrics": drafts(5)}
    of = reader(pages, ADAPTERS["dflash2"])
    await snapshot(of)
    assert of.last_page == "dflash2:spec_decode_num_drafts_total 5\n"


async def test_polls_are_throttled(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(counters, "POLLS_PER_S", 5)
    pages = {"/health": health(*[False] * 999), "/metrics": drafts(5)}
    of = reader(pages, ADAPTERS["dflash2"], patience_s=0.5)
    await snapshot(of)
    left = sum(1 for _ in pages["/health"])
    assert 999 - left <= 6


async def test_the_pages_of_several_workers_are_summed():
    def answer(request: httpx.Request) -> httpx.Response:
        idle = "vllm:num_requests_running 0\nvllm:num_requests_waiting 0\n"
        count = {"one": 60, "two": 40}[request.url.host]
        return httpx.Response(200, text=f"vllm:spec_decode_num_drafts_total {count}\n{idle}")

    http = httpx.AsyncClient(base_url="http://router", transport=httpx.MockTransport(answer))
    urls = ("http://one/metrics", "http://two/metrics")
    taken = await snapshot(CounterReader(http, ADAPTERS["vllm"], metrics_urls=urls))
    assert taken.quiet is True
    assert taken.counters is not None
    assert taken.counters.drafts == 100


async def test_a_worker_that_cannot_be_read_is_named():
    http = httpx.AsyncClient(
        base_url="http://router", transport=httpx.MockTransport(lambda _: httpx.Response(500))
    )
    taken = await snapshot(CounterReader(http, ADAPTERS["vllm"], metrics_urls=("http://one/m",)))
    assert taken.error == "http://one/m cannot be read: HTTP 500"


async def test_a_page_without_series_of_the_engine_is_told():
    taken = await snapshot(reader({"/metrics": repeat("router_total 1\n")}, ADAPTERS["vllm"]))
    assert taken.counters is None
    assert taken.error == "no series of vllm at /metrics"


async def test_a_server_without_slots_must_stand_still(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(counters, "EQUAL_SCRAPES_APART_S", 0.01)
    pages = {"/metrics": repeat("llamacpp:tokens_predicted_total 7\n")}
    taken = await snapshot(reader(pages, ADAPTERS["llamacpp"]))
    assert taken.quiet is None
    assert taken.counters is not None


async def test_an_unknown_server_that_says_idle_must_stand_still_too(
    monkeypatch: pytest.MonkeyPatch,
):
    monkeypatch.setattr(counters, "EQUAL_SCRAPES_APART_S", 0.01)
    idle = "x:num_requests_running 0\nx:num_requests_waiting 0\n"
    # asked for quiet (1), scraped until equal (1, 4, 4), then the reading itself
    numbers = (f"x:spec_decode_num_drafts_total {n}\n{idle}" for n in (1, 1, 4, 4, 4))
    taken = await snapshot(reader({"/metrics": numbers}, ADAPTERS["openai"]))
    assert taken.quiet is True
    assert taken.counters is not None
    assert taken.counters.drafts == 4
