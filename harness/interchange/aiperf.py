"""NVIDIA aiperf's profile_export_aiperf.json, as of 0.13. Each figure carries its unit: it is read,
never assumed.
"""

from collections.abc import Iterator, Mapping, Sequence

from harness.errors import ResultsError
from harness.interchange.document import ImportedFigure, ImportedRow
from harness.interchange.reading import (
    Json,
    Read,
    Source,
    count,
    items,
    number,
    objects,
    protocol_id,
    section,
    shared_version,
    text,
)

TOOL = "aiperf"

MEANINGS: Mapping[str, str] = {
    "time_to_first_token": "first response with content, reasoning or a tool call, at the socket's "
    "read",
    "inter_token_latency": "(latency - ttft) / (tokens - 1) of one request; tokens by a local "
    "tokenizer unless the server's count was asked for",
    "request_latency": "of one request",
    "output_token_throughput": "output tokens of all requests over the duration",
    "output_token_throughput_per_user": "1 / inter_token_latency, per request",
    "request_throughput": "requests per second",
}
_UNITS: Mapping[str, tuple[str, float]] = {
    "ms": ("s", 1e-3),
    "us": ("s", 1e-6),
    "ns": ("s", 1e-9),
    "s": ("s", 1.0),
    "sec": ("s", 1.0),
    "tokens/sec": ("tok/s", 1.0),
    "tokens/sec/user": ("tok/s", 1.0),
    "requests/sec": ("request/s", 1.0),
}
_LIKE = {
    ("time_to_first_token", "p50"): "ttft_p50",
    ("time_to_first_token", "p90"): "ttft_p90",
    ("time_to_first_token", "p99"): "ttft_p99",
    ("inter_token_latency", "avg"): "tpot",
    ("request_latency", "p50"): "wall_p50",
    ("output_token_throughput", "avg"): "aggregate_throughput",
    ("output_token_throughput_per_user", "avg"): "decode_rate_strict",
}


def read(sources: Sequence[Source]) -> Read:
    exports = [(source, item) for source in sources for item in objects(source)]
    return Read(
        tool_version=shared_version(text(item.get("aiperf_version")) for _, item in exports),
        meanings=MEANINGS,
        rows=tuple(_row(source, item) for source, item in exports),
    )


def _row(source: Source, export: Json) -> ImportedRow:
    if not any(name in export for name in MEANINGS):
        raise ResultsError(
            f"{source.name}: none of {', '.join(MEANINGS)}, so it is no aiperf export"
        )
    concurrency = _concurrency(source, export)
    lengths = [_average(source, export, f"{side}_sequence_length") for side in ("input", "output")]
    return ImportedRow(
        subject=_model(source, export),
        work=", ".join(
            f"{word} {value:.0f} tokens"
            for word, value in zip(("in", "out"), lengths, strict=True)
            if value is not None
        )
        or "lengths unknown",
        concurrency=concurrency,
        num_requests=count(_average(source, export, "request_count")),
        num_failed=count(_average(source, export, "error_request_count")),
        protocol_id=protocol_id(TOOL, concurrency, *map(count, lengths)),
        figures=tuple(_figures(source, export)),
    )


def _figures(source: Source, export: Json) -> Iterator[ImportedFigure]:
    for name in MEANINGS:
        summary = section(source, export, name)
        for statistic in ("avg", "p50", "p90", "p99"):
            value = number(summary.get(statistic))
            if value is None:
                continue
            unit, scale = _unit(source, name, summary.get("unit"))
            yield ImportedFigure(
                name=f"{name}, {statistic}",
                value=value * scale,
                unit=unit,
                like=_LIKE.get((name, statistic)),
            )


def _unit(source: Source, name: str, unit: object) -> tuple[str, float]:
    try:
        return _UNITS[str(unit)]
    except KeyError:
        raise ResultsError(
            f"{source.name}: `{name}` is in {unit!r}, which is none of {', '.join(_UNITS)}"
        ) from None


def _average(source: Source, export: Json, name: str) -> float | None:
    return number(section(source, export, name).get("avg"))


def _concurrency(source: Source, export: Json) -> int | None:
    """Of all that `input_config` holds, keys among it, only this number is looked at."""
    return count(section(source, export, "input_config", "loadgen").get("concurrency"))


def _model(source: Source, export: Json) -> str:
    endpoint = section(source, export, "input_config", "endpoint")
    return text(", ".join(map(str, items(source, endpoint, "model_names"))))
