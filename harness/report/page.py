"""RESULTS.md: the template filled. Whatever comes from a name or a message is escaped here."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jinja2

from harness.analysis.metrics import COMPARISONS, METRICS
from harness.analysis.summary import Section, Summary
from harness.checks import CHECKS
from harness.report import format as fmt
from harness.report import sentences, tables
from harness.report.markdown import markdown_table, quoted
from harness.report.plots import Picture
from harness.report.provenance import commits, environment, sources
from harness.report.tables import Table
from harness.report.tables.variants import setup


@dataclass(frozen=True, kw_only=True)
class Part:
    """One section of the run: its sentences, pictures and tables under one heading. `further` are
    tables for those who ask more.
    """

    title: str
    statements: Sequence[str]
    pictures: Sequence[Picture]
    tables: Sequence[Table]
    further: Sequence[Table] = ()


SINGLE = ("single_stream", "drafters_by_kind", "rankings", "ratios_by_place", "depth")
SINGLE_FURTHER = (
    "speedup_by_kind",
    "ratios",
    "rates",
    "waiting",
    "acceptance_by_position",
    "lengths_elsewhere",
    "outputs",
)
LOAD = ("concurrency", "decays", "rankings", "ratios_by_place")
PREFILL = ("prefill", "ratios_by_place")

HEADINGS: Mapping[str, str] = {
    "generate": "Single stream, by kind of prompt",
    "edit": "Edit-heavy, one stream",
    "concurrency": "Concurrency",
    "prefill": "Prefill",
}


def results_page(summary: Summary, pictures: Sequence[Picture]) -> str:
    """Every figure links to its cell in CELLS.md."""
    text = _template(links=True).render(content(summary, pictures))
    return re.sub(r"\n{3,}", "\n\n", text)


def _template(*, links: bool) -> jinja2.Template:
    shelf = jinja2.Environment(
        loader=jinja2.PackageLoader("harness.report"),
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        autoescape=False,  # Markdown: `text` and `table` escape what they print
    )
    shelf.filters.update(
        text=fmt.escape,
        prose=fmt.prose,
        code=fmt.code,
        table=lambda table: markdown_table(table, links=links),
        quoted=quoted,
    )
    return shelf.get_template("RESULTS.md.j2")


def content(summary: Summary, pictures: Sequence[Picture]) -> Mapping[str, Any]:
    made = {name: make(summary) for name, make in tables.TABLES.items()}
    return {
        "run_id": summary.manifest.run_id,
        "name": summary.manifest.name,
        "created_at": summary.manifest.created_at,
        "tool": summary.manifest.tool,
        "purpose": summary.manifest.purpose,
        "level": summary.level,
        "headline": sentences.headline(summary),
        "method": list(sentences.method(summary)),
        "one_at_a_time": list(sentences.one_at_a_time(summary)),
        "definitions": _definitions(),
        "tables": made,
        "parts": [_part(summary, section, made, pictures) for section in summary.sections],
        "rest": [picture for picture in pictures if picture.section is None],
        "num_checks": len(CHECKS),
        "cells": fmt.counted(len(summary.data.views), "cell"),
        "setup": setup(summary),
        "sources": sources(summary),
        "commits": commits(summary),
        "notes": list(summary.data.notes),
        "environment": environment(summary),
        "matrix_path": summary.manifest.matrix_path,
    }


def _part(
    summary: Summary,
    section: Section,
    made: Mapping[str, Sequence[Table]],
    pictures: Sequence[Picture],
) -> Part:
    def of(names: Sequence[str]) -> list[Table]:
        return [table for name in names for table in made[name] if table.section == section.word]

    shown = PREFILL if section.workload == "prefill" else SINGLE if section.is_single else LOAD
    return Part(
        title=_heading(section),
        statements=list(sentences.statements(summary, section)),
        pictures=[picture for picture in pictures if picture.section == section.word],
        tables=of(shown),
        further=of(SINGLE_FURTHER) if section.is_single else (),
    )


def _heading(section: Section) -> str:
    """Its kind of workload, and its word where that says more."""
    heading = HEADINGS[section.workload]
    how = "" if section.is_single else f", {sentences.SHAPES[section.load]}"
    return f"{heading}{how}" + ("" if section.word == section.workload else f" ({section.word})")


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
