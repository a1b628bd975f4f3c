"""RESULTS.md: the template filled. Whatever comes from a name or a message is escaped here."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jinja2

from harness.analysis.metrics import COMPARISONS, METRICS
from harness.analysis.summary import Summary
from harness.checks import CHECKS
from harness.report import format as fmt
from harness.report import sentences, tables
from harness.report.plots import PLOTS, Picture
from harness.report.tables import Entry, Table


@dataclass(frozen=True, kw_only=True)
class LoadPart:
    """One load shape with its sentences and tables."""

    title: str
    statements: Sequence[str]
    tables: Sequence[Table]


def results_page(summary: Summary, pictures: Sequence[Picture]) -> str:
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("harness.report"),
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        autoescape=False,  # Markdown: `text` and `table` escape what they print
    )
    environment.filters.update(
        text=fmt.escape, prose=fmt.prose, code=fmt.code, table=markdown_table, quoted=_quoted
    )
    text = environment.get_template("RESULTS.md.j2").render(_content(summary, pictures))
    return re.sub(r"\n{3,}", "\n\n", text)


def _content(summary: Summary, pictures: Sequence[Picture]) -> Mapping[str, Any]:
    return {
        "run_id": summary.manifest.run_id,
        "name": summary.manifest.name,
        "created_at": summary.manifest.created_at,
        "tool": summary.manifest.tool,
        "purpose": summary.manifest.purpose,
        "level": summary.level,
        "headline": sentences.headline(summary),
        "method": list(sentences.method(summary)),
        "rankings": list(sentences.rankings(summary)),
        "one_at_a_time": list(sentences.one_at_a_time(summary)),
        "definitions": _definitions(),
        "tables": {name: make(summary) for name, make in tables.TABLES.items()},
        "loads": _loads(summary),
        "pictures": {
            plot: [picture for picture in pictures if picture.plot == plot] for plot in PLOTS
        },
        "verdicts": _verdict_counts(summary),
        "num_checks": len(CHECKS),
        "cells": fmt.counted(len(summary.data.views), "cell"),
        "commits": _commits(summary),
        "notes": list(summary.data.notes),
        "environment": _environment(summary),
        "matrix_path": summary.manifest.matrix_path,
    }


def _loads(summary: Summary) -> list[LoadPart]:
    return [
        LoadPart(
            title=f"{section.word}, {sentences.SHAPES[section.load]}",
            statements=list(sentences.crossovers(summary, section)),
            tables=tables.section_grids(summary, section),
        )
        for section in summary.sections
        if section.workload == "concurrency"
    ]


def _definitions() -> list[tuple[str, str]]:
    """The figures that the page's tables show, a line each."""
    shown = (
        "decode_rate",
        "decode_rate_strict",
        "aggregate_throughput",
        "aggregate_steady",
        "occupancy",
        "ttft_p50",
        "acceptance_length",
        "acceptance_rate",
        "fraction_of_ceiling",
        "loops",
        "ended_by_itself",
    )
    lines = [(name, METRICS[name].description) for name in shown]
    return [*lines, *((name, row.description) for name, row in COMPARISONS.items())]


def _verdict_counts(summary: Summary) -> Table:
    """Checks that accuse a cell: how many cells each found questionable and void."""
    rows = []
    for name in CHECKS:
        levels = [verdict.level for verdict in summary.verdicts if verdict.check == name]
        if set(levels) - {"ok"}:
            counts = [levels.count("ok"), levels.count("warning"), levels.count("invalid")]
            entries = [Entry(text=str(count), value=count) for count in counts]
            rows.append((tables.label(name), *entries))
    return Table(
        name="verdicts",
        title="Verdicts",
        columns=("check", "cells ok", "warning", "invalid"),
        rows=tuple(rows),
    )


# --- environment ----------------------------------------------------------------------------------


def _environment(summary: Summary) -> list[tuple[str, str]]:
    """What ran on what, found rather than declared where both exist."""
    facts: list[tuple[str, str]] = []
    for session in summary.data.sessions:
        machine = session.machine
        memory = "unknown memory"
        if machine.memory_bytes is not None:
            memory = f"{machine.memory_bytes / 2**30:.0f} GiB"
        devices = f", {', '.join(machine.accelerators)}" if machine.accelerators else ""
        facts.append(("machine", f"{machine.cpu}, {machine.num_cpus} CPUs, {memory}{devices}"))
        packages = ", ".join(f"{name} {version}" for name, version in machine.packages.items())
        facts.append(("system", f"{machine.system}, Python {machine.python}, {packages}"))
        facts.append(
            ("harness", f"{summary.manifest.tool}, {_commit(session.commit, session.dirty)}")
        )
        lateness = session.client_lateness_s
        added = "not calibrated" if lateness is None else f"{lateness * 1e3:.2f} ms (p99)"
        facts.append(("client adds", added))
    facts += [(f"engine of {variant}", said) for variant, said in _engines(summary)]
    for name, identity in summary.manifest.models.items():
        known = [f"{key} {identity[key]}" for key in ("path", "hash", "bytes") if identity.get(key)]
        facts.append((f"model {name}", ", ".join(known)))
    for name, digest in summary.manifest.prompt_sets.items():
        facts.append((f"prompts {name}", f"sha256 {digest[:12]}"))
    return list(dict.fromkeys(facts))


def _commits(summary: Summary) -> list[str]:
    found = [session.commit for session in summary.data.sessions if session.commit is not None]
    return list(dict.fromkeys(found))


def _commit(commit: str | None, dirty: bool | None) -> str:
    if commit is None:
        return "no commit known"
    return f"commit {commit[:12]}{' with uncommitted changes' if dirty else ''}"


def _engines(summary: Summary) -> list[tuple[str, str]]:
    found = []
    for boot in summary.data.boots:
        health = boot.health or {}
        facts = [
            f"{key} {health[key]}"
            for key in ("drafter", "depth", "runner", "dtype", "threads", "kv_tokens")
            if health.get(key)
        ]
        said = [f"version {boot.version or 'unknown'}", *facts, *health.get("remarks", ())]
        if boot.error is not None:
            said.append(f"boot {boot.where.boot_id} failed: {boot.error}")
        found.append((boot.variant, ", ".join(said)))
    return list(dict.fromkeys(found))


# --- Markdown -------------------------------------------------------------------------------------


def markdown_table(table: Table) -> str:
    """The table, its n/a reasons by letter, and its notes."""
    reasons = _reasons(table)
    lines = [
        _line([fmt.escape(column) for column in table.columns]),
        _line(
            [*([":--"] * table.num_labels), *(["--:"] * (len(table.columns) - table.num_labels))]
        ),
    ]
    lines += [_line([_shown(entry, reasons) for entry in row]) for row in table.rows]
    under = [f"<sup>{letter}</sup> {fmt.escape(reason)}" for reason, letter in reasons.items()]
    if under:
        lines += ["", f"n/a: {'; '.join(under)}."]
    for note in table.notes:
        lines += ["", f"> {fmt.prose(note)}"]
    return "\n".join(lines)


def _reasons(table: Table) -> Mapping[str, str]:
    """Reason -> letter, in order of appearance."""
    missing = [entry.reason for row in table.rows for entry in row if entry.reason is not None]
    return {reason: _letter(number) for number, reason in enumerate(dict.fromkeys(missing))}


def _letter(number: int) -> str:
    letters = "abcdefghijklmnopqrstuvwxyz"
    return letters[number] if number < len(letters) else str(number)


def _shown(entry: Entry, reasons: Mapping[str, str]) -> str:
    text = fmt.escape(entry.text)
    if entry.reason is not None:
        return f"{text} <sup>{reasons[entry.reason]}</sup>"
    return f"{text} {entry.mark}".rstrip()


def _line(texts: Sequence[str]) -> str:
    return f"| {' | '.join(texts)} |"


def _quoted(text: str) -> str:
    """A sentence as a Markdown quotation."""
    return f"> {fmt.escape(text)}"
