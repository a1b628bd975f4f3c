"""llama.cpp's `llama-bench -o json` or `jsonl`, as of build 11434: prompt processing and text
generation inside the process, without a server, a tokenizer, sampling or speculation.
"""

from collections.abc import Sequence

from harness.interchange.document import ImportedRow
from harness.interchange.reading import (
    Field,
    Json,
    Read,
    Source,
    count,
    figures,
    items,
    meanings,
    objects,
    protocol_id,
    shared_version,
    text,
)

TOOL = "llama-bench"
FIELDS: Sequence[Field] = (
    Field(
        name="pp",
        unit="tok/s",
        like="prefill_rate",
        meaning="prompt tokens over the time of their passes, mean over repetitions",
    ),
    Field(
        name="tg",
        unit="tok/s",
        like="decode_rate",
        meaning="generated tokens over the time of their passes, the first too; mean over "
        "repetitions",
    ),
    Field(
        name="pp+tg",
        unit="tok/s",
        meaning="prompt and generated tokens over the time of both",
    ),
)


def read(sources: Sequence[Source]) -> Read:
    found = [(source, item) for source in sources for item in objects(source)]
    builds = [count(item.get("build_number")) for _, item in found]
    return Read(
        tool_version=shared_version(f"b{build}" for build in builds if build is not None),
        meanings=meanings(FIELDS),
        rows=tuple(_row(source, item) for source, item in found),
    )


def _row(source: Source, item: Json) -> ImportedRow:
    prompt, generated = count(item.get("n_prompt")) or 0, count(item.get("n_gen")) or 0
    depth = count(item.get("n_depth")) or 0
    kind = "pp+tg" if prompt and generated else "pp" if prompt else "tg"
    tests = [f"{word}{size}" for word, size in (("pp", prompt), ("tg", generated)) if size]
    return ImportedRow(
        subject=text(item.get("model_type")),
        work="+".join(tests) + (f" @ d{depth}" if depth else ""),
        concurrency=1,
        num_requests=len(items(source, item, "samples_ts")),
        num_failed=0,
        protocol_id=protocol_id(TOOL, prompt, generated, depth),
        figures=figures({kind: item.get("avg_ts")}, FIELDS),
    )
