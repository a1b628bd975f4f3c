"""A pass that fails in the middle, with real rounds: all its requests hear of it, none is left."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import pytest
import torch

from engines.dflash2 import batch
from engines.dflash2.engine import Engine, load_engine

from .support import (
    KV_LEN,
    Pair,
    Turnstile,
    assert_tokens_add_up,
    complete,
    counters,
    in_this_process,
    wait_until,
)

GOOD, BAD = [7, 8], [5, 6]  # prompts


@pytest.fixture
def engine(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> Engine:
    read_chunk = batch.read_chunk

    def without_memory_for_some(work: Any, sequence: Any, slot: int) -> Any:
        if list(sequence.prompt_ids) == BAD:
            raise MemoryError("no memory for this pass")
        return read_chunk(work, sequence, slot)

    monkeypatch.setattr(batch, "read_chunk", without_memory_for_some)
    return load_engine(
        pair.target,
        pair.drafter,
        dtype=torch.float32,
        kv_len=KV_LEN,
        max_concurrent_requests=4,
    )


def test_a_failure_behind_a_request_that_had_just_ended_fails_it_too_and_the_next_is_served(
    engine: Engine, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    turnstile = Turnstile(engine)
    monkeypatch.setattr(engine, "step", turnstile)
    with in_this_process(engine) as client, ThreadPoolExecutor(max_workers=3) as pool:

        def ask(prompt: list[int], max_tokens: int) -> httpx.Response:
            body = {"prompt": prompt, "max_tokens": max_tokens, "ignore_eos": True}
            return client.post("/v1/completions", json=body)

        def wait_for_waiting(number: int) -> None:
            wait_until(lambda: client.get("/health").json()["waiting"] == number)

        answers = [pool.submit(ask, GOOD, 100)]
        turnstile.let_pass(1)
        # Both prompts are read in one pass: the first one's answer ends there, unheard.
        for number, (prompt, max_tokens) in enumerate([(GOOD, 1), (BAD, 9)], start=1):
            answers.append(pool.submit(ask, prompt, max_tokens))
            wait_for_waiting(number)
        turnstile.open()
        responses = [response.result(timeout=30) for response in answers]
        assert [response.status_code for response in responses] == [500, 500, 500]
        assert {response.json()["error"]["message"] for response in responses} == {
            "internal error: MemoryError: no memory for this pass"
        }
        assert complete(client, prompt=GOOD, max_tokens=9)["usage"]["completion_tokens"] == 9
        page = counters(client)
    assert page['request_success_total{finished_reason="error"}'] == 3
    assert page["kv_used_tokens"] == 0
    assert_tokens_add_up(page)
    assert capfd.readouterr().err.count("Traceback") == 1
