"""SGLang's `bench_serving --output-file`, a JSON object per line, as of 0.5.23."""

from collections.abc import Sequence

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

TOOL = "sglang-bench-serving"

FIELDS: Sequence[Field] = (
    Field(
        name="output_throughput",
        unit="tok/s",
        like="aggregate_throughput",
        meaning="output tokens over the whole duration; where the server sent no usage, the tokens "
        "that were asked for",
    ),
    Field(name="request_throughput", unit="request/s", meaning="finished requests per second"),
    *(
        Field(
            name=f"{statistic}_{time}_ms",
            unit="s",
            scale=1e-3,
            like={
                "median_ttft_ms": "ttft_p50",
                "mean_tpot_ms": "tpot",
                "median_e2e_latency_ms": "wall_p50",
            }.get(f"{statistic}_{time}_ms"),
            meaning=f"{statistic}: {meaning}",
        )
        for time, meaning in (
            ("ttft", "first event with text, on a connection that is opened for each request"),
            ("tpot", "(latency - ttft) / (tokens - 1), tokens counted again with a tokenizer"),
            ("itl", "an event's gap shared out over its tokens"),
            ("e2e_latency", "of one request, the opening of its connection included"),
        )
        for statistic in ("mean", "median", "std", "p90", "p95", "p99")
    ),
    Field(
        name="accept_length",
        unit="tok/step",
        like="acceptance_length",
        meaning="tokens / verify steps since the server started, prefill's token included",
    ),
)


def read(sources: Sequence[Source]) -> Read:
    rows = tuple(_row(item) for source in sources for item in objects(source))
    return Read(tool_version=None, meanings=meanings(FIELDS), rows=rows)


def _row(item: Json) -> ImportedRow:
    dataset = text(item.get("dataset_name"))
    return ImportedRow(
        subject=text(item.get("tag") or item.get("backend")),
        work=f"{text(item.get('backend'))}, dataset {dataset}, rate {item.get('request_rate')}",
        concurrency=count(item.get("max_concurrency")),
        num_requests=count(item.get("completed")),
        num_failed=None,
        protocol_id=protocol_id(
            TOOL,
            dataset,
            str(item.get("request_rate")),
            count(item.get("max_concurrency")),
            *(count(item.get(f"random_{side}_len")) for side in ("input", "output")),
        ),
        figures=figures(item, FIELDS),
    )
