"""The API as an OpenAPI 3.2 document, made from the same tables that read the requests.

Knows shapes. What a shape cannot say (that prompt and answer must fit together, say) is a 400.
"""

from __future__ import annotations

from typing import Any

from engines.dflash2.fields import (
    CHAT_FIELDS,
    COMPLETION_FIELDS,
    DETOKENIZE_FIELDS,
    TOKENIZE_FIELDS,
    object_schema,
)

Json = dict[str, Any]

STRING: Json = {"type": "string"}
COUNT: Json = {"type": "integer", "minimum": 0}
JSON_TYPE = "application/json"
# Its data is a part of the answer, an error, or the word [DONE].
EVENT: Json = {"type": "object", "properties": {"data": STRING}, "required": ["data"]}

ERRORS = {
    "400": "The request is malformed, unsupported or too long for the model.",
    "401": "The API key is missing or wrong.",
    "404": "The model or the path does not exist here.",
    "405": "The path has other methods.",
    "413": "The body is too large.",
    "415": "The body is not declared as JSON.",
    "500": "A defect of the server, or a model that computes NaN.",
    "503": "The queue is full, or the process is being stopped.",
}


def openapi_document(
    *, served_name: str, version: str | None, vocab_size: int, wants_key: bool
) -> Json:
    security: list[Json] = [{"key": []}] if wants_key else []
    return {
        "openapi": "3.2.0",
        "info": {
            "title": "DFlash 2 engine",
            "description": "OpenAI's completions and chat; docs/engine.md explains every field.",
            "version": version or "unknown",
        },
        "paths": _paths(security),
        "components": {
            "schemas": {
                "ServedName": {"enum": [served_name]},
                "TokenId": {"type": "integer", "minimum": 0, "maximum": vocab_size - 1},
                **SCHEMAS,
            },
            "securitySchemes": {"key": {"type": "http", "scheme": "bearer"}},
        },
    }


def _paths(security: list[Json]) -> Json:
    return {
        "/v1/completions": _post("Continue a prompt.", "Completion", security, streams=True),
        "/v1/chat/completions": _post("Answer a chat.", "Chat", security, streams=True),
        "/tokenize": _post("Count a text's or a chat's tokens.", "Tokenize", security),
        "/detokenize": _post("Turn tokens into text.", "Detokenize", security),
        "/v1/models": _get("The one model, as a list.", _json("ModelList"), security),
        "/v1/models/{name}": {
            "parameters": [{"name": "name", "in": "path", "required": True, "schema": STRING}],
            **_get("The one model.", _json("Model"), security),
        },
        "/health": _get("What is running.", _json("Health"), []),
        "/metrics": _get("Prometheus' text format.", {"text/plain": {"schema": STRING}}, []),
        "/openapi.json": _get("This document.", {JSON_TYPE: {"schema": {"type": "object"}}}, []),
    }


def _post(summary: str, name: str, security: list[Json], *, streams: bool = False) -> Json:
    content = _json(f"{name}Answer")
    if streams:
        content["text/event-stream"] = {"itemSchema": EVENT}
    operation = {
        "summary": summary,
        "security": security,
        "requestBody": {"required": True, "content": _json(f"{name}Request")},
        "responses": _responses(content, ERRORS),
    }
    return {"post": operation}


def _get(summary: str, content: Json, security: list[Json]) -> Json:
    errors = {status: ERRORS[status] for status in ("401", "404", "405")}
    operation = {
        "summary": summary,
        "security": security,
        "responses": _responses(content, errors),
    }
    return {"get": operation}


def _responses(content: Json, errors: dict[str, str]) -> Json:
    return {
        "200": {"description": "The answer.", "content": content},
        **{
            status: {"description": text, "content": _json("Error")}
            for status, text in errors.items()
        },
    }


def _json(name: str) -> Json:
    return {JSON_TYPE: {"schema": {"$ref": f"#/components/schemas/{name}"}}}


# --- what goes out ---


def _object(properties: Json, *, optional: Json | None = None) -> Json:
    return {
        "type": "object",
        "properties": {**properties, **(optional or {})},
        "required": list(properties),
        "additionalProperties": False,
    }


def _exactly_one_of(names: Json) -> list[Json]:
    return [{"required": [name], "properties": {name: schema}} for name, schema in names.items()]


FINISH_REASON: Json = {"enum": ["stop", "length"]}
TOKEN_IDS: Json = {"type": "array", "items": {"$ref": "#/components/schemas/TokenId"}}
USAGE = _object(
    {
        "prompt_tokens": COUNT,
        "completion_tokens": COUNT,
        "total_tokens": COUNT,
        "prompt_tokens_details": _object({"cached_tokens": COUNT}),
    }
)
# Numbers, lists of counts, and null for what could not be measured.
TIMINGS: Json = {
    "type": "object",
    "additionalProperties": {
        "anyOf": [{"type": ["number", "null"]}, {"type": "array", "items": COUNT}]
    },
}


def _answer_schema(kind: str, choice: Json) -> Json:
    return _object(
        {
            "id": STRING,
            "object": {"const": kind},
            "created": COUNT,
            "model": {"$ref": "#/components/schemas/ServedName"},
            "choices": {"type": "array", "items": choice, "minItems": 1, "maxItems": 1},
            "usage": USAGE,
            "timings": TIMINGS,
        },
        optional={"prompt_token_ids": TOKEN_IDS},
    )


ODDS: Json = {"type": "object", "additionalProperties": {"type": "number", "maximum": 0}}
LOGPROBS = _object(
    {
        "tokens": {"type": "array", "items": STRING},
        "token_logprobs": {"type": "array", "items": {"type": ["number", "null"]}},
        "top_logprobs": {"type": "array", "items": ODDS},
        "text_offset": {"type": "array", "items": COUNT},
    }
)


def _choice(content: Json, logprobs: Json) -> Json:
    return _object(
        {
            "index": {"const": 0},
            **content,
            "logprobs": logprobs,
            "finish_reason": FINISH_REASON,
        },
        optional={"token_ids": TOKEN_IDS},
    )


MODEL = _object(
    {
        "id": {"$ref": "#/components/schemas/ServedName"},
        "object": {"const": "model"},
        "created": COUNT,
        "owned_by": STRING,
        "root": STRING,
        "max_model_len": COUNT,
    }
)
SCHEMAS: Json = {
    "CompletionRequest": object_schema(COMPLETION_FIELDS, required=("prompt",)),
    "ChatRequest": object_schema(CHAT_FIELDS, required=("messages",)),
    "TokenizeRequest": {
        **object_schema(TOKENIZE_FIELDS),
        "oneOf": _exactly_one_of(
            {"prompt": STRING, "content": STRING, "messages": {"type": "array"}}
        ),
    },
    "DetokenizeRequest": object_schema(DETOKENIZE_FIELDS, required=("tokens",)),
    "CompletionAnswer": _answer_schema(
        "text_completion", _choice({"text": STRING}, {"anyOf": [LOGPROBS, {"type": "null"}]})
    ),
    "ChatAnswer": _answer_schema(
        "chat.completion",
        _choice(
            {"message": _object({"role": {"const": "assistant"}, "content": STRING})},
            {"type": "null"},
        ),
    ),
    "TokenizeAnswer": _object({"tokens": TOKEN_IDS, "count": COUNT, "max_model_len": COUNT}),
    "DetokenizeAnswer": _object({"prompt": STRING}),
    "Model": MODEL,
    "ModelList": _object({"object": {"const": "list"}, "data": {"type": "array", "items": MODEL}}),
    "Health": {
        "type": "object",
        "properties": {
            "status": {"const": "ok"},
            "model": STRING,
            "drafter": {"enum": ["dflash2", "mtp", "none"]},
            "running": COUNT,
            "waiting": COUNT,
            "quiet": {"type": "boolean"},
        },
        "required": ["status", "model", "drafter", "running", "waiting", "quiet"],
    },
    "Error": _object(
        {
            "error": _object(
                {
                    "message": STRING,
                    "type": {
                        "enum": ["invalid_request_error", "authentication_error", "server_error"]
                    },
                    "param": {"type": ["string", "null"]},
                    "code": STRING,
                }
            )
        }
    ),
}
