"""Requests leave nothing behind, however they end: no object, no slot, no memory."""

from __future__ import annotations

import gc
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import psutil
import pytest
import torch

from engines.dflash2 import batch
from engines.dflash2.engine import load_engine

from .support import (
    KV_LEN,
    Pair,
    assert_tokens_add_up,
    complete,
    connect,
    counters,
    in_this_process,
    send,
    serving,
    stream,
    wait_until,
)

PROMPT = "The quick brown fox"
BROKEN = 5  # a prompt at which a pass fails
ROUNDS = 12
MEBIBYTE = 1024 * 1024


def ask_in_every_way(client: httpx.Client, number: int) -> None:
    """Eight requests: answers to their ends, refusals, and clients that leave."""
    complete(client, prompt=PROMPT, max_tokens=12, temperature=0, stop=["e", "wir"])
    complete(client, messages=[{"role": "user", "content": str(number)}], max_tokens=8)
    stream(client, prompt=f"{number}", max_tokens=12, seed=number, return_token_ids=True)
    assert client.post("/v1/completions", json={"prompt": PROMPT, "n": 2}).status_code == 400
    assert client.post("/v1/completions", content=b"{").status_code == 415
    assert client.get("/nowhere").status_code == 404
    for streamed in (True, False):
        with connect(client) as connection:
            send(connection, prompt=PROMPT * 8, max_tokens=60, stream=streamed)


def is_quiet(client: httpx.Client) -> bool:
    return client.get("/health").json()["quiet"]


def living() -> Counter[str]:
    gc.collect()
    return Counter([str(type(each)) for each in gc.get_objects()])


def grown_since(before: Counter[str]) -> dict[str, int]:
    """Types of which there is at least one object more for each round."""
    return {name: count for name, count in (living() - before).items() if count >= ROUNDS}


def test_no_object_outlives_its_request(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    read_chunk = batch.read_chunk

    def fail_at_some(work: Any, sequence: Any, slot: int) -> Any:
        if sequence.prompt_ids[0] == BROKEN:
            raise MemoryError("no memory for this pass")
        return read_chunk(work, sequence, slot)

    monkeypatch.setattr(batch, "read_chunk", fail_at_some)
    engine = load_engine(pair.target, pair.drafter, dtype=torch.float32, kv_len=KV_LEN)

    def ask(number: int) -> None:
        ask_in_every_way(client, number)
        failed = client.post("/v1/completions", json={"prompt": [BROKEN], "max_tokens": 9})
        assert failed.status_code == 500
        wait_until(lambda: is_quiet(client))

    with in_this_process(engine) as client:
        for number in range(2):
            ask(number)
        before = living()
        for number in range(ROUNDS):
            ask(number)
        # Connections of clients that left may need a moment to be closed.
        wait_until(lambda: not grown_since(before))


@pytest.mark.parametrize(
    ("num_rounds", "max_growth_bytes"),
    [
        pytest.param(100, 2 * MEBIBYTE, marks=pytest.mark.slow),
        pytest.param(1250, 4 * MEBIBYTE, marks=pytest.mark.nightly),  # 10,000 requests
    ],
)
def test_memory_after_many_requests_is_that_after_a_few(
    pair: Pair, num_rounds: int, max_growth_bytes: int
) -> None:
    options = ["--dflash2", "on", "--dflash2-model", str(pair.drafter), "--kv-len", str(KV_LEN)]
    with (
        serving(pair, *options) as served,
        httpx.Client(base_url=served.url, timeout=60, trust_env=False) as client,
        ThreadPoolExecutor(max_workers=4) as pool,
    ):
        process = psutil.Process(served.process.pid)

        def memory_after(num_rounds: int) -> int:
            for _ in pool.map(lambda number: ask_in_every_way(client, number), range(num_rounds)):
                pass
            wait_until(lambda: is_quiet(client))
            return process.memory_info().rss

        few = memory_after(50)
        many = memory_after(num_rounds)
        assert_tokens_add_up(page := counters(client))
        assert page["kv_used_tokens"] == 0
        assert page['request_success_total{finished_reason="abort"}'] > 0
    assert many - few < max_growth_bytes
