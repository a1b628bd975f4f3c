"""Summaries of runs whose every time and token is written down: figures without a clock's noise.

The records go the whole way: into a results folder, through analysis and checks, onto the page.
"""

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from harness.analysis.summary import Summary, summarise
from harness.cell_view import CellView
from harness.records import Estimate, Prompt, PromptSet, Request, RequestError
from harness.report.build import write_report
from tests.harness import synthetic


def prompts(**kinds: str) -> PromptSet:
    """prompt id -> kind, in this order."""
    return PromptSet(
        name="cases",
        sha256="c" * 64,
        prompts=tuple(
            Prompt(
                prompt_id=prompt_id,
                kind=kind,
                messages=({"role": "user", "content": prompt_id},),
                source="made for this test",
                licence="CC0-1.0",
            )
            for prompt_id, kind in kinds.items()
        ),
    )


def at_rate(request: Request, tok_per_s: float, tokens: int = 96, ttft_s: float = 0.1) -> Request:
    """The same request, decoding so fast: `tokens` / (wall - ttft).

    96 is what the model engine answers to a kind it has no law for, so its counters agree.
    """
    wall_s = ttft_s + tokens / tok_per_s
    return replace(
        request,
        output_tokens=tokens,
        ttfr_s=ttft_s,
        ttft_s=ttft_s,
        ttfa_s=ttft_s,
        t_last_s=wall_s,
        wall_s=wall_s,
        first_tokens=1,
    )


def timed_out(request: Request, after_s: float = 30.0) -> Request:
    """The same request, without one token until the client gave it up."""
    return replace(
        request,
        status="failed",
        error=RequestError(kind="timeout", message=f"no first event in {after_s:g} s"),
        ttfr_s=None,
        ttft_s=None,
        ttfa_s=None,
        t_last_s=None,
        wall_s=None,
        output_tokens=None,
        output_tokens_source=None,
        first_tokens=None,
        first_tokens_source=None,
        num_output_events=0,
        finish_reason=None,
        text_sha256=None,
    )


def repetitions_of(
    rates: Mapping[str, Sequence[float | None]],
) -> Callable[[Request], Request]:
    """prompt id -> decode rate per repetition; None: that request failed."""

    def edit(request: Request) -> Request:
        repetition = request.where.repetition
        if repetition is None or repetition < 0:
            return request
        of_prompt = rates[request.prompt_id]
        rate = of_prompt[repetition % len(of_prompt)]
        return timed_out(request) if rate is None else at_rate(request, rate)

    return edit


def plain_run(
    path: Path, rates: Mapping[str, Sequence[float | None]], *, boots: int = 1
) -> Summary:
    """One variant, one request at a time, a kind per prompt."""
    asked = synthetic.matrix(
        boots=boots,
        levels=(),
        drafters=(),
        prompts=prompts(**{prompt_id: prompt_id for prompt_id in rates}),
        repetitions=max(map(len, rates.values())),
    )
    return summarise(synthetic.write_run(path, asked, edit=repetitions_of(rates)))


def estimate(summary: Summary, metric: str, kind: str = "all", variant: str = "plain") -> Estimate:
    (row,) = [
        row
        for row in summary.rows
        if (row.metric, row.kind, row.variant) == (metric, kind, variant)
    ]
    return row.estimate


def view_of(summary: Summary, variant: str = "plain") -> CellView:
    (view,) = [view for view in summary.data.views if view.cell.variant == variant]
    return view


def without_links(page: str) -> str:
    """Figures as they read, without the cells that they lead to."""
    return re.sub(r"\[([^\]]*)\]\[\d+\]", r"\1", page)


def written(summary: Summary, path: Path) -> tuple[str, dict[str, object]]:
    """RESULTS.md without its links, and summary.json."""
    page = write_report(summary, path)
    told = json.loads((page.parent / "summary.json").read_text(encoding="utf-8"))
    return without_links(page.read_text(encoding="utf-8")), told
