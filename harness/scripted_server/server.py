"""Plays scripts on sockets and keeps what was asked and when it really answered.

One `asyncio.Protocol` per connection, HTTP/1.1 with a body of known length in and chunks out. Every
send is one system call of its own, stamped just before: loops that collect writes until the end of
their turn (uvloop) would send later than they say. A send that is late goes out at once, and none
is left out.
"""

import asyncio
import math
import os
import socket
import struct
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import cast
from urllib.parse import urlsplit

from harness.scripted_server.script import Received, Respond, Script

_AT_ONCE = 16
"""Sends of one answer before the others get their turn."""

_RESET_ON_CLOSE = struct.pack("ii", 1, 0)


@dataclass(kw_only=True)
class Answer:
    """One request and what became of it. `end_ns` is None while it is under way."""

    received: Received
    sent_ns: list[int] = field(default_factory=list)  # one stamp per send
    end_ns: int | None = None
    whole: bool = False  # the response went out to its end


class ScriptedServer:
    """Answers every request by its script.

    accept_delay_s: how long a new connection waits before it is read from, as in a server whose
    accept loop is slow; the kernel completes the handshake meanwhile.
    """

    def __init__(self, respond: Respond, *, accept_delay_s: float = 0.0) -> None:
        self.respond = respond
        self.accept_delay_s = accept_delay_s
        self.answers: list[Answer] = []
        self.in_flight = 0  # requests with a body: polls of a page are no load
        self.in_flight_max = 0
        self.num_connections = 0
        self.url = ""
        self.connections: set[_Connection] = set()
        self._server: asyncio.Server | None = None

    @property
    def received(self) -> list[Received]:
        return [answer.received for answer in self.answers]

    @property
    def sent_ns(self) -> list[list[int]]:
        return [answer.sent_ns for answer in self.answers]

    async def start(self, host: str = "127.0.0.1", port: int = 0) -> None:
        loop = asyncio.get_running_loop()
        self._server = await loop.create_server(self._connection, host, port, backlog=1024)
        self.url = f"http://{host}:{self._server.sockets[0].getsockname()[1]}"

    def close(self) -> None:
        """Stop listening and cut every connection."""
        assert self._server is not None
        self._server.close()
        for connection in tuple(self.connections):
            connection.abort()

    def began(self, request: Received) -> Answer:
        answer = Answer(received=request)
        self.answers.append(answer)
        self.in_flight += bool(request.body)
        self.in_flight_max = max(self.in_flight_max, self.in_flight)
        return answer

    def ended(self, answer: Answer, *, whole: bool) -> None:
        answer.end_ns, answer.whole = time.perf_counter_ns(), whole
        self.in_flight -= bool(answer.received.body)

    def _connection(self) -> "_Connection":
        self.num_connections += 1
        return _Connection(self, self.num_connections)


@dataclass(kw_only=True)
class _Playing:
    """A script on its way out."""

    script: Script
    answer: Answer
    head: bytes  # goes out with the first send, as servers do it
    position: int = 0


class _Connection(asyncio.Protocol):
    """Reads one request, plays its answer, reads the next."""

    def __init__(self, server: ScriptedServer, number: int) -> None:
        self._server = server
        self._number = number
        self._num_requests = 0
        self._pending = bytearray()
        self._accepted = True
        self._playing: _Playing | None = None
        self._timer: asyncio.Handle | None = None
        self._full = False  # the client reads too slowly for what is sent
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's is none by inheritance
        self._socket: socket.socket = transport.get_extra_info("socket")
        self._server.connections.add(self)
        if self._server.accept_delay_s:
            self._accepted = False
            self._loop.call_later(self._server.accept_delay_s, self._accept)

    def _accept(self) -> None:
        self._accepted = True
        if not self._transport.is_closing():
            self._begin_next()

    def data_received(self, data: bytes) -> None:
        self._pending += data
        if self._playing is None and self._accepted:
            self._begin_next()

    def pause_writing(self) -> None:
        self._full = True

    def resume_writing(self) -> None:
        self._full = False
        self._turn()

    def connection_lost(self, exc: Exception | None) -> None:
        self._server.connections.discard(self)
        self._over(whole=False)

    def abort(self) -> None:
        self._transport.abort()

    # --- one answer -------------------------------------------------------------------------------

    def _begin_next(self) -> None:
        request = self._take_request()
        if request is None:
            return
        script = self._server.respond(request)
        answer = self._server.began(request)
        self._playing = _Playing(script=script, answer=answer, head=_head(script))
        self._turn()

    def _turn(self) -> None:
        """Send what is due, then wait for what comes next."""
        for _ in range(_AT_ONCE):
            playing = self._playing
            if playing is None or self._full:
                return
            if playing.position == len(playing.script.sends):
                self._end(playing)
                return
            left_ns = self._left_ns(playing)
            if left_ns > 0:
                # whole milliseconds, rounded up: loops keep no finer time, and some round down
                self._timer = self._loop.call_later(math.ceil(left_ns / 1e6) / 1e3, self._turn)
                return
            self._send_next(playing)
        if not self._full:
            self._timer = self._loop.call_soon(self._turn)

    def _left_ns(self, playing: _Playing) -> int:
        at_s, _ = playing.script.sends[playing.position]
        return playing.answer.received.at_ns + int(at_s * 1e9) - time.perf_counter_ns()

    def _send_next(self, playing: _Playing) -> None:
        _, sent = playing.script.sends[playing.position]
        playing.position += 1
        data = sent if isinstance(sent, bytes) else sent(playing.answer.sent_ns)
        framed = playing.head + (b"%x\r\n%s\r\n" % (len(data), data) if data else b"")
        playing.head = b""
        playing.answer.sent_ns.append(time.perf_counter_ns())
        self._write(framed)

    def _write(self, data: bytes) -> None:
        """To the kernel at once; what it does not take, and what follows, by the transport."""
        num_sent = 0
        if not self._transport.get_write_buffer_size():
            try:
                num_sent = os.write(self._socket.fileno(), data)
            except BlockingIOError:
                num_sent = 0
            except OSError:  # the client went away, which is its right
                self.abort()
                return
        if num_sent < len(data):
            self._transport.write(data[num_sent:])

    def _end(self, playing: _Playing) -> None:
        end = playing.script.end
        if end == "stall":
            return
        if end in ("complete", "exit"):
            self._write(playing.head + b"0\r\n\r\n")
        self._over(whole=end in ("complete", "exit"))
        if end == "complete":
            self._begin_next()
        elif end == "truncate":
            self._transport.close()
        elif end == "reset":
            self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET_ON_CLOSE)
            self.abort()
        else:
            self._server.close()

    def _over(self, *, whole: bool) -> None:
        playing, self._playing = self._playing, None
        if self._timer is not None:
            self._timer.cancel()
        if playing is None:
            return
        self._server.ended(playing.answer, whole=whole)
        if playing.script.over is not None:
            playing.script.over(whole)

    # --- requests ---------------------------------------------------------------------------------

    def _take_request(self) -> Received | None:
        """None until one has come completely."""
        head_end = self._pending.find(b"\r\n\r\n")
        if head_end < 0:
            return None
        first, *lines = self._pending[:head_end].decode("latin-1").split("\r\n")
        headers = dict(_header(line) for line in lines)
        body_end = head_end + 4 + int(headers.get("content-length", 0))
        if len(self._pending) < body_end:
            return None
        body = bytes(self._pending[head_end + 4 : body_end])
        del self._pending[:body_end]
        self._num_requests += 1
        method, target, _ = first.split(" ")
        return Received(
            method=method,
            path=urlsplit(target).path,
            headers=headers,
            body=body,
            at_ns=time.perf_counter_ns(),
            connection=self._number,
            nth=self._num_requests,
        )


def _header(line: str) -> tuple[str, str]:
    name, _, value = line.partition(":")
    return name.strip().lower(), value.strip()


def _head(script: Script) -> bytes:
    headers = {
        "Content-Type": script.content_type,
        "Transfer-Encoding": "chunked",
        **script.headers,
    }
    lines = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
    return f"HTTP/1.1 {script.status} -\r\n{lines}\r\n".encode("latin-1")


@contextmanager
def serving(respond: Respond, *, accept_delay_s: float = 0.0) -> Iterator[ScriptedServer]:
    """A server in a thread of its own, on a free port of this machine."""
    server = ScriptedServer(respond, accept_delay_s=accept_delay_s)
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, daemon=True)
    thread.start()
    asyncio.run_coroutine_threadsafe(server.start(), loop).result()
    try:
        yield server
    finally:
        asyncio.run_coroutine_threadsafe(_shut_down(server), loop).result()
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()


async def _shut_down(server: ScriptedServer) -> None:
    server.close()
    while server.connections:  # each tells when it is lost
        await asyncio.sleep(0)
