"""From stamped bytes to a request's figures.

Cases that other tools got wrong have files of their own under `cases/`; here stands what they
leave open.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from harness.records import RequestError

from .cases.end_to_end import FIN, ROLE, C, U, ch, ev, us
from .cases.streams import Script, agrees, cuts, figures, parse

RECORDED = Path(__file__).parent / "recorded"
DONE = b"data: [DONE]\n\n"

CASES: Mapping[str, tuple[Script, Mapping[str, Any]]] = {
    "B36 an error in a 200 stream": (
        [(0.1, ev({"error": {"message": "context too long", "code": 400}})), (0.1, DONE)],
        {"status": "failed", "ttft": None, "error": "in_band", "n": None},
    ),
    "an error in mid-stream": (
        [(0.1, C("a")), (0.2, ev({"error": {"message": "out of memory"}}) + DONE)],
        {"status": "failed", "error": "in_band", "t_end": None},
    ),
    "an end without finish and without [DONE]": (
        [(0.1, C("a")), (0.2, C("b"))],
        {"status": "failed", "error": "truncated"},
    ),
    "an event that is no JSON": (
        [(0.1, C("a")), (0.2, b"data: {oops\n\n"), (0.3, FIN("stop") + DONE)],
        {"status": "failed", "error": "parse"},
    ),
    "an answer without output": (
        [(0.1, ROLE), (0.2, FIN("stop") + U(5, 0) + DONE)],
        {"status": "failed", "error": "empty", "n": 0, "ttft": None, "t_end": None},
    ),
    "a tool call is output": (
        [
            (0.1, ch({"tool_calls": [{"index": 0}]})),
            (0.2, FIN("tool_calls") + U(5, 9) + DONE),
        ],
        {"status": "ok", "ttft": 0.1, "ttfa": None},
    ),
    "text completions": (
        [(0.1, ev({"choices": [{"text": "a"}]})), (0.2, FIN("stop") + U(5, 1) + DONE)],
        {"status": "ok", "text": "a", "ttft": 0.1},
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_case(name):
    script, expected = CASES[name]
    for variant in [script, *cuts(script)]:
        assert agrees(figures(variant), expected), variant


def test_an_http_error_keeps_the_servers_own_words():
    body = b'{"error":{"message":"model q is not served here"}}'
    request, _ = parse([(0.1, body)], http_status=404, content_type="application/json")
    assert request.error == RequestError(
        kind="http", message="model q is not served here", http_status=404
    )


def test_a_lost_connection_fails_unless_the_answer_was_complete():
    lost = RequestError(kind="truncated", message="connection lost after 2 reads")
    script = [(0.1, C("a")), (0.2, FIN("stop") + U(5, 1))]
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
    full = [(0.1, C("a")), (0.2, C("b") + FIN("stop") + U(5, 512) + DONE)]
    assert "possible_cap" in parse(full)[0].flags
    more = [(0.1, C("a")), (0.2, C("b") + FIN("stop") + U(5, 600) + DONE)]
    assert "over_cap" in parse(more)[0].flags


def test_token_ids_count_where_usage_is_missing():
    def ids(text: str, *tokens: int) -> bytes:
        return ev({"choices": [{"delta": {"content": text}, "token_ids": list(tokens)}]})

    script = [(0.1, ids("a", 7)), (0.2, ids("bcd", 8, 9, 10) + FIN("stop") + DONE)]
    request, row = parse(script)
    assert (request.output_tokens, request.output_tokens_source) == (4, "token_ids")
    assert (request.first_tokens, request.first_tokens_source) == (1, "token_ids")
    assert row.tokens == (1, 3)
    assert row.token_ids == (7, 8, 9, 10)


def test_repetition_is_seen_over_words_and_over_token_ids():
    words = [(0.1, C("a b a b a b a")), (0.2, FIN("stop") + U(5, 7) + DONE)]
    assert parse(words)[0].distinct_4gram_share == 0.5
    body = {"delta": {"content": "one word"}, "token_ids": [1, 2, 1, 2, 1, 2, 1]}
    ids = [(0.1, ev({"choices": [body]})), (0.2, FIN("stop") + U(5, 7) + DONE)]
    assert parse(ids)[0].distinct_4gram_share == 0.5


def test_lateness_and_the_engines_own_timings_stand_beside_the_figures():
    last = ev({"choices": [], "usage": us(5, 1), "timings": {"predicted_ms": 3.5}})
    request, _ = parse([(0.1, C("a")), (0.2, FIN("stop") + last + DONE)])
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
