"""OpenAI's own Python client works unchanged: answers, streams, usage, errors, key, retries."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import httpx
import openai
import pytest
from openai import OpenAI

from engines.dflash2.decode import Round
from engines.dflash2.tokenizer import Tokenizer

from .support import KV_LEN, Served, prefill, running, scripted_engine, step, wait_until

MESSAGES = [{"role": "user", "content": "How are you?"}]
PROMPT = "The quick brown fox"
KEY = "sk-secret"


@pytest.fixture(scope="module")
def client(served: Served) -> Iterator[OpenAI]:
    """A client of the real process with the tiny pair."""
    with OpenAI(base_url=f"{served.url}/v1", api_key="unused", max_retries=0) as client:
        yield client


def test_a_streamed_chat_is_the_whole_one_in_parts_with_its_usage(client: OpenAI) -> None:
    settings = {"model": "tiny", "messages": MESSAGES, "max_tokens": 20, "temperature": 0}
    whole = client.chat.completions.create(**settings)
    chunks = list(
        client.chat.completions.create(
            **settings, stream=True, stream_options={"include_usage": True}
        )
    )
    (choice,) = whole.choices
    assert (choice.message.role, choice.finish_reason) == ("assistant", "length")
    deltas = [choice.delta for chunk in chunks for choice in chunk.choices]
    assert "".join(delta.content or "" for delta in deltas) == choice.message.content
    assert deltas[0].role == "assistant"
    assert chunks[-1].choices == []
    assert chunks[-1].usage == whole.usage
    assert whole.usage.completion_tokens == 20
    assert {chunk.object for chunk in chunks} == {"chat.completion.chunk"}


def test_a_streamed_completion_is_the_whole_one_in_parts(client: OpenAI) -> None:
    settings = {"model": "tiny", "prompt": PROMPT, "max_tokens": 20, "temperature": 0}
    whole = client.completions.create(**settings)
    chunks = list(client.completions.create(**settings, stream=True))
    assert "".join(chunk.choices[0].text for chunk in chunks) == whole.choices[0].text
    assert chunks[-1].choices[0].finish_reason == whole.choices[0].finish_reason == "length"
    assert whole.usage.total_tokens == whole.usage.prompt_tokens + 20


def test_the_clients_streaming_helper_finds_the_same_answer(client: OpenAI) -> None:
    settings = {"model": "tiny", "messages": MESSAGES, "max_tokens": 9, "temperature": 0}
    whole = client.chat.completions.create(**settings)
    with client.chat.completions.stream(**settings) as stream:
        text = "".join(event.delta for event in stream if event.type == "content.delta")
    assert text == whole.choices[0].message.content


def test_what_is_not_openais_goes_through_extra_body_and_comes_back_as_extras(
    client: OpenAI,
) -> None:
    answer = client.completions.create(
        model="tiny",
        prompt=PROMPT,
        max_tokens=5,
        extra_body={"ignore_eos": True, "top_k": 1, "return_token_ids": True},
    )
    assert len(answer.choices[0].token_ids) == 5
    assert answer.timings["predicted_n"] == 5


def test_models_are_listed_and_found(client: OpenAI) -> None:
    assert [model.id for model in client.models.list()] == ["tiny"]
    assert client.models.retrieve("tiny").max_model_len == KV_LEN
    with pytest.raises(openai.NotFoundError):
        client.models.retrieve("gpt-4")


def test_refusals_become_the_clients_exceptions(client: OpenAI) -> None:
    with pytest.raises(openai.BadRequestError) as refusal:
        client.chat.completions.create(model="tiny", messages=MESSAGES, n=2)
    assert (refusal.value.param, refusal.value.code) == ("n", "unsupported")
    assert "does not support n" in refusal.value.message
    assert refusal.value.request_id.startswith("req-")
    with pytest.raises(openai.NotFoundError, match="gpt-4"):
        client.chat.completions.create(model="gpt-4", messages=MESSAGES)


def test_the_key_is_sent_and_a_wrong_one_is_an_authentication_error(tokenizer: Tokenizer) -> None:
    engine = scripted_engine(tokenizer, lambda: iter([prefill(40, "length")]))
    with running(engine, api_key=KEY) as server:
        url = f"{server.url}/v1"
        with OpenAI(base_url=url, api_key=KEY) as client:
            assert client.completions.create(model="tiny", prompt="x", max_tokens=1).choices
        with (
            OpenAI(base_url=url, api_key="sk-other") as client,
            pytest.raises(openai.AuthenticationError),
        ):
            client.models.list()


def test_a_full_queue_is_tried_again_when_the_server_says_so(tokenizer: Tokenizer) -> None:
    gate = threading.Event()

    def held() -> Iterator[Round]:
        yield prefill(40)
        assert gate.wait(timeout=10)
        yield step([41], finish_reason="length")

    statuses: list[int] = []

    def note(response: httpx.Response) -> None:
        statuses.append(response.status_code)
        if response.status_code == 503:
            assert response.headers["retry-after"] == "1"
            gate.set()  # now the queue empties

    hooks = {"response": [note]}
    with (
        running(scripted_engine(tokenizer, held), max_waiting=0) as server,
        httpx.Client(event_hooks=hooks, trust_env=False) as http,
        OpenAI(base_url=f"{server.url}/v1", api_key="unused", http_client=http) as client,
        ThreadPoolExecutor(max_workers=1) as pool,
    ):
        settings = {"model": "tiny", "prompt": "x", "max_tokens": 2}
        first = pool.submit(client.completions.create, **settings)
        wait_until(lambda: httpx.get(f"{server.url}/health").json()["running"] == 1)
        began_s = time.monotonic()
        second = client.completions.create(**settings)
        assert time.monotonic() - began_s >= 1.0  # of its own accord it would wait half a second
        assert second.usage.completion_tokens == 2
        assert first.result(timeout=10).usage.completion_tokens == 2
    assert sorted(statuses) == [200, 200, 503]


def test_a_failure_inside_a_stream_is_an_api_error(
    tokenizer: Tokenizer, capfd: pytest.CaptureFixture[str]
) -> None:
    def failing() -> Iterator[Round]:
        yield prefill(40)
        yield step([41])
        raise ArithmeticError("logits are NaN")

    with (
        running(scripted_engine(tokenizer, failing)) as server,
        OpenAI(base_url=f"{server.url}/v1", api_key="unused") as client,
    ):
        stream = client.chat.completions.create(model="tiny", messages=MESSAGES, stream=True)
        with pytest.raises(openai.APIError, match="logits are NaN"):
            list(stream)
    assert "ArithmeticError" in capfd.readouterr().err
