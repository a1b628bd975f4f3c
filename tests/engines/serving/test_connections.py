"""Connections: who hangs up frees the engine, who reads slowly delays nobody."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import httpx
import pytest

from engines.dflash2.decode import Round
from engines.dflash2.tokenizer import Tokenizer

from .support import (
    HEAD,
    GatedScript,
    complete,
    connect,
    counters,
    prefill,
    scripted,
    send,
    step,
    stream,
    text_of,
    wait_until,
)


def aborts(client: httpx.Client) -> float:
    return counters(client)['request_success_total{finished_reason="abort"}']


@pytest.mark.parametrize("streamed", [True, False])
def test_a_client_that_hangs_up_frees_the_engine(tokenizer: Tokenizer, streamed: bool) -> None:
    script = GatedScript()
    with scripted(tokenizer, script) as client:
        with connect(client) as connection:
            send(connection, max_tokens=200, stream=streamed)
            wait_until(lambda: counters(client)["generation_tokens_total"] == 1)
            health = client.get("/health").json()
            assert (health["running"], health["quiet"]) == (1, False)
        script.let_go_until(lambda: client.get("/health").json()["quiet"])
        assert aborts(client) == 1
        assert counters(client)["generation_tokens_total"] < 200


@pytest.mark.parametrize("streamed", [True, False])
def test_a_client_that_hangs_up_in_the_queue_leaves_it_at_once(
    tokenizer: Tokenizer, streamed: bool
) -> None:
    script = GatedScript()

    def waiting() -> int:
        return client.get("/health").json()["waiting"]

    with scripted(tokenizer, script) as client, connect(client) as running:
        send(running, max_tokens=200, stream=True)
        wait_until(lambda: counters(client)["generation_tokens_total"] == 1)
        with connect(client) as queued:
            send(queued, max_tokens=200, stream=streamed)
            wait_until(lambda: waiting() == 1)
        wait_until(lambda: waiting() == 0)  # while the running one is held between two rounds
        assert aborts(client) == 1
        assert counters(client)["requests_total"] == 1
        running.close()
        script.let_go_until(lambda: client.get("/health").json()["quiet"])


def test_a_client_that_hangs_up_while_it_sends_leaves_no_trace(
    tokenizer: Tokenizer, capfd: pytest.CaptureFixture[str]
) -> None:
    with scripted(tokenizer, lambda: iter(())) as client:
        with connect(client) as connection:
            connection.sendall(HEAD + b"Content-Length: 100\r\n\r\n{")
        assert client.get("/health").json()["quiet"]
    assert capfd.readouterr().err == ""


def test_a_client_that_does_not_read_delays_nobody(tokenizer: Tokenizer) -> None:
    # Events of some 50 kB each, far more than all buffers between the two hold.
    long_text = tokenizer.encode("The quick brown fox") * 1000

    def long() -> Iterator[Round]:
        yield prefill(40)
        for _ in range(100):
            yield step(long_text)
        yield step([41], finish_reason="length")

    with (
        scripted(tokenizer, long) as client,
        connect(client, receive_buffer=4096) as slow,
    ):
        send(slow, stream=True, return_token_ids=True, max_tokens=200)
        wait_until(lambda: client.get("/health").json()["quiet"])  # decoded, although unread
        assert complete(client, prompt="x", max_tokens=200)["choices"][0]["finish_reason"]
        slow.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 20)
        received = bytearray()
        while b"data: [DONE]" not in received[-100:]:
            received += slow.recv(1 << 20)
        assert received.count(b'"finish_reason":null') == 1 + 100 + 1


def test_events_are_sent_as_the_rounds_end_and_not_at_the_end(tokenizer: Tokenizer) -> None:
    gate = threading.Event()

    def script() -> Iterator[Round]:
        yield prefill(40)
        assert gate.wait(timeout=10)
        yield step([41], finish_reason="length")

    body = {"prompt": "x", "max_tokens": 2, "stream": True}
    with (
        scripted(tokenizer, script) as client,
        client.stream("POST", "/v1/completions", json=body) as response,
    ):
        lines = response.iter_lines()
        assert next(lines).startswith("data: {")  # while the second round is still held
        gate.set()
        assert list(lines)[-2:] == ["data: [DONE]", ""]


def test_one_connection_serves_one_request_after_another(tokenizer: Tokenizer) -> None:
    script = [prefill(40, "length")]
    with scripted(tokenizer, lambda: iter(script)) as client, connect(client) as connection:
        for streamed in (False, True, False):
            send(connection, max_tokens=1, stream=streamed)
            end = b"0\r\n\r\n" if streamed else b"}"
            received = connection.recv(65536)
            while not received.endswith(end):
                received += connection.recv(65536)
            assert received.startswith(b"HTTP/1.1 200 OK\r\n")
            assert b"connection: close" not in received


def test_requests_sent_before_their_turn_are_answered_in_order(tokenizer: Tokenizer) -> None:
    script = [prefill(40, "length")]
    with scripted(tokenizer, lambda: iter(script)) as client, connect(client) as connection:
        first = b"GET /v1/models HTTP/1.1\r\nHost: x\r\n\r\n"
        connection.sendall(first + b"GET /nowhere HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
        received = b""
        while part := connection.recv(65536):
            received += part
    assert received.index(b"HTTP/1.1 200 OK") < received.index(b"HTTP/1.1 404 Not Found")


@pytest.mark.parametrize("path", ["/health", "/metrics", "/v1/models", "/openapi.json"])
def test_head_is_get_without_a_body(tokenizer: Tokenizer, path: str) -> None:
    with scripted(tokenizer, lambda: iter(())) as client:
        head, get = client.head(path), client.get(path)
    assert (head.status_code, head.content) == (200, b"")
    assert head.headers["content-type"] == get.headers["content-type"]


def test_other_methods_are_told_which_ones_there_are(tokenizer: Tokenizer) -> None:
    with scripted(tokenizer, lambda: iter(())) as client:
        options = client.options("/v1/completions", headers={"Origin": "http://elsewhere"})
        trace = client.request("TRACE", "/health")
    assert (options.status_code, options.headers["allow"]) == (405, "POST")
    assert (trace.status_code, {*trace.headers["allow"].split(", ")}) == (405, {"GET", "HEAD"})
    # Pages of other sites may not read what is answered here, and are not told that they might.
    assert not any(name.startswith("access-control-") for name in options.headers)


def test_a_slash_too_many_is_not_redirected(tokenizer: Tokenizer) -> None:
    with scripted(tokenizer, lambda: iter(())) as client:
        assert client.get("/health/").status_code == 404


def test_many_connections_at_once_are_all_served(tokenizer: Tokenizer) -> None:
    script = [prefill(40), step([41], finish_reason="length")]
    with scripted(tokenizer, lambda: iter(script)) as client:
        answers: list[list[dict]] = []
        threads = [
            threading.Thread(target=lambda: answers.append(stream(client, prompt="x")))
            for _ in range(32)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(timeout=30)
    assert [len(answer) for answer in answers] == [3] * 32


def test_a_full_queue_is_a_503_before_any_byte_of_an_answer(tokenizer: Tokenizer) -> None:
    script = GatedScript()
    with scripted(tokenizer, script, max_waiting=1) as client, connect(client) as running:
        send(running, max_tokens=200, stream=True)
        wait_until(lambda: counters(client)["generation_tokens_total"] == 1)
        with connect(client) as queued:
            send(queued, max_tokens=200)
            wait_until(lambda: client.get("/health").json()["waiting"] == 1)
            for streamed in (True, False):
                body = {"prompt": "x", "max_tokens": 2, "stream": streamed}
                response = client.post("/v1/completions", json=body)
                assert response.status_code == 503
                assert response.headers["retry-after"] == "1"
                error = response.json()["error"]
                assert (error["type"], error["code"]) == ("server_error", "queue_full")
            assert client.post("/tokenize", json={"prompt": "x"}).status_code == 200
        running.close()
        script.let_go_until(lambda: client.get("/health").json()["quiet"])


def test_sixteen_streams_at_once_are_each_what_they_are_alone(client: httpx.Client) -> None:
    def answer(number: int) -> tuple[str, dict]:
        *_, end = parts = stream(
            client,
            prompt=f"The quick brown fox number {number}",
            max_tokens=60,
            temperature=number % 2,  # every other one is sampled
            seed=number,
            stream_options={"include_usage": True},
        )
        return text_of(parts), end

    before = counters(client)
    with ThreadPoolExecutor(max_workers=16) as pool:
        together = list(pool.map(answer, range(16)))
    after = counters(client)
    assert [end["usage"]["completion_tokens"] for _, end in together] == [
        end["timings"]["predicted_n"] for _, end in together
    ]
    for series, field in {
        "generation_tokens_total": "predicted_n",
        "spec_decode_num_drafts_total": "rounds",
        "spec_decode_num_accepted_tokens_total": "accepted",
        "spec_decode_num_tested_tokens_total": "tested",
        "trimmed_tokens_total": "trimmed",
    }.items():
        assert after[series] - before[series] == sum(end["timings"][field] for _, end in together)
    assert after["kv_used_tokens"] == 0
    assert [text for text, _ in together] == [answer(number)[0] for number in range(16)]
