"""TABLES: which figures stand side by side. Each row is a function of a summary, a file a subject.

Verdicts that touch a table stand under it, and so do the reasons of every n/a.
"""

from collections.abc import Callable, Mapping

from harness.analysis.summary import Summary
from harness.report.tables.acceptance import (
    acceptance_by_position,
    lengths_elsewhere,
    position_depth,
)
from harness.report.tables.boots import boots, cost, engine_timings
from harness.report.tables.concurrency import concurrency, section_grids
from harness.report.tables.goals import goals
from harness.report.tables.outputs import losslessness, outputs
from harness.report.tables.single_stream import (
    rates,
    ratios,
    single_stream,
    speedup_by_kind,
    waiting,
)
from harness.report.tables.table import Entry, Table, figure, label, missing

__all__ = [
    "TABLES",
    "Entry",
    "Table",
    "figure",
    "label",
    "missing",
    "position_depth",
    "section_grids",
]

TABLES: Mapping[str, Callable[[Summary], list[Table]]] = {
    "single_stream": single_stream,
    "speedup_by_kind": speedup_by_kind,
    "rates": rates,
    "waiting": waiting,
    "ratios": ratios,
    "acceptance_by_position": acceptance_by_position,
    "lengths_elsewhere": lengths_elsewhere,
    "concurrency": concurrency,
    "losslessness": losslessness,
    "outputs": outputs,
    "engine_timings": engine_timings,
    "boots": boots,
    "cost": cost,
    "goals": goals,
}
