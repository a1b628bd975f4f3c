"""What a fake engine's other pages say: `/health`, `/metrics`, `/slots`, `/props`.

Text from counts, in the words of one engine or another (names as seen in vLLM 0.32 and llama.cpp
b11434). It counts nothing itself.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias

Dialect: TypeAlias = Literal["dflash2", "vllm", "llamacpp"]


@dataclass(kw_only=True)
class Counts:
    """A speculation ledger since the start."""

    drafts: int = 0
    draft_tokens: int = 0
    accepted_tokens: int = 0
    tested_tokens: int = 0
    trimmed_tokens: int = 0
    plain_steps: int = 0
    prompt_tokens: int = 0
    generation_tokens: int = 0
    requests: int = 0
    request_success: int = 0
    accepted_at: list[int]

    def add(self, other: "Counts") -> None:
        for name, value in vars(other).items():
            if name != "accepted_at":
                setattr(self, name, getattr(self, name) + value)
        self.accepted_at = [a + b for a, b in zip(self.accepted_at, other.accepted_at, strict=True)]


_DRAFTING = {
    "drafts": "spec_decode_num_drafts_total",
    "draft_tokens": "spec_decode_num_draft_tokens_total",
    "accepted_tokens": "spec_decode_num_accepted_tokens_total",
}
_SERVING = {
    "prompt_tokens": "prompt_tokens_total",
    "generation_tokens": "generation_tokens_total",
    "request_success": "request_success_total",
}
_NAMES: Mapping[Dialect, Mapping[str, str]] = {
    "dflash2": {
        **_DRAFTING,
        **_SERVING,
        "tested_tokens": "spec_decode_num_tested_tokens_total",
        "trimmed_tokens": "trimmed_tokens_total",
        "plain_steps": "plain_steps_total",
        "requests": "requests_total",
    },
    "vllm": {**_DRAFTING, **_SERVING},
    "llamacpp": {
        **_DRAFTING,
        "prompt_tokens": "prompt_tokens_total",
        "generation_tokens": "tokens_predicted_total",
    },
}
_GAUGES: Mapping[Dialect, tuple[str, str]] = {
    "dflash2": ("num_requests_running", "num_requests_waiting"),
    "vllm": ("num_requests_running", "num_requests_waiting"),
    "llamacpp": ("requests_processing", "requests_deferred"),
}


def metrics(
    dialect: Dialect,
    counts: Counts,
    *,
    model: str,
    running: int,
    waiting: int,
    process_start_s: float,
) -> str:
    labels = {} if dialect == "llamacpp" else {"model_name": model}
    values = {name: getattr(counts, field) for field, name in _NAMES[dialect].items()}
    values |= zip(_GAUGES[dialect], (running, waiting), strict=True)
    lines = [_sample(f"{dialect}:{name}", labels, value) for name, value in values.items()]
    per_position = f"{dialect}:spec_decode_num_accepted_tokens_per_pos_total"
    lines += [
        _sample(per_position, {**labels, "position": str(position)}, value)
        for position, value in enumerate(counts.accepted_at)
    ]
    lines.append(f"process_start_time_seconds {process_start_s:.3f}")
    return "\n".join(lines) + "\n"


def _sample(name: str, labels: Mapping[str, str], value: int) -> str:
    inside = ",".join(f'{label}="{text}"' for label, text in labels.items())
    return f"{name}{{{inside}}} {value}" if inside else f"{name} {value}"


def slots(busy: Sequence[bool], *, kv_len: int) -> str:
    return json.dumps(
        [
            {"id": number, "n_ctx": kv_len, "is_processing": is_busy}
            for number, is_busy in enumerate(busy)
        ]
    )


def props(num_slots: int, *, model: str, kv_len: int) -> str:
    settings = {"n_ctx": kv_len}
    return json.dumps(
        {
            "total_slots": num_slots,
            "model_path": model,
            "default_generation_settings": settings,
            "build_info": "scripted",
        }
    )
