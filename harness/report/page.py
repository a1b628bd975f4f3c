"""RESULTS.md: the template filled. Whatever comes from a name or a message is escaped here."""

import html
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jinja2

from harness.analysis.metrics import COMPARISONS, METRICS
from harness.analysis.summary import Section, Summary
from harness.checks import CHECKS
from harness.report import format as fmt
from harness.report import method, sentences, tables
from harness.report.in_short import in_short
from harness.report.markdown import Links, markdown_table, quoted
from harness.report.plots import Picture
from harness.report.provenance import commits, environment, sources
from harness.report.tables import Table
from harness.report.tables.steadiness import moved
from harness.report.tables.variants import setup


@dataclass(frozen=True, kw_only=True)
class Part:
    """One section of the run: its sentences, pictures and tables under one heading. `orders` say
    who stands where; `further` is for those who ask more.
    """

    title: str
    statements: Sequence[str]
    pictures: Sequence[Picture]
    tables: Sequence[Table]
    orders: Sequence[Table]
    further: Sequence[Table]
    further_pictures: Sequence[Picture]


SHOWN = ("single_stream", "drafters_by_kind", "concurrency", "prefill")
ORDERS = ("rankings", "ratios", "ratios_by_place")
FURTHER = (
    "speedup_by_kind",
    "rates",
    "waiting",
    "acceptance_by_position",
    "lengths_elsewhere",
    "outputs",
    "decays",
    "further_concurrency",
    "further_prefill",
)
"""Tables of one section, by where in it they stand."""

FURTHER_PLOTS = ("acceptance_by_position",)
PLACED = ("drift", "forest")
"""Plots that stand elsewhere than in the section that they are of."""

HEADINGS: Mapping[str, str] = {
    "generate": "Single stream, by kind of prompt",
    "edit": "Edit-heavy, one stream",
    "concurrency": "Concurrency",
    "prefill": "Prefill",
}
"""Workload -> heading, in the order of the published study."""

_CONTENTS = "<contents>"  # no name can be that: every `<` of one is escaped


def results_page(summary: Summary, pictures: Sequence[Picture]) -> str:
    """Every figure links to its cell in CELLS.md."""
    links = Links([view.cell.cell_id for view in summary.data.views])
    text = _template(links).render(content(summary, pictures), contents=_CONTENTS)
    text = text.replace(_CONTENTS, _contents(re.findall("^## (.*)$", text, re.MULTILINE)), 1)
    return re.sub(r"\n{3,}", "\n\n", f"{text}\n{links.addresses}\n")


def _contents(headings: Sequence[str]) -> str:
    return " · ".join(f"[{heading}](#{_anchor(heading)})" for heading in headings)


def _anchor(heading: str) -> str:
    """As GitHub makes it: small letters and digits of what is read, a dash for each space."""
    read = html.unescape(heading.replace("\\", ""))
    return re.sub(r"[^\w\- ]", "", read.lower()).replace(" ", "-")


def _template(links: Links) -> jinja2.Template:
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
        table=lambda table: markdown_table(table, links),
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
        "in_short": list(in_short(summary)),
        "method": list(method.lines(summary)),
        "one_at_a_time": list(sentences.one_at_a_time(summary)),
        "definitions": _definitions(),
        "tables": made,
        "parts": [_part(summary, section, made, pictures) for section in _in_order(summary)],
        "overviews": [picture for picture in pictures if picture.plot == "forest"],
        "drifts": [picture for picture in pictures if picture.plot == "drift"],
        "moved": list(moved(summary)),
        "num_checks": len(CHECKS),
        "cells": fmt.counted(len(summary.data.views), "cell"),
        "setup": setup(summary),
        "sources": sources(summary),
        "commits": commits(summary),
        "notes": list(summary.data.notes),
        "environment": environment(summary),
        "matrix_path": summary.manifest.matrix_path,
    }


def _in_order(summary: Summary) -> Sequence[Section]:
    order = list(HEADINGS)
    return sorted(summary.sections, key=lambda section: order.index(section.workload))


def _part(
    summary: Summary,
    section: Section,
    made: Mapping[str, Sequence[Table]],
    pictures: Sequence[Picture],
) -> Part:
    def of(names: Sequence[str]) -> list[Table]:
        return [table for name in names for table in made[name] if table.section == section.word]

    own = [each for each in pictures if each.section == section.word and each.plot not in PLACED]
    return Part(
        title=_heading(section),
        statements=list(sentences.statements(summary, section)),
        pictures=[picture for picture in own if picture.plot not in FURTHER_PLOTS],
        tables=of(SHOWN),
        orders=of(ORDERS),
        further=of(FURTHER),
        further_pictures=[picture for picture in own if picture.plot in FURTHER_PLOTS],
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
