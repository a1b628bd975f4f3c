"""Streams drawn at random, with what must come out of them.

`make` writes a legal stream in one of the many forms that the event stream format allows, and knows
the answer because it wrote it. `spoil` makes garbage of it, and `by_the_book` reads any bytes the
slow way: whole, and line by line as WHATWG's text says. The generator is handed in: hypothesis
gives one that shrinks, a nightly run one with a seed.
"""

import json
import math
import random
import re
from collections.abc import Sequence
from dataclasses import dataclass

from harness import measures
from harness.adapters import ADAPTERS
from harness.run.parse import parse_exchange
from harness.run.sse import events

from .cases.streams import raw

TEXTS = (
    "a",
    " b ",
    "",
    "x\u2028y\u0085z\u2029",
    "\u4e2d\U0001f680",
    "two\nlines\r\n",
    'data: {"choices": []}',
    "[DONE]",
    ": no comment",
    '"\\',
    "w " * 700,
)
LINE_ENDS = (b"\n", b"\r\n", b"\r")
NOISE = (b":", b": keep-alive", b"id: 7", b"retry: 3000", b"what", b"event: message")
GARBAGE = (
    b"\x00\xff\xfe",
    b"\n\n",
    b"\r",
    b"data:",
    b"data: [DONE]\n\n",
    b"data: {}\n\n",
    b"data: [1, null]\n\n",
    b'data: {"choices":[{"delta":{"content":7},"finish_reason":3}],"usage":[]}\n\n',
    b'data: {"choices":[{"token_ids":[-1]}],"usage":{"completion_tokens":-3}}\n\n',
    b'data: {"choices":[null],"usage":{"completion_tokens":1e300}}\n\n',
    b'data: {"error":null}\n\n',
    b'data: {"choices":[{"delta":{"content":"\\ud83d"}}]}\n\n',
    b"data: " + b"[" * 5_000 + b"\n\n",
    b"event: error\n",
    b"\xef\xbb\xbf",
)


@dataclass(frozen=True, kw_only=True)
class Made:
    """A stream and its answer. `tokens`: of each event with output, None where it does not tell."""

    stream: bytes
    text: str
    tokens: tuple[int | None, ...]
    n: int | None
    finish: str


def make(rng: random.Random) -> Made:
    """Role, outputs, finish reason, perhaps usage, perhaps [DONE], with noise in between."""
    usage = rng.choice(("none", "final", "running"))
    parts = [_event(rng, {"choices": [{"delta": {"role": "assistant", "content": ""}}]})]
    text, tokens, total = "", [], 0
    for _ in range(rng.randint(1, 6)):
        said = rng.choice(TEXTS) or "never empty"
        channel = rng.choice(("content", "reasoning_content", "reasoning"))
        carried = rng.randint(1, 8)
        text, total = text + said, total + carried
        tokens.append(carried if usage == "running" else None)
        payload: dict[str, object] = {"choices": [{"delta": {channel: said}}]}
        if usage == "running":
            payload["usage"] = {"completion_tokens": total}
        parts.append(_event(rng, payload))
    finish = rng.choice(("stop", "length"))
    parts.append(_event(rng, {"choices": [{"delta": {}, "finish_reason": finish}]}))
    if usage != "none":
        parts.append(_event(rng, {"choices": [], "usage": {"completion_tokens": total}}))
    if rng.random() < 0.8:
        parts.append(b"data: [DONE]" + rng.choice(LINE_ENDS) * 2)
    return Made(
        stream=rng.choice((b"", b"\xef\xbb\xbf")) + b"".join(parts),
        text=text,
        tokens=tuple(tokens),
        n=None if usage == "none" else total,
        finish=finish,
    )


def _event(rng: random.Random, payload: dict[str, object]) -> bytes:
    """In one data line or in several, with other lines between them; one kind of line end."""
    end = rng.choice(LINE_ENDS)
    indent = rng.choice((None, None, 0, 1))
    written = json.dumps(payload, ensure_ascii=rng.random() < 0.5, indent=indent)
    lines = []
    for line in written.split("\n"):
        while rng.random() < 0.2:
            lines.append(rng.choice(NOISE))
        lines.append(rng.choice((b"data:", b"data: ")) + line.encode())
    return end * rng.randint(0, 2) + end.join(lines) + end + end


def spoil(rng: random.Random, stream: bytes) -> bytes:
    """Cut out, doubled, overwritten or put in: up to four times."""
    for _ in range(rng.randint(1, 4)):
        start = rng.randint(0, len(stream))
        stop = min(len(stream), start + rng.randint(0, 40))
        middle = rng.choice(
            (b"", stream[start:stop] * 2, rng.randbytes(stop - start), rng.choice(GARBAGE))
        )
        stream = stream[:start] + middle + stream[stop:]
    return stream


def cut(rng: random.Random, stream: bytes) -> list[tuple[float, bytes]]:
    """Into up to twelve reads, the empty one among them, at moments that do not go back."""
    places = sorted(rng.randint(0, len(stream)) for _ in range(rng.randint(0, 11)))
    reads, at_s = [], 0.0
    for start, stop in zip([0, *places], [*places, len(stream)], strict=True):
        at_s += rng.choice((0.0, 0.0001, 0.0009, 0.02, 0.7))
        reads.append((at_s, stream[start:stop]))
    return reads


# --- what must hold -------------------------------------------------------------------------------


def check_legal(rng: random.Random) -> None:
    """The answer is the one that was written, wherever the stream is cut."""
    made = make(rng)
    request, row = parse_exchange(raw(cut(rng, made.stream)), ADAPTERS["openai"])

    assert (request.status, request.error) == ("ok", None)
    assert (row.text, row.tokens) == (made.text, made.tokens)
    assert (request.output_tokens, request.finish_reason) == (made.n, made.finish)
    assert "unterminated_final_event" not in request.flags


def check_garbage(rng: random.Random) -> None:
    """Any bytes are cut into the events that they hold, and give a request that makes sense."""
    stream = spoil(rng, make(rng).stream)
    reads = cut(rng, stream)

    found = list(events([(round(at_s * 1e9), data) for at_s, data in reads]))
    assert [(event.data, event.name, event.terminated) for event in found] == by_the_book(stream)
    assert [event.at_ns for event in found] == sorted(event.at_ns for event in found)
    _check_sense(reads)


def _check_sense(reads: Sequence[tuple[float, bytes]]) -> None:
    request, row = parse_exchange(raw(reads), ADAPTERS["openai"])
    times = (0.0, request.ttfr_s, request.ttft_s, request.t_last_s, request.wall_s)
    known = [time_s for time_s in times if time_s is not None]

    assert known == sorted(known)
    assert (request.error is None) == (request.status == "ok")
    assert (request.wall_s is None) == (request.status == "failed")
    assert len(row.offset_ns) == len(row.tokens) == request.num_output_events
    assert request.output_tokens is None or request.output_tokens >= 0
    assert all(count is None or count >= 0 for count in row.tokens)
    first, last = request.ttft_s, request.t_last_s
    rate = measures.decode_rate_strict(request.output_tokens, request.first_tokens, first, last)
    assert rate is None or (rate > 0 and math.isfinite(rate))


def by_the_book(stream: bytes) -> list[tuple[bytes | None, bytes, bool]]:
    """(data, name, terminated) of each event, data None for a comment; by WHATWG's steps, over the
    whole stream, but with the event that the end cuts off.
    """
    found: list[tuple[bytes | None, bytes, bool]] = []
    data: list[bytes] = []
    name = b""
    lines = re.split(rb"\r\n|\r|\n", stream.removeprefix(b"\xef\xbb\xbf"))
    for number, line in enumerate(lines):
        is_last = number == len(lines) - 1  # what stands behind the last line end
        if line.startswith(b":"):
            found.append((None, b"", True))
        elif line:
            field, _, value = line.partition(b":")
            value = value[1:] if value[:1] == b" " else value
            if field == b"data":
                data.append(value)
            elif field == b"event":
                name = value
        if not line or is_last:
            if data:
                found.append((b"\n".join(data), name, not is_last))
            data, name = [], b""
    return found
