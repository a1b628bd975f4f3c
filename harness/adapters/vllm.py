"""vLLM, by what 0.32 answers (recorded in the tests); V0, its engine until 2025, is known too.

A page has a series per engine core (label `engine`) and a `_created` time beside each counter.
Counters of drafting exist only where a speculator does. Accepted tokens are counted before a stop
cuts the output; what is cut is counted nowhere. V0 counted drafted and accepted tokens but no
rounds, so its page gives an acceptance rate and no length; its two acceptance gauges are not read.
"""

import re
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any

from msgspec import structs

from harness.adapters import next_token, openai, prometheus
from harness.adapters.base import Ask, OutputPiece
from harness.adapters.command_line import options
from harness.adapters.pages import json_object, told
from harness.adapters.vllm_memory import memory_facts
from harness.errors import ConfigError
from harness.measures import CountersDelta
from harness.records import Variant


def command(variant: Variant, settings: Mapping[str, Any], port: int) -> tuple[str, ...]:
    """What the engine's file says, then every setting; the drafter joins `speculative_config`."""
    drafting = _speculative_config(variant, settings.get("speculative_config", {}))
    others = {name: value for name, value in settings.items() if name != "speculative_config"}
    drafter = {"speculative_config": drafting} if drafting else {}
    return (*openai.command(variant, settings, port), *options({**drafter, **others}))


def _speculative_config(variant: Variant, more: Mapping[str, Any]) -> Mapping[str, Any]:
    """more: what the drafter needs beside method, model and k, such as `prompt_lookup_max`."""
    drafter = variant.drafter
    if drafter is None:
        if more:
            raise ConfigError(
                f"variant {variant.name!r} has `speculative_config: {dict(more)}` but no drafter, "
                "so it would draft under the name of plain decoding; write `drafter: {method: ...}`"
            )
        return {}
    known = {
        "method": drafter.method,
        "model": drafter.model.path if drafter.model else None,
        "num_speculative_tokens": drafter.k,
    }
    return {**{name: value for name, value in known.items() if value is not None}, **more}


def request_body(ask: Ask) -> dict[str, Any]:
    body = openai.request_body(ask)
    body["stream_options"]["continuous_usage_stats"] = True
    body["return_token_ids"] = True
    return body


def read_event(event: Mapping[str, Any]) -> OutputPiece:
    """Its own figures come in the usage event as `metrics`, where the server was told to."""
    piece, metrics = openai.read_event(event), event.get("metrics")
    return structs.replace(piece, timings=metrics) if metrics else piece


def read_facts(pages: Mapping[str, str], log: str) -> Mapping[str, Any]:
    """Capacity from `cache_config_info`, a series whose labels are the facts; drafting, the model
    runner and what its settings came to from the log.
    """
    cache = _cache_config(pages.get("/metrics", ""))
    drafting = re.search(r"speculative_config=(None|SpeculativeConfig\((.*?)\))", log)
    return {
        **openai.read_facts(pages, log),
        **told(
            version=json_object(pages.get("/version")).get("version"),
            kv_tokens=_number(cache.get("kv_cache_size_tokens"), int),
            full_length_requests=_number(cache.get("kv_cache_max_concurrency"), float),
            prefix_caching=cache.get("enable_prefix_caching"),
            drafter=_drafter(drafting),
            k=_depth(drafting),
            runner=_runner(log),
            gpu_memory_utilization=_number(cache.get("gpu_memory_utilization"), float),
            max_num_scheduled_tokens=_scheduled(log),
            **{name: _resolved(name, log) for name in _RESOLVED},
        ),
        **memory_facts(log),
    }


_RESOLVED = ("dtype", "kv_cache_dtype", "quantization", "enforce_eager", "tensor_parallel_size")


def _resolved(name: str, log: str) -> str | None:
    """From the line of the log in which the engine writes its whole configuration."""
    found = re.search(rf"LLM engine \(.*\) with config: .*?\b{name}=(?:torch\.)?([^,\s)]+)", log)
    return None if found is None or found[1] == "None" else found[1]


def _scheduled(log: str) -> int | None:
    """Tokens of one step, where speculation changed what `max_num_batched_tokens` says."""
    found = re.search(r"max_num_scheduled_tokens is set to (\d+)", log)
    return int(found[1]) if found else None


def _cache_config(page: str) -> Mapping[str, str]:
    found = [s.labels for s in prometheus.samples(page) if s.name == "vllm:cache_config_info"]
    return found[0] if found else {}


def _number(text: str | None, kind: Callable[[str], float]) -> float | None:
    return None if text in (None, "None") else kind(text)


def _drafter(drafting: re.Match[str] | None) -> str | None:
    """As the engine's configuration names it. Every kind of MTP is called `mtp` there, whatever
    word it was asked for by, so that name proves nothing.
    """
    if drafting is None:
        return None
    method = re.search(r"method='([^']+)'", drafting[0])
    if method is None:
        return "none"
    return None if method[1] == "mtp" else method[1]


def _depth(drafting: re.Match[str] | None) -> int | None:
    depth = drafting and re.search(r"num_spec_tokens=(\d+)", drafting[0])
    return int(depth[1]) if depth else None


def _runner(log: str) -> str | None:
    """It says so where it falls back to V1, and where it takes V2."""
    if "using the V1 model runner" in log:
        return "V1"
    return "V2" if "Using V2 Model Runner" in log else None


def read_request(metrics: Mapping[str, Any]) -> CountersDelta | None:
    """From `--per-request-spec-decode-metrics summary`, which counts rounds by accepted tokens; its
    mean length and its rate are not read, for means cannot be pooled.
    """
    drafting = metrics.get("speculative_decoding")
    if not isinstance(drafting, Mapping):
        return None
    return CountersDelta(
        drafts=openai.count(drafting.get("num_spec_steps")),
        draft_tokens=openai.count(drafting.get("num_draft_tokens")),
        accepted_tokens=openai.count(drafting.get("num_accepted_draft_tokens")),
        accepted_at=_at_least(drafting.get("acceptance_histogram")),
    )


def _at_least(histogram: Any) -> tuple[int, ...] | None:
    """Rounds that accepted exactly 0, 1, 2, ... -> rounds that accepted position 0, 1, ..."""
    rounds = [openai.count(each) for each in histogram] if isinstance(histogram, list) else []
    known = [each for each in rounds if each is not None]
    if not known or len(known) != len(rounds):
        return None
    return tuple(sum(known[position:]) for position in range(1, len(known)))


VLLM = replace(
    openai.OPENAI,
    name="vllm",
    command=command,
    request_body=request_body,
    read_event=read_event,
    read_counters=partial(
        prometheus.read_counters,
        prefix="vllm",
        # a histogram whose own name ends in `_total`; each pass that gave a token is one of it
        names={
            "decode_calls": "iteration_tokens_total_count",
            "cached_prompt_tokens": "prefix_cache_hits",  # older than `prompt_tokens_cached`
        },
        seconds={"generation_s": "request_decode_time_seconds_sum"},
    ),
    quiet=partial(prometheus.idle, prefix="vllm"),
    # 0.32 books a step in the same turn of its loop in which it hands the step's tokens out
    counts_before_idle=True,
    read_request=read_request,
    fact_paths=("/health", "/v1/models", "/version", "/metrics"),
    read_facts=read_facts,
    uncached=lambda name: {"cache_salt": name},
    render=next_token.CHAT_TOKENS,
    tokenize=next_token.TEXT_TOKENS,
    score=next_token.COMPLETION_ODDS,
)
