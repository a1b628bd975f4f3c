"""How a server stops: open answers finish, late ones fail, and a second signal ends them now."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor

import httpx
import pytest

from engines.dflash2.decode import Round
from engines.dflash2.tokenizer import Tokenizer

from .support import Running, prefill, running, scripted_engine, step, wait_until

BODY = {"prompt": "x", "max_tokens": 2, "stream": True}


class HeldScript:
    """Rounds of two tokens; the second one comes when the test says so."""

    def __init__(self) -> None:
        self.gate = threading.Event()

    def __call__(self) -> Iterator[Round]:
        yield prefill(40)
        assert self.gate.wait(timeout=30)
        yield step([41], finish_reason="length")


@pytest.fixture
def held() -> Iterator[HeldScript]:
    script = HeldScript()
    yield script
    script.gate.set()


@pytest.fixture
def pool() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(max_workers=4) as pool:
        yield pool


def ask(server: Running) -> list[dict]:
    response = httpx.post(f"{server.url}/v1/completions", json=BODY, timeout=30, trust_env=False)
    *events, done = response.text.strip().split("\n\n")
    assert done == "data: [DONE]"
    return [json.loads(event.removeprefix("data: ")) for event in events]


def started(server: Running, pool: ThreadPoolExecutor) -> Future[list[dict]]:
    """An answer of which one token has come."""

    def num_tokens() -> str:
        return httpx.get(f"{server.url}/metrics", trust_env=False).text

    future = pool.submit(ask, server)
    wait_until(lambda: 'dflash2:generation_tokens_total{model_name="tiny"} 1' in num_tokens())
    return future


def test_after_a_signal_a_running_answer_finishes_and_nobody_new_is_let_in(
    tokenizer: Tokenizer, held: HeldScript, pool: ThreadPoolExecutor
) -> None:
    with running(scripted_engine(tokenizer, held), stop_timeout_s=30) as server:
        answer = started(server, pool)
        server.signal()
        wait_until(lambda: is_refused(server))
        assert server.thread.is_alive()
        held.gate.set()
        events = answer.result(timeout=10)
        server.thread.join(timeout=10)  # long before the 30 s are over
        assert not server.thread.is_alive()
    assert events[-1]["choices"][0]["finish_reason"] == "length"


def test_an_answer_that_is_late_fails_with_an_error_that_says_so(
    tokenizer: Tokenizer, held: HeldScript, pool: ThreadPoolExecutor
) -> None:
    with running(scripted_engine(tokenizer, held), stop_timeout_s=0.2) as server:
        answer = started(server, pool)
        server.signal()
        assert answer.result(timeout=10)[-1]["error"]["code"] == "shutting_down"
        held.gate.set()


def test_a_second_signal_ends_a_running_answer_long_before_its_time_is_over(
    tokenizer: Tokenizer, held: HeldScript, pool: ThreadPoolExecutor
) -> None:
    with running(scripted_engine(tokenizer, held), stop_timeout_s=3600) as server:
        answer = started(server, pool)
        server.signal()
        server.signal()
        assert answer.result(timeout=10)[-1]["error"]["code"] == "shutting_down"
        held.gate.set()


def is_refused(server: Running) -> bool:
    """Whether the door is shut. Who came just before may still be sent away without an answer."""
    url = httpx.URL(server.url)
    try:
        socket.create_connection((url.host, url.port), timeout=10).close()
    except ConnectionRefusedError:
        return True
    return False
