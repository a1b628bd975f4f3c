"""No field is ignored in silence: it works, or it asks for nothing, or it is refused by name."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

import httpx
import pytest
from openai.types import completion_create_params as completion_params
from openai.types.chat import chat_completion_assistant_message_param as assistant_params
from openai.types.chat import chat_completion_stream_options_param as stream_params
from openai.types.chat import completion_create_params as chat_params

from engines.dflash2.fields import (
    CHAT_FIELDS,
    COMPLETION_FIELDS,
    MESSAGE_FIELDS,
    STREAM_OPTION_FIELDS,
    Field,
)
from engines.dflash2.tokenizer import Tokenizer

from .support import prefill, scripted

MESSAGES = [{"role": "user", "content": "Hi"}]

# The request fields of vLLM 0.32's two endpoints that OpenAI's do not have.
VLLM_BOTH = """
    use_beam_search top_k min_p repetition_penalty watermarking length_penalty stop_token_ids
    include_stop_str_in_output ignore_eos min_tokens skip_special_tokens
    spaces_between_special_tokens truncate_prompt_tokens truncation_side prompt_logprobs
    logprob_token_ids allowed_token_ids bad_words add_special_tokens structured_outputs priority
    request_id session_id return_tokens_as_token_ids return_token_ids routed_experts_prompt_start
    return_token_offsets mm_payload return_mm_kwargs cache_salt kv_transfer_params
    ec_transfer_params vllm_xargs repetition_detection thinking_token_budget stream_interval
    response_format
"""
VLLM_CHAT = """
    include_reasoning echo add_generation_prompt continue_final_message documents chat_template
    chat_template_kwargs media_io_kwargs mm_processor_kwargs return_prompt_text
"""
VLLM_COMPLETION = "prompt_embeds"


@pytest.fixture(scope="module")
def client(tokenizer: Tokenizer) -> Iterator[httpx.Client]:
    with scripted(tokenizer, lambda: iter([prefill(40, "length")])) as client:
        yield client


def test_every_field_of_the_openai_client_and_of_vllm_is_known() -> None:
    known_to_openai = {
        "chat": {*chat_params.CompletionCreateParamsBase.__annotations__, "stream"},
        "completion": {*completion_params.CompletionCreateParamsBase.__annotations__, "stream"},
        "message": {*assistant_params.ChatCompletionAssistantMessageParam.__annotations__},
        "options": {*stream_params.ChatCompletionStreamOptionsParam.__annotations__},
    }
    assert known_to_openai["chat"] | {*VLLM_BOTH.split(), *VLLM_CHAT.split()} <= CHAT_FIELDS.keys()
    assert known_to_openai["completion"] | {*VLLM_BOTH.split(), VLLM_COMPLETION} <= (
        COMPLETION_FIELDS.keys()
    )
    assert known_to_openai["message"] <= MESSAGE_FIELDS.keys()
    assert known_to_openai["options"] <= STREAM_OPTION_FIELDS.keys()


def neutral_values(table: Mapping[str, Field]) -> Mapping[str, list[Any]]:
    """Of the fields that this engine does not have: what may be written for each of them."""
    return {
        name: field.schema.get("enum", [])
        for name, field in table.items()
        if "enum" in field.schema or field.schema == {"type": "null"}
    }


UNSUPPORTED = [
    *(("/v1/completions", name) for name in neutral_values(COMPLETION_FIELDS)),
    *(("/v1/chat/completions", name) for name in neutral_values(CHAT_FIELDS)),
]


@pytest.mark.parametrize(("path", "name"), UNSUPPORTED)
def test_what_is_not_supported_is_refused_by_name_and_taken_where_it_asks_for_nothing(
    client: httpx.Client, path: str, name: str
) -> None:
    is_chat = "chat" in path
    start: dict[str, Any] = {"messages": MESSAGES} if is_chat else {"prompt": "x"}
    neutral = neutral_values(CHAT_FIELDS if is_chat else COMPLETION_FIELDS)[name]
    for value in [None, *neutral]:
        response = client.post(path, json={**start, "max_tokens": 1, name: value})
        assert response.status_code == 200, response.text
    for asking in ("something", 7, {"a": [1]}, [{"type": "function"}]):
        response = client.post(path, json={**start, "max_tokens": 1, name: asking})
        assert response.status_code == 400
        error = response.json()["error"]
        assert (error["param"], error["code"]) == (name, "unsupported")
        assert f"{name} is {json.dumps(asking)}" in error["message"]


@pytest.mark.parametrize(
    ("name", "asking"),
    [
        ("logprobs", True),
        ("n", 1.5),
        ("n", True),
        ("echo", 1),
        ("frequency_penalty", 0.1),
        ("presence_penalty", -2),
        ("response_format", {"type": "json_object"}),
        ("logit_bias", {"50256": -100}),
        ("skip_special_tokens", False),
    ],
)
def test_near_misses_of_the_neutral_value_are_refused(
    client: httpx.Client, name: str, asking: object
) -> None:
    response = client.post("/v1/completions", json={"prompt": "x", name: asking})
    assert response.status_code == 400
    assert response.json()["error"]["param"] == name


@pytest.mark.parametrize(
    ("message", "param", "told"),
    [
        ({"role": "tool", "content": "7"}, "messages[0].role", 'messages[0].role is "tool"'),
        ({"role": "developer", "content": "x"}, "messages[0].role", '"developer"; it must be one'),
        ({"role": "user", "content": "x", "name": "Eve"}, "messages[0].name", "not support"),
        (
            {"role": "assistant", "content": "x", "tool_calls": [{"id": "1"}]},
            "messages[0].tool_calls",
            "not support",
        ),
        (
            {"role": "user", "content": [{"type": "text", "text": "x", "cache_control": {}}]},
            "messages[0].content",
            "a string or a list of",
        ),
        ({"role": "user", "content": "x", "images": []}, "messages[0].images", "unknown field"),
    ],
)
def test_nothing_in_a_message_is_dropped_in_silence(
    client: httpx.Client, message: dict[str, Any], param: str, told: str
) -> None:
    response = client.post("/v1/chat/completions", json={"messages": [message]})
    assert response.status_code == 400
    error = response.json()["error"]
    assert error["param"] == param
    assert told in error["message"]


def test_an_answer_can_be_sent_back_as_a_client_has_it(client: httpx.Client) -> None:
    earlier = {
        "role": "assistant",
        "content": "a",
        "refusal": None,
        "annotations": [],
        "audio": None,
        "function_call": None,
        "tool_calls": None,
    }
    body = {"messages": [*MESSAGES, earlier, *MESSAGES], "max_tokens": 1}
    assert client.post("/v1/chat/completions", json=body).status_code == 200


def test_a_field_that_comes_twice_is_refused(client: httpx.Client) -> None:
    body = '{"prompt": "x", "temperature": 0, "temperature": 1}'
    response = client.post(
        "/v1/completions", content=body, headers={"Content-Type": "application/json"}
    )
    assert response.status_code == 400
    assert 'has "temperature" more than once' in response.json()["error"]["message"]
