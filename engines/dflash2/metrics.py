"""What was decoded, counted once: for `timings` in an answer and for the /metrics page.

A `Ledger` is a sum of entries, one for each prefill and each round, so a request's figures and the
process's are the same arithmetic over different sets of entries. It counts acceptance before an
answer is cut at its stop or its length, as vLLM does, and what the cut took away as trimmed:

    tokens = requests + rounds + plain_steps + accepted - trimmed

Knows neither models nor HTTP; counters start at zero with the process and never go down.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields, replace
from itertools import zip_longest
from typing import Any

from engines.dflash2.compilations import Compilations

PREFIX = "dflash2:"
FINISH_REASONS = ("stop", "length", "abort", "error")


@dataclass(frozen=True, kw_only=True)
class Ledger:
    """Sums over prefills and rounds. A round verifies drafts; a plain step had none to verify."""

    num_requests: int = 0  # whose prompt was evaluated, which gave each its first token
    num_prompt_tokens: int = 0
    num_tokens: int = 0  # generated and kept
    num_rounds: int = 0
    num_plain_steps: int = 0
    num_drafted: int = 0
    num_tested: int = 0  # accepted, and the first rejected one of each round
    num_accepted: int = 0
    num_accepted_at: tuple[int, ...] = ()  # [depth], rounds in which position i was accepted
    num_trimmed: int = 0  # decided by the target, then cut off by a stop or a length limit
    prefill_s: float = 0.0
    draft_s: float = 0.0  # of the rounds; reading the prompt's features is part of the prefill
    verify_s: float = 0.0  # the target's steps after the prefill, plain ones included

    def __add__(self, other: Ledger) -> Ledger:
        return Ledger(
            **{
                field.name: _sum(getattr(self, field.name), getattr(other, field.name))
                for field in fields(self)
            }
        )

    def shared_by(self, num_sharing: int) -> Ledger:
        """The same with a part of the time: of a pass that so many sequences shared."""
        return replace(
            self,
            draft_s=self.draft_s / num_sharing,
            verify_s=self.verify_s / num_sharing,
        )


def _sum(a: Any, b: Any) -> Any:
    if isinstance(a, tuple):
        return tuple(x + y for x, y in zip_longest(a, b, fillvalue=0))
    return a + b


def prefill_entry(*, num_prompt_tokens: int, num_tokens: int, prefill_s: float) -> Ledger:
    return Ledger(
        num_requests=1,
        num_prompt_tokens=num_prompt_tokens,
        num_tokens=num_tokens,
        prefill_s=prefill_s,
    )


def round_entry(
    *,
    num_tokens: int,
    num_drafted: int,
    num_accepted: int,
    num_trimmed: int,
    draft_s: float,
    verify_s: float,
) -> Ledger:
    """The entry of one round of which `num_tokens` were kept; no drafts: of a plain step."""
    drafted = num_drafted > 0
    return Ledger(
        num_tokens=num_tokens,
        num_rounds=int(drafted),
        num_plain_steps=int(not drafted),
        num_drafted=num_drafted,
        num_tested=min(num_accepted + 1, num_drafted),
        num_accepted=num_accepted,
        num_accepted_at=tuple(int(position < num_accepted) for position in range(num_drafted)),
        num_trimmed=num_trimmed,
        draft_s=draft_s,
        verify_s=verify_s,
    )


def timings(
    ledger: Ledger,
    *,
    queue_s: float,
    decode_s: float,
    depth: int | None,
    block_size: int | None,
    compiled: Compilations,
    compiled_in_all: Compilations,
) -> dict[str, Any]:
    """One answer's `timings`; null is "not measurable" (a rate over no time) or "no drafter".

    compiled: while it was answered, which makes its times cold ones; in_all: by this process.
    """
    num_decoded = ledger.num_tokens - ledger.num_requests
    return {
        "queue_ms": _ms(queue_s),
        "prompt_n": ledger.num_prompt_tokens,
        "prompt_ms": _ms(ledger.prefill_s),
        "prompt_per_second": _rate(ledger.num_prompt_tokens, ledger.prefill_s),
        "predicted_n": ledger.num_tokens,
        "predicted_ms": _ms(decode_s),
        "predicted_per_second": _rate(num_decoded, decode_s),
        "depth": depth,
        "block": block_size,
        "rounds": ledger.num_rounds,
        "plain_steps": ledger.num_plain_steps,
        "drafted": ledger.num_drafted,
        "tested": ledger.num_tested,
        "accepted": ledger.num_accepted,
        "trimmed": ledger.num_trimmed,
        "accepted_per_position": list(_padded(ledger.num_accepted_at, depth)),
        "draft_ms": _ms(ledger.draft_s),
        "verify_ms": _ms(ledger.verify_s),
        "kernel_compilations": compiled.num_compiled,
        "kernel_compilations_total": compiled_in_all.num_compiled,
        "compile_ms": _ms(compiled.compile_s),
    }


def _ms(seconds: float) -> float:
    return round(seconds * 1e3, 3)


def _rate(count: int, seconds: float) -> float | None:
    return count / seconds if count > 0 and seconds > 0 else None


def _padded(counts: tuple[int, ...], depth: int | None) -> tuple[int, ...]:
    return counts + (0,) * ((depth or 0) - len(counts))


# --- the Prometheus page ---

# name, type, help, the ledger's field
LEDGER_SERIES = (
    ("spec_decode_num_drafts_total", "Rounds in which drafts were verified.", "num_rounds"),
    ("spec_decode_num_draft_tokens_total", "Drafted tokens sent to verification.", "num_drafted"),
    (
        "spec_decode_num_tested_tokens_total",
        "Drafted tokens compared: the accepted and the first rejected one of each round.",
        "num_tested",
    ),
    (
        "spec_decode_num_accepted_tokens_total",
        "Accepted drafted tokens, before the cut at a stop or a length limit.",
        "num_accepted",
    ),
    ("plain_steps_total", "Decode steps without drafts.", "num_plain_steps"),
    ("trimmed_tokens_total", "Tokens cut off by a stop or a length limit.", "num_trimmed"),
    ("requests_total", "Requests whose prompt was evaluated.", "num_requests"),
    ("prompt_tokens_total", "Prompt tokens evaluated.", "num_prompt_tokens"),
    ("generation_tokens_total", "Tokens generated and kept.", "num_tokens"),
    ("prompt_seconds_total", "Seconds spent evaluating prompts.", "prefill_s"),
    ("draft_seconds_total", "Seconds spent drafting.", "draft_s"),
    ("verify_seconds_total", "Seconds spent in the target's decode steps.", "verify_s"),
)
COMPILATION_SERIES = (
    ("kernel_compilations_total", "Graphs and libraries compiled.", "num_compiled"),
    ("compile_seconds_total", "Seconds spent compiling them.", "compile_s"),
)
CAPACITY_SERIES = (
    ("max_concurrent_requests", "Requests that can be decoded at a time.", "num_slots"),
    ("kv_capacity_tokens", "Positions of all requests together.", "kv_capacity_tokens"),
    ("kv_used_tokens", "Positions that requests hold now.", "kv_used_tokens"),
    ("kv_bytes", "Memory taken at the start for what is kept of requests.", "kv_bytes"),
    ("weights_bytes", "Memory of the loaded weights.", "weights_bytes"),
)
ACCEPTED_AT = "spec_decode_num_accepted_tokens_per_pos_total"


@dataclass(frozen=True, kw_only=True)
class Capacity:
    """What there is room for. A running request holds its slot whole, however short it is."""

    num_slots: int
    kv_capacity_tokens: int
    kv_used_tokens: int
    kv_bytes: int
    weights_bytes: int | None  # None: not known


def render_page(
    ledger: Ledger,
    *,
    capacity: Capacity,
    compiled_in_all: Compilations,
    finished: Mapping[str, int],
    num_running: int,
    num_waiting: int,
    depth: int | None,
    model_name: str,
    started_at_s: float,
) -> str:
    """The counters in Prometheus' text format 0.0.4. Every series is there from the start, at 0."""
    model = {"model_name": model_name}
    accepted_at = _padded(ledger.num_accepted_at, depth)
    lines: list[str] = []
    for name, help_, field in LEDGER_SERIES:
        lines += _family(name, "counter", help_, [(model, getattr(ledger, field))])
    lines += _family(
        ACCEPTED_AT,
        "counter",
        "Rounds in which the draft at this position was accepted.",
        [({**model, "position": str(i)}, count) for i, count in enumerate(accepted_at)],
    )
    lines += _family(
        "request_success_total",
        "counter",
        "Requests that ended, by reason.",
        [({**model, "finished_reason": reason}, finished[reason]) for reason in FINISH_REASONS],
    )
    for name, help_, field in COMPILATION_SERIES:
        lines += _family(name, "counter", help_, [(model, getattr(compiled_in_all, field))])
    for name, help_, field in CAPACITY_SERIES:
        value = getattr(capacity, field)
        lines += _family(name, "gauge", help_, [] if value is None else [(model, value)])
    running_help = "Requests being decoded."
    lines += _family("num_requests_running", "gauge", running_help, [(model, num_running)])
    lines += _family("num_requests_waiting", "gauge", "Requests queued.", [(model, num_waiting)])
    lines += _family(
        "process_start_time_seconds",
        "gauge",
        "Unix time at which the process began to serve.",
        [({}, started_at_s)],
        prefix="",  # the one name that every Prometheus client library exports without a prefix
    )
    return "\n".join(lines) + "\n"


def _family(
    name: str,
    kind: str,
    help_: str,
    samples: list[tuple[Mapping[str, str], float]],
    prefix: str = PREFIX,
) -> Iterator[str]:
    yield f"# HELP {prefix}{name} {help_}"
    yield f"# TYPE {prefix}{name} {kind}"
    for labels, value in samples:
        yield f"{prefix}{name}{_labels(labels)} {value!r}"


def _labels(labels: Mapping[str, str]) -> str:
    if not labels:
        return ""
    return "{" + ",".join(f'{name}="{_escaped(value)}"' for name, value in labels.items()) + "}"


def _escaped(value: str) -> str:
    return value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
