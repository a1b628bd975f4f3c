"""The shape of an adapter: pure functions between our records and one engine's words."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from harness.measures import CountersDelta
from harness.records import Counters, LengthPolicy, LikelyToken, Sampling, Variant


@dataclass(frozen=True, kw_only=True)
class Ask:
    """What a request wants, before an engine's words for it."""

    model: str
    messages: Sequence[Mapping[str, str]]
    max_tokens: int
    sampling: Sampling
    length: LengthPolicy


@dataclass(frozen=True, kw_only=True)
class Post:
    """JSON for one of an engine's pages."""

    path: str
    body: Mapping[str, Any]


@dataclass(frozen=True, kw_only=True)
class Rendering:
    """How an engine writes a chat out as the prompt that its model reads.

    request  what asks for it
    read     the answer's JSON -> token ids, or the text where the engine tells that; None: neither
    """

    request: Callable[[Ask], Post]
    read: Callable[[Any], tuple[int, ...] | str | None]


@dataclass(frozen=True, kw_only=True)
class Tokenizing:
    """How an engine tells the tokens of a text.

    request  (text, whether it is a rendered prompt, whose special tokens are written out)
    read     the answer's JSON -> token ids; None: it holds none
    """

    request: Callable[[str, bool], Post]
    read: Callable[[Any], tuple[int, ...] | None]


@dataclass(frozen=True, kw_only=True)
class Scoring:
    """How an engine tells which tokens its target finds likely behind some others, undrafted and
    before anything is drawn.

    request  (model, token ids) -> what asks for it
    read     the answer's JSON -> the likeliest tokens, best first; None: it holds none
    """

    request: Callable[[str, tuple[int, ...]], Post]
    read: Callable[[Any], tuple[LikelyToken, ...] | None]


class OutputPiece(msgspec.Struct, frozen=True, kw_only=True):
    """What one event of a stream says. Totals are running totals; None: the event does not tell.

    One is made of every event, and a frozen dataclass would take longer to make than its JSON to
    decode.
    """

    has_choices: bool = False
    answer: str = ""
    reasoning: str = ""
    calls_tool: bool = False
    token_ids: tuple[int, ...] | None = None
    completion_tokens: int | None = None
    prompt_tokens: int | None = None
    cached_tokens: int | None = None
    finish_reason: str | None = None
    timings: Mapping[str, Any] | None = None
    error: str | None = None


@dataclass(frozen=True, kw_only=True)
class Adapter:
    """One engine.

    command       (variant, settings, port) -> what follows the program on the command line;
                  settings are the matrix's held_constant under the variant's own flags
    request_body  the JSON of a streamed chat completion
    read_event    the JSON of one event
    read_counters the metrics page; None if it holds no counter that we know
    quiet         whether no request is being worked on, from the text at `quiet_path`; None: untold
    fact_paths    the pages that `read_facts` wants, read once when the engine is ready
    read_facts    (the pages' texts by path, without those that are not there; the log of the start)
                  -> what stays equal over a boot, by the names that checks know: version,
                  max_concurrent_requests, context_per_slot, kv_tokens, full_length_requests, block,
                  k, drafter (where the engine names it), speculation (on, off), runner (V1, V2)
    counts_before_idle
                  whether a request that ended is in the counters as soon as the engine is quiet;
                  where that is not known, two equal scrapes are asked for too
    uncached      (a name that no other request has, 32 hexadecimal digits) -> what to add to a
                  request's JSON so that none of its prompt comes from the engine's prefix cache.
                  None in place of the function: no such words are known, so the prompt itself must
                  be one that was never sent
    read_request  the engine's own figures of one request (`timings`) -> its drafting; None: they
                  say nothing of it. None in place of the function: the engine never says
    render, tokenize, score
                  its own words for what a chat becomes, for the tokens of a text and for the odds
                  of the next token; None: none are known
    """

    name: str
    health_path: str
    metrics_path: str
    quiet_path: str
    chat_path: str
    command: Callable[[Variant, Mapping[str, Any], int], tuple[str, ...]]
    request_body: Callable[[Ask], dict[str, Any]]
    read_event: Callable[[Mapping[str, Any]], OutputPiece]
    read_counters: Callable[[str], Counters | None]
    quiet: Callable[[str], bool | None]
    fact_paths: tuple[str, ...]
    read_facts: Callable[[Mapping[str, str], str], Mapping[str, Any]]
    counts_before_idle: bool = False
    read_request: Callable[[Mapping[str, Any]], CountersDelta | None] | None = None
    uncached: Callable[[str], Mapping[str, Any]] | None = None
    render: Rendering | None = None
    tokenize: Tokenizing | None = None
    score: Scoring | None = None
