"""What a target finds likely next, in the words that vLLM and the bundled engine have for it.

A chat becomes token ids by `/tokenize`; `/v1/completions` takes token ids and tells what may follow
with log-probabilities, before temperature and cuts. llama.cpp has words of its own, in its file.
"""

import re
from collections.abc import Iterable, Mapping
from typing import Any

from harness.adapters import openai
from harness.adapters.base import Ask, Post, Rendering, Scoring, Tokenizing
from harness.records import LikelyToken

NUM_LIKELIEST = 20
"""As many as vLLM tells at most unless it is started otherwise (`--max-logprobs`)."""

_NAMED = "token_id:"


def _chat(ask: Ask) -> Post:
    thinking = openai.thinking(ask.sampling.thinking)
    template = {} if thinking is None else {"chat_template_kwargs": thinking}
    messages = [dict(message) for message in ask.messages]
    return Post(path="/tokenize", body={"model": ask.model, "messages": messages, **template})


def _text(text: str, is_prompt: bool) -> Post:
    return Post(path="/tokenize", body={"prompt": text, "add_special_tokens": is_prompt})


def read_tokens(answer: Any) -> tuple[int, ...] | None:
    return openai.ids(openai.mapping(answer).get("tokens"))


def _odds(model: str, prompt: tuple[int, ...]) -> Post:
    """Tokens are named by their ids, for several may write the same, such as half a character."""
    return Post(
        path="/v1/completions",
        body={
            "model": model,
            "prompt": list(prompt),
            "max_tokens": 1,
            "temperature": 0,
            "logprobs": NUM_LIKELIEST,
            "return_tokens_as_token_ids": True,
        },
    )


def _read_odds(answer: Any) -> tuple[LikelyToken, ...] | None:
    tops = logprobs(answer).get("top_logprobs")
    named = openai.mapping(tops[0]) if isinstance(tops, list) and tops else {}
    return best_first(
        LikelyToken(token_id=int(name.removeprefix(_NAMED)), logprob=float(logprob))
        for name, logprob in named.items()
        if re.fullmatch(rf"{_NAMED}\d+", name)
    )


def logprobs(answer: Any) -> Mapping[str, Any]:
    """Of a completion's only choice; empty where there are none."""
    choice = openai.first(openai.mapping(answer).get("choices")) or {}
    return openai.mapping(choice.get("logprobs"))


def best_first(tokens: Iterable[LikelyToken]) -> tuple[LikelyToken, ...] | None:
    """An engine may have put the drawn one first."""
    return tuple(sorted(tokens, key=lambda each: -each.logprob)) or None


CHAT_TOKENS = Rendering(request=_chat, read=read_tokens)
TEXT_TOKENS = Tokenizing(request=_text, read=read_tokens)
COMPLETION_ODDS = Scoring(request=_odds, read=_read_odds)
