"""Parts of the page alone, as Markdown to paste elsewhere: tables without pictures and links."""

from collections.abc import Mapping, Sequence

from rich.console import Console

from harness.analysis.summary import Summary
from harness.errors import UsageError
from harness.report import format as fmt
from harness.report import sentences, tables
from harness.report.markdown import markdown_table
from harness.report.tables import Table
from harness.report.terminal import print_table

PARTS: Mapping[str, Sequence[str]] = {
    "winners": ("winners",),
    "single-stream": ("single_stream", "drafters_by_kind", "rankings", "ratios_by_place"),
    "edit": ("single_stream", "drafters_by_kind", "rankings", "ratios_by_place"),
    "concurrency": ("concurrency", "decays", "rankings", "ratios_by_place"),
    "prefill": ("prefill",),
    "depth": ("depth",),
    "cost": ("cost", "roof", "energy"),
    "losslessness": ("losslessness",),
    "caveats": ("caveats", "verdicts"),
    "goals": ("goals",),
}
"""Part -> its tables."""

_OF_WORKLOAD = {
    "single-stream": "generate",
    "edit": "edit",
    "concurrency": "concurrency",
    "prefill": "prefill",
}


def part(summary: Summary, name: str) -> str:
    """A line that says which run it is of, then the tables of the part."""
    lines = [
        f"Run `{summary.manifest.run_id}`, {fmt.escape(summary.manifest.tool)}. {_of(summary)}"
    ]
    for table in tables_of(summary, name):
        lines += ["", f"**{fmt.escape(table.title)}**", "", markdown_table(table)]
    return "\n".join(lines)


def print_part(summary: Summary, name: str, console: Console) -> None:
    for table in tables_of(summary, name):
        print_table(table, console)
        console.print()


def tables_of(summary: Summary, name: str) -> Sequence[Table]:
    workload = _OF_WORKLOAD.get(name)
    words = [section.word for section in summary.sections if section.workload == workload]
    found = [
        table
        for made in PARTS[name]
        for table in tables.TABLES[made](summary)
        if workload is None or table.section in words
    ]
    if not found:
        raise UsageError(f"run {summary.manifest.run_id} has nothing for {name}")
    return found


def _of(summary: Summary) -> str:
    machines = dict.fromkeys(session.machine.cpu for session in summary.data.sessions)
    return fmt.escape(
        f"Verdict: {summary.level}. Machine: {', '.join(machines)}. "
        f"{next(iter(sentences.method(summary)), '')}"
    )
