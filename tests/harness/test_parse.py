"""From stamped bytes to a request's figures: the shared SSE, token and network cases.

SCRIPT is a list of (seconds after t0, bytes); every expectation must hold for the reads as they are
and for the same bytes cut once more anywhere.
"""

import json
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from harness import measures
from harness.adapters import ADAPTERS
from harness.records import Request, RequestError, Where
from harness.run.parse import parse_exchange
from harness.run.raw import Asked, RawExchange
from harness.store import EventRow

RECORDED = Path(__file__).parent / "recorded"
Script = Sequence[tuple[float, bytes]]
T0_NS = 5_000_000_000


def ev(payload: Any) -> bytes:
    text = json.dumps(payload, ensure_ascii=False, separators=(",", ":"))
    return b"data: " + text.encode() + b"\n\n"


def ch(delta: dict[str, Any], reason: str | None = None, **others: Any) -> bytes:
    return ev({"choices": [{"index": 0, "delta": delta, "finish_reason": reason}], **others})


def us(prompt: int, completion: int) -> dict[str, int]:
    both = prompt + completion
    return {"prompt_tokens": prompt, "completion_tokens": completion, "total_tokens": both}


ROLE = ch({"role": "assistant", "content": ""})
DONE = b"data: [DONE]\n\n"


def say(text: str, **others: Any) -> bytes:
    return ch({"content": text}, **others)


def think(text: str) -> bytes:
    return ch({"reasoning_content": text})


def finish(reason: str, **others: Any) -> bytes:
    return ch({}, reason, **others)


def total(prompt: int, completion: int) -> bytes:
    return ev({"choices": [], "usage": us(prompt, completion)})


def raw(script: Script, **changes: Any) -> RawExchange:
    reads = tuple((T0_NS + round(at_s * 1e9), data) for at_s, data in script)
    where = Where(run_id="r", session_id="s1", request_id="r.0")
    facts = {
        "asked": Asked(where=where, prompt_id="p", kind="prose", index=0, max_tokens=512),
        "started_at": "",
        "t_sched_ns": T0_NS - 2_000_000,
        "t0_ns": T0_NS,
        "end_ns": reads[-1][0] if reads else T0_NS,
        "connect_s": None,
        "http_status": 200,
        "content_type": "text/event-stream",
        "content_encoding": "",
        "reads": reads,
        "error": None,
    }
    return RawExchange(**{**facts, **changes})


def parse(script: Script, **changes: Any) -> tuple[Request, EventRow]:
    return parse_exchange(raw(script, **changes), ADAPTERS["openai"])


def cuts(script: Script) -> list[list[tuple[float, bytes]]]:
    """The script with one read cut in two: everywhere if it is short, else at every 7th place."""
    step = 1 if sum(len(data) for _, data in script) < 400 else 7
    found = []
    for number, (at_s, data) in enumerate(script):
        for cut in range(1, len(data), step):
            pieces = [(at_s, data[:cut]), (at_s, data[cut:])]
            found.append([*script[:number], *pieces, *script[number + 1 :]])
    return found


def figures(request: Request, row: EventRow) -> dict[str, Any]:
    """What an expectation may name."""
    n, first = request.output_tokens, request.first_tokens
    seconds = [offset / 1e9 for offset in row.offset_ns]
    return {
        "status": request.status,
        "text": row.text or "",
        "n": n,
        "ttfr": request.ttfr_s,
        "ttft": request.ttft_s,
        "ttfa": request.ttfa_s,
        "n_first": first,
        "n_first_source": request.first_tokens_source,
        "tpot": measures.tpot(n, first, request.ttft_s, request.t_last_s),
        "rate": measures.decode_rate_strict(n, first, request.ttft_s, request.t_last_s),
        "gaps": [later - earlier for earlier, later in pairwise(seconds)],
        "finish": request.finish_reason,
        "error": request.error and request.error.kind,
        "flags": request.flags,
        "prompt": request.prompt_tokens,
        "wall": request.wall_s,
    }


def crlf(data: bytes) -> bytes:
    return data.replace(b"\n", b"\r\n")


SPACES = say("a b")
CUT = SPACES.index(b" b")
ROCKET = say("\u4e2d\U0001f680")
BYTE = ROCKET.index(b"\xe4") + 1

CASES: dict[str, tuple[Script, dict[str, Any]]] = {
    "B01 CRLF line endings": (
        [
            (0.1, crlf(ROLE + say("a"))),
            (0.2, crlf(say("b"))),
            (0.3, crlf(finish("stop") + total(5, 2) + DONE)),
        ],
        {"status": "ok", "text": "ab", "n": 2, "ttft": 0.1, "tpot": 0.1, "finish": "stop"},
    ),
    "B03 spaces at the edges of reads": (
        [
            *((0.1, part) for part in (SPACES[:5], SPACES[5:CUT], SPACES[CUT:])),
            (0.2, say(" c ")),
            (0.3, finish("stop") + total(5, 3) + DONE),
        ],
        {"status": "ok", "text": "a b c ", "n": 3, "ttft": 0.1},
    ),
    "B04 a character in two reads": (
        [
            *((0.1, part) for part in (ROCKET[:BYTE], ROCKET[BYTE : BYTE + 2], ROCKET[BYTE + 2 :])),
            (0.2, finish("stop") + total(5, 2) + DONE),
        ],
        {"status": "ok", "text": "\u4e2d\U0001f680", "n": 2},
    ),
    "B05 Unicode line separators are text": (
        [(0.1, say("x\u2028y\u0085z\u2029w")), (0.2, finish("stop") + total(5, 4) + DONE)],
        {"status": "ok", "text": "x\u2028y\x85z\u2029w", "n": 4},
    ),
    "B07 one event in several data lines": (
        [
            (0.1, b'data: {"id":"c1",\ndata: "choices":[{"delta":{"content":"a"}}]}\n\n'),
            (0.2, say("b")),
            (0.3, finish("stop") + total(5, 2) + DONE),
        ],
        {"status": "ok", "text": "ab", "n": 2, "ttft": 0.1},
    ),
    "B08 keep-alives are no tokens": (
        [
            (0.1, b":\n\n"),
            (0.3, b": keep-alive\n\n"),
            (0.6, ROLE + say("a")),
            (0.7, b": ping\n\n"),
            (0.8, say("b") + finish("stop") + total(9, 2) + DONE),
        ],
        {"status": "ok", "text": "ab", "n": 2, "ttfr": 0.1, "ttft": 0.6, "tpot": 0.2},
    ),
    "B10A the end without [DONE]": (
        [(0.1, say("a")), (0.2, say("b")), (0.3, finish("stop") + total(5, 2))],
        {"status": "ok", "n": 2, "flags": ()},
    ),
    "B10B the last blank line is missing": (
        [(0.1, say("a")), (0.2, say("b")), (0.3, finish("stop") + total(5, 2)[:-1])],
        {"status": "ok", "n": 2, "flags": ("unterminated_final_event",)},
    ),
    "B10C the last line end is missing": (
        [(0.1, say("a")), (0.2, say("b")), (0.3, finish("stop") + total(5, 2)[:-2])],
        {"status": "ok", "text": "ab", "n": 2, "flags": ("unterminated_final_event",)},
    ),
    "B10D half an event at the end is not read": (
        [(0.1, say("a")), (0.2, say("b")), (0.3, finish("stop") + total(5, 2)[:-20])],
        {"status": "ok", "n": None, "flags": ("unterminated_final_event",)},
    ),
    "B12 several events in one read": (
        [
            (0.2, ROLE + say("a") + say("b") + say("c")),
            (0.5, say("d") + say("e")),
            (0.6, finish("stop") + total(5, 5) + DONE),
        ],
        {"text": "abcde", "n": 5, "n_first": 3, "n_first_source": "events", "tpot": 0.15},
    ),
    "B15 a buffered stream has no rate": (
        [
            (
                2.0,
                ROLE
                + b"".join(say(f"t{i} ") for i in range(8))
                + finish("stop")
                + total(5, 8)
                + DONE,
            )
        ],
        {"status": "ok", "n": 8, "ttft": 2.0, "tpot": None, "flags": ("buffered_stream",)},
    ),
    "B16 one event is not one token": (
        [
            (0.2, ROLE),
            *((round(0.2 + 0.1 * i, 1), say("w x y z ")) for i in range(10)),
            (1.2, finish("stop") + total(5, 40) + DONE),
        ],
        {"n": 40, "ttft": 0.2, "rate": 39 / 0.9, "tpot": 0.9 / 39},
    ),
    "B17 running totals tell what an event carried": (
        [
            (0.2, say("a", usage=us(5, 1))),
            (0.4, say("bcde", usage=us(5, 5))),
            (0.6, say("fghi", usage=us(5, 9)) + finish("stop") + total(5, 9) + DONE),
        ],
        {"n": 9, "n_first": 1, "n_first_source": "usage", "tpot": 0.05, "gaps": [0.2, 0.2]},
    ),
    "B20 a role is no token": (
        [
            (0.05, ROLE),
            *((0.55 + 0.1 * i, say("abc"[i])) for i in range(3)),
            (0.75, finish("stop") + total(5, 3) + DONE),
        ],
        {"ttfr": 0.05, "ttft": 0.55, "n": 3, "gaps": [0.1, 0.1], "tpot": 0.1},
    ),
    "B22 a token without text, and text without a token": (
        [
            (0.1, say("", usage=us(99, 0))),
            (0.2, say("", usage=us(99, 0))),
            (0.4, say("a", usage=us(99, 1))),
            (0.5, say("", usage=us(99, 2))),
            (0.6, say("b", usage=us(99, 3)) + finish("stop") + total(99, 3) + DONE),
        ],
        {"ttft": 0.4, "n": 3, "gaps": [0.1, 0.1], "tpot": 0.1},
    ),
    "B23 thinking is output, the answer comes later": (
        [
            (0.2, ROLE),
            *((round(0.3 + 0.1 * i, 1), think("t ")) for i in range(12)),
            (1.5, say("x")),
            (1.6, say("y") + finish("stop") + total(50, 14) + DONE),
        ],
        {"ttft": 0.3, "ttfa": 1.5, "tpot": 0.1, "n": 14, "status": "ok"},
    ),
    "B25 usage in an event without choices": (
        [(0.1, say("a")), (0.2, say("b")), (0.3, finish("stop")), (0.4, total(7, 2) + DONE)],
        {"n": 2, "prompt": 7, "tpot": 0.1, "wall": 0.4, "status": "ok"},
    ),
    "B26 no usage is no count": (
        [(0.1, say("a b c ")), (0.3, say("d e f ") + finish("stop") + DONE)],
        {"n": None, "ttft": 0.1, "tpot": None, "status": "ok"},
    ),
    "B27 null counts are unknown": (
        [
            (0.1, say("a", usage=None)),
            (0.2, say("b", usage={"prompt_tokens": 11, "total_tokens": 11})),
            (0.3, finish("stop", usage={"prompt_tokens": 11, "completion_tokens": None}) + DONE),
        ],
        {"n": None, "prompt": 11, "text": "ab", "status": "ok"},
    ),
    "B28 running totals are not added up": (
        [
            *((0.1 * i, say("w", usage=us(10, i))) for i in range(1, 6)),
            (0.6, finish("stop", usage=us(10, 5)) + total(10, 5) + DONE),
        ],
        {"n": 5, "prompt": 10, "tpot": 0.1, "status": "ok"},
    ),
    "B30 one token has no rate": (
        [(0.3, ROLE + say("a") + finish("length") + total(12, 1) + DONE)],
        {"status": "ok", "n": 1, "ttft": 0.3, "tpot": None, "rate": None, "flags": ()},
    ),
    "B36 an error in a 200 stream": (
        [(0.1, ev({"error": {"message": "context too long", "code": 400}})), (0.1, DONE)],
        {"status": "failed", "ttft": None, "error": "in_band", "n": None},
    ),
    "an error in mid-stream": (
        [(0.1, say("a")), (0.2, ev({"error": {"message": "out of memory"}}) + DONE)],
        {"status": "failed", "error": "in_band", "wall": None},
    ),
    "an end without finish and without [DONE]": (
        [(0.1, say("a")), (0.2, say("b"))],
        {"status": "failed", "error": "truncated"},
    ),
    "an event that is no JSON": (
        [(0.1, say("a")), (0.2, b"data: {oops\n\n"), (0.3, finish("stop") + DONE)],
        {"status": "failed", "error": "parse"},
    ),
    "an answer without output": (
        [(0.1, ROLE), (0.2, finish("stop") + total(5, 0) + DONE)],
        {"status": "ok", "n": 0, "ttft": None, "flags": ("no_output",)},
    ),
    "a tool call is output": (
        [
            (0.1, ch({"tool_calls": [{"index": 0}]})),
            (0.2, finish("tool_calls") + total(5, 9) + DONE),
        ],
        {"status": "ok", "ttft": 0.1, "ttfa": None},
    ),
    "text completions": (
        [(0.1, ev({"choices": [{"text": "a"}]})), (0.2, finish("stop") + total(5, 1) + DONE)],
        {"status": "ok", "text": "a", "ttft": 0.1},
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_case(name):
    script, expected = CASES[name]
    for variant in [script, *cuts(script)]:
        found = figures(*parse(variant))
        for key, value in expected.items():
            is_figure = isinstance(value, float | list)
            assert found[key] == (pytest.approx(value) if is_figure else value), (key, variant)


def test_b13_one_event_of_many_reads():
    stream = say("x" * 700_000)
    reads = [(0.2, stream[i : i + 65_536]) for i in range(0, len(stream), 65_536)]
    request, _ = parse([(0.1, ROLE), *reads, (0.3, finish("length") + total(5, 512) + DONE)])
    assert (request.status, request.output_tokens, request.ttft_s) == ("ok", 512, 0.2)


def test_an_http_error_keeps_the_servers_own_words():
    body = b'{"error":{"message":"model q is not served here"}}'
    request, _ = parse([(0.1, body)], http_status=404, content_type="application/json")
    assert request.error == RequestError(
        kind="http", message="model q is not served here", http_status=404
    )


def test_a_lost_connection_fails_unless_the_answer_was_complete():
    lost = RequestError(kind="truncated", message="connection lost after 2 reads")
    script = [(0.1, say("a")), (0.2, finish("stop") + total(5, 1))]
    assert parse(script, error=lost)[0].error == lost
    assert parse([*script, (0.2, DONE)], error=lost)[0].status == "ok"


def test_a_compressed_answer_says_what_is_wrong():
    request, _ = parse([(0.1, b"\x1f\x8b")], content_encoding="gzip")
    assert request.error is not None
    assert "gzip although identity" in request.error.message


def test_a_page_instead_of_a_stream_is_quoted():
    request, _ = parse([(0.1, b"<html>hello</html>")], content_type="text/html")
    assert request.error is not None
    assert request.error.kind == "truncated"
    assert "<html>hello" in request.error.message


def test_the_cap_is_named():
    full = [(0.1, say("a")), (0.2, say("b") + finish("stop") + total(5, 512) + DONE)]
    assert "possible_cap" in parse(full)[0].flags
    more = [(0.1, say("a")), (0.2, say("b") + finish("stop") + total(5, 600) + DONE)]
    assert "over_cap" in parse(more)[0].flags


def test_token_ids_count_where_usage_is_missing():
    def ids(text: str, *tokens: int) -> bytes:
        return ev({"choices": [{"delta": {"content": text}, "token_ids": list(tokens)}]})

    script = [(0.1, ids("a", 7)), (0.2, ids("bcd", 8, 9, 10) + finish("stop") + DONE)]
    request, row = parse(script)
    assert (request.output_tokens, request.output_tokens_source) == (4, "token_ids")
    assert (request.first_tokens, request.first_tokens_source) == (1, "token_ids")
    assert row.tokens == (1, 3)
    assert row.token_ids == (7, 8, 9, 10)


def test_repetition_is_seen_over_words_and_over_token_ids():
    words = [(0.1, say("a b a b a b a")), (0.2, finish("stop") + total(5, 7) + DONE)]
    assert parse(words)[0].distinct_4gram_share == 0.5
    body = {"delta": {"content": "one word"}, "token_ids": [1, 2, 1, 2, 1, 2, 1]}
    ids = [(0.1, ev({"choices": [body]})), (0.2, finish("stop") + total(5, 7) + DONE)]
    assert parse(ids)[0].distinct_4gram_share == 0.5


def test_lateness_and_the_engines_own_timings_stand_beside_the_figures():
    last = ev({"choices": [], "usage": us(5, 1), "timings": {"predicted_ms": 3.5}})
    request, _ = parse([(0.1, say("a")), (0.2, finish("stop") + last + DONE)])
    assert request.send_lateness_s == pytest.approx(0.002)
    assert request.engine_timings == {"predicted_ms": 3.5}


# --- streams recorded from engines, one read per event --------------------------------------------


def recorded(name: str) -> list[tuple[float, bytes]]:
    events = (RECORDED / name).read_bytes().split(b"\n\n")
    return [(0.1 * i, event + b"\n\n") for i, event in enumerate(events) if event.strip()]


@pytest.mark.parametrize(
    ("name", "n", "prompt", "reason"),
    [
        ("llamacpp_11434_chat_stream.sse", 64, 40, "length"),
        ("vllm_0.32_chat_stream.sse", 64, 40, "length"),
        ("vllm_0.32_chat_stream_ngram.sse", 11, 54, "stop"),
    ],
)
def test_recorded_streams(name, n, prompt, reason):
    request, row = parse(recorded(name))
    assert (request.status, request.output_tokens, request.prompt_tokens) == ("ok", n, prompt)
    assert request.finish_reason == reason
    assert request.ttft_s == pytest.approx(0.1)  # the first event only names the role
    assert row.text


def test_speculated_tokens_share_an_event_in_a_recorded_stream():
    request, row = parse(recorded("vllm_0.32_chat_stream_ngram.sse"))
    assert (row.text or "").endswith(" six seven eight nine ten")
    assert request.num_output_events < (request.output_tokens or 0)
