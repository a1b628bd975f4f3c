"""Parts of the page alone, as Markdown to paste elsewhere: tables without pictures and links."""

from collections.abc import Mapping, Sequence

from rich.console import Console

from harness.analysis.summary import Section, Summary
from harness.errors import UsageError
from harness.report import format as fmt
from harness.report import method, tables
from harness.report.markdown import markdown_table
from harness.report.tables import Table
from harness.report.tables.sessions import told_machine
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
        f"Run `{summary.manifest.run_id}`, {fmt.escape(summary.manifest.tool)}. "
        f"{fmt.escape(_of(summary, name))}"
    ]
    for table in tables_of(summary, name):
        lines += ["", f"**{fmt.escape(table.title)}**", "", markdown_table(table)]
    return "\n".join(lines)


def print_part(summary: Summary, name: str, console: Console) -> None:
    for table in tables_of(summary, name):
        print_table(table, console)
        console.print()


def tables_of(summary: Summary, name: str) -> Sequence[Table]:
    words = [section.word for section in _sections(summary, name)]
    found = [
        table
        for made in PARTS[name]
        for table in tables.TABLES[made](summary)
        if name not in _OF_WORKLOAD or table.section in words
    ]
    if not found:
        raise UsageError(f"run {summary.manifest.run_id} has nothing for {name}")
    return found


def _sections(summary: Summary, name: str) -> Sequence[Section]:
    """Those that a part is of; none where it is of the whole run."""
    workload = _OF_WORKLOAD.get(name)
    return [section for section in summary.sections if section.workload == workload]


def _of(summary: Summary, name: str) -> str:
    machines = dict.fromkeys(told_machine(each.machine) for each in summary.data.sessions)
    said = [f"Verdict: {summary.level}.", f"Machine: {'; '.join(machines)}."]
    return " ".join([*said, *map(method.workload, _sections(summary, name))])
