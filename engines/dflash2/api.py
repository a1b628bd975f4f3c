"""What a request to the OpenAI-style API may say, and how a bad one is refused.

Turns JSON bodies into checked values, and mistakes into `BadRequestError`s that quote what was
written and say what to do. Knows neither HTTP framing, nor tokens, nor the model.
"""

from __future__ import annotations

import difflib
import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

MAX_STOP_STRINGS = 16
MAX_SEED = 2**63 - 1
MAX_NUMBER = 1e9
# Dividing by less overflows; the distribution is the argmax long before (vLLM's threshold, too).
GREEDY_BELOW_TEMPERATURE = 1e-5
DEFAULT_COMPLETION_TOKENS = 16  # OpenAI's default for /v1/completions
MAX_QUOTED_CHARACTERS = 80


class BadRequestError(Exception):
    """The client's mistake: becomes an HTTP error in OpenAI's shape."""

    def __init__(
        self, message: str, *, param: str | None = None, code: str, status: int = 400
    ) -> None:
        super().__init__(message)
        self.message = message
        self.param = param
        self.code = code
        self.status = status


def error_object(
    message: str, *, type_: str, param: str | None = None, code: str | None = None
) -> dict[str, Any]:
    return {"error": {"message": message, "type": type_, "param": param, "code": code}}


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
    if fields.get("prompt") is None:
        raise BadRequestError(
            'the request has no "prompt"; give a string or a list of token ids',
            param="prompt",
            code="missing_field",
        )
    return CompletionRequest(
        prompt=fields["prompt"], settings=_settings(fields), delivery=_delivery(fields)
    )


def parse_chat(body: bytes, served_name: str) -> ChatRequest:
    fields = _read_fields(body, CHAT_FIELDS, served_name)
    if fields.get("messages") is None:
        raise BadRequestError(
            'the request has no "messages"; give a list of {"role": ..., "content": ...}',
            param="messages",
            code="missing_field",
        )
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
        raise BadRequestError(
            'give exactly one of "prompt", "content" (a string) and "messages"; '
            f"this request has {_listed(given) or 'none'}",
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
        raise BadRequestError(
            'the request has no "tokens"; give a list of token ids',
            param="tokens",
            code="missing_field",
        )
    token_ids: tuple[int, ...] = fields["tokens"]
    return token_ids


# --- one reader per kind of value: (field name, what was written) -> the checked value ---

Reader = Callable[[str, Any], Any]


def quoted(value: Any) -> str:
    text = json.dumps(value, ensure_ascii=False)
    if len(text) <= MAX_QUOTED_CHARACTERS:
        return text
    return text[: MAX_QUOTED_CHARACTERS - 1] + "…"


def _wrong(name: str, value: Any, what_to_write: str) -> BadRequestError:
    return BadRequestError(
        f"{name} is {quoted(value)}; it must be {what_to_write}", param=name, code="invalid_value"
    )


def _is_number(value: Any) -> bool:
    # JSON's true is Python's 1, and a body may say NaN, 1e999 or a whole number no float can hold.
    return type(value) in (int, float) and -MAX_NUMBER <= value <= MAX_NUMBER


def _text(name: str, value: Any) -> str:
    if not isinstance(value, str):
        raise _wrong(name, value, "a string")
    return value


def _boolean(name: str, value: Any) -> bool:
    if not isinstance(value, bool):
        raise _wrong(name, value, "true or false")
    return value


def _object(name: str, value: Any) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise _wrong(name, value, "an object")
    return value


def _integer(low: int, high: int | None, meaning: str) -> Reader:
    def read(name: str, value: Any) -> int:
        if type(value) is not int or value < low or (high is not None and value > high):
            raise _wrong(name, value, meaning)
        return value

    return read


def _temperature(name: str, value: Any) -> float:
    if not _is_number(value) or value < 0:
        raise _wrong(name, value, "a number of at least 0 (0 is greedy decoding)")
    return float(value) if value >= GREEDY_BELOW_TEMPERATURE else 0.0


def _top_p(name: str, value: Any) -> float:
    if not _is_number(value) or not 0 < value <= 1:
        raise _wrong(name, value, "a number above 0 and at most 1 (1 switches it off)")
    return float(value)


def _top_k(name: str, value: Any) -> int:
    if type(value) is not int or value < -1:
        raise _wrong(name, value, "a whole number of at least 1, or 0 or -1 to switch it off")
    return max(value, 0)


def _stop(name: str, value: Any) -> tuple[str, ...]:
    strings = [value] if isinstance(value, str) else value
    if (
        not isinstance(strings, list)
        or len(strings) > MAX_STOP_STRINGS
        or not all(isinstance(string, str) and string for string in strings)
    ):
        raise _wrong(
            name, value, f"a string or a list of at most {MAX_STOP_STRINGS} strings, none empty"
        )
    return tuple(strings)


def _token_ids(name: str, value: Any) -> tuple[int, ...]:
    if not isinstance(value, list) or not all(type(id_) is int for id_ in value):
        raise _wrong(name, value, "a list of token ids")
    return tuple(value)


def _prompt(name: str, value: Any) -> str | tuple[int, ...]:
    prompt = _single_prompt(name, value)
    if prompt in ("", []):
        raise BadRequestError(
            f"{name} is empty ({quoted(value)}); give at least one token",
            param=name,
            code="empty_prompt",
        )
    if isinstance(prompt, str):
        return prompt
    if isinstance(prompt, list) and all(type(id_) is int for id_ in prompt):
        return tuple(prompt)
    raise _wrong(name, value, "a string or a list of token ids")


def _single_prompt(name: str, value: Any) -> Any:
    """The one prompt of a list of prompts, or the value itself if it is no such list."""
    if not isinstance(value, list) or not value:
        return value
    if not all(isinstance(item, (str, list)) for item in value):
        return value
    if len(value) > 1:
        raise BadRequestError(
            f"{name} holds {len(value)} prompts; this engine takes one prompt per request, "
            "so send one request for each",
            param=name,
            code="invalid_value",
        )
    return value[0]


def _messages(name: str, value: Any) -> tuple[Mapping[str, Any], ...]:
    if not isinstance(value, list) or not value:
        raise _wrong(name, value, 'a list of {"role": ..., "content": ...} with at least one entry')
    return tuple(_message(f"{name}[{index}]", message) for index, message in enumerate(value))


def _message(name: str, message: Any) -> Mapping[str, Any]:
    if not isinstance(message, dict) or not isinstance(message.get("role"), str):
        raise _wrong(name, message, 'an object with a "role" ("system", "user" or "assistant")')
    return {**message, "content": _content(f"{name}.content", message.get("content"))}


def _content(name: str, content: Any) -> str:
    """A message's text: a string, or OpenAI's list of parts, of which only text is read."""
    if isinstance(content, str):
        return content
    if isinstance(content, list) and all(
        isinstance(part, dict) and part.get("type") == "text" and isinstance(part.get("text"), str)
        for part in content
    ):
        return "".join(part["text"] for part in content)
    raise _wrong(name, content, 'a string or a list of {"type": "text", "text": ...}')


def _stream_options(name: str, value: Any) -> dict[str, Any]:
    return _check_fields(_object(name, value), STREAM_OPTION_FIELDS, prefix=f"{name}.")


def _only(neutral: Any) -> Reader:
    """A field of the API that this engine does not have: accepted where it asks for nothing."""
    # Compared with the type, so that true does not pass for 1.
    types = (int, float) if type(neutral) is int else (type(neutral),)

    def read(name: str, value: Any) -> None:
        if value != neutral or type(value) not in types:
            raise BadRequestError(
                f"{name} is {quoted(value)}, but this engine does not support {name}; "
                f"leave it out or write {quoted(neutral)}",
                param=name,
                code="unsupported",
            )

    return read


# --- the tables of fields; null means absent, as OpenAI has it ---

COMMON_FIELDS: Mapping[str, Reader] = {
    "model": _text,
    "stream": _boolean,
    "stream_options": _stream_options,
    "return_token_ids": _boolean,
    "max_tokens": _integer(1, None, "a whole number of at least 1, or absent for the default"),
    "min_tokens": _integer(0, None, "a whole number of at least 0"),
    "temperature": _temperature,
    "top_p": _top_p,
    "top_k": _top_k,
    "seed": _integer(0, MAX_SEED, "a whole number from 0 to 2^63 - 1"),
    "stop": _stop,
    "ignore_eos": _boolean,
    # Accepted and without effect: there is no prefix cache to switch, and nobody to bill.
    "cache_prompt": _boolean,
    "user": _text,
    "n": _only(1),
    "logprobs": _only(False),
    "frequency_penalty": _only(0),
    "presence_penalty": _only(0),
    "repetition_penalty": _only(1),
    "min_p": _only(0),
    "logit_bias": _only({}),
}

COMPLETION_FIELDS: Mapping[str, Reader] = {
    **COMMON_FIELDS,
    "prompt": _prompt,
    "best_of": _only(1),
    "echo": _only(False),
    "suffix": _only(""),
}

CHAT_FIELDS: Mapping[str, Reader] = {
    **COMMON_FIELDS,
    "messages": _messages,
    "max_completion_tokens": COMMON_FIELDS["max_tokens"],
    "chat_template_kwargs": _object,
    "top_logprobs": _only(0),
    "tools": _only([]),
    "response_format": _only({"type": "text"}),
}

TOKENIZE_FIELDS: Mapping[str, Reader] = {
    "model": _text,
    "prompt": _text,
    "content": _text,
    "messages": _messages,
    "chat_template_kwargs": _object,
    "add_special_tokens": _boolean,
}

DETOKENIZE_FIELDS: Mapping[str, Reader] = {"model": _text, "tokens": _token_ids}

STREAM_OPTION_FIELDS: Mapping[str, Reader] = {
    "include_usage": _boolean,
    "continuous_usage_stats": _boolean,
}


def _read_fields(body: bytes, table: Mapping[str, Reader], served_name: str) -> dict[str, Any]:
    fields = _check_fields(_read_object(body), table)
    _check_model(fields.get("model"), served_name)
    return fields


def _read_object(body: bytes) -> dict[str, Any]:
    try:
        value = json.loads(body)
        # JSON can write half of a surrogate pair, which no tokenizer can take and no answer quote.
        json.dumps(value, ensure_ascii=False).encode()
    except (ValueError, RecursionError) as error:  # Unicode errors are ValueErrors, too
        raise BadRequestError(f"the body is not JSON: {error}", code="invalid_json") from error
    if not isinstance(value, dict):
        raise BadRequestError(
            f"the body is {quoted(value)}; it must be a JSON object", code="invalid_json"
        )
    return value


def _check_fields(
    given: Mapping[str, Any], table: Mapping[str, Reader], prefix: str = ""
) -> dict[str, Any]:
    fields = {}
    for name, value in given.items():
        if name not in table:
            raise _unknown_field(name, table, prefix)
        if value is not None:
            fields[name] = table[name](prefix + name, value)
    return fields


def _unknown_field(name: str, table: Mapping[str, Reader], prefix: str) -> BadRequestError:
    nearest = difflib.get_close_matches(name, table, n=1)
    advice = (
        f"did you mean {quoted(nearest[0])}?" if nearest else f"known: {_listed(sorted(table))}"
    )
    return BadRequestError(
        f"unknown field {quoted(prefix + name)}; {advice}",
        param=prefix + name,
        code="unknown_field",
    )


def _check_model(model: str | None, served_name: str) -> None:
    if model is not None and model != served_name:
        raise BadRequestError(
            f"model {quoted(model)} is not served here; this process serves {quoted(served_name)}",
            param="model",
            code="model_not_found",
            status=404,
        )


def _listed(names: Iterable[str]) -> str:
    return ", ".join(f'"{name}"' for name in names)


def _settings(fields: Mapping[str, Any]) -> Settings:
    return Settings(
        max_tokens=_max_tokens(fields),
        min_tokens=fields.get("min_tokens", 0),
        temperature=fields.get("temperature", 1.0),
        top_p=fields.get("top_p", 1.0),
        top_k=fields.get("top_k", 0),
        seed=fields.get("seed"),
        stop=fields.get("stop", ()),
        ignore_eos=fields.get("ignore_eos", False),
    )


def _max_tokens(fields: Mapping[str, Any]) -> int | None:
    """max_tokens, or its newer name in chat requests; both may be given if they agree."""
    old, new = fields.get("max_tokens"), fields.get("max_completion_tokens")
    if old is not None and new is not None and old != new:
        raise BadRequestError(
            f"max_tokens is {old} and max_completion_tokens is {new}; give one of them",
            param="max_tokens",
            code="conflicting_fields",
        )
    return old if new is None else new


def _delivery(fields: Mapping[str, Any]) -> Delivery:
    stream = fields.get("stream", False)
    options = fields.get("stream_options", {})
    if options and not stream:
        raise BadRequestError(
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
