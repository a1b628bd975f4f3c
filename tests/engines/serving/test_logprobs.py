"""What a target finds likely behind a prompt, as `/v1/completions` tells it of one token."""

from __future__ import annotations

from typing import Any

import httpx
import pytest
import torch

from engines.dflash2.weights import load_target

from .support import Pair, complete

PROMPT = [7, 90, 201, 33, 150, 12]
ONE_TOKEN = {"prompt": PROMPT, "max_tokens": 1, "return_tokens_as_token_ids": True}


def odds(client: httpx.Client, **body: Any) -> dict[str, float]:
    logprobs = complete(client, **{**ONE_TOKEN, **body})["choices"][0]["logprobs"]
    (tops,) = logprobs["top_logprobs"]
    return tops


def test_they_are_those_of_the_targets_own_pass_over_the_prompt(
    client: httpx.Client, pair: Pair
) -> None:
    target = load_target(pair.target, torch.float64)
    with torch.inference_mode():
        hidden = target(torch.tensor([PROMPT])).hidden
        expected, ids = torch.log_softmax(target.logits(hidden)[0, -1], -1).topk(5)
    found = odds(client, logprobs=5)
    assert [*found] == [f"token_id:{token_id}" for token_id in ids.tolist()]
    assert [*found.values()] == pytest.approx(expected.tolist(), abs=1e-4)


def test_temperature_and_cuts_do_not_change_them(client: httpx.Client) -> None:
    plain = odds(client, logprobs=20, temperature=0)
    assert odds(client, logprobs=20, temperature=0.7, top_p=0.1, top_k=2, seed=1) == plain
    assert len(plain) == 20


def test_the_greedy_token_is_the_likeliest(client: httpx.Client) -> None:
    body = {**ONE_TOKEN, "logprobs": 2, "temperature": 0, "return_token_ids": True}
    choice = complete(client, **body)["choices"][0]
    (token_id,) = choice["token_ids"]
    logprobs = choice["logprobs"]
    assert next(iter(logprobs["top_logprobs"][0])) == f"token_id:{token_id}"
    assert logprobs["tokens"] == [f"token_id:{token_id}"]
    assert logprobs["token_logprobs"] == [max(logprobs["top_logprobs"][0].values())]
    assert logprobs["text_offset"] == [0]


def test_a_drawn_token_that_is_not_among_them_has_no_figure(client: httpx.Client) -> None:
    for seed in range(20):
        body = {**ONE_TOKEN, "logprobs": 1, "temperature": 5.0, "seed": seed}
        logprobs = complete(client, **body)["choices"][0]["logprobs"]
        if logprobs["tokens"] != [*logprobs["top_logprobs"][0]]:
            assert logprobs["token_logprobs"] == [None]
            return
    pytest.fail("of twenty tokens drawn from 320 that are about equally likely all were the best")


def test_without_being_asked_it_tells_none(client: httpx.Client) -> None:
    for more in ({}, {"logprobs": False}, {"logprobs": None}):
        assert complete(client, **ONE_TOKEN, **more)["choices"][0]["logprobs"] is None


@pytest.mark.parametrize(
    "more",
    [
        {"max_tokens": 2},
        {"max_tokens": None},
        {"stream": True},
        {"return_tokens_as_token_ids": False},
    ],
)
def test_of_more_than_a_token_by_id_and_in_one_piece_it_refuses_to_tell_them(
    client: httpx.Client, more: dict[str, Any]
) -> None:
    response = client.post("/v1/completions", json={**ONE_TOKEN, "logprobs": 3, **more})
    assert response.status_code == 400
    error = response.json()["error"]
    assert (error["param"], error["code"]) == ("logprobs", "conflicting_fields")


def test_a_chat_is_refused_them_by_name(client: httpx.Client) -> None:
    messages = [{"role": "user", "content": "Hi"}]
    for asking in (True, 5):
        body = {"messages": messages, "max_tokens": 1, "logprobs": asking}
        error = client.post("/v1/chat/completions", json=body).json()["error"]
        assert (error["param"], error["code"]) == ("logprobs", "unsupported")
