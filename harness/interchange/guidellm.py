"""guidellm's benchmarks.json, as of 0.8: successful requests alone, on the wall clock.

Its clock is the system's time, which may step; a negative time is such a step and no figure.
"""

from collections.abc import Iterator, Mapping, Sequence

from harness.interchange.document import ImportedFigure, ImportedRow
from harness.interchange.reading import (
    Json,
    Read,
    Source,
    benchmarks,
    count,
    number,
    objects,
    protocol_id,
    section,
    shared_version,
    text,
)

TOOL = "guidellm"

MEANINGS: Mapping[str, str] = {
    "time_to_first_token_ms": "first event with content, reasoning or a tool call, after the "
    "request's headers were sent",
    "time_per_output_token_ms": "request time / tokens, the first included",
    "inter_token_latency_ms": "(last - first) / (tokens - 1) of one request, events not looked at",
    "request_latency": "of one request",
    "output_tokens_per_second": "output tokens of all requests per second, over time",
    "requests_per_second": "requests per second, over time",
}
_UNITS = {
    "output_tokens_per_second": ("tok/s", 1.0),
    "requests_per_second": ("request/s", 1.0),
    "request_latency": ("s", 1.0),
}
_MILLISECONDS = ("s", 1e-3)
_LIKE = {
    ("time_to_first_token_ms", "median"): "ttft_p50",
    ("time_to_first_token_ms", "p90"): "ttft_p90",
    ("time_to_first_token_ms", "p99"): "ttft_p99",
    ("inter_token_latency_ms", "mean"): "tpot",
    ("request_latency", "median"): "wall_p50",
    ("output_tokens_per_second", "mean"): "aggregate_throughput",
}


def read(sources: Sequence[Source]) -> Read:
    reports = [(source, item) for source in sources for item in objects(source)]
    return Read(
        tool_version=shared_version(_version(source, item) for source, item in reports),
        meanings=MEANINGS,
        rows=tuple(
            _row(source, benchmark)
            for source, item in reports
            for benchmark in benchmarks(source, item, TOOL)
        ),
    )


def _version(source: Source, report: Json) -> str:
    return text(section(source, report, "metadata").get("guidellm_version"))


def _row(source: Source, benchmark: Json) -> ImportedRow:
    strategy = _strategy(source, benchmark)
    kind = text(strategy.get("type_") or strategy.get("kind"))
    streams = strategy.get("streams") or strategy.get("max_concurrency")
    totals = section(source, benchmark, "metrics", "request_totals")
    return ImportedRow(
        subject=text(section(source, benchmark, "config").get("model")),
        work=f"{kind}" + (f", rate {strategy['rate']}" if strategy.get("rate") else ""),
        concurrency=1 if kind == "synchronous" else count(streams),
        num_requests=count(totals.get("successful")),
        num_failed=count(totals.get("errored")),
        protocol_id=protocol_id(TOOL, kind, count(streams), str(strategy.get("rate"))),
        figures=tuple(_figures(source, section(source, benchmark, "metrics"))),
    )


def _strategy(source: Source, benchmark: Json) -> Json:
    """It moved between versions: under `config`, `args` or `scheduler`."""
    for place in ("config", "args", "scheduler"):
        found = section(source, benchmark, place).get("strategy")
        if isinstance(found, dict):
            return found
    return {}


def _figures(source: Source, metrics: Json) -> Iterator[ImportedFigure]:
    for name in MEANINGS:
        summary = section(source, metrics, name, "successful")
        percentiles = section(source, summary, "percentiles")
        unit, scale = _UNITS.get(name, _MILLISECONDS)
        for statistic in ("mean", "median", "p90", "p99"):
            value = number(summary.get(statistic, percentiles.get(statistic)))
            if value is not None and value >= 0 and summary.get("count") != 0:
                yield ImportedFigure(
                    name=f"{name}, {statistic}",
                    value=value * scale,
                    unit=unit,
                    like=_LIKE.get((name, statistic)),
                )
