"""HTTP framing against h11, and the client against a server with a timetable."""

import asyncio
import time
from contextlib import suppress

import h11
import pytest

from harness import scripted_server
from harness.records import RequestError, Timeouts
from harness.run.client import Connection, Endpoint, Exchange, Pool, Transport, new_exchange
from harness.run.http1 import FramingError, Response
from harness.run.spool import Spool, read_frames
from harness.run.transports import TRANSPORTS
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


async def ask(pool: Transport) -> Exchange:
    exchange = new_exchange(pool.encode(b"{}"))
    await pool.start_anyhow(exchange)
    await exchange.done
    return exchange


async def test_reads_are_stamped_when_they_come():
    script = Script(sends=[(0.05, text("a")), (0.15, text("b") + DONE)])
    with serving(lambda _: script) as server:
        pool = pool_for(server)
        await pool.prepare(1)
        exchange = await ask(pool)
        await pool.aclose()
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
        await pool.aclose()
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
        await pool.aclose()


async def test_a_connection_is_used_again_at_once():
    with serving(lambda _: Script(sends=[(0, DONE)])) as server:
        pool = pool_for(server)
        await pool.prepare(1)
        for _ in range(3):
            await ask(pool)
        await pool.aclose()
    assert server.num_connections == 1


async def test_a_connection_that_was_long_idle_is_replaced_before_the_clock_starts(monkeypatch):
    monkeypatch.setattr("harness.run.client.IDLE_REUSE_S", 0.0)
    with serving(lambda _: Script(sends=[(0, DONE)])) as server:
        pool = pool_for(server)
        for _ in range(2):
            await pool.prepare(1)
            assert (await ask(pool)).connect_s is None
        await pool.aclose()
    assert server.num_connections == 2


async def test_connect_time_is_a_field_of_its_own():
    with serving(lambda _: Script(sends=[(0, DONE)])) as server:
        pool = pool_for(server)
        exchange = await ask(pool)
        await pool.aclose()
    assert exchange.connect_s is not None
    assert exchange.connect_s > 0


@pytest.mark.parametrize("end", ["truncate", "reset"])
async def test_a_connection_lost_in_mid_stream_fails_the_request_and_is_not_retried(end):
    script = Script(sends=[(0, text("a")), (0.05, text("b"))], end=end)
    with serving(lambda _: script) as server:
        pool = pool_for(server)
        exchange = await ask(pool)
        await pool.aclose()
    assert exchange.error is not None
    assert exchange.error.kind == "truncated"
    assert len(server.received) == 1


async def test_a_refused_connection_is_a_failed_request():
    pool = Pool(Endpoint.of("http://127.0.0.1:9", "/", {}), Timeouts())
    exchange = await ask(pool)
    assert exchange.error is not None
    assert exchange.error.kind == "connect"
    assert "127.0.0.1:9" in exchange.error.message


async def watched(pool: Transport, exchange: Exchange) -> Exchange:
    await pool.start_anyhow(exchange)
    while not exchange.done.done():
        await asyncio.sleep(0.02)
        pool.give_up_late(time.perf_counter_ns())
    await pool.aclose()
    return exchange


async def test_a_silent_stream_fails_by_the_idle_timeout():
    with serving(lambda _: Script(sends=[(0, text("a"))], end="stall")) as server:
        pool = pool_for(server, idle_s=0.2)
        exchange = await watched(pool, new_exchange(pool.endpoint.encode(b"{}")))
    assert exchange.error is not None
    assert exchange.error.kind == "stall"
    assert "idle" in exchange.error.message
    assert 0.2 <= (exchange.end_ns - exchange.t0_ns) / 1e9 < 3


async def test_keep_alives_do_not_count_as_a_first_event():
    sends = [(0.05 * i, b": ping\n\n") for i in range(200)]
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


# --- what every transport does --------------------------------------------------------------------

ENDPOINTS = "/v1/chat/completions"
each_transport = pytest.mark.parametrize("make", TRANSPORTS.values(), ids=TRANSPORTS)


@each_transport
async def test_each_transport_gives_body_status_and_stamps(make):
    script = Script(sends=[(0.05, text("a")), (0.15, text("b") + DONE)])
    with serving(lambda _: script) as server:
        transport = make(Endpoint.of(server.url, ENDPOINTS, {"X-Test": "1"}), Timeouts())
        exchange = await ask(transport)
        await transport.aclose()
        await asyncio.sleep(0)
        (sent_ns,) = server.sent_ns
    assert exchange.error is None
    assert exchange.http_status == 200
    assert exchange.headers["content-type"] == "text/event-stream"
    assert b"".join(data for _, data in exchange.reads) == text("a") + text("b") + DONE
    assert exchange.reads[0][0] >= sent_ns[0]
    assert exchange.reads[-1][0] >= sent_ns[1]
    assert exchange.t0_ns < sent_ns[0]
    assert exchange.connect_s is not None
    (received,) = server.received
    assert received.headers["accept-encoding"] == "identity"
    assert received.headers["host"] == server.url.removeprefix("http://")
    assert received.headers["x-test"] == "1"
    assert received.body == b"{}"


@each_transport
async def test_b46_b47_no_proxy_of_the_environment_catches_a_request(make, monkeypatch):
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:9")
    monkeypatch.setenv("ALL_PROXY", "socks5://127.0.0.1:9")
    monkeypatch.setenv("NO_PROXY", "::1,127.0.0.0/8,localhost")
    with serving(lambda _: Script(sends=[(0, DONE)])) as server:
        transport = make(Endpoint.of(server.url, ENDPOINTS, {}), Timeouts())
        assert (await ask(transport)).error is None
        await transport.aclose()


@each_transport
async def test_b48_a_reused_connection_that_closes_without_a_byte_is_resent_once(make):
    heard: list[int] = []  # the connection of each request that a server read

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        connection = len(set(heard))
        await reader.readuntil(b"{}")
        heard.append(connection)
        writer.write(CHUNKED + b"%x\r\n%s\r\n0\r\n\r\n" % (len(DONE), DONE))
        with suppress(asyncio.IncompleteReadError):  # the last connection asks nothing more
            await reader.readuntil(b"{}")
            heard.append(connection)
        writer.close()

    async with await asyncio.start_server(serve, "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]
        transport = make(Endpoint.of(f"http://127.0.0.1:{port}", "/", {}), Timeouts())
        first, second = await ask(transport), await ask(transport)
        await transport.aclose()
        await asyncio.sleep(0.05)
    assert heard == [0, 0, 1]
    assert (first.error, first.reconnects) == (None, 0)
    assert (second.error, second.reconnects) == (None, 1)
    assert second.connect_s is not None


@each_transport
async def test_a_server_that_always_closes_without_a_byte_fails_the_request(make):
    heard: list[bytes] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        heard.append(await reader.readuntil(b"{}"))
        writer.close()

    async with await asyncio.start_server(serve, "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]
        transport = make(Endpoint.of(f"http://127.0.0.1:{port}", "/", {}), Timeouts())
        await transport.prepare(1)
        exchange = await ask(transport)
        await transport.aclose()
        await asyncio.sleep(0.05)
    assert exchange.error is not None
    assert exchange.error.kind == "truncated"
    assert len(heard) == 1 + exchange.reconnects <= 2


@each_transport
async def test_a_server_that_speaks_no_tls_is_a_failure_of_its_own_kind(make):
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 400 Bad Request\r\n\r\n")
        writer.close()

    async with await asyncio.start_server(serve, "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]
        transport = make(Endpoint.of(f"https://127.0.0.1:{port}", "/", {}), Timeouts())
        exchange = await ask(transport)
        await transport.aclose()
        await asyncio.sleep(0.05)
    assert exchange.error is not None
    assert exchange.error.kind == "tls"


@each_transport
async def test_a_connection_that_is_refused_and_one_that_is_lost(make):
    nobody = make(Endpoint.of("http://127.0.0.1:9", "/", {}), Timeouts())
    assert [(await ask(nobody)).error.kind] == ["connect"]
    await nobody.aclose()
    with serving(lambda _: Script(sends=[(0, text("a"))], end="truncate")) as server:
        transport = make(Endpoint.of(server.url, "/", {}), Timeouts())
        exchange = await ask(transport)
        await transport.aclose()
        await asyncio.sleep(0)
    assert exchange.error is not None
    assert exchange.error.kind == "truncated"
    assert "after 1 reads" in exchange.error.message


@each_transport
async def test_a_request_may_be_limited_as_a_whole(make):
    sends = [(0.05 * i, text("a")) for i in range(200)]
    with serving(lambda _: Script(sends=sends)) as server:
        transport = make(Endpoint.of(server.url, "/", {}), Timeouts(request_s=0.3))
        exchange = await watched(transport, new_exchange(transport.encode(b"{}")))
        await asyncio.sleep(0)
    assert exchange.error is not None
    assert exchange.error.kind == "timeout"
    assert "request timeout" in exchange.error.message
    assert exchange.reads


async def test_what_is_in_flight_can_be_failed_for_a_reason_of_its_own():
    with serving(lambda _: Script(sends=[], end="stall")) as server:
        pool = pool_for(server)
        exchange = new_exchange(pool.encode(b"{}"))
        await pool.start_anyhow(exchange)
        while not server.received:
            await asyncio.sleep(0.01)
        pool.fail_all(RequestError(kind="truncated", message="the engine ended"))
        await pool.aclose()
    assert exchange.done.done()
    assert exchange.error == RequestError(kind="truncated", message="the engine ended")


async def test_a_spool_takes_the_reads_and_memory_keeps_none(tmp_path):
    script = Script(sends=[(0, text("a")), (0.05, text("b") + DONE)])
    with serving(lambda _: script) as server:
        pool, spool = pool_for(server), Spool(tmp_path / "a.bin")
        exchange = new_exchange(pool.encode(b"{}"), number=7, spool=spool)
        await pool.start_anyhow(exchange)
        await exchange.done
        await pool.aclose()
    path = await asyncio.to_thread(spool.finish, b"the rest")
    assert exchange.reads == []
    *reads, last = read_frames(path)
    assert {number for number, _, _ in reads} == {7}
    assert exchange.num_reads == len(reads)
    assert b"".join(data for _, _, data in reads) == text("a") + text("b") + DONE
    assert all(exchange.t0_ns < at_ns <= exchange.end_ns for _, at_ns, _ in reads)
    assert last[2] == b"the rest"
