"""Prometheus text, and the counters of a speculation ledger in it.

vLLM, llama.cpp and the bundled engine share most names; an adapter says where its engine differs.
Only counters are read. A rate or an acceptance that an engine offers as a gauge is a mean over some
window of its own (since its start, or since anybody's last scrape), so none has a name here.

Our own reader and not `prometheus_client.parser`: that one refuses the whole page for one bad line
(pages of engines in the field have them), renames `x` of type counter to `x_total`, and would be a
dependency for forty lines. Names are matched whole, so neither `_created` (a time) nor a
per-position family is ever taken for a counter. Samples that are no finite number are left out.
"""

import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from harness.records import Counters

_SAMPLE = re.compile(
    r"""(?P<name>[a-zA-Z_:][\w:]*)
        (?: \s*\{ (?P<labels> (?:[^"}] | "(?:[^"\\]|\\.)*")* ) \}\s* | \s+ )
        (?P<value>\S+) (?:\s+ -?\d+)? \s* $""",  # a timestamp may follow
    re.VERBOSE | re.ASCII,
)
_LABEL = re.compile(r'([a-zA-Z_]\w*)\s*=\s*"((?:[^"\\]|\\.)*)"', re.ASCII)
_ESCAPE = re.compile(r"\\(.)")


@dataclass(frozen=True, kw_only=True)
class Sample:
    name: str
    labels: Mapping[str, str]
    value: float


def samples(page: str) -> list[Sample]:
    """Every readable sample; comments, NaN, infinities and lines that are none are left out."""
    found = (_sample(line) for line in page.split("\n") if not line.startswith("#"))
    return [sample for sample in found if sample is not None]


def _sample(line: str) -> Sample | None:
    match = _SAMPLE.match(line.strip())
    if match is None:
        return None
    try:
        value = float(match["value"])
    except ValueError:
        return None
    if not math.isfinite(value):
        return None
    labels = {name: _unescaped(text) for name, text in _LABEL.findall(match["labels"] or "")}
    return Sample(name=match["name"], labels=labels, value=value)


def _unescaped(text: str) -> str:
    return _ESCAPE.sub(lambda match: {"n": "\n"}.get(match[1], match[1]), text)


# --- the counters ---------------------------------------------------------------------------------

# Our name -> the name behind the engine's prefix, without `_total`, which some versions leave off.
_SHARED_NAMES = {
    "drafts": "spec_decode_num_drafts",
    "draft_tokens": "spec_decode_num_draft_tokens",
    "accepted_tokens": "spec_decode_num_accepted_tokens",
    "tested_tokens": "spec_decode_num_tested_tokens",
    "trimmed_tokens": "trimmed_tokens",
    "plain_steps": "plain_steps",
    "generation_tokens": "generation_tokens",
    "prompt_tokens": "prompt_tokens",
    "cached_prompt_tokens": "prompt_tokens_cached",
    "requests": "request_success",
    "preemptions": "num_preemptions",
}
_PER_POSITION = "spec_decode_num_accepted_tokens_per_pos"
_NO_NAMES: Mapping[str, str] = {}


def read_counters(
    page: str,
    *,
    prefix: str | None,
    names: Mapping[str, str] = _NO_NAMES,
    seconds: Mapping[str, str] = _NO_NAMES,
) -> Counters | None:
    """Sums over all engines on the page; None if it holds none of these counters.

    prefix: what stands before the colon (`vllm`); None takes whatever engine answers.
    names, seconds: fields of `Counters` that this engine calls otherwise or has beside the shared
    ones, counts and times. `requests` must count one for each first token that a prefill gave.
    """
    found = samples(page)
    ours = [sample for sample in found if _belongs(sample.name, prefix)]
    counts = {field: _count(ours, name) for field, name in {**_SHARED_NAMES, **names}.items()}
    if all(value is None for value in counts.values()):
        return None
    return Counters(
        **counts,
        **{field: _value(ours, name) for field, name in seconds.items()},  # type: ignore[arg-type]
        accepted_at=_per_position(ours),
        process_start_s=_latest_start_s(found),
        labels=tuple(sorted({s.labels["model_name"] for s in ours if "model_name" in s.labels})),
    )


def idle(page: str, prefix: str | None) -> bool | None:
    """Whether no request runs or waits; None where the page does not say."""
    ours = [sample for sample in samples(page) if _belongs(sample.name, prefix)]
    running = _value(ours, "num_requests_running")
    waiting = _value(ours, "num_requests_waiting")
    return None if running is None or waiting is None else running == waiting == 0


def _belongs(name: str, prefix: str | None) -> bool:
    head, colon, _ = name.partition(":")
    return bool(colon) and prefix in (None, head)


def _series(found: Iterable[Sample], name: str) -> list[Sample]:
    return [
        sample for sample in found if sample.name.rpartition(":")[2].removesuffix("_total") == name
    ]


def _latest_start_s(found: Iterable[Sample]) -> float | None:
    """Of several processes the youngest's: whichever starts anew, this moves."""
    return max(
        (sample.value for sample in _series(found, "process_start_time_seconds")), default=None
    )


def _value(found: Iterable[Sample], name: str) -> float | None:
    values = [sample.value for sample in _series(found, name)]
    return math.fsum(values) if values else None


def _count(found: Iterable[Sample], name: str) -> int | None:
    value = _value(found, name)
    return None if value is None else round(value)


def _per_position(found: Iterable[Sample]) -> tuple[int, ...] | None:
    """Summed per position; a position between two others that has no series is 0."""
    by_position: dict[int, float] = {}
    for sample in _series(found, _PER_POSITION):
        position = sample.labels.get("position", "")
        if position.isdecimal():
            by_position[int(position)] = by_position.get(int(position), 0) + sample.value
    if not by_position:
        return None
    return tuple(round(by_position.get(i, 0)) for i in range(max(by_position) + 1))
