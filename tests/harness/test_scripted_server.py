"""The server whose timetable is known, its faults, and the law of its engine."""

import json
import socket
import subprocess
import sys
import time
from contextlib import contextmanager

import httpx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from harness.scripted_server import (
    ACCEPTED,
    DEPTH,
    DONE,
    FakeEngine,
    Law,
    Script,
    ScriptedServer,
    chunk,
    compressed,
    in_band_error,
    in_turn,
    keep_alive_race,
    loading,
    oversized_event,
    page,
    refused,
    rounds_of,
    serving,
)

NOISE_S = 2.0  # a shared machine may stop this process for so long


def get(url: str, path: str = "/") -> httpx.Response:
    with httpx.Client(base_url=url, trust_env=False) as http:
        return http.get(path)


def post(url: str, **body: object) -> httpx.Response:
    with httpx.Client(base_url=url, trust_env=False, timeout=30) as http:
        return http.post("/v1/chat/completions", json=body)


@contextmanager
def plain_socket(server: ScriptedServer):
    """A connection on which one request has been sent."""
    port = int(server.url.rpartition(":")[2])
    with socket.create_connection(("127.0.0.1", port), timeout=30) as connection:
        connection.sendall(b"POST / HTTP/1.1\r\nContent-Length: 2\r\n\r\n{}")
        yield connection


def test_an_answer_at_once():
    with serving(lambda _: page('{"a": 1}', status=503)) as server:
        response = get(server.url)
    assert (response.status_code, response.json()) == (503, {"a": 1})


def test_no_send_comes_before_its_time_and_each_is_logged():
    with serving(lambda _: Script(sends=[(0.05, b"a"), (0.15, b"b")])) as server:
        assert get(server.url).content == b"ab"
        (answer,) = server.answers
    after_s = [(at_ns - answer.received.at_ns) / 1e9 for at_ns in answer.sent_ns]
    assert 0.05 <= after_s[0] < 0.05 + NOISE_S
    assert 0.15 <= after_s[1] < 0.15 + NOISE_S
    assert answer.whole
    assert answer.end_ns is not None
    assert answer.end_ns >= answer.sent_ns[-1]


def test_many_sends_of_one_moment_all_go_out_each_with_a_stamp():
    sends = [(0.0, b"%04d" % number) for number in range(500)]
    with serving(lambda _: Script(sends=sends)) as server:
        content = get(server.url).content
        (stamps,) = server.sent_ns
    assert content == b"".join(data for _, data in sends)
    assert len(stamps) == 500
    assert stamps == sorted(stamps)


def test_a_slow_reader_gets_every_byte():
    piece = b"x" * 100_000
    with (
        serving(lambda _: Script(sends=[(0.0, piece)] * 100)) as server,
        httpx.Client(trust_env=False, timeout=30) as http,
        http.stream("GET", server.url) as response,
    ):
        time.sleep(0.2)  # far more is due than the sockets hold
        assert len(server.sent_ns[0]) < 100
        assert sum(len(data) for data in response.iter_raw()) == 10_000_000


def test_a_send_of_nothing_lets_the_head_go_alone():
    with (
        serving(lambda _: Script(sends=[(0.0, b"")], end="stall")) as server,
        plain_socket(server) as connection,
    ):
        assert connection.recv(4096).endswith(b"chunked\r\n\r\n")


# --- faults ---------------------------------------------------------------------------------------


def test_a_truncated_answer_is_an_error_for_any_client():
    with (
        serving(lambda _: Script(sends=[(0, b"a")], end="truncate")) as server,
        pytest.raises(httpx.RemoteProtocolError),
    ):
        get(server.url)


def test_a_reset_is_a_reset_and_no_orderly_end():
    broken = Script(sends=[(0, b"a"), (0.1, b"b")], end="reset")
    with (
        serving(lambda _: broken) as server,
        plain_socket(server) as connection,
        pytest.raises(ConnectionResetError),
    ):
        _read_to_the_end(connection)
    assert not server.answers[0].whole


def _read_to_the_end(connection: socket.socket) -> None:
    while connection.recv(4096):
        pass


def test_a_stalled_answer_is_in_flight_until_its_client_goes():
    over: list[bool] = []
    stalled = Script(sends=[(0, b"a")], end="stall", over=over.append)
    with serving(lambda _: stalled) as server:
        with plain_socket(server) as connection:
            assert connection.recv(4096)
            assert server.in_flight == 1
        deadline_s = time.perf_counter() + 30
        while server.in_flight and time.perf_counter() < deadline_s:
            time.sleep(0.01)
        assert server.in_flight == 0
    assert over == [False]


def test_after_exit_nobody_listens():
    with serving(lambda _: Script(sends=[(0, b"a")], end="exit")) as server:
        assert get(server.url).content == b"a"
        with pytest.raises(httpx.ConnectError):
            get(server.url)


def test_a_slow_accept_delays_the_first_request_of_a_connection_only():
    with (
        serving(lambda _: page("{}"), accept_delay_s=0.3) as server,
        httpx.Client(trust_env=False, timeout=30) as http,
    ):
        began_ns = time.perf_counter_ns()
        http.get(server.url)
        first, (again_ns, _) = server.received[0], (time.perf_counter_ns(), http.get(server.url))
        second = server.received[1]
    assert first.at_ns - began_ns >= 0.3e9
    assert (second.connection, second.nth) == (1, 2)
    assert second.at_ns - again_ns < first.at_ns - began_ns


def test_the_keep_alive_race_reads_the_second_request_and_says_nothing():
    respond = keep_alive_race(page("{}"))
    with serving(respond) as server, httpx.Client(trust_env=False) as http:
        assert http.get(server.url).status_code == 200
        with pytest.raises(httpx.RemoteProtocolError, match="without sending a response"):
            http.get(server.url)
        assert http.get(server.url).status_code == 200
    assert [(r.connection, r.nth) for r in server.received] == [(1, 1), (1, 2), (2, 1)]


def test_a_compressed_stream_holds_the_same_bytes():
    plain = Script(sends=[(0, chunk({"content": "a"})), (0.02, DONE)])
    with serving(lambda _: compressed(plain)) as server:
        response = get(server.url)
    assert response.headers["content-encoding"] == "gzip"
    assert response.content == chunk({"content": "a"}) + DONE


def test_a_refusal_says_when_to_come_back():
    with serving(lambda _: refused(429, "slow down", retry_after_s=2)) as server:
        response = get(server.url)
    assert (response.status_code, response.headers["retry-after"]) == (429, "2")
    assert response.json() == {"error": {"message": "slow down"}}


def test_an_error_in_the_stream_comes_with_status_200():
    with serving(lambda _: in_band_error("context too long")) as server:
        response = get(server.url)
    assert response.status_code == 200
    assert b'"message":"context too long"' in response.content


def test_scripts_in_turn_end_with_the_last_one():
    with serving(in_turn(page("1"), page("2"))) as server:
        assert [get(server.url).text for _ in range(3)] == ["1", "2", "2"]


def test_a_server_that_loads_lists_its_models_already():
    with serving(loading(lambda _: page("{}"), for_s=60)) as server:
        assert get(server.url, "/v1/models").status_code == 200
        assert get(server.url, "/health").status_code == 503
    with serving(loading(lambda _: page("{}"), for_s=0)) as server:
        assert get(server.url, "/health").status_code == 200


def test_an_oversized_event_is_one_event():
    data = oversized_event(300_000)
    assert data.count(b"\n\n") == 1
    assert len(json.loads(data.removeprefix(b"data: "))["choices"][0]["delta"]["content"]) == 3e5


# --- the law --------------------------------------------------------------------------------------


def test_rounds_by_hand():
    # accepts 3, 1, 7: emits 4, 2, 8 behind the first token; 12 tokens leave 5 of the last round
    steps = rounds_of(12, drafting=True)
    assert [(step.tokens, step.accepted, step.trimmed) for step in steps] == [
        (4, 3, 0),
        (2, 1, 0),
        (5, 7, 3),
    ]
    assert [step.tokens for step in rounds_of(4, drafting=False)] == [1, 1, 1]


@settings(deadline=None)
@given(st.integers(1, 200), st.booleans())
def test_every_token_is_explained(num_tokens, drafting):
    steps = rounds_of(num_tokens, drafting=drafting)
    emitted = 1 + sum(1 + (step.accepted or 0) - step.trimmed for step in steps)
    assert emitted == 1 + sum(step.tokens for step in steps) == num_tokens


def test_the_law_reaches_every_depth_that_matters():
    assert max(ACCEPTED) == DEPTH
    assert min(ACCEPTED) == 0


def ask(**others: object) -> dict[str, object]:
    messages = [{"role": "user", "content": "hello"}]
    return {"model": "scripted", "messages": messages, "max_tokens": 10, **others}


def payloads(response: httpx.Response) -> list[dict]:
    lines = [line.removeprefix("data: ") for line in response.text.split("\n\n")]
    return [json.loads(line) for line in lines if line and line != "[DONE]"]


def test_events_of_four_tokens_carry_running_usage_and_ids_when_asked():
    engine = FakeEngine(Law(prefill_ms=0, round_ms=0, num_tokens=10, tokens_per_event=4))
    options = {"continuous_usage_stats": True}
    with serving(engine.respond) as server:
        told = payloads(post(server.url, **ask(stream_options=options, return_token_ids=True)))
        bare = payloads(post(server.url, **ask()))
    outputs, last = told[:3], told[-1]
    assert [event["usage"]["completion_tokens"] for event in outputs] == [4, 8, 10]
    assert [event["choices"][0]["token_ids"] for event in outputs][2] == [8, 9]
    assert last["usage"] == {"prompt_tokens": 5, "completion_tokens": 10, "total_tokens": 15}
    assert all("usage" not in event for event in bare[:-1])
    assert bare[-1]["usage"] == last["usage"]


def test_one_slot_goes_on_with_what_its_client_gave_up_and_the_next_request_waits():
    engine = FakeEngine(Law(slots=1, prefill_ms=2000, num_tokens=1, dialect="llamacpp"))
    with (
        serving(engine.respond) as server,
        httpx.Client(base_url=server.url, trust_env=False, timeout=30) as http,
    ):
        began_ns = time.perf_counter_ns()
        with pytest.raises(httpx.ReadTimeout):
            http.post("/v1/chat/completions", json=ask(), timeout=0.3)
        (slot,) = http.get("/slots").json()
        busy = http.get("/metrics").text
        second = payloads(http.post("/v1/chat/completions", json=ask()))
        idle = http.get("/metrics").text
        assert http.get("/props").json()["total_slots"] == 1
        second_ns = server.answers[3].sent_ns[0]
    assert slot["is_processing"] is True
    assert "llamacpp:requests_processing 1\n" in busy
    assert "llamacpp:requests_processing 0\n" in idle
    assert second[-1]["usage"]["completion_tokens"] == 1
    assert second_ns - began_ns >= 4e9  # the ghost's two seconds, then its own


@pytest.mark.parametrize("dialect", ["dflash2", "vllm", "llamacpp"])
def test_every_dialect_counts_the_same_rounds(dialect):
    engine = FakeEngine(Law(drafting=True, prefill_ms=0, round_ms=0, dialect=dialect))
    with serving(engine.respond) as server:
        post(server.url, **ask(max_tokens=7))  # rounds accept 3 and 1: 1 + 4 + 2 tokens
        page_text = get(server.url, "/metrics").text
    samples = dict(line.rsplit(" ", 1) for line in page_text.splitlines())
    labels = "" if dialect == "llamacpp" else '{model_name="scripted"}'
    counted = {
        name: samples[f"{dialect}:spec_decode_num_{name}_total{labels}"]
        for name in ("drafts", "draft_tokens", "accepted_tokens")
    }
    assert counted == {"drafts": "2", "draft_tokens": "14", "accepted_tokens": "4"}
    per_position = [value for name, value in samples.items() if "position=" in name]
    assert per_position == ["2", "1", "1", "0", "0", "0", "0"]


# --- as a process ---------------------------------------------------------------------------------


@contextmanager
def a_process(*arguments: str):
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    command = [sys.executable, "-m", "harness.scripted_server", "--port", str(port), *arguments]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    url = f"http://127.0.0.1:{port}"
    try:
        _until_up(url, process)
        yield url, process
    finally:
        process.kill()
        process.communicate()


def _until_up(url: str, process: subprocess.Popen) -> None:
    deadline_s = time.perf_counter() + 60
    while process.poll() is None and time.perf_counter() < deadline_s:
        try:
            get(url, "/v1/models")
            return
        except httpx.ConnectError:
            time.sleep(0.1)
    raise AssertionError("the scripted server did not come up")


def test_the_process_keeps_a_log_of_what_it_really_sent():
    timetable = ("--prefill-ms", "10", "--round-ms", "10", "--num-tokens", "3", "--core", "0")
    with a_process(*timetable) as (url, _):
        began_ns = time.perf_counter_ns()
        post(url, **ask())
        ended_ns = time.perf_counter_ns()
        log = get(url, "/log").json()
        httpx.delete(f"{url}/log", trust_env=False)
        assert get(url, "/log").json()["answers"] == []
    (answer,) = log["answers"]
    stamps = [began_ns, answer["received_ns"], *answer["sent_ns"]]
    assert len(answer["sent_ns"]) == 3 + 1  # the tokens, then finish reason, usage and [DONE]
    for last in (answer["end_ns"], ended_ns):  # either may come first on a busy machine
        assert [*stamps, last] == sorted([*stamps, last])
    assert answer["sent_ns"][2] - answer["received_ns"] >= 30e6
    assert answer["whole"]
    assert log["in_flight_max"] == 1


def test_the_process_dies_after_as_many_answers_as_it_was_told():
    with a_process("--die-after-answers", "2", "--round-ms", "0") as (url, process):
        assert post(url, **ask()).status_code == 200
        assert post(url, **ask()).status_code == 200
        assert process.wait(timeout=60) == 1
        with pytest.raises(httpx.ConnectError):
            post(url, **ask())
