"""llama.cpp's llama-server, by what build 11434 answers (recorded in the tests).

Its page has no labels, and its counters move when a slot is released, cancelled requests included.
`/slots` tells whether it is quiet and whether it drafts; `/props` is not asked for that, it says
"speculative.types": "none" while a drafter works. The two rate gauges are means since anybody's
last scrape and are not read. With a request come `draft_n` and `draft_n_accepted`, and neither
where nothing was drafted.
"""

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from harness.adapters import next_token, openai, prometheus
from harness.adapters.base import Ask, Post, Rendering, Scoring, Tokenizing
from harness.adapters.command_line import options
from harness.adapters.pages import json_object, json_objects, told
from harness.measures import CountersDelta
from harness.records import LikelyToken, Variant

# `--spec-draft-n-max` is ignored by these, so k has another name there
_DEPTH_OPTION = {
    "ngram-simple": "--spec-ngram-simple-size-m",
    "ngram-map-k": "--spec-ngram-map-k-size-m",
    "ngram-map-k4v": "--spec-ngram-map-k4v-size-m",
    "ngram-mod": "--spec-ngram-mod-n-max",
}


def command(variant: Variant, settings: Mapping[str, Any], port: int) -> tuple[str, ...]:
    """What the engine's file says, then the drafter, then every setting."""
    return (
        *openai.command(variant, settings, port),
        *_drafter(variant),
        *options(settings),
    )


def _drafter(variant: Variant) -> tuple[str, ...]:
    """Its method is llama.cpp's own word: draft-simple, draft-dflash, ngram-simple, ..."""
    drafter = variant.drafter
    if drafter is None:
        return ()
    words = ["--spec-type", drafter.method]
    if drafter.model is not None:
        words += ["--model-draft", drafter.model.path]
    if drafter.k is not None:
        words += [_DEPTH_OPTION.get(drafter.method, "--spec-draft-n-max"), str(drafter.k)]
    return tuple(words)


def quiet(slots: str) -> bool | None:
    """Whether no slot works; None where the page is none of slots."""
    try:
        found = json.loads(slots)
    except ValueError:
        return None
    if not isinstance(found, list) or not all(isinstance(slot, dict) for slot in found):
        return None
    working = [slot.get("is_processing") for slot in found]
    return None if None in working else not any(working)


def read_facts(pages: Mapping[str, str], log: str) -> Mapping[str, Any]:
    """Slots from /props, drafting from /slots, its kind and depth from the log where it says so.

    The build that PyPI's package makes calls itself b0-unknown, which is no version.
    """
    props, slots = json_object(pages.get("/props")), json_objects(pages.get("/slots"))
    build, num_slots = props.get("build_info"), props.get("total_slots")
    context = slots[0].get("n_ctx") if slots else None
    kv_tokens = _kv_tokens(log)
    return {
        **openai.read_facts(pages, log),
        **told(
            version=None if build == "b0-unknown" else build,
            max_concurrent_requests=num_slots,
            parallel=num_slots,
            context_per_slot=context,
            kv_tokens=kv_tokens,
            full_length_requests=kv_tokens / context if kv_tokens and context else None,
            speculation=_speculation(slots),
            drafter=_found(r"adding speculative implementation '([\w-]+)'", log),
            block=_number(r"block_size=(\d+), mask_token_id", log),
            k=_number(r"common_speculative_impl\w*: - n_max=(\d+)", log),
        ),
    }


def _speculation(slots: Sequence[Mapping[str, Any]]) -> str | None:
    said = {slot.get("speculative") for slot in slots}
    if said == {True}:
        return "on"
    return "off" if said == {False} else None


def _kv_tokens(log: str) -> int | None:
    """Slots share one cache where it is unified, else each has its own."""
    found = re.search(r"n_slots = (\d+), n_ctx_slot = (\d+), kv_unified = '(\w+)'", log)
    if found is None:
        return None
    num_slots, per_slot = int(found[1]), int(found[2])
    return per_slot if found[3] == "true" else num_slots * per_slot


def _number(pattern: str, log: str) -> int | None:
    found = _found(pattern, log)
    return None if found is None else int(found)


def _found(pattern: str, log: str) -> str | None:
    found = re.search(pattern, log)
    return None if found is None else found[1]


def read_request(timings: Mapping[str, Any]) -> CountersDelta | None:
    drafted = openai.count(timings.get("draft_n"))
    if drafted is None:
        return None
    accepted = openai.count(timings.get("draft_n_accepted"))
    return CountersDelta(draft_tokens=drafted, accepted_tokens=accepted)


# --- what its target finds likely next ------------------------------------------------------------


def _render(ask: Ask) -> Post:
    """It tells the text of a chat, not its tokens."""
    chat = next_token.CHAT_TOKENS.request(ask)
    return replace(chat, path="/apply-template")


def _read_rendered(answer: Any) -> str | None:
    prompt = openai.mapping(answer).get("prompt")
    return prompt if isinstance(prompt, str) else None


def _tokenize(text: str, is_prompt: bool) -> Post:
    body = {"content": text, "add_special": is_prompt, "parse_special": is_prompt}
    return Post(path="/tokenize", body=body)


def _score(model: str, prompt: tuple[int, ...]) -> Post:
    asked = next_token.COMPLETION_ODDS.request(model, prompt)
    return replace(asked, body={**asked.body, "cache_prompt": False})


def _read_scored(answer: Any) -> tuple[LikelyToken, ...] | None:
    """Each with its text, which is empty for a special token, such as the end."""
    told = openai.first(next_token.logprobs(answer).get("content")) or {}
    tops = told.get("top_logprobs")
    return next_token.best_first(
        LikelyToken(token_id=top["id"], logprob=top["logprob"], text=top["token"])
        for top in (tops if isinstance(tops, list) else ())
        if {"id", "logprob", "token"} <= openai.mapping(top).keys()
    )


LLAMACPP = replace(
    openai.OPENAI,
    name="llamacpp",
    quiet_path="/slots",
    command=command,
    read_counters=partial(
        prometheus.read_counters,
        prefix="llamacpp",
        names={"generation_tokens": "tokens_predicted", "decode_calls": "n_decode"},
        seconds={"generation_s": "tokens_predicted_seconds"},
    ),
    quiet=quiet,
    # one thread releases slots and answers these pages, and it counts before it releases
    counts_before_idle=True,
    read_request=read_request,
    fact_paths=("/health", "/v1/models", "/props", "/slots"),
    read_facts=read_facts,
    uncached=lambda name: {"cache_prompt": False},
    render=Rendering(request=_render, read=_read_rendered),
    tokenize=Tokenizing(request=_tokenize, read=next_token.read_tokens),
    score=Scoring(request=_score, read=_read_scored),
)
