"""A long prompt is read in chunks: the others decode meanwhile, and its client may hang up."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import pytest
import torch

from engines.dflash2.engine import Engine, load_engine
from engines.dflash2.scheduler import Job, Scheduler

from .support import (
    Pair,
    Turnstile,
    assert_tokens_add_up,
    complete,
    connect,
    counters,
    in_this_process,
    send,
    wait_until,
)

CHUNK, NUM_CHUNKS, KV_LEN = 16, 25, 480
LONG_PROMPT = [(7 * position) % 256 + 4 for position in range(CHUNK * NUM_CHUNKS)]
SHORT = [
    {"prompt": f"The quick brown {name}", "temperature": 0, "max_tokens": 80, "ignore_eos": True}
    for name in ("fox", "dog")
]


@pytest.fixture
def engine(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> Engine:
    monkeypatch.setattr("engines.dflash2.decode.PREFILL_CHUNK_TOKENS", CHUNK)
    return load_engine(
        pair.target,
        pair.drafter,
        dtype=torch.float32,
        kv_len=KV_LEN,
        max_concurrent_requests=4,
    )


@pytest.fixture
def turnstile(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> Turnstile:
    turnstile = Turnstile(engine)
    monkeypatch.setattr(engine, "step", turnstile)
    return turnstile


@pytest.fixture
def heard(monkeypatch: pytest.MonkeyPatch) -> Iterator[threading.Event]:
    """Set when the server has noticed that a client left, which may be a moment after it did."""
    heard, cancel = threading.Event(), Scheduler.cancel

    def cancel_and_tell(scheduler: Scheduler, job: Job) -> None:
        cancel(scheduler, job)
        heard.set()

    monkeypatch.setattr(Scheduler, "cancel", cancel_and_tell)
    return heard


def health(client: httpx.Client) -> dict[str, Any]:
    return client.get("/health").json()


@pytest.mark.parametrize("place", ["read", "waiting to be read"])
def test_a_long_prompt_stalls_nobody_and_its_slot_is_free_one_step_after_its_client_left(
    engine: Engine, turnstile: Turnstile, heard: threading.Event, place: str
) -> None:
    with (
        in_this_process(engine) as client,
        ThreadPoolExecutor(max_workers=2) as pool,
        connect(client) as long,
        connect(client) as behind,
    ):
        answers = [pool.submit(complete, client, **body) for body in SHORT]
        wait_until(lambda: health(client)["running"] + health(client)["waiting"] == 2)
        while counters(client)["requests_total"] < 2:
            turnstile.let_pass(1)
        for connection in (long, behind):
            send(connection, prompt=LONG_PROMPT, max_tokens=40, stream=True)
        wait_until(lambda: health(client)["waiting"] == 2)
        turnstile.let_pass(1)
        assert health(client)["running"] == 4

        before = counters(client)
        turnstile.let_pass(10)
        after = counters(client)
        assert after["spec_decode_num_drafts_total"] == (
            before["spec_decode_num_drafts_total"] + 5 * 2  # both, in every other step
        )
        assert after["requests_total"] == 2  # five chunks of twenty-five have been read

        hang_up(long if place == "read" else behind, heard)
        turnstile.let_pass(1)
        assert health(client)["running"] == 3
        hang_up(behind if place == "read" else long, heard)
        turnstile.let_pass(1)
        assert health(client)["running"] == 2

        turnstile.open()
        together = [answer.result(timeout=30) for answer in answers]
        wait_until(lambda: health(client)["quiet"])
        page = counters(client)
        alone = [complete(client, **body) for body in SHORT]
    assert page['request_success_total{finished_reason="abort"}'] == 2
    assert page["requests_total"] == 2
    assert page["kv_used_tokens"] == 0
    assert page["generation_tokens_total"] == 160
    assert_tokens_add_up(page)
    assert [answer["choices"] for answer in together] == [answer["choices"] for answer in alone]


def hang_up(connection: socket.socket, heard: threading.Event) -> None:
    heard.clear()
    connection.close()
    assert heard.wait(timeout=10)
