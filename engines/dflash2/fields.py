"""The fields of the API's requests: one table per object, and what each field takes.

A row has two faces that must agree, a reader and a JSON Schema: what the schema forbids the reader
refuses, which the tests check with thousands of made-up requests. Knows single values; what they
mean together is `api`'s.
"""

from __future__ import annotations

import difflib
import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from engines.dflash2.refusals import RefusedError

MAX_STOP_STRINGS = 16
MAX_LOGPROBS = 20  # vLLM's limit, unless it is told another one
MAX_SEED = 2**63 - 1
# No sequence is this long; without a bound, a number of 4,300 digits would reach the arithmetic.
MAX_COUNT = 2**31 - 1
MAX_NUMBER = 1e9
# Dividing by less overflows; the distribution is the argmax long before (vLLM's threshold, too).
GREEDY_BELOW_TEMPERATURE = 1e-5
MAX_QUOTED_CHARACTERS = 80
ROLES = ("system", "user", "assistant")

Reader = Callable[[str, Any], Any]
"""(the field's name, what was written) -> the checked value, or `RefusedError`."""

Schema = Mapping[str, Any]


@dataclass(frozen=True, kw_only=True)
class Field:
    read: Reader
    schema: Schema  # of what `read` takes; null is taken for every field and means absent


def check_fields(
    given: Mapping[str, Any], table: Mapping[str, Field], prefix: str = ""
) -> dict[str, Any]:
    """The checked values of the fields that are there."""
    values = {}
    for name, value in given.items():
        if name not in table:
            raise _unknown_field(name, table, prefix)
        if value is not None:
            values[name] = table[name].read(prefix + name, value)
    return values


def _unknown_field(name: str, table: Mapping[str, Field], prefix: str) -> RefusedError:
    nearest = difflib.get_close_matches(cut(name), table, n=1)
    advice = f"did you mean {quoted(nearest[0])}?" if nearest else f"known: {listed(sorted(table))}"
    return RefusedError(
        f"unknown field {quoted(prefix + name)}; {advice}",
        param=cut(prefix + name),
        code="unknown_field",
    )


def object_schema(table: Mapping[str, Field], required: Iterable[str] = ()) -> dict[str, Any]:
    """The JSON Schema of an object with these fields and no others."""
    required = tuple(required)
    return {
        "type": "object",
        "properties": {
            name: field.schema if name in required else _or_null(field.schema)
            for name, field in table.items()
        },
        "required": list(required),
        "additionalProperties": False,
    }


def _or_null(schema: Schema) -> Schema:
    return {"anyOf": [schema, {"type": "null"}]}


# --- how values and names are quoted ---


def quoted(value: Any) -> str:
    return cut(json.dumps(value, ensure_ascii=False))


def cut(text: str) -> str:
    if len(text) <= MAX_QUOTED_CHARACTERS:
        return text
    return text[: MAX_QUOTED_CHARACTERS - 1] + "…"


def listed(names: Iterable[str]) -> str:
    return ", ".join(f'"{name}"' for name in names)


def _wrong(name: str, value: Any, what_to_write: str) -> RefusedError:
    return RefusedError(
        f"{name} is {quoted(value)}; it must be {what_to_write}", param=name, code="invalid_value"
    )


# --- one reader per kind of value ---


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


def _whole(value: Any) -> int | None:
    """A whole number; JSON has one kind of number, so 5.0 is 5."""
    if type(value) is float and value.is_integer():
        return int(value)
    return value if type(value) is int else None


def _integer(low: int, high: int, meaning: str) -> Field:
    def read(name: str, value: Any) -> int:
        number = _whole(value)
        if number is None or not low <= number <= high:
            raise _wrong(name, value, meaning)
        return number

    return Field(read=read, schema={"type": "integer", "minimum": low, "maximum": high})


def _temperature(name: str, value: Any) -> float:
    if not _is_number(value) or value < 0:
        raise _wrong(name, value, "a number of at least 0 (0 is greedy decoding)")
    return float(value) if value >= GREEDY_BELOW_TEMPERATURE else 0.0


def _top_p(name: str, value: Any) -> float:
    if not _is_number(value) or not 0 < value <= 1:
        raise _wrong(name, value, "a number above 0 and at most 1 (1 switches it off)")
    return float(value)


def _top_k(name: str, value: Any) -> int:
    number = _whole(value)
    if number is None or not -1 <= number <= MAX_COUNT:
        raise _wrong(name, value, "a whole number of at least 1, or 0 or -1 to switch it off")
    return max(number, 0)


def _logprobs(name: str, value: Any) -> int:
    if value is False:
        return 0
    number = _whole(value)
    if number is None or not 1 <= number <= MAX_LOGPROBS:
        raise _wrong(name, value, f"a whole number from 1 to {MAX_LOGPROBS}, or false for none")
    return number


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
    token_ids = _as_token_ids(value)
    if token_ids is None:
        raise _wrong(name, value, "a list of token ids")
    return token_ids


def _as_token_ids(value: Any) -> tuple[int, ...] | None:
    if not isinstance(value, list):
        return None
    numbers = tuple(number for item in value if (number := _whole(item)) is not None)
    return numbers if len(numbers) == len(value) else None


def _prompt(name: str, value: Any) -> str | tuple[int, ...]:
    prompt = _single_prompt(name, value)
    if prompt in ("", []):
        raise RefusedError(
            f"{name} is empty ({quoted(value)}); give at least one token",
            param=name,
            code="empty_prompt",
        )
    if isinstance(prompt, str):
        return prompt
    token_ids = _as_token_ids(prompt)
    if token_ids is None:
        raise _wrong(name, value, "a string or a list of token ids")
    return token_ids


def _single_prompt(name: str, value: Any) -> Any:
    """The one prompt of a list of prompts, or the value itself if it is no such list."""
    if not isinstance(value, list) or not value:
        return value
    if not all(isinstance(item, (str, list)) for item in value):
        return value
    if len(value) > 1:
        raise RefusedError(
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
    if not isinstance(message, dict) or message.get("role") is None:
        raise _wrong(name, message, f'an object with a "role" ({listed(ROLES)})')
    fields = check_fields(message, MESSAGE_FIELDS, prefix=f"{name}.")
    if "content" not in fields:
        raise _wrong(f"{name}.content", None, CONTENT_MEANING)
    return fields


def _role(name: str, value: Any) -> str:
    if value not in ROLES:
        # Templates leave out what a role they do not know says, without a word.
        raise _wrong(name, value, f"one of {listed(ROLES)}")
    return str(value)


CONTENT_MEANING = 'a string or a list of {"type": "text", "text": ...}'


def _content(name: str, content: Any) -> str:
    """A message's text: a string, or OpenAI's list of parts, of which only text is read."""
    if isinstance(content, str):
        return content
    if isinstance(content, list) and all(_is_text_part(part) for part in content):
        return "".join(part["text"] for part in content)
    raise _wrong(name, content, CONTENT_MEANING)


def _is_text_part(part: Any) -> bool:
    return (
        isinstance(part, dict)
        and part.keys() == {"type", "text"}
        and part["type"] == "text"
        and isinstance(part["text"], str)
    )


def _stream_options(name: str, value: Any) -> dict[str, Any]:
    return check_fields(_object(name, value), STREAM_OPTION_FIELDS, prefix=f"{name}.")


def _only(*neutral: Any) -> Field:
    """A field of the API that this engine does not have: taken where it asks for nothing."""

    def read(name: str, value: Any) -> None:
        if not any(_is_same(value, one) for one in neutral):
            instead = "".join(f" or write {quoted(one)}" for one in neutral)
            raise RefusedError(
                f"{name} is {quoted(value)}, but this engine does not support {name}; "
                f"leave it out{instead}",
                param=name,
                code="unsupported",
            )

    return Field(read=read, schema={"enum": list(neutral)} if neutral else {"type": "null"})


def _is_same(value: Any, neutral: Any) -> bool:
    # Compared with the type, so that true does not pass for 1.
    types = (int, float) if type(neutral) is int else (type(neutral),)
    return type(value) in types and bool(value == neutral)


# --- the tables ---

# What depends on the loaded model: `openapi` defines these two names.
TOKEN_ID = {"$ref": "#/components/schemas/TokenId"}
SERVED_NAME = {"$ref": "#/components/schemas/ServedName"}

TEXT = Field(read=_text, schema={"type": "string"})
BOOLEAN = Field(read=_boolean, schema={"type": "boolean"})
MODEL = Field(read=_text, schema=SERVED_NAME)
TOKEN_IDS_SCHEMA = {"type": "array", "items": TOKEN_ID}
PROMPT_SCHEMA = {
    "anyOf": [
        {"type": "string", "minLength": 1},
        {**TOKEN_IDS_SCHEMA, "minItems": 1},
        {
            "type": "array",
            "items": {
                "anyOf": [{"type": "string", "minLength": 1}, {**TOKEN_IDS_SCHEMA, "minItems": 1}]
            },
            "minItems": 1,
            "maxItems": 1,
        },
    ]
}
CONTENT_SCHEMA = {
    "anyOf": [
        {"type": "string"},
        {
            "type": "array",
            "items": {
                "type": "object",
                "properties": {"type": {"const": "text"}, "text": {"type": "string"}},
                "required": ["type", "text"],
                "additionalProperties": False,
            },
        },
    ]
}
STOP_STRING_SCHEMA = {"type": "string", "minLength": 1}
STOP_SCHEMA = {
    "anyOf": [
        STOP_STRING_SCHEMA,
        {"type": "array", "items": STOP_STRING_SCHEMA, "maxItems": MAX_STOP_STRINGS},
    ]
}

MESSAGE_FIELDS: Mapping[str, Field] = {
    "role": Field(read=_role, schema={"enum": list(ROLES)}),
    "content": Field(read=_content, schema=CONTENT_SCHEMA),
    "reasoning_content": TEXT,  # of an assistant's earlier turn; the template decides what of it
    # What a client sends back with an earlier answer of another server: null, or not supported.
    "name": _only(),
    "refusal": _only(),
    "annotations": _only([]),
    "audio": _only(),
    "function_call": _only(),
    "tool_calls": _only([]),
    "tool_call_id": _only(),
}

STREAM_OPTION_FIELDS: Mapping[str, Field] = {
    "include_usage": BOOLEAN,
    "continuous_usage_stats": BOOLEAN,
    "include_obfuscation": _only(False),
}

_MAX_TOKENS = _integer(1, MAX_COUNT, "a whole number of at least 1, or absent for the default")
_ANY_OBJECT = Field(read=_object, schema={"type": "object"})
_MESSAGES = Field(
    read=_messages,
    schema={
        "type": "array",
        "items": object_schema(MESSAGE_FIELDS, required=("role", "content")),
        "minItems": 1,
    },
)

# What vLLM 0.32 and OpenAI's API have and this engine has not. They are named here so that a
# refusal can say so; whatever stands in no table is refused as unknown.
_UNSUPPORTED: Mapping[str, Field] = {
    "n": _only(1),
    "logprobs": _only(False),
    "frequency_penalty": _only(0),
    "presence_penalty": _only(0),
    "repetition_penalty": _only(1),
    "length_penalty": _only(1),
    "min_p": _only(0),
    "logit_bias": _only({}),
    "bad_words": _only([]),
    "allowed_token_ids": _only(),
    "use_beam_search": _only(False),
    "echo": _only(False),
    "response_format": _only({"type": "text"}),
    "structured_outputs": _only(),
    "prompt_logprobs": _only(),
    "logprob_token_ids": _only(),
    "truncate_prompt_tokens": _only(),
    "truncation_side": _only(),
    "skip_special_tokens": _only(True),
    "spaces_between_special_tokens": _only(True),
    "include_stop_str_in_output": _only(False),
    "return_tokens_as_token_ids": _only(False),
    "return_token_offsets": _only(False),
    "return_prompt_text": _only(False),
    "return_mm_kwargs": _only(False),
    "mm_payload": _only("tensors"),
    "mm_processor_kwargs": _only(),
    "media_io_kwargs": _only(),
    "priority": _only(0),
    "thinking_token_budget": _only(),
    "repetition_detection": _only(),
    "routed_experts_prompt_start": _only(0),
    "stream_interval": _only(1),
    "watermarking": _only(),
    "request_id": _only(),
    "session_id": _only(),
    "cache_salt": _only(),
    "kv_transfer_params": _only(),
    "ec_transfer_params": _only(),
    "vllm_xargs": _only(),
}

_COMMON: Mapping[str, Field] = {
    "model": MODEL,
    "stream": BOOLEAN,
    "stream_options": Field(read=_stream_options, schema=object_schema(STREAM_OPTION_FIELDS)),
    "return_token_ids": BOOLEAN,
    "max_tokens": _MAX_TOKENS,
    "min_tokens": _integer(0, MAX_COUNT, "a whole number of at least 0"),
    "temperature": Field(
        read=_temperature, schema={"type": "number", "minimum": 0, "maximum": MAX_NUMBER}
    ),
    "top_p": Field(read=_top_p, schema={"type": "number", "exclusiveMinimum": 0, "maximum": 1}),
    "top_k": Field(read=_top_k, schema={"type": "integer", "minimum": -1, "maximum": MAX_COUNT}),
    "seed": _integer(0, MAX_SEED, "a whole number from 0 to 2^63 - 1"),
    "stop": Field(read=_stop, schema=STOP_SCHEMA),
    "stop_token_ids": Field(read=_token_ids, schema=TOKEN_IDS_SCHEMA),
    "ignore_eos": BOOLEAN,
    # Taken and without effect: there is no prefix cache to switch, and nobody to bill.
    "cache_prompt": BOOLEAN,
    "user": TEXT,
    **_UNSUPPORTED,
}

COMPLETION_FIELDS: Mapping[str, Field] = {
    **_COMMON,
    "prompt": Field(read=_prompt, schema=PROMPT_SCHEMA),
    "logprobs": Field(
        read=_logprobs,
        schema={
            "anyOf": [
                {"const": False},
                {"type": "integer", "minimum": 1, "maximum": MAX_LOGPROBS},
            ]
        },
    ),
    "return_tokens_as_token_ids": BOOLEAN,
    "best_of": _only(1),
    "suffix": _only(""),
    "prompt_embeds": _only(),
    "add_special_tokens": _only(True),
}

CHAT_FIELDS: Mapping[str, Field] = {
    **_COMMON,
    "messages": _MESSAGES,
    "max_completion_tokens": _MAX_TOKENS,
    "chat_template_kwargs": _ANY_OBJECT,
    # Of whom, under which key: it changes nothing in an answer.
    "safety_identifier": TEXT,
    "prompt_cache_key": TEXT,
    "prompt_cache_options": _only(),
    "prompt_cache_retention": _only(),
    "top_logprobs": _only(0),
    "tools": _only([]),
    "tool_choice": _only("none", "auto"),
    "parallel_tool_calls": _only(True, False),
    "functions": _only([]),
    "function_call": _only("none", "auto"),
    "reasoning_effort": _only(),
    "include_reasoning": _only(True),
    "verbosity": _only("medium"),
    "modalities": _only(["text"]),
    "audio": _only(),
    "prediction": _only(),
    "moderation": _only(),
    "web_search_options": _only(),
    "metadata": _only({}),
    "store": _only(False),
    "service_tier": _only("auto", "default"),
    "chat_template": _only(),
    "add_generation_prompt": _only(True),
    "continue_final_message": _only(False),
    "add_special_tokens": _only(False),
    "documents": _only([]),
}

TOKENIZE_FIELDS: Mapping[str, Field] = {
    "model": MODEL,
    "prompt": TEXT,
    "content": TEXT,
    "messages": _MESSAGES,
    "chat_template_kwargs": _ANY_OBJECT,
    "add_special_tokens": BOOLEAN,
}

DETOKENIZE_FIELDS: Mapping[str, Field] = {
    "model": MODEL,
    "tokens": Field(read=_token_ids, schema=TOKEN_IDS_SCHEMA),
}
