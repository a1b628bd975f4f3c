"""The server whose timetable is known, and the law of its engine."""

import time

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.scripted_server import ACCEPTED, DEPTH, Script, page, rounds_of, serving


def get(url: str, path: str = "/") -> httpx.Response:
    with httpx.Client(base_url=url, trust_env=False) as http:
        return http.get(path)


def test_an_answer_at_once():
    with serving(lambda _: page('{"a": 1}', status=503)) as server:
        response = get(server.url)
    assert (response.status_code, response.json()) == (503, {"a": 1})


def test_sends_keep_their_timetable_and_are_logged():
    with serving(lambda _: Script(sends=[(0.05, b"a"), (0.15, b"b")])) as server:
        assert get(server.url).content == b"ab"
        received, sent_ns = server.received[0], server.sent_ns[0]
    after_s = [(at_ns - received.at_ns) / 1e9 for at_ns in sent_ns]
    assert after_s == pytest.approx([0.05, 0.15], abs=0.03)


def test_a_truncated_answer_is_an_error_for_any_client():
    with (
        serving(lambda _: Script(sends=[(0, b"a")], end="truncate")) as server,
        pytest.raises(httpx.RemoteProtocolError),
    ):
        get(server.url)


def test_a_stalled_answer_ends_with_the_server():
    began_s = time.perf_counter()
    with (
        serving(lambda _: Script(sends=[(0, b"a")], end="stall")) as server,
        httpx.Client(trust_env=False, timeout=0.2) as http,
        pytest.raises(httpx.ReadTimeout),
    ):
        http.get(server.url)
    assert time.perf_counter() - began_s < 5


def test_rounds_by_hand():
    # accepts 3, 1, 7: emits 4, 2, 8 behind the first token; 12 tokens leave 5 of the last round
    steps = rounds_of(12, drafting=True)
    assert [(step.tokens, step.accepted, step.trimmed) for step in steps] == [
        (4, 3, 0),
        (2, 1, 0),
        (5, 7, 3),
    ]
    assert [step.tokens for step in rounds_of(4, drafting=False)] == [1, 1, 1]


@given(st.integers(1, 200), st.booleans())
def test_every_token_is_explained(num_tokens, drafting):
    steps = rounds_of(num_tokens, drafting=drafting)
    emitted = 1 + sum(1 + (step.accepted or 0) - step.trimmed for step in steps)
    assert emitted == 1 + sum(step.tokens for step in steps) == num_tokens


def test_the_law_reaches_every_depth_that_matters():
    assert max(ACCEPTED) == DEPTH
    assert min(ACCEPTED) == 0
