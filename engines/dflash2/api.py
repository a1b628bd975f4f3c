"""What a request to the OpenAI-style API means: JSON bodies become checked values.

Knows what fields mean together; `fields` knows them one by one. Knows neither HTTP, nor tokens,
nor the model.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from engines.dflash2.fields import (
    CHAT_FIELDS,
    COMPLETION_FIELDS,
    DETOKENIZE_FIELDS,
    TOKENIZE_FIELDS,
    Field,
    check_fields,
    listed,
    quoted,
)
from engines.dflash2.refusals import RefusedError

DEFAULT_COMPLETION_TOKENS = 16  # OpenAI's default for /v1/completions


@dataclass(frozen=True, kw_only=True)
class Settings:
    """How to sample and when to stop, as one request says it."""

    max_tokens: int | None  # None: the endpoint's default
    min_tokens: int
    temperature: float
    top_p: float
    top_k: int  # 0: off
    seed: int | None  # None: drawn by the engine
    stop: tuple[str, ...]
    stop_token_ids: tuple[int, ...]
    ignore_eos: bool


@dataclass(frozen=True, kw_only=True)
class Delivery:
    """How the answer is to be written."""

    stream: bool
    include_usage: bool
    continuous_usage_stats: bool
    return_token_ids: bool


@dataclass(frozen=True, kw_only=True)
class CompletionRequest:
    prompt: str | tuple[int, ...]
    settings: Settings
    delivery: Delivery
    num_likeliest: int  # tokens to tell that the prompt makes likeliest


@dataclass(frozen=True, kw_only=True)
class ChatRequest:
    messages: tuple[Mapping[str, Any], ...]
    template_variables: Mapping[str, Any]
    settings: Settings
    delivery: Delivery


@dataclass(frozen=True, kw_only=True)
class TokenizeRequest:
    """Either `text` or `messages` is given, the other is None."""

    text: str | None
    messages: tuple[Mapping[str, Any], ...] | None
    template_variables: Mapping[str, Any]
    add_special_tokens: bool


def parse_completion(body: bytes, served_name: str) -> CompletionRequest:
    fields = _read_fields(body, COMPLETION_FIELDS, served_name)
    if "prompt" not in fields:
        raise _missing("prompt", "give a string or a list of token ids")
    return CompletionRequest(
        prompt=fields["prompt"],
        settings=_settings(fields),
        delivery=_delivery(fields),
        num_likeliest=_num_likeliest(fields),
    )


def _num_likeliest(fields: Mapping[str, Any]) -> int:
    """They are told of one token, in one piece, and by id: texts of tokens need not differ."""
    wanted: int = fields.get("logprobs", 0)
    is_one_token = fields.get("max_tokens") == 1 and not fields.get("stream", False)
    if wanted and not (is_one_token and fields.get("return_tokens_as_token_ids", False)):
        raise RefusedError(
            f"logprobs is {wanted}, and this engine tells them of a single token, by id and not as "
            "a stream; write max_tokens 1, return_tokens_as_token_ids true and no stream, or leave "
            "logprobs out",
            param="logprobs",
            code="conflicting_fields",
        )
    return wanted


def parse_chat(body: bytes, served_name: str) -> ChatRequest:
    fields = _read_fields(body, CHAT_FIELDS, served_name)
    if "messages" not in fields:
        raise _missing("messages", 'give a list of {"role": ..., "content": ...}')
    return ChatRequest(
        messages=fields["messages"],
        template_variables=fields.get("chat_template_kwargs", {}),
        settings=_settings(fields),
        delivery=_delivery(fields),
    )


def parse_tokenize(body: bytes, served_name: str) -> TokenizeRequest:
    fields = _read_fields(body, TOKENIZE_FIELDS, served_name)
    given = [name for name in ("prompt", "content", "messages") if name in fields]
    if len(given) != 1:
        raise RefusedError(
            'give exactly one of "prompt", "content" (a string) and "messages"; '
            f"this request has {listed(given) or 'none'}",
            param=given[1] if given else "prompt",
            code="missing_field" if not given else "conflicting_fields",
        )
    return TokenizeRequest(
        text=fields.get("prompt", fields.get("content")),
        messages=fields.get("messages"),
        template_variables=fields.get("chat_template_kwargs", {}),
        add_special_tokens=fields.get("add_special_tokens", True),
    )


def parse_detokenize(body: bytes, served_name: str) -> tuple[int, ...]:
    fields = _read_fields(body, DETOKENIZE_FIELDS, served_name)
    if "tokens" not in fields:
        raise _missing("tokens", "give a list of token ids")
    token_ids: tuple[int, ...] = fields["tokens"]
    return token_ids


def _missing(name: str, advice: str) -> RefusedError:
    return RefusedError(f'the request has no "{name}"; {advice}', param=name, code="missing_field")


def _read_fields(body: bytes, table: Mapping[str, Field], served_name: str) -> dict[str, Any]:
    fields = check_fields(_read_object(body), table)
    check_model(fields.get("model"), served_name)
    return fields


def _read_object(body: bytes) -> dict[str, Any]:
    try:
        value = json.loads(body, object_pairs_hook=_object_without_duplicates)
        # JSON can write half of a surrogate pair, which no tokenizer can take and no answer quote.
        json.dumps(value, ensure_ascii=False).encode()
    except (ValueError, RecursionError) as error:  # Unicode errors are ValueErrors, too
        raise RefusedError(f"the body is not JSON: {error}", code="invalid_json") from error
    if not isinstance(value, dict):
        raise RefusedError(
            f"the body is {quoted(value)}; it must be a JSON object", code="invalid_json"
        )
    return value


def _object_without_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """JSON lets a name come twice; whichever value won, the other would be dropped in silence."""
    value = dict(pairs)
    if len(value) < len(pairs):
        ((twice, _),) = Counter(name for name, _ in pairs).most_common(1)
        raise RefusedError(
            f"an object in the body has {quoted(twice)} more than once; write it once",
            code="invalid_json",
        )
    return value


def check_model(model: str | None, served_name: str) -> None:
    if model is not None and model != served_name:
        raise RefusedError(
            f"model {quoted(model)} is not served here; this process serves {quoted(served_name)}",
            param="model",
            code="model_not_found",
            status=404,
        )


def _settings(fields: Mapping[str, Any]) -> Settings:
    return Settings(
        max_tokens=_max_tokens(fields),
        min_tokens=fields.get("min_tokens", 0),
        temperature=fields.get("temperature", 1.0),
        top_p=fields.get("top_p", 1.0),
        top_k=fields.get("top_k", 0),
        seed=fields.get("seed"),
        stop=fields.get("stop", ()),
        stop_token_ids=fields.get("stop_token_ids", ()),
        ignore_eos=fields.get("ignore_eos", False),
    )


def _max_tokens(fields: Mapping[str, Any]) -> int | None:
    """max_tokens, or its newer name in chat requests; both may be given if they agree."""
    old, new = fields.get("max_tokens"), fields.get("max_completion_tokens")
    if old is not None and new is not None and old != new:
        raise RefusedError(
            f"max_tokens is {old} and max_completion_tokens is {new}; give one of them",
            param="max_tokens",
            code="conflicting_fields",
        )
    return old if new is None else new


def _delivery(fields: Mapping[str, Any]) -> Delivery:
    stream = fields.get("stream", False)
    options = fields.get("stream_options", {})
    if options and not stream:
        raise RefusedError(
            f"stream_options is {quoted(options)} but stream is not true; "
            "leave stream_options out or stream",
            param="stream_options",
            code="conflicting_fields",
        )
    include_usage = options.get("include_usage", False)
    return Delivery(
        stream=stream,
        include_usage=include_usage,
        # As in vLLM, running totals come only to a client that asked for usage at all.
        continuous_usage_stats=include_usage and options.get("continuous_usage_stats", False),
        return_token_ids=fields.get("return_token_ids", False),
    )
