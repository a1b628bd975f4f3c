"""A run's cells in the shape of `vllm bench serve --save-result --save-detailed`.

The figures follow that tool's definitions and not ours: its tpot divides by all tokens but one, its
itl is per event. What was not measured has no key; times of failed requests are not invented.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from itertools import pairwise
from pathlib import Path
from statistics import fmean, pstdev
from typing import Any

import numpy as np

from harness.analysis.summary import Summary
from harness.cell_view import CellView
from harness.measures import acceptance_at_position, acceptance_length, acceptance_rate
from harness.report import format as fmt
from harness.requests import Requests
from harness.store import told, write_whole

PERCENTILES = (50, 90, 99)


def write_vllm(summary: Summary, folder: Path) -> list[Path]:
    """A file for each cell that was measured."""
    written = []
    with told(folder):
        folder.mkdir(parents=True, exist_ok=True)
        for view in summary.data.views:
            if view.ok:
                path = folder / f"{fmt.slug(view.cell.cell_id)}.json"
                text = json.dumps(vllm_object(summary, view), indent=1, allow_nan=False)
                write_whole(path, f"{text}\n".encode())
                written.append(path)
    return written


def vllm_object(summary: Summary, view: CellView) -> Mapping[str, Any]:
    begun = datetime.fromisoformat(summary.manifest.created_at)
    duration_s = sum(end.window_s for end in view.ends)
    return {
        "date": f"{begun:%Y%m%d-%H%M%S}",
        "endpoint_type": "openai-chat",
        "backend": "openai-chat",
        "label": view.cell.variant,
        "model_id": view.cell.target,
        "tokenizer_id": view.cell.target,
        "num_prompts": len(view.requests),
        "request_rate": view.cell.rate_per_s or "inf",
        "burstiness": 1.0,
        "max_concurrency": view.cell.concurrency,
        "duration": duration_s,
        "completed": len(view.ok),
        "failed": len(view.requests) - len(view.ok),
        **_throughput(view, duration_s),
        **_times(view),
        **_speculation(view),
        **_details(view),
    }


def _throughput(view: CellView, duration_s: float) -> Mapping[str, float]:
    told: dict[str, float] = {"request_throughput": len(view.ok) / duration_s}
    no_outputs, no_prompts = view.ok.lacks("output_tokens"), view.ok.lacks("prompt_tokens")
    if not no_outputs:
        total = int(view.ok.known("output_tokens").sum())
        told |= {"total_output_tokens": total, "output_throughput": total / duration_s}
    if not no_prompts:
        told["total_input_tokens"] = int(view.ok.known("prompt_tokens").sum())
    if not no_outputs and not no_prompts:
        both = told["total_input_tokens"] + told["total_output_tokens"]
        told["total_token_throughput"] = both / duration_s
    return told


def _times(view: CellView) -> Mapping[str, float]:
    series = {
        "ttft": view.ok.known("ttft_s").tolist(),
        "tpot": list(_tpots(view.ok)),
        "itl": [gap for gaps in _gaps(view) for gap in gaps],
        "e2el": view.ok.known("wall_s").tolist(),
    }
    return {
        name: value
        for time, values in series.items()
        if values
        for name, value in _statistics(time, [value * 1e3 for value in values])
    }


def _statistics(time: str, values_ms: Sequence[float]) -> Iterator[tuple[str, float]]:
    yield f"mean_{time}_ms", fmean(values_ms)
    yield f"median_{time}_ms", float(np.median(values_ms))
    yield f"std_{time}_ms", pstdev(values_ms)
    for share in PERCENTILES:
        yield f"p{share}_{time}_ms", float(np.percentile(values_ms, share))


def _tpots(requests: Requests) -> Iterator[float]:
    times = (requests.values(name) for name in ("output_tokens", "wall_s", "ttft_s"))
    for tokens, wall_s, ttft_s in zip(*times, strict=True):
        if tokens is not None and tokens > 1 and wall_s is not None and ttft_s is not None:
            yield (wall_s - ttft_s) / (tokens - 1)


def _gaps(view: CellView) -> list[list[float]]:
    """Per request the seconds between its events; none where the events were not read."""
    offsets = [
        events.offsets_ns
        for request_id in view.ok.ids()
        if (events := view.events.get(request_id)) is not None
    ]
    return [[(b - a) / 1e9 for a, b in pairwise(row)] for row in offsets]


def _speculation(view: CellView) -> Mapping[str, Any]:
    """Its rate is in per cent, its positions are shares."""
    delta = view.total.delta
    if delta is None or not delta.drafts:
        return {}
    positions, rate = acceptance_at_position(delta), acceptance_rate(delta)
    return {
        "spec_decode_acceptance_rate": None if rate is None else rate * 100,
        "spec_decode_acceptance_length": acceptance_length(delta),
        "spec_decode_num_drafts": delta.drafts,
        "spec_decode_draft_tokens": delta.draft_tokens,
        "spec_decode_accepted_tokens": delta.accepted_tokens,
        "spec_decode_per_position_acceptance_rates": list(positions or ()),
    }


def _details(view: CellView) -> Mapping[str, Any]:
    """Of completed requests; seconds."""
    return {
        "input_lens": view.ok.values("prompt_tokens"),
        "output_lens": view.ok.values("output_tokens"),
        "ttfts": view.ok.values("ttft_s"),
        "itls": _gaps(view),
        "start_times": (view.ok.known("t0_ns") / 1e9).tolist(),
        "latencies": view.ok.values("wall_s"),
        "errors": [request.error.message for request in view.requests if request.error],
    }
