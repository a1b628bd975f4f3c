"""B01 to B15: how events are cut out of a stream of bytes.

Each case in memory, in memory again with the stream cut at every single position, and over a socket
into a report.
"""

import gzip
import tracemalloc
from collections.abc import Mapping
from typing import Any

import pytest

from harness.run.sse import events
from harness.scripted_server import DONE, Script

from .end_to_end import FIN, ROLE, C, Outcome, U, measure
from .streams import SLACK_S, agrees, cuts, figures, parse, size, undisturbed

LONGEST_CUT_BYTES = 4_000


def crlf(data: bytes) -> bytes:
    return data.replace(b"\n", b"\r\n")


SPACES = C("a b")
SPACE = SPACES.index(b" b")  # just before the space inside the JSON string
SIGNS = C("\u4e2d\U0001f680")  # 3-byte and 4-byte characters
SIGN = SIGNS.index(b"\xe4") + 1
BURST = ROLE + b"".join(C(f"t{i} ") for i in range(64)) + FIN("stop") + U(5, 64) + DONE
AB = [(0.1, C("a")), (0.2, C("b"))]

SCRIPTS: Mapping[str, list[tuple[float, bytes]]] = {
    "B01": [
        (0.1, crlf(ROLE + C("a"))),
        (0.2, crlf(C("b"))),
        (0.3, crlf(FIN("stop") + U(5, 2) + DONE)),
    ],
    "B03": [
        (0.1, SPACES[:5]),
        (0.1, SPACES[5:SPACE]),
        (0.1, SPACES[SPACE:]),
        (0.2, C(" c ")),
        (0.3, FIN("stop") + U(5, 3) + DONE),
    ],
    "B04": [
        (0.1, SIGNS[:SIGN]),
        (0.1, SIGNS[SIGN : SIGN + 2]),
        (0.1, SIGNS[SIGN + 2 :]),
        (0.2, FIN("stop") + U(5, 2) + DONE),
    ],
    "B05": [(0.1, C("x\u2028y\u0085z\u2029w")), (0.2, FIN("stop") + U(5, 4) + DONE)],
    "B07": [
        (
            0.1,
            b'data: {"id":"c1","object":"chat.completion.chunk","created":1,"model":"m",\n'
            b'data: "choices":[{"index":0,"delta":{"content":"a"},"finish_reason":null}]}\n\n',
        ),
        (0.2, C("b")),
        (0.3, FIN("stop") + U(5, 2) + DONE),
    ],
    "B08": [
        (0.1, b":\n\n"),
        (0.3, b": keep-alive\n\n"),
        (0.6, ROLE + C("a")),
        (0.7, b": ping\n\n"),
        (0.8, C("b")),
        (0.8, FIN("stop") + U(9, 2) + DONE),
    ],
    "B10A": [*AB, (0.3, FIN("stop") + U(5, 2))],  # whole
    "B10B": [*AB, (0.3, FIN("stop") + U(5, 2)[:-1])],  # one line end only
    "B10C": [*AB, (0.3, FIN("stop") + U(5, 2)[:-2])],  # no line end at all
    "B10D": [*AB, (0.3, FIN("stop") + U(5, 2)[:-20])],  # JSON cut in the middle
    "B12": [
        (0.2, ROLE + C("a") + C("b") + C("c")),
        (0.5, C("d") + C("e")),
        (0.6, FIN("stop") + U(5, 5) + DONE),
    ],
    "B13": [(0.1, ROLE), (0.2, C("x" * 700_000)), (0.3, FIN("length") + U(5, 512) + DONE)],
    "B15": [(2.0, BURST)],
}

EXPECT: Mapping[str, Mapping[str, Any]] = {
    "B01": {"status": "ok", "text": "ab", "n": 2, "ttft": 0.1, "tpot": 0.1, "finish": "stop"},
    "B03": {"status": "ok", "text": "a b c ", "n": 3, "ttft": 0.1},
    "B04": {"status": "ok", "text": "\u4e2d\U0001f680", "n": 2},
    "B05": {"status": "ok", "text": "x\u2028y\x85z\u2029w", "n": 4},
    "B07": {"status": "ok", "text": "ab", "n": 2, "ttft": 0.1},
    "B08": {"status": "ok", "text": "ab", "n": 2, "ttft": 0.6, "tpot": 0.2, "comments": 3},
    "B10A": {"status": "ok", "text": "ab", "n": 2, "unterminated_final": False, "flags": ()},
    "B10B": {
        "status": "ok",
        "text": "ab",
        "n": 2,
        "unterminated_final": True,
        "flags": ("unterminated_final_event",),
    },
    "B10C": {
        "status": "ok",
        "text": "ab",
        "n": 2,
        "unterminated_final": True,
        "flags": ("unterminated_final_event",),
    },
    "B10D": {
        "status": "ok",
        "text": "ab",
        "n": None,
        "tpot": None,
        "flags": ("unterminated_final_event",),
    },
    "B12": {
        "status": "ok",
        "text": "abcde",
        "n": 5,
        "ttft": 0.2,
        "n_first": 3,
        "n_first_source": "events",
        "tpot": 0.15,
    },
    "B13": {"status": "ok", "n": 512, "finish": "length", "ttft": 0.2},
    "B15": {"status": "ok", "n": 64, "ttft": 2.0, "tpot": None, "rate": None, "headline": None},
}


# --- in memory ------------------------------------------------------------------------------------


@pytest.mark.parametrize("case", SCRIPTS)
def test_the_figures_are_the_expected_ones(case: str) -> None:
    assert agrees(figures(SCRIPTS[case]), EXPECT[case])


@pytest.mark.parametrize("case", [c for c in SCRIPTS if size(SCRIPTS[c]) < LONGEST_CUT_BYTES])
def test_the_figures_hold_wherever_the_stream_is_cut(case: str) -> None:
    for cut in cuts(SCRIPTS[case]):
        assert agrees(figures(cut), EXPECT[case]), cut


def test_b15_no_cut_of_the_long_burst_changes_an_event_or_its_time() -> None:
    whole = list(events([(7, BURST)]))

    assert len(whole) == 1 + 64 + 3
    for cut in range(1, len(BURST)):
        assert list(events([(7, BURST[:cut]), (7, BURST[cut:])])) == whole


def test_b13_an_event_of_many_reads_has_the_time_of_its_last() -> None:
    line = C("x" * 700_000)
    reads = [(round(0.2 + i / 1e6, 6), line[i : i + 65_536]) for i in range(0, len(line), 65_536)]

    found = figures([(0.1, ROLE), *reads, (0.95, FIN("length") + U(5, 512) + DONE)])

    assert found["ttft"] == reads[-1][0]
    assert found["n"] == 512


def test_b13_a_long_line_in_many_reads_takes_memory_for_itself_and_not_for_each_read() -> None:
    """Wrong: every read keeps a copy of all that came before it."""
    line = C("x" * 700_000)
    reads = [(i, line[i : i + 8_192]) for i in range(0, len(line), 8_192)]

    tracemalloc.start()
    try:
        (found,) = list(events(reads))
        _, peak_bytes = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert found.data is not None
    assert len(found.data) == len(line) - len(b"data: \n\n")
    assert peak_bytes < 5 * len(line)


def test_b15_a_compressed_stream_is_no_answer() -> None:
    request, _ = parse([(2.0, gzip.compress(BURST))], content_encoding="gzip")

    assert request.error is not None
    assert request.error.message == "the answer is gzip although identity was asked for"
    assert (request.output_tokens, request.ttft_s, request.wall_s) == (None, None, None)


def test_b15_a_burst_of_several_reads_has_no_rate_either() -> None:
    """A long answer that is let go at once takes some milliseconds to read."""
    reads = [(2.0 + 0.0004 * i, C(f"t{i} ")) for i in range(10)]  # 3.6 ms, in gaps of 0.4 ms
    request, _ = parse([*reads, (2.0036, FIN("stop") + U(5, 64) + DONE)])

    assert request.flags == ("buffered_stream",)


def test_b15_a_fast_engine_is_no_held_back_stream() -> None:
    """2,500 events per second after a prefill of 20 ms: gaps under 1 ms, but it takes its time."""
    reads = [(0.02 + 0.0004 * i, C("w ")) for i in range(200)]
    request, _ = parse([*reads, (0.1, FIN("stop") + U(5, 200) + DONE)])

    assert request.flags == ()


# --- over a socket, into a report -----------------------------------------------------------------


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Outcome:
    """One prompt per case; nothing is compressed twice, so B15's second variant stands beside."""
    compressed = Script(sends=[(0.05, gzip.compress(BURST))], headers={"Content-Encoding": "gzip"})
    answers = {**SCRIPTS, "B15gzip": compressed}
    return undisturbed(lambda: measure(tmp_path_factory.mktemp("sse"), answers))


@pytest.mark.parametrize("case", SCRIPTS)
def test_a_run_records_the_expected_figures(run: Outcome, case: str) -> None:
    request, expected = run.request(case), EXPECT[case]

    assert request.status == expected["status"]
    assert request.output_tokens == expected["n"]
    assert request.flags == expected.get("flags", request.flags)
    if "text" in expected:
        assert run.text(case) == expected["text"]
    if "ttft" in expected:
        assert request.ttft_s == pytest.approx(expected["ttft"], abs=SLACK_S)


def in_report(run: Outcome, metric: str, case: str) -> Mapping[str, Any]:
    return run.row(metric, kind=case)


def test_b01_crlf_costs_no_time_to_first_token(run: Outcome) -> None:
    """Wrong: nothing is found before the end of the stream, at 0.3 s."""
    row = in_report(run, "ttft_p50", "B01")

    assert row["value"] == pytest.approx(0.1, abs=SLACK_S)
    assert in_report(run, "output_tokens_median", "B01")["value"] == 2


def test_b08_a_keep_alive_is_the_first_event_and_no_token(run: Outcome) -> None:
    assert in_report(run, "ttfr_p50", "B08")["value"] == pytest.approx(0.1, abs=SLACK_S)
    assert in_report(run, "ttft_p50", "B08")["value"] == pytest.approx(0.6, abs=SLACK_S)


def test_b10_half_an_event_leaves_the_count_unknown_and_says_so(run: Outcome) -> None:
    """Wrong: two events, so two tokens."""
    (verdict,) = run.verdicts("unterminated_final_event")

    assert in_report(run, "output_tokens_median", "B10C")["value"] == 2
    row = in_report(run, "output_tokens_median", "B10D")
    assert (row["value"], row["reason"]) == (None, "the engine reports no token count")
    assert in_report(run, "decode_rate", "B10D")["value"] is None
    assert verdict["level"] == "warning"
    assert verdict["message"].startswith("3 of 14 requests: ")


def test_b12_tokens_of_one_read_make_no_time_per_token(run: Outcome) -> None:
    """Wrong: a median of 0.00 ms, the time between the tokens of one read."""
    request = run.request("B12")
    assert request.ttft_s is not None
    assert request.t_last_s is not None

    tpot = in_report(run, "tpot", "B12")["value"]

    assert tpot == pytest.approx((request.t_last_s - request.ttft_s) / (5 - 3))
    assert in_report(run, "step_time", "B12")["value"] == pytest.approx(0.3, abs=SLACK_S)
    row = in_report(run, "token_time_p50", "B12")
    assert (row["value"], row["reason"]) == (None, "the tokens of single events are not known")
    (table,) = [lines for lines in run.tables() if "n_first" in lines[0]]
    (line,) = [text for text in table if "| B12 |" in text]
    assert "| [≥ 3][" in line


def test_b13_a_line_of_700_kb_is_read_whole(run: Outcome) -> None:
    request = run.request("B13")

    assert (request.error, request.finish_reason) == (None, "length")
    assert len(run.text("B13") or "") == 700_000


def test_b15_a_stream_that_was_held_back_has_its_time_but_no_rate(run: Outcome) -> None:
    """Wrong: 64 tokens in no time, millions per second."""
    for metric in ("decode_rate", "decode_rate_strict", "tpot", "step_time", "peak_rate"):
        assert in_report(run, metric, "B15")["value"] is None, metric
    assert in_report(run, "decode_rate", "B15")["reason"] == (
        "the stream was held back and came at once"
    )
    assert in_report(run, "wall_p50", "B15")["value"] == pytest.approx(2.0, abs=SLACK_S)
    (verdict,) = run.verdicts("buffered_stream")
    assert verdict["message"].startswith("1 of 14 requests: all of the output came at once")


def test_b15_a_compressed_answer_is_a_failed_request(run: Outcome) -> None:
    assert all(request.headers["accept-encoding"] == "identity" for request in run.received)
    request = run.request("B15gzip")
    assert request.error is not None
    assert (request.status, request.error.kind) == ("failed", "parse")
    assert in_report(run, "failed_share", "B15gzip")["value"] == 1
    assert in_report(run, "ttft_p50", "B15gzip")["value"] is None
