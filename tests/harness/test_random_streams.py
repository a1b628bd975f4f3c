"""No crash, no hang and the right answer, whatever comes and however it is cut."""

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from harness.run.sse import events

from .cases.streams import parse
from .random_streams import by_the_book, check_garbage, check_legal

NIGHTLY_STREAMS = 1_000_000

seeds = st.integers(0, 2**32)


@settings(max_examples=300, deadline=None)
@given(seeds)
def test_a_legal_stream_gives_what_was_written_however_it_is_written_and_cut(
    seed: int,
) -> None:
    check_legal(random.Random(seed))


@settings(max_examples=300, deadline=None)
@given(seeds)
def test_garbage_gives_the_events_it_holds_and_a_request_that_makes_sense(
    seed: int,
) -> None:
    check_garbage(random.Random(seed))


LINES = st.sampled_from(
    [b"data: a", b"data", b"data:", b"data:  b", b"event: e", b"event", b":", b": c", b"id: 1", b""]
)
ENDS = st.sampled_from([b"\n", b"\r\n", b"\r"])


@settings(max_examples=500, deadline=None)
@given(st.lists(st.tuples(LINES, ENDS), max_size=12), LINES, st.integers(0, 200))
def test_legal_lines_in_any_order_are_events_by_the_book(
    lines: list[tuple[bytes, bytes]], last: bytes, place: int
) -> None:
    stream = b"".join(line + end for line, end in lines) + last
    found = list(events([(1, stream[:place]), (2, stream[place:])]))

    assert [(event.data, event.name, event.terminated) for event in found] == by_the_book(stream)


@settings(max_examples=300, deadline=None)
@given(st.lists(st.binary(max_size=60), max_size=8))
def test_any_bytes_at_all_are_events_by_the_book(reads: list[bytes]) -> None:
    found = list(events(list(enumerate(reads))))

    assert [(event.data, event.name, event.terminated) for event in found] == by_the_book(
        b"".join(reads)
    )


def test_an_event_of_nothing_but_brackets_is_no_json() -> None:
    request, _ = parse([(0.1, b"data: " + b"[" * 200_000 + b"\n\n")])

    assert request.error is not None
    assert request.error.kind == "parse"


def test_half_a_surrogate_pair_is_no_text() -> None:
    request, _ = parse([(0.1, b'data: {"choices":[{"delta":{"content":"\\ud83d"}}]}\n\n')])

    assert request.error is not None
    assert request.error.kind == "parse"


@pytest.mark.nightly
def test_a_million_streams(request: pytest.FixtureRequest) -> None:
    """Every second one is garbage; the failing seed is in the traceback."""
    if "nightly" not in request.config.getoption("markexpr"):
        pytest.skip("minutes: run it with `-m nightly`")
    for seed in range(NIGHTLY_STREAMS):
        check = check_garbage if seed % 2 else check_legal
        check(random.Random(seed))
