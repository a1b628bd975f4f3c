"""HTTP framing against h11, and the client against a server with a timetable."""

import asyncio
import time

import h11
import pytest

from harness import scripted_server
from harness.run.client import Connection, Endpoint, Exchange, Pool, Timeouts, new_exchange
from harness.run.http1 import FramingError, Response
from harness.scripted_server import DONE, Script, chunk, serving

# --- framing --------------------------------------------------------------------------------------

HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n"
CHUNKED = HEAD + b"Transfer-Encoding: chunked\r\n\r\n"
RESPONSES = {
    "chunks": CHUNKED + b"5\r\nhello\r\n6;ext=1\r\n world\r\n0\r\n\r\n",
    "a chunk that looks like an end": CHUNKED + b"9\r\n\r\n0\r\n\r\n\r\n\r\n0\r\n\r\n",
    "trailers": CHUNKED + b"2\r\nab\r\n0\r\nX-Sum: 1\r\n\r\n",
    "a length": HEAD + b"content-length: 4\r\n\r\nabcd",
    "no body": HEAD + b"Content-Length: 0\r\n\r\n",
    "an interim answer": b"HTTP/1.1 100 Continue\r\n\r\n" + CHUNKED + b"1\r\nx\r\n0\r\n\r\n",
}


def by_h11(response: bytes) -> tuple[int, bytes]:
    connection = h11.Connection(our_role=h11.CLIENT)
    connection.send(h11.Request(method="POST", target="/", headers=[("Host", "h")]))
    connection.send(h11.EndOfMessage())
    connection.receive_data(response)
    status, body = 0, b""
    while not isinstance(event := connection.next_event(), h11.EndOfMessage):
        assert event is not h11.NEED_DATA
        if isinstance(event, h11.Response):
            status = event.status_code
        if isinstance(event, h11.Data):
            body += bytes(event.data)
    return status, body


@pytest.mark.parametrize("name", RESPONSES)
def test_every_cut_gives_what_h11_gives(name):
    data = RESPONSES[name]
    expected = by_h11(data)
    for cut in range(len(data) + 1):
        response = Response()
        body = response.feed(data[:cut]) + response.feed(data[cut:])
        assert (response.status, body) == expected
        assert response.complete
        assert response.keeps_connection


def test_a_response_is_complete_only_with_its_last_byte():
    response = Response()
    response.feed(RESPONSES["chunks"][:-1])
    assert not response.complete
    assert not response.end()


def test_a_body_without_length_ends_with_the_connection():
    response = Response()
    assert response.feed(HEAD + b"\r\nabc") == b"abc"
    assert not response.complete
    assert response.end()
    assert not response.keeps_connection


def test_connection_close_is_not_used_again():
    response = Response()
    response.feed(HEAD + b"Connection: Close\r\nContent-Length: 0\r\n\r\n")
    assert not response.keeps_connection


@pytest.mark.parametrize(
    "data", [b"SSH-2.0-x\r\n\r\n", CHUNKED + b"zz\r\n", CHUNKED + b"1\r\nabc\r\n"]
)
def test_bytes_that_are_no_response_are_refused(data):
    with pytest.raises(FramingError):
        Response().feed(data)


# --- requests -------------------------------------------------------------------------------------


def text(content: str) -> bytes:
    return chunk({"content": content})


def pool_for(server: scripted_server.ScriptedServer, **timeouts: float) -> Pool:
    endpoint = Endpoint.of(server.url, "/v1/chat/completions", {"X-Test": "1"})
    return Pool(endpoint, Timeouts(**timeouts))


async def ask(pool: Pool) -> Exchange:
    exchange = new_exchange(pool.endpoint.encode(b"{}"))
    await pool.start_anyhow(exchange)
    await exchange.done
    return exchange


async def test_reads_are_stamped_when_they_come():
    script = Script(sends=[(0.05, text("a")), (0.15, text("b") + DONE)])
    with serving(lambda _: script) as server:
        pool = pool_for(server)
        await pool.prepare(1)
        exchange = await ask(pool)
        pool.abort()
        sent_ns = server.sent_ns[0]
    assert exchange.error is None
    assert exchange.connect_s is None  # it was open before
    assert b"".join(data for _, data in exchange.reads) == text("a") + text("b") + DONE
    for (seen_ns, _), was_ns in zip(exchange.reads, sent_ns, strict=True):
        assert 0 <= seen_ns - was_ns < 30e6


async def test_the_request_asks_for_an_uncompressed_stream_and_names_its_host():
    with serving(lambda _: Script(sends=[(0, DONE)])) as server:
        pool = pool_for(server)
        await ask(pool)
        pool.abort()
    (received,) = server.received
    assert received.headers["accept-encoding"] == "identity"
    assert received.headers["host"] == server.url.removeprefix("http://")
    assert received.headers["x-test"] == "1"
    assert received.body == b"{}"


async def test_proxies_of_the_environment_are_not_used(monkeypatch):
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:9")
    monkeypatch.setenv("ALL_PROXY", "socks5://127.0.0.1:9")
    with serving(lambda _: Script(sends=[(0, DONE)])) as server:
        pool = pool_for(server)
        assert (await ask(pool)).error is None
        pool.abort()


async def test_a_connection_is_used_again_at_once():
    with serving(lambda _: Script(sends=[(0, DONE)])) as server:
        pool = pool_for(server)
        await pool.prepare(1)
        for _ in range(3):
            await ask(pool)
        pool.abort()
    assert server.num_connections == 1


async def test_a_connection_that_was_long_idle_is_replaced_before_the_clock_starts(monkeypatch):
    monkeypatch.setattr("harness.run.client.IDLE_REUSE_S", 0.0)
    with serving(lambda _: Script(sends=[(0, DONE)])) as server:
        pool = pool_for(server)
        for _ in range(2):
            await pool.prepare(1)
            assert (await ask(pool)).connect_s is None
        pool.abort()
    assert server.num_connections == 2


async def test_connect_time_is_a_field_of_its_own():
    with serving(lambda _: Script(sends=[(0, DONE)])) as server:
        pool = pool_for(server)
        exchange = await ask(pool)
        pool.abort()
    assert exchange.connect_s is not None
    assert exchange.connect_s > 0


@pytest.mark.parametrize("end", ["truncate", "reset"])
async def test_a_connection_lost_in_mid_stream_fails_the_request_and_is_not_retried(end):
    script = Script(sends=[(0, text("a")), (0.05, text("b"))], end=end)
    with serving(lambda _: script) as server:
        pool = pool_for(server)
        exchange = await ask(pool)
        pool.abort()
    assert exchange.error is not None
    assert exchange.error.kind == "truncated"
    assert len(server.received) == 1


async def test_a_refused_connection_is_a_failed_request():
    pool = Pool(Endpoint.of("http://127.0.0.1:9", "/", {}), Timeouts())
    exchange = await ask(pool)
    assert exchange.error is not None
    assert exchange.error.kind == "connect"
    assert "127.0.0.1:9" in exchange.error.message


async def watched(pool: Pool, exchange: Exchange) -> Exchange:
    await pool.start_anyhow(exchange)
    while not exchange.done.done():
        await asyncio.sleep(0.02)
        pool.give_up_late(time.perf_counter_ns())
    pool.abort()
    return exchange


async def test_a_silent_stream_fails_by_the_idle_timeout():
    with serving(lambda _: Script(sends=[(0, text("a"))], end="stall")) as server:
        pool = pool_for(server, idle_s=0.2)
        exchange = await watched(pool, new_exchange(pool.endpoint.encode(b"{}")))
    assert exchange.error is not None
    assert exchange.error.kind == "timeout"
    assert "idle" in exchange.error.message
    assert (exchange.end_ns - exchange.t0_ns) / 1e9 == pytest.approx(0.2, abs=0.15)


async def test_keep_alives_do_not_count_as_a_first_event():
    sends = [(0.05 * i, b": ping\n\n") for i in range(20)]
    with serving(lambda _: Script(sends=sends)) as server:
        pool = pool_for(server, first_event_s=0.3, idle_s=0.1)
        exchange = await watched(pool, new_exchange(pool.endpoint.encode(b"{}")))
    assert exchange.error is not None
    assert "first-event" in exchange.error.message


async def test_an_answer_to_nothing_closes_the_connection():
    with serving(lambda _: Script(sends=[(0, DONE)])) as server:
        pool = pool_for(server)
        connection = await pool.open()
        assert isinstance(connection, Connection)
        exchange = new_exchange(pool.endpoint.encode(b"{}"))
        connection.send(exchange)
        await exchange.done
        connection.data_received(b"HTTP/1.1 200 OK\r\n")
        assert connection.closed


async def test_ipv6_and_paths_in_a_base_url():
    endpoint = Endpoint.of("https://[::1]:8443/api/", "/v1/chat/completions", {})
    assert (endpoint.host, endpoint.port, endpoint.tls) == ("::1", 8443, True)
    assert endpoint.path == "/api/v1/chat/completions"
    assert b"Host: [::1]:8443\r\n" in endpoint.encode(b"")
