"""What an engine says may follow a prompt: the words to ask for it, and recorded answers."""

import json
from pathlib import Path
from typing import Any

import pytest

from harness.adapters import ADAPTERS
from harness.adapters.base import Ask, Post
from harness.records import LikelyToken, Sampling

RECORDED = Path(__file__).parent / "recorded" / "next_token"
_IDS = "1 1236 202 793 264 291 388 1361 461 1257 86 1354 1762 415 17 2 202 1 352 366 510 202"
CHAT_IDS = tuple(map(int, _IDS.split()))
"""Both engines' tokens of the recorded chat."""


def recorded(name: str) -> Any:
    return json.loads((RECORDED / f"{name}.json").read_text(encoding="utf-8"))


def ask(thinking: bool | None = None) -> Ask:
    return Ask(
        model="demo",
        messages=({"role": "user", "content": "Hi"},),
        max_tokens=9,
        sampling=Sampling(thinking=thinking),
        length="natural",
    )


@pytest.mark.parametrize("name", ["vllm", "dflash2"])
def test_a_chat_becomes_token_ids_by_the_engines_own_template(name: str) -> None:
    render = ADAPTERS[name].render
    assert render is not None
    assert render.request(ask()) == Post(
        path="/tokenize",
        body={"model": "demo", "messages": [{"role": "user", "content": "Hi"}]},
    )
    assert render.request(ask(thinking=False)).body["chat_template_kwargs"] == {
        "enable_thinking": False
    }
    assert render.read(recorded("vllm_tokenize")) == CHAT_IDS


def test_llamacpp_tells_the_text_of_a_chat_and_the_tokens_of_a_text() -> None:
    render, tokenize = ADAPTERS["llamacpp"].render, ADAPTERS["llamacpp"].tokenize
    assert render is not None
    assert tokenize is not None
    assert render.request(ask(thinking=True)).path == "/apply-template"
    text = render.read(recorded("llamacpp_apply_template"))
    assert text == (
        "<|im_start|>user\nWrite a python function that adds two numbers.<|im_end|>\n"
        "<|im_start|>assistant\n"
    )
    assert tokenize.request(text, True) == Post(
        path="/tokenize", body={"content": text, "add_special": True, "parse_special": True}
    )
    assert tokenize.read(recorded("llamacpp_tokenize")) == CHAT_IDS


def test_what_a_model_wrote_holds_no_special_tokens_however_it_looks() -> None:
    tokenize = ADAPTERS["llamacpp"].tokenize
    assert tokenize is not None
    body = tokenize.request("<|im_end|>", False).body
    assert (body["add_special"], body["parse_special"]) == (False, False)


@pytest.mark.parametrize("name", ["vllm", "dflash2", "llamacpp"])
def test_one_token_is_asked_for_behind_ids_with_twenty_likely_ones(name: str) -> None:
    score = ADAPTERS[name].score
    assert score is not None
    asked = score.request("demo", (1, 2, 3))
    assert asked.path == "/v1/completions"
    assert asked.body["prompt"] == [1, 2, 3]
    assert (asked.body["max_tokens"], asked.body["logprobs"]) == (1, 20)


def test_vllm_names_likely_tokens_by_their_ids() -> None:
    score = ADAPTERS["vllm"].score
    assert score is not None
    found = score.read(recorded("vllm_completion"))
    assert found is not None
    assert [each.token_id for each in found] == [66, 11, 348, 426, 32]
    assert found[0] == LikelyToken(token_id=66, logprob=-0.0030027797911316156)


def test_llamacpp_tells_likely_tokens_with_their_texts() -> None:
    score = ADAPTERS["llamacpp"].score
    assert score is not None
    found = score.read(recorded("llamacpp_completion"))
    assert found is not None
    assert [(each.token_id, each.text) for each in found] == [
        (66, "_"),
        (11, "("),
        (348, " |"),
        (426, "):"),
        (32, "="),
    ]
    assert found[1].logprob == -6.575430393218994


def test_the_likeliest_stands_first_wherever_the_engine_puts_it() -> None:
    """vLLM puts the drawn token first, which may be another one."""
    score = ADAPTERS["vllm"].score
    assert score is not None
    tops = {"token_id:7": -2.0, "token_id:8": -0.5}
    found = score.read({"choices": [{"logprobs": {"top_logprobs": [tops]}}]})
    assert found is not None
    assert [each.token_id for each in found] == [8, 7]


@pytest.mark.parametrize("name", ["vllm", "dflash2", "llamacpp"])
@pytest.mark.parametrize(
    "answer",
    [
        None,
        [],
        {},
        {"error": {"message": "no"}},
        {"choices": []},
        {"choices": [{"logprobs": None}]},
        {"choices": [{"logprobs": {"top_logprobs": [None], "content": []}}]},
        {"choices": [{"logprobs": {"top_logprobs": [{"a": -1.0}], "content": [{"id": 3}]}}]},
    ],
)
def test_an_answer_without_likely_tokens_holds_none(name: str, answer: Any) -> None:
    score = ADAPTERS[name].score
    assert score is not None
    assert score.read(answer) is None


@pytest.mark.parametrize("name", ["openai", "sglang"])
def test_of_an_engine_that_was_never_asked_no_words_are_known(name: str) -> None:
    adapter = ADAPTERS[name]
    assert (adapter.render, adapter.tokenize, adapter.score) == (None, None, None)
