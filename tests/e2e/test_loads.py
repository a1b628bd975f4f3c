"""Load shapes, transports and failures from the matrix to the report, against a scripted server."""

import pytest

from harness.records import CellEnd, Request, Session, Timeouts
from harness.scripted_server import DONE, Script, chunk, event, usage
from tests.harness.cases.end_to_end import Answer, measure


def answer(tokens: int = 80, finish: str = "stop") -> Script:
    """One token per 2 ms, nothing repeated."""
    sends = [(0.02 + 0.002 * i, chunk({"content": f"w{i} "})) for i in range(tokens)]
    last = chunk({}, finish) + event({"choices": [], "usage": usage(5, tokens)}) + DONE
    return Script(sends=[*sends, (0.02 + 0.002 * tokens, last)])


TWO = {"p1": answer(), "p2": answer()}


def test_a_run_over_httpx_measures_and_says_so(tmp_path):
    waves = "{kind: concurrency, prompts: cases, levels: [2], repetitions: 1, max_tokens: 4096}"
    generate = "{kind: generate, prompts: cases, repetitions: 1, max_tokens: 4096}"
    found = measure(tmp_path, TWO, workloads=(generate, waves), more="client: {transport: httpx}")
    assert found.exit_code == 0
    (session,) = found.folder.read(Session)
    assert session.transport == "httpx"
    assert session.event_loop is not None
    assert [request.status for request in found.requests] == ["ok"] * 4
    assert {request.output_tokens for request in found.requests} == {80}
    assert found.text("p1") == "".join(f"w{i} " for i in range(80))
    assert found.requests[0].connect_s is not None  # httpx opens none before
    assert found.row("aggregate_throughput")["value"] > 0
    assert found.verdicts("in_flight_is_c", level="invalid") == []


@pytest.mark.parametrize("load", ["constant", "poisson"])
def test_arrivals_at_a_rate_have_a_section_of_their_own(tmp_path, load):
    workload = (
        f"{{kind: concurrency, load: {load}, rate_per_s: 20, num_requests: 8, levels: [16], "
        "prompts: cases, repetitions: 1, max_tokens: 4096}"
    )
    found = measure(tmp_path, TWO, workloads=(workload,))
    assert found.exit_code == 0
    word = f"concurrency-{load}-20-per-s"
    assert found.row("ttft_p50")["workload"] == word
    late = [request.send_lateness_s for request in found.requests]
    expected = sorted(
        request.send_lateness_s + request.ttft_s
        for request in found.requests
        if request.ttft_s is not None
    )
    assert all(lateness_s >= 0 for lateness_s in late)
    median_s = (expected[3] + expected[4]) / 2
    assert found.row("ttft_from_schedule_p50")["value"] == pytest.approx(median_s)
    assert found.row("ttft_from_schedule_p99")["value"] is None  # needs 100
    assert "TTFT after the due moment p50" in found.page
    assert "at most c in flight" in found.page
    starts_ns = [request.t0_ns for request in found.requests]
    assert starts_ns == sorted(starts_ns)


def test_b38_a_request_that_was_turned_away_and_sent_again_tells_both_times(tmp_path):
    def busy(times_asked: int) -> Script:
        if times_asked:
            return answer()
        return Script(
            sends=[(0.0, b'{"error": {"message": "slow down"}}')],
            status=429,
            headers={"Retry-After": "1"},
        )

    workload = "{kind: generate, prompts: cases, repetitions: 1, max_tokens: 4096, retries: 1}"
    (request,) = measure(tmp_path, {"p1": busy}, workloads=(workload,)).requests
    assert request.status == "ok"
    assert (request.attempts, request.throttled) == (2, 1)
    assert request.since_first_attempt_s is not None
    assert request.since_first_attempt_s >= 1.0
    assert request.ttft_s is not None
    assert request.ttft_s < 1.0  # of the attempt alone


FAILURES: dict[str, Answer] = {
    "http": Script(sends=[(0.0, b'{"error": {"message": "no"}}')], status=500),
    "in_band": [(0.0, event({"error": {"message": "too long"}}) + DONE)],
    "truncated": Script(sends=[(0.0, chunk({"content": "a"}))], end="truncate"),
    "empty": [(0.0, chunk({}, "stop") + DONE)],
    "stall": Script(sends=[(0.0, chunk({"content": "a"}))], end="stall"),
    "parse": [(0.0, b"data: {broken\n\n" + DONE)],
    "timeout": Script(sends=[], end="stall"),
    "good": answer(),
}


def test_every_kind_of_failure_is_a_record_and_counted_by_name_in_the_report(tmp_path):
    # never two in a row that go unanswered: that would be a hung engine
    order = ("timeout", "http", "in_band", "stall", "good", "truncated", "empty", "parse")
    found = measure(
        tmp_path,
        {kind: FAILURES[kind] for kind in order},
        timeouts=Timeouts(first_event_s=2.0, idle_s=1.0),
    )
    for kind in order:
        request = found.request(kind)
        assert (request.error.kind if request.error else "good") == kind
        assert (request.status == "ok") == (kind == "good")
        assert (request.wall_s is None) == (kind != "good")
    assert found.request("stall").ttft_s is not None  # what is known of it stays
    (verdict,) = found.verdicts("failed_share")
    assert "7 of 8 requests failed" in verdict["message"]
    for kind in order:
        assert (f"{kind} 1" in verdict["message"]) == (kind != "good")
        assert (f"{kind} 1" in found.page) == (kind != "good")
    assert found.row("failed_share")["value"] == pytest.approx(7 / 8)


def test_forced_lengths_that_an_engine_cut_short_are_failures(tmp_path):
    workload = "{kind: generate, prompts: cases, repetitions: 1, max_tokens: 90, length: forced}"
    (request,) = measure(tmp_path, {"p1": answer(80)}, workloads=(workload,)).requests
    assert request.error is not None
    assert request.error.kind == "short"
    assert "80 tokens came where exactly 90" in request.error.message


def test_an_engine_that_hangs_ends_its_cells_in_bounded_time_and_the_report_says_so(tmp_path):
    silent = {f"p{i}": Script(sends=[], end="stall") for i in range(1, 7)}
    found = measure(tmp_path, silent, timeouts=Timeouts(first_event_s=0.5))
    assert found.exit_code == 3
    kinds = [r.error.kind for r in found.folder.read(Request) if r.error is not None]
    assert kinds == ["timeout", "timeout", "cancelled", "cancelled", "cancelled", "cancelled"]
    assert len(found.received) == 2
    (end,) = found.folder.read(CellEnd)
    assert end.outcome == "unavailable"
    assert "2 requests in a row went unanswered" in str(end.message)
    assert "hangs" in found.page
