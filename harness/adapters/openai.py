"""Any server that answers the OpenAI chat API; the base that other adapters change a little.

Event shapes as seen from vLLM 0.32 and llama.cpp b11434 (recorded streams in the tests). Field
values of another type than expected are not there: a null count is unknown, never 0.
"""

import re
from collections.abc import Mapping
from functools import partial
from typing import Any

from harness.adapters import prometheus
from harness.adapters.base import Adapter, Ask, OutputPiece
from harness.adapters.pages import json_object
from harness.errors import ConfigError
from harness.records import Variant


def command(variant: Variant, settings: Mapping[str, Any], port: int) -> tuple[str, ...]:
    """Nothing is added: a server we do not know is started by exactly what its file says.

    `{port}`, `{model}` and `{name}` in it stand for the free port, the model's path and its name.
    """
    del settings  # no generic spelling exists
    if not any("{port}" in argument for argument in variant.engine.command):
        raise ConfigError(
            f"engine {variant.engine.name!r}: its command has no {{port}}, so it would not listen "
            "where we look; write `--port`, `{port}` (or whatever its option is) into `command`"
        )
    known = {"port": str(port), "model": variant.target.path, "name": variant.target.name}
    # In one go, because a model's path may have such a word in it; other braces stay as they are.
    return tuple(
        re.sub(r"\{(port|model|name)\}", lambda found: known[found[1]], argument)
        for argument in variant.engine.command
    )


def request_body(ask: Ask) -> dict[str, Any]:
    """Only what was asked for is sent: a server may refuse fields that it does not know."""
    sampling = ask.sampling
    optional = {
        "top_p": sampling.top_p,
        "top_k": sampling.top_k,
        "seed": sampling.seed,
        "chat_template_kwargs": thinking(sampling.thinking),
        "ignore_eos": True if ask.length == "forced" else None,
    }
    return {
        "model": ask.model,
        "messages": [dict(message) for message in ask.messages],
        "max_tokens": ask.max_tokens,
        "temperature": sampling.temperature,
        "stream": True,
        "stream_options": {"include_usage": True},
        **{name: value for name, value in optional.items() if value is not None},
    }


def thinking(wanted: bool | None) -> dict[str, bool] | None:
    return None if wanted is None else {"enable_thinking": wanted}


def read_event(event: Mapping[str, Any]) -> OutputPiece:
    choice = first(event.get("choices"))
    delta = mapping((choice or {}).get("delta"))
    usage = mapping(event.get("usage"))
    details = mapping(usage.get("prompt_tokens_details"))
    return OutputPiece(
        has_choices=choice is not None,
        answer=_text(delta.get("content")) + _text((choice or {}).get("text")),
        reasoning=_text(delta.get("reasoning_content")) or _text(delta.get("reasoning")),
        calls_tool=bool(delta.get("tool_calls")),
        token_ids=ids((choice or {}).get("token_ids")),
        completion_tokens=count(usage.get("completion_tokens")),
        prompt_tokens=count(usage.get("prompt_tokens")),
        cached_tokens=count(details.get("cached_tokens")),
        finish_reason=_text((choice or {}).get("finish_reason")) or None,
        timings=mapping(event.get("timings")) or None,
        error=_error(event),
    )


def _error(event: Mapping[str, Any]) -> str | None:
    error = event.get("error")
    if error is None:
        is_error = event.get("object") == "error"  # vLLM before 0.11 says it at the top level
        return _text(event.get("message")) or "unnamed error" if is_error else None
    return _text(mapping(error).get("message")) or str(error)


def first(choices: Any) -> Mapping[str, Any] | None:
    if isinstance(choices, list) and choices and isinstance(choices[0], dict):
        return choices[0]
    return None


def mapping(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, dict) else {}


def _text(value: Any) -> str:
    return value if isinstance(value, str) else ""


def count(value: Any) -> int | None:
    is_count = isinstance(value, int) and not isinstance(value, bool) and value >= 0
    return value if is_count else None


def ids(value: Any) -> tuple[int, ...] | None:
    is_ids = isinstance(value, list) and set(map(type, value)) <= {int}
    return tuple(value) if is_ids else None


def read_facts(pages: Mapping[str, str], log: str) -> Mapping[str, Any]:
    """Of /v1/models alone: what an unknown server says in /health may change while it runs."""
    del log
    model = first(json_object(pages.get("/v1/models")).get("data")) or {}
    names = ("id", "owned_by", "max_model_len", "root", "meta")
    return {name: model[name] for name in names if model.get(name) is not None}


def served_names(models: str | None) -> tuple[str, ...]:
    """The names that /v1/models lists, aliases among them; none where it is another page."""
    entries = [each for each in _list(json_object(models).get("data")) if isinstance(each, dict)]
    names = [name for entry in entries for name in (entry.get("id"), *_list(entry.get("aliases")))]
    return tuple(dict.fromkeys(name for name in names if isinstance(name, str)))


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


OPENAI = Adapter(
    name="openai",
    health_path="/health",
    metrics_path="/metrics",
    quiet_path="/metrics",
    chat_path="/v1/chat/completions",
    command=command,
    request_body=request_body,
    read_event=read_event,
    read_counters=partial(prometheus.read_counters, prefix=None),
    quiet=partial(prometheus.idle, prefix=None),
    fact_paths=("/health", "/v1/models"),
    read_facts=read_facts,
)
