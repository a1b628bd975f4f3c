"""llama.cpp's `llama-bench -o json` or `jsonl`, as of build 11434: prompt processing and text
generation inside the process, without a server, a tokenizer, sampling or speculation.
"""

from collections.abc import Sequence

from harness.interchange.document import ImportedFigure, ImportedRow
from harness.interchange.reading import (
    Json,
    Read,
    Source,
    count,
    number,
    objects,
    protocol_id,
    text,
)

TOOL = "llama-bench"
MEANINGS = {
    "pp": "prompt tokens over the time of their passes, mean over repetitions",
    "tg": "generated tokens over the time of their passes, the first too; mean over repetitions",
    "pp+tg": "prompt and generated tokens over the time of both",
}
_LIKE = {"pp": "prefill_rate", "tg": "decode_rate", "pp+tg": None}


def read(sources: Sequence[Source]) -> Read:
    found = [item for source in sources for item in objects(source)]
    builds = {count(item.get("build_number")) for item in found} - {None}
    version = f"b{builds.pop()}" if len(builds) == 1 else None
    return Read(tool_version=version, meanings=MEANINGS, rows=tuple(map(_row, found)))


def _row(item: Json) -> ImportedRow:
    prompt, generated = count(item.get("n_prompt")) or 0, count(item.get("n_gen")) or 0
    depth = count(item.get("n_depth")) or 0
    kind = "pp+tg" if prompt and generated else "pp" if prompt else "tg"
    tests = [f"{word}{size}" for word, size in (("pp", prompt), ("tg", generated)) if size]
    rate = number(item.get("avg_ts"))
    measured = [
        ImportedFigure(name=kind, value=value, unit="tok/s", like=_LIKE[kind])
        for value in (rate,)
        if value is not None
    ]
    return ImportedRow(
        subject=text(item.get("model_type")),
        work="+".join(tests) + (f" @ d{depth}" if depth else ""),
        concurrency=1,
        num_requests=len(item.get("samples_ts") or ()),
        num_failed=0,
        protocol_id=protocol_id(TOOL, prompt, generated, depth),
        figures=tuple(measured),
    )
