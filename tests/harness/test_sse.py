"""Splitting stamped reads into events. Expected values follow from WHATWG's event stream format."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.run.sse import events


def whole(stream: bytes, at_ns: int = 1) -> list[tuple[bytes | None, bytes, bool]]:
    found = events([(at_ns, stream)])
    return [(event.data, event.name, event.terminated) for event in found]


@pytest.mark.parametrize("end", [b"\n", b"\r\n", b"\r"])
def test_lf_crlf_and_cr_end_lines(end):
    stream = b"data: a\n\ndata: b\n\n".replace(b"\n", end)
    assert whole(stream) == [(b"a", b"", True), (b"b", b"", True)]


def test_several_data_lines_are_one_event():
    assert whole(b"data: {\ndata: }\n\n") == [(b"{\n}", b"", True)]


def test_only_one_space_behind_the_colon_is_dropped():
    assert whole(b"data:  a \n\ndata:b\n\n") == [(b" a ", b"", True), (b"b", b"", True)]


def test_comments_are_told_apart_from_events():
    assert whole(b": keep-alive\n\n:\ndata: a\n\n") == [
        (None, b"", True),
        (None, b"", True),
        (b"a", b"", True),
    ]


def test_the_name_of_an_event_and_unknown_fields():
    assert whole(b"event: error\nid: 7\nretry: 1\nwhat\ndata: x\n\n") == [(b"x", b"error", True)]


def test_an_event_without_data_is_none():
    assert whole(b"event: ping\n\n\n\n") == []


def test_a_byte_order_mark_is_no_part_of_the_first_field():
    stream = b"\xef\xbb\xbfdata: a\n\ndata: \xef\xbb\xbfb\n\n"
    assert whole(stream) == [(b"a", b"", True), (b"\xef\xbb\xbfb", b"", True)]


def test_unicode_line_separators_are_text():
    text = "x\u2028y\u0085z\u2029w".encode()
    assert whole(b"data: " + text + b"\n\n") == [(text, b"", True)]


@pytest.mark.parametrize("end", [b"", b"\n"])
def test_an_event_cut_off_by_the_end_says_so(end):
    assert whole(b"data: a\n\ndata: b" + end) == [(b"a", b"", True), (b"b", b"", False)]


def test_an_event_has_the_time_of_the_read_that_completed_it():
    reads = [(10, b"da"), (20, b"ta: a\n"), (30, b"\ndata: b\n\nda"), (40, b"ta: c\n\n")]
    assert [(event.at_ns, event.data) for event in events(reads)] == [
        (30, b"a"),
        (30, b"b"),
        (40, b"c"),
    ]


def test_a_cr_at_the_end_of_a_read_ends_the_line_there_and_not_at_the_next_lf():
    reads = [(10, b"data: a\r\n\r"), (20, b"\ndata: b\r\n\r\n")]
    assert [(event.at_ns, event.data) for event in events(reads)] == [(10, b"a"), (20, b"b")]


STREAM = b": hi\r\ndata: a\r\n\r\ndata: {\rdata:}\r\r\n\nevent: e\ndata: \xe4\xb8\xad\n\n"


@given(st.lists(st.integers(0, len(STREAM)), max_size=6))
def test_cuts_change_nothing_but_times(cuts):
    points = sorted({0, len(STREAM), *cuts})
    reads = [(i, STREAM[a:b]) for i, (a, b) in enumerate(pairwise(points))]
    cut = [(event.data, event.name) for event in events(reads)]
    assert cut == [(data, name) for data, name, _ in whole(STREAM)]
    assert cut == [(None, b""), (b"a", b""), (b"{\n}", b""), ("中".encode(), b"e")]


def test_one_event_in_many_small_reads_takes_no_quadratic_time():
    reads = [(1, b"data: ")] + [(2, b"x" * 10)] * 200_000 + [(3, b"\n\n")]
    (event,) = events(reads)
    assert event.data is not None
    assert len(event.data) == 2_000_000
