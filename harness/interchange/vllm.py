"""`vllm bench serve --save-result` and `vllm bench sweep serve`, as of vLLM 0.32.

Without speculation, without /metrics and after a restart the file lacks the speculation fields
alike, so a missing one says nothing.
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace

from harness.interchange.document import ImportedRow
from harness.interchange.reading import (
    Field,
    Json,
    Read,
    Source,
    count,
    figures,
    meanings,
    objects,
    protocol_id,
    text,
)

_STATISTICS = ("mean", "median", "std", "p50", "p90", "p95", "p99")
_TIMES = {
    "ttft": "first event with choices, even a role alone; from before the request is sent",
    "tpot": "(latency - ttft) / (tokens - 1) of one request",
    "itl": "between two events, whatever tokens they hold: a step and not a token",
    "e2el": "from before the request is sent to the end of its stream",
}
_LIKE = {
    "median_ttft_ms": "ttft_p50",
    "p50_ttft_ms": "ttft_p50",
    "p90_ttft_ms": "ttft_p90",
    "p99_ttft_ms": "ttft_p99",
    "mean_tpot_ms": "tpot",
    "median_e2el_ms": "wall_p50",
}
FIELDS: Sequence[Field] = (
    Field(
        name="output_throughput",
        unit="tok/s",
        like="aggregate_throughput",
        meaning="output tokens over the whole duration, ramp and drain included",
    ),
    Field(name="request_throughput", unit="request/s", meaning="finished requests per second"),
    Field(
        name="total_token_throughput", unit="tok/s", meaning="prompt and output tokens per second"
    ),
    *(
        Field(
            name=f"{statistic}_{time}_ms",
            unit="s",
            scale=1e-3,
            like=_LIKE.get(f"{statistic}_{time}_ms"),
            meaning=f"{statistic}: {meaning}",
        )
        for time, meaning in _TIMES.items()
        for statistic in _STATISTICS
    ),
    Field(
        name="spec_decode_acceptance_length",
        unit="tok/round",
        like="acceptance_length",
        meaning="1 + accepted / drafts, from the server's counters before and after",
    ),
    Field(
        name="spec_decode_acceptance_rate",
        unit="1",
        scale=1e-2,
        like="acceptance_rate",
        meaning="accepted / drafted tokens, written in per cent",
    ),
)


def read_serve(sources: Sequence[Source]) -> Read:
    rows = tuple(_row("vllm-bench-serve", item) for source in sources for item in objects(source))
    return Read(tool_version=None, meanings=meanings(FIELDS), rows=rows)


def read_sweep(sources: Sequence[Source]) -> Read:
    """A combination is a folder, a run a file; `summary.json` repeats them and is not read."""
    return Read(tool_version=None, meanings=meanings(FIELDS), rows=tuple(_of_sweep(sources)))


def _of_sweep(sources: Sequence[Source]) -> Iterator[ImportedRow]:
    for source in sources:
        for item in objects(source):
            row = _row("vllm-bench-sweep", item)
            yield replace(row, work=f"{row.work}, {source.name.removesuffix('.json')}")


def _row(tool: str, item: Json) -> ImportedRow:
    rate = item.get("request_rate")
    how = "requests sent as fast as they may" if rate == "inf" else f"{rate} requests per second"
    return ImportedRow(
        subject=text(item.get("model_id")),
        work=f"{text(item.get('backend'))}, {count(item.get('num_prompts'))} prompts, {how}",
        concurrency=count(item.get("max_concurrency")),
        num_requests=count(item.get("completed")),
        num_failed=count(item.get("failed")),
        protocol_id=protocol_id(
            tool,
            text(item.get("backend")),
            count(item.get("num_prompts")),
            str(rate),
            str(item.get("burstiness")),
            count(item.get("max_concurrency")),
            count(item.get("total_input_tokens")),
        ),
        figures=figures(item, FIELDS),
    )
