"""TOOLS: whose files `dflashbench import` reads; a row for each, and a reader in its own file."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from harness.interchange import (
    aiperf,
    columns,
    guidellm,
    llama_bench,
    llama_benchy,
    sglang,
    vllm,
)
from harness.interchange.document import FORMAT, Imported
from harness.interchange.reading import Read, Source, sources


@dataclass(frozen=True, kw_only=True)
class Tool:
    """`files`: what is looked for in a folder."""

    files: str
    read: Callable[[Sequence[Source]], Read]


TOOLS: Mapping[str, Tool] = {
    "vllm-bench-serve": Tool(files="*.json", read=vllm.read_serve),
    "vllm-bench-sweep": Tool(files="run=*.json", read=vllm.read_sweep),
    "llama-bench": Tool(files="*.json*", read=llama_bench.read),
    "llama-benchy": Tool(files="*.json", read=llama_benchy.read),
    "guidellm": Tool(files="benchmarks*.json", read=guidellm.read),
    "aiperf": Tool(files="profile_export_aiperf.json", read=aiperf.read),
    "sglang-bench-serving": Tool(files="*.jsonl", read=sglang.read),
}
CSV = "csv"


def read_files(
    tool: str, paths: Sequence[Path], *, column_map: Path | None, imported_at: str
) -> Imported:
    """`column_map` is for `csv`, which says nothing of itself."""
    if tool == CSV:
        assert column_map is not None
        told = columns.read_map(column_map)
        found = sources(paths, "*.csv")
        read = columns.read(found, told)
        tool = f"csv-{told['tool']}"
    else:
        found = sources(paths, TOOLS[tool].files)
        read = TOOLS[tool].read(found)
    return Imported(
        format=FORMAT,
        tool=tool,
        tool_version=read.tool_version,
        imported_at=imported_at,
        sources={source.name: source.sha256 for source in found},
        meanings=read.meanings,
        rows=read.rows,
    )
