"""A server whose timetable is known: what a client measures can be held against what was sent.

Two uses. In a test, `serving(respond)` runs one in a thread: `respond` gets each request and
returns a `Script`, the moments and bytes of its answer. As a process, `python -m
harness.scripted_server --port N` takes the bundled engine's command line and answers like it
(`FakeEngine`): rounds of a known law, counters that add up, true send times in `timings`; a whole
matrix runs in seconds.

Standard library only. It knows nothing of the client and measures nothing.
"""

import argparse
import asyncio
import json
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias
from urllib.parse import urlsplit

End: TypeAlias = Literal[
    "complete",  # the response is ended as HTTP wants it
    "truncate",  # the connection is closed in mid-response
    "reset",  # the same by RST
    "stall",  # nothing more comes, the connection stays open
]


@dataclass(frozen=True, kw_only=True)
class Received:
    method: str
    path: str
    headers: Mapping[str, str]
    body: bytes
    at_ns: int  # perf_counter_ns when it was read completely
    connection: int  # number of the connection it came on

    def json(self) -> dict[str, Any]:
        decoded = json.loads(self.body or b"{}")
        return decoded if isinstance(decoded, dict) else {}


@dataclass(frozen=True, kw_only=True)
class Script:
    """An answer: bytes at moments (seconds after the request was read completely)."""

    sends: Sequence[tuple[float, bytes | Callable[[Sequence[int]], bytes]]]
    status: int = 200
    content_type: str = "text/event-stream"
    headers: Mapping[str, str] = field(default_factory=dict)
    end: End = "complete"


Respond: TypeAlias = Callable[[Received], Script]


def page(text: str, status: int = 200, content_type: str = "application/json") -> Script:
    """An answer that comes at once."""
    return Script(sends=[(0.0, text.encode())], status=status, content_type=content_type)


# --- server-sent events ---------------------------------------------------------------------------

DONE = b"data: [DONE]\n\n"


def event(payload: Mapping[str, Any]) -> bytes:
    return b"data: " + json.dumps(payload, separators=(",", ":")).encode() + b"\n\n"


def chunk(delta: Mapping[str, Any], finish: str | None = None, **others: Any) -> bytes:
    """One event of a streamed chat completion."""
    choice = {"index": 0, "delta": delta, "finish_reason": finish}
    return event({"object": "chat.completion.chunk", "choices": [choice], **others})


def usage(prompt_tokens: int, completion_tokens: int) -> dict[str, int]:
    return {
        "prompt_tokens": prompt_tokens,
        "completion_tokens": completion_tokens,
        "total_tokens": prompt_tokens + completion_tokens,
    }


# --- the server -----------------------------------------------------------------------------------


class ScriptedServer:
    """Answers every request by its script and keeps what it received and when it really sent."""

    def __init__(self, respond: Respond) -> None:
        self._respond = respond
        self.received: list[Received] = []
        self.sent_ns: list[list[int]] = []  # per request, one stamp per send
        self.in_flight = 0
        self.in_flight_max = 0
        self.num_connections = 0
        self.url = ""
        self._writers: set[asyncio.StreamWriter] = set()
        self._server: asyncio.Server | None = None

    async def start(self, host: str = "127.0.0.1", port: int = 0) -> None:
        self._server = await asyncio.start_server(self._serve, host, port, backlog=1024)
        self.url = f"http://{host}:{self._server.sockets[0].getsockname()[1]}"

    async def close(self) -> None:
        assert self._server is not None
        self._server.close()
        for writer in self._writers:
            writer.transport.abort()
        await self._server.wait_closed()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.num_connections += 1
        connection = self.num_connections
        self._writers.add(writer)
        try:
            while (request := await _read_request(reader, connection)) is not None:
                if not await self._answer(request, writer):
                    break
        except (ConnectionError, asyncio.IncompleteReadError):
            pass  # the client went away, which is its right
        finally:
            self._writers.discard(writer)
            writer.close()

    async def _answer(self, request: Received, writer: asyncio.StreamWriter) -> bool:
        """Whether the connection may be used again."""
        script, stamps = self._respond(request), list[int]()
        self.received.append(request)
        self.sent_ns.append(stamps)
        self.in_flight += 1
        self.in_flight_max = max(self.in_flight_max, self.in_flight)
        try:
            await _play(script, request.at_ns, stamps, writer)
        finally:
            self.in_flight -= 1
        if script.end == "stall":
            await asyncio.Event().wait()
        if script.end == "reset":
            writer.transport.abort()
        return script.end == "complete"


async def _play(
    script: Script, at_ns: int, stamps: list[int], writer: asyncio.StreamWriter
) -> None:
    head = _head(script)  # goes out with the first body bytes, as servers do it
    for at_s, data in script.sends:
        await _sleep_until(at_ns + int(at_s * 1e9))
        body = data if isinstance(data, bytes) else data(stamps)
        stamps.append(time.perf_counter_ns())
        writer.write(head + b"%x\r\n%s\r\n" % (len(body), body))
        head = b""
        await writer.drain()
    if script.end == "complete":
        writer.write(head + b"0\r\n\r\n")
        await writer.drain()


async def _sleep_until(at_ns: int) -> None:
    left_ns = at_ns - time.perf_counter_ns()
    if left_ns > 0:
        await asyncio.sleep(left_ns / 1e9)


def _head(script: Script) -> bytes:
    headers = {
        "Content-Type": script.content_type,
        "Transfer-Encoding": "chunked",
        **script.headers,
    }
    lines = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
    return f"HTTP/1.1 {script.status} -\r\n{lines}\r\n".encode("latin-1")


async def _read_request(reader: asyncio.StreamReader, connection: int) -> Received | None:
    """None when the client closed the connection instead of asking again."""
    try:
        head = await reader.readuntil(b"\r\n\r\n")
    except asyncio.IncompleteReadError:
        return None
    first, *lines = head.decode("latin-1").strip().split("\r\n")
    headers = dict(_header(line) for line in lines)
    body = await reader.readexactly(int(headers.get("content-length", 0)))
    method, target, _ = first.split(" ")
    return Received(
        method=method,
        path=urlsplit(target).path,
        headers=headers,
        body=body,
        at_ns=time.perf_counter_ns(),
        connection=connection,
    )


def _header(line: str) -> tuple[str, str]:
    name, _, value = line.partition(":")
    return name.strip().lower(), value.strip()


@contextmanager
def serving(respond: Respond) -> Iterator[ScriptedServer]:
    """A server in a thread of its own, on a free port of this machine."""
    server, loop = ScriptedServer(respond), asyncio.new_event_loop()
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
    await server.close()
    others = asyncio.all_tasks() - {asyncio.current_task()}
    for task in others:
        task.cancel()
    await asyncio.gather(*others, return_exceptions=True)


# --- an engine with a law -------------------------------------------------------------------------

ACCEPTED = (3, 1, 7, 0, 2)  # accepted drafts of the 1st, 2nd, ... round, then from the front again
DEPTH = 7


@dataclass(frozen=True, kw_only=True)
class Round:
    """What one decode step emits. `accepted` is None for a step without a drafter."""

    tokens: int
    accepted: int | None
    trimmed: int


def rounds_of(num_tokens: int, *, drafting: bool) -> list[Round]:
    """The rounds behind the first token, which prefill emits, until `num_tokens` are out."""
    found: list[Round] = []
    left = num_tokens - 1
    while left > 0:
        accepted = ACCEPTED[len(found) % len(ACCEPTED)] if drafting else None
        emitted = 1 + (accepted or 0)
        kept = min(emitted, left)
        found.append(Round(tokens=kept, accepted=accepted, trimmed=emitted - kept))
        left -= kept
    return found


def natural_length(prompt: str) -> int:
    """How many tokens the fake engine answers to a prompt if nothing cuts it."""
    return 20 + len(prompt) % 13


class FakeEngine:
    """Answers like `engines.dflash2 serve`, by law instead of by model."""

    def __init__(self, options: argparse.Namespace) -> None:
        self._options = options
        self._drafting = options.dflash2 == "on"
        self._start_s = time.time()
        self._num_asked = 0
        self._running = 0
        self._counts = dict.fromkeys(_COUNTERS, 0)
        self._accepted_at = [0] * DEPTH

    def respond(self, request: Received) -> Script:
        pages: dict[str, Callable[[], Script]] = {
            "/health": lambda: page(json.dumps(self._health())),
            "/metrics": lambda: page(self._metrics(), content_type="text/plain"),
            "/v1/models": lambda: page(json.dumps({"data": [{"id": self._options.served_name}]})),
            "/v1/chat/completions": lambda: self._chat(request),
        }
        unknown = page(json.dumps({"error": {"message": "no such page"}}), status=404)
        return pages.get(request.path, lambda: unknown)()

    def _health(self) -> dict[str, Any]:
        return {
            "status": "ok",
            "model": self._options.served_name,
            "drafter": "dflash2" if self._drafting else "none",
            "depth": DEPTH if self._drafting else 0,
            "block": DEPTH + 1,
            "running": self._running,
            "waiting": 0,
            "quiet": self._running == 0,
            "kv_len": self._options.kv_len,
            "version": "scripted",
        }

    def _metrics(self) -> str:
        label = f'{{model_name="{self._options.served_name}"}}'
        lines = [f"dflash2:{name}_total{label} {value}" for name, value in self._counts.items()]
        lines += [
            f'dflash2:spec_decode_num_accepted_tokens_per_pos_total{{position="{i}"}} {value}'
            for i, value in enumerate(self._accepted_at)
        ]
        lines += [
            f"dflash2:num_requests_running{label} {self._running}",
            f"dflash2:num_requests_waiting{label} 0",
            f"process_start_time_seconds {self._start_s:.3f}",
        ]
        return "\n".join(lines) + "\n"

    def _chat(self, request: Received) -> Script:
        body = request.json()
        if body.get("model") != self._options.served_name:
            message = f"model {body.get('model')!r} is not served here"
            return page(json.dumps({"error": {"message": message}}), status=404)
        self._num_asked += 1
        if self._num_asked == self._options.die_at_request:
            sys.stderr.write("scripted engine: dying as asked\n")
            sys.stderr.flush()
            os._exit(1)  # as a crash does: nothing is closed, nobody is told
        return Script(sends=self._sends(body, request.at_ns))

    def _sends(self, body: Mapping[str, Any], at_ns: int) -> list[tuple[float, Any]]:
        prompt = "".join(message["content"] for message in body["messages"])
        wanted = body["max_tokens"] if body.get("ignore_eos") else natural_length(prompt)
        num_tokens = min(wanted, body["max_tokens"])
        rounds = rounds_of(num_tokens, drafting=self._drafting)
        self._running += 1
        timetable = {
            **vars(self._options),
            **body.get("scripted", {}),
        }  # a request may bring its own
        at_s, total = timetable["prefill_ms"] / 1e3, 1
        sends: list[tuple[float, Any]] = [(at_s, _output(0, 1, len(prompt)))]
        for step in rounds:
            at_s += timetable["round_ms"] / 1e3
            sends.append((at_s, _output(total, step.tokens, len(prompt))))
            total += step.tokens
        finish = "length" if num_tokens == body["max_tokens"] else "stop"

        def final(sent_ns: Sequence[int]) -> bytes:
            self._book(len(prompt), num_tokens, rounds)
            timings = {"received_ns": at_ns, "sent_ns": list(sent_ns)}
            last = {"choices": [], "usage": usage(len(prompt), num_tokens), "timings": timings}
            return chunk({}, finish) + event(last) + DONE

        return [*sends, (at_s, final)]

    def _book(self, prompt_tokens: int, num_tokens: int, rounds: Sequence[Round]) -> None:
        """The ledger of one request, at once when it ends."""
        counts = self._counts
        self._running -= 1
        counts["requests"] += 1
        counts["request_success"] += 1
        counts["prompt_tokens"] += prompt_tokens
        counts["generation_tokens"] += num_tokens
        for step in rounds:
            counts["trimmed_tokens"] += step.trimmed
            if step.accepted is None:
                counts["plain_steps"] += 1
                continue
            counts["spec_decode_num_drafts"] += 1
            counts["spec_decode_num_draft_tokens"] += DEPTH
            counts["spec_decode_num_accepted_tokens"] += step.accepted
            counts["spec_decode_num_tested_tokens"] += min(step.accepted + 1, DEPTH)
            for position in range(step.accepted):
                self._accepted_at[position] += 1


_COUNTERS = (
    "spec_decode_num_drafts",
    "spec_decode_num_draft_tokens",
    "spec_decode_num_accepted_tokens",
    "spec_decode_num_tested_tokens",
    "trimmed_tokens",
    "plain_steps",
    "prompt_tokens",
    "generation_tokens",
    "requests",
    "request_success",
)


def _output(before: int, num_tokens: int, prompt_tokens: int) -> bytes:
    """One round's event: the words w0 w1 w2 ..., one per token, so that nothing ever repeats."""
    ids = list(range(before, before + num_tokens))
    choice = {
        "index": 0,
        "delta": {"content": "".join(f"w{token} " for token in ids)},
        "finish_reason": None,
        "token_ids": ids,
    }
    return event({"choices": [choice], "usage": usage(prompt_tokens, before + num_tokens)})


# --- as a process ---------------------------------------------------------------------------------


def _options(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m harness.scripted_server", description=__doc__)
    parser.add_argument("--model", default="scripted")
    parser.add_argument("--dflash2", choices=("on", "off"), default="off")
    parser.add_argument("--dflash2-model")
    parser.add_argument("--served-name", default="scripted")
    parser.add_argument("--kv-len", type=int, default=2048)
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--prefill-ms", type=float, default=4.0)
    parser.add_argument("--round-ms", type=float, default=2.0)
    parser.add_argument("--die-at-request", type=int, help="exit when this many were asked")
    parser.add_argument("--refuse-to-boot", action="store_true")
    return parser.parse_args(arguments)


async def _run(options: argparse.Namespace) -> None:
    server = ScriptedServer(FakeEngine(options).respond)
    await server.start(options.host, options.port)
    await asyncio.Event().wait()


def main(arguments: Sequence[str] | None = None) -> None:
    options = _options(arguments)
    if options.refuse_to_boot:
        sys.exit("scripted engine: refusing to boot as asked")
    asyncio.run(_run(options))


if __name__ == "__main__":
    main()
