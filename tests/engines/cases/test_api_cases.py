"""Cases B139 to B144, which other engines got wrong: what a client of the API may rely on.

What a loaded model answers to the fields of B139 is tested beside the other fields, in
serving/test_server.py; here are the values, and the streams of scripted rounds.
"""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from engines.dflash2.decode import Round
from engines.dflash2.tokenizer import Tokenizer, load_tokenizer
from tests.engines.serving.support import (
    GatedScript,
    complete,
    connect,
    counters,
    prefill,
    running,
    scripted,
    scripted_engine,
    send,
    step,
    stream,
    text_of,
    wait_until,
    write_target,
)

MESSAGES = [{"role": "user", "content": "Hi"}]
USAGE = {"include_usage": True}


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    folder: Path = tmp_path_factory.mktemp("api-cases") / "target"
    write_target(folder)
    return load_tokenizer(folder)


@pytest.fixture
def client(tokenizer: Tokenizer) -> Iterator[httpx.Client]:
    """A server whose every answer is a token from the prefill and a round of four more."""
    a = tokenizer.encode("a")[0]
    rounds = [prefill(a), step([a] * 4, trimmed=4, finish_reason="length")]
    with scripted(tokenizer, lambda: iter(rounds)) as client:
        yield client


# --- B139: max_tokens and its other name ---


@pytest.mark.parametrize("value", [0, -1, "5", 1.5])
@pytest.mark.parametrize("name", ["max_tokens", "max_completion_tokens"])
def test_b139_a_limit_that_is_no_number_of_tokens_is_refused_in_json(
    client: httpx.Client, name: str, value: object
) -> None:
    response = client.post("/v1/chat/completions", json={"messages": MESSAGES, name: value})
    assert response.status_code == 400
    error = response.json()["error"]
    assert error["param"] == name
    assert json.dumps(value) in error["message"]


def test_b139_two_limits_that_differ_are_refused_and_two_equal_ones_are_not(
    client: httpx.Client,
) -> None:
    def status(other: int) -> int:
        body = {"messages": MESSAGES, "max_tokens": 5, "max_completion_tokens": other}
        return client.post("/v1/chat/completions", json=body).status_code

    assert (status(9), status(5)) == (400, 200)


@pytest.mark.parametrize("fields", [{"max_tokens": None}, {}, {"max_completion_tokens": 5}])
def test_b139_no_limit_and_the_newer_name_are_understood(
    client: httpx.Client, fields: dict[str, Any]
) -> None:
    answer = complete(client, messages=MESSAGES, **fields)
    assert answer["usage"]["completion_tokens"] == 5
    assert answer["choices"][0]["finish_reason"] == "length"


# --- B140: tokens that are half a character ---


@pytest.mark.parametrize("num_at_once", [1, 8])  # one by one, and all in one step
def test_b140_half_characters_wait_for_their_other_half(
    tokenizer: Tokenizer, num_at_once: int
) -> None:
    # 中, 🚀 and the first half of another 🚀, as single bytes.
    ids = tokenizer.encode("中🚀🚀")[:9]
    assert tokenizer.decode(ids) == "中\N{ROCKET}\ufffd"
    first, *rest = ids
    cuts = [rest[at : at + num_at_once] for at in range(0, len(rest), num_at_once)]

    def script() -> Iterator[Round]:
        yield prefill(first)
        for cut in cuts[:-1]:
            yield step(cut)
        yield step(cuts[-1], finish_reason="length")

    with scripted(tokenizer, script) as client:
        parts = stream(client, prompt="x", max_tokens=9, stream_options=USAGE)
        whole = complete(client, prompt="x", max_tokens=9)
    assert text_of(parts) == whole["choices"][0]["text"] == "中\N{ROCKET}\ufffd"
    shown = [choice["text"] for part in parts for choice in part["choices"]]
    assert not any("\ufffd" in text for text in shown[:-2])  # none before the answer's end
    assert parts[-1]["usage"]["completion_tokens"] == 9


# --- B142: nothing is kept between requests, so every prompt token is evaluated every time ---


def test_b142_a_repeated_prompt_is_evaluated_again_and_said_to_be(client: httpx.Client) -> None:
    answers = [complete(client, prompt=[5] * 100, max_tokens=5) for _ in range(2)]
    for answer in answers:
        assert answer["usage"]["prompt_tokens"] == 100
        assert answer["usage"]["prompt_tokens_details"] == {"cached_tokens": 0}
        assert answer["timings"]["prompt_n"] == 100


# --- B144: the events at a stream's end ---


@pytest.mark.parametrize("options", ["absent", None, {"include_usage": False}])
def test_b144_without_being_asked_for_no_event_has_a_usage(
    client: httpx.Client, options: object
) -> None:
    fields = {} if options == "absent" else {"stream_options": options}
    parts = stream(client, messages=MESSAGES, max_tokens=5, **fields)
    assert not any(part.get("usage") for part in parts)
    assert all(part["choices"] for part in parts)


def test_b144_the_usage_comes_once_after_the_finish_reason_and_before_the_end(
    client: httpx.Client,
) -> None:
    parts = stream(client, messages=MESSAGES, max_tokens=5, stream_options=USAGE)
    *others, finish, usage = parts
    assert parts[0]["choices"][0]["delta"]["role"] == "assistant"
    assert finish["choices"][0]["finish_reason"] == "length"
    assert usage["choices"] == []
    assert usage["usage"]["completion_tokens"] == 5
    assert not any(part.get("usage") for part in [*others, finish])
    assert len({(part["id"], part["model"]) for part in parts}) == 1


def test_b144_an_error_in_mid_stream_takes_the_place_of_the_finish_reason(
    tokenizer: Tokenizer,
) -> None:
    def script() -> Iterator[Round]:
        yield prefill(tokenizer.encode("a")[0])
        raise ArithmeticError("the model computes NaN")

    with scripted(tokenizer, script) as client:
        parts = stream(client, messages=MESSAGES, max_tokens=5, stream_options=USAGE)
    assert "NaN" in parts[-1]["error"]["message"]
    reasons = [choice["finish_reason"] for part in parts for choice in part.get("choices", [])]
    assert reasons == [None] * len(reasons)


@pytest.mark.parametrize("streamed", [True, False])
def test_b144_a_client_that_leaves_frees_its_slot_within_one_round(
    tokenizer: Tokenizer, streamed: bool
) -> None:
    script = GatedScript()
    with (
        running(scripted_engine(tokenizer, script)) as server,
        httpx.Client(base_url=server.url, trust_env=False) as client,
    ):
        with connect(client) as connection:
            send(connection, max_tokens=200, stream=streamed)
            wait_until(lambda: counters(client)["generation_tokens_total"] == 1)
        wait_until(lambda: not server.http.server_state.tasks)  # the server has seen it go
        script.permits.release()
        wait_until(lambda: client.get("/health").json()["quiet"])
        assert counters(client)["generation_tokens_total"] == 2
