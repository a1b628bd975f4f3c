"""Streams in memory: a case's script as stamped reads, parsed as a run parses them.

SCRIPT is a list of (seconds after t0, bytes). The network is left out, so every time is exact and
the bytes can be cut anywhere; `end_to_end` sends the same scripts over a socket.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Any, TypeAlias

import pytest

from harness import measures
from harness.adapters import ADAPTERS
from harness.records import RepetitionEnd, Request, Where
from harness.run.parse import parse_exchange
from harness.run.raw import Asked, RawExchange
from harness.run.sse import events
from harness.store import EventRow

from .end_to_end import Outcome

Script: TypeAlias = Sequence[tuple[float, bytes]]

T0_NS = 5_000_000_000

SLACK_S = 0.15
"""How far a time that a run measures may lie from the script's; no wrong value lies within it."""

STALLED_S = 0.03
ATTEMPTS = 3


def raw(script: Script, **changes: Any) -> RawExchange:
    """The exchange that a script leaves behind."""
    reads = tuple((T0_NS + round(at_s * 1e9), data) for at_s, data in script)
    where = Where(run_id="r", session_id="s1", request_id="r.0")
    facts = {
        "asked": Asked(where=where, prompt_id="p", kind="prose", index=0, max_tokens=512),
        "started_at": "",
        "t_sched_ns": T0_NS - 2_000_000,
        "t0_ns": T0_NS,
        "end_ns": reads[-1][0] if reads else T0_NS,
        "connect_s": None,
        "http_status": 200,
        "content_type": "text/event-stream",
        "content_encoding": "",
        "reads": reads,
        "error": None,
    }
    return RawExchange(**{**facts, **changes})


def parse(script: Script, **changes: Any) -> tuple[Request, EventRow]:
    return parse_exchange(raw(script, **changes), ADAPTERS["openai"])


def cuts(script: Script) -> Iterator[list[tuple[float, bytes]]]:
    """The script with one of its reads cut in two, at every position."""
    for number, (at_s, data) in enumerate(script):
        for cut in range(1, len(data)):
            pieces = [(at_s, data[:cut]), (at_s, data[cut:])]
            yield [*script[:number], *pieces, *script[number + 1 :]]


def size(script: Script) -> int:
    return sum(len(data) for _, data in script)


def figures(script: Script, **changes: Any) -> dict[str, Any]:
    """What the expectation of a case may name."""
    request, row = parse(script, **changes)
    n, first = request.output_tokens, request.first_tokens
    seconds = [offset / 1e9 for offset in row.offset_ns]
    found = list(events((round(at_s * 1e9), data) for at_s, data in script))
    return {
        "status": request.status,
        "text": row.text or "",
        "n": n,
        "ttfr": request.ttfr_s,
        "ttft": request.ttft_s,
        "ttfa": request.ttfa_s,
        "t_last": request.t_last_s,
        "t_end": request.wall_s,
        "n_first": first,
        "n_first_source": request.first_tokens_source,
        "tpot": measures.tpot(n, first, request.ttft_s, request.t_last_s),
        "rate": measures.decode_rate_strict(n, first, request.ttft_s, request.t_last_s),
        "headline": measures.decode_rate(
            n, first, request.ttft_s, request.t_last_s, request.wall_s
        ),
        "gaps": [later - earlier for earlier, later in pairwise(seconds)],
        "finish": request.finish_reason,
        "error": request.error and request.error.kind,
        "flags": request.flags,
        "prompt": request.prompt_tokens,
        "comments": sum(event.data is None for event in found),
        "unterminated_final": not found[-1].terminated if found else False,
    }


def agrees(found: Mapping[str, Any], expected: Mapping[str, Any]) -> bool:
    """Times as written in the list: four digits."""
    return all(
        found[key] == (pytest.approx(value, rel=1e-3) if _is_measured(value) else value)
        for key, value in expected.items()
    )


def _is_measured(value: Any) -> bool:
    return isinstance(value, float | list)


def undisturbed(measure: Callable[[], Outcome]) -> Outcome:
    """A run whose loop never stood still for long: on shared cores it is measured again, since a
    stall says nothing of the harness. The last attempt counts whatever it is.
    """
    for _ in range(ATTEMPTS - 1):
        outcome = measure()
        lags = [end.loop_lag_max_s or 0.0 for end in outcome.folder.read(RepetitionEnd)]
        if max(lags) < STALLED_S:
            return outcome
    return measure()
