"""llama-benchy's JSON report, as of 0.4.0."""

from collections.abc import Sequence

from harness.interchange.document import ImportedRow
from harness.interchange.reading import (
    Field,
    Json,
    Read,
    Source,
    benchmarks,
    count,
    figures,
    meanings,
    objects,
    protocol_id,
    section,
    shared_version,
    text,
)

TOOL = "llama-benchy"

FIELDS: Sequence[Field] = (
    Field(
        name="tg_throughput",
        unit="tok/s",
        like="aggregate_throughput",
        meaning="tokens after the first of all requests, over first to last; mean over runs",
    ),
    Field(
        name="tg_req_throughput",
        unit="tok/s",
        like="decode_rate_strict",
        meaning="tokens after the first / (last - first) of one request; mean over requests",
    ),
    Field(
        name="pp_req_throughput",
        unit="tok/s",
        like="prefill_rate",
        meaning="prompt tokens / (time to first event - the latency of an empty request)",
    ),
    Field(name="pp_throughput", unit="tok/s", meaning="the same over all requests at once"),
    Field(
        name="e2e_ttft",
        unit="s",
        scale=1e-3,
        like="ttft_p50",
        meaning="first event with content or reasoning; mean over requests, and not a median",
    ),
    Field(
        name="ttfr",
        unit="s",
        scale=1e-3,
        like="ttfr_p50",
        meaning="first event with choices; mean over requests",
    ),
    Field(
        name="est_ppt",
        unit="s",
        scale=1e-3,
        meaning="ttfr less the latency of an empty request",
    ),
    Field(name="peak_throughput", unit="tok/s", meaning="the best second of all requests"),
)


def read(sources: Sequence[Source]) -> Read:
    reports = [(source, item) for source in sources for item in objects(source)]
    return Read(
        tool_version=shared_version(text(item.get("version")) for _, item in reports),
        meanings=meanings(FIELDS),
        rows=tuple(
            _row(source, item, run)
            for source, item in reports
            for run in benchmarks(source, item, TOOL)
        ),
    )


def _row(source: Source, report: Json, run: Json) -> ImportedRow:
    sizes = [count(run.get(f"{part}_size")) for part in ("prompt", "response", "context")]
    work = f"pp{sizes[0]} tg{sizes[1]}" + (f" @ d{sizes[2]}" if sizes[2] else "")
    means = {field.name: section(source, run, field.name).get("mean") for field in FIELDS}
    return ImportedRow(
        subject=text(report.get("model")),
        work=work,
        concurrency=count(run.get("concurrency")),
        num_requests=None,
        num_failed=None,
        protocol_id=protocol_id(
            TOOL,
            *sizes,
            count(run.get("concurrency")),
            str(report.get("latency_mode")),
            bool(report.get("prefix_caching_enabled")),
        ),
        figures=figures(means, FIELDS),
    )
