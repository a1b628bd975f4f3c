"""TABLES: which figures stand side by side. Each row is a function of a summary, a file a subject.

Verdicts that touch a table stand under it, and so do the reasons of every n/a. Tables of one
section carry its word; a page puts them under one heading.
"""

from collections.abc import Callable, Mapping

from harness.analysis.summary import Summary
from harness.report.tables.acceptance import (
    acceptance_by_position,
    lengths_elsewhere,
    position_depth,
)
from harness.report.tables.boots import boots, cold, engine_timings
from harness.report.tables.caveats import caveats, verdicts
from harness.report.tables.concurrency import concurrency, decays
from harness.report.tables.cost import cost, energy, roof
from harness.report.tables.depth import depth
from harness.report.tables.eligibility import eligibility
from harness.report.tables.goals import goals
from harness.report.tables.outputs import losslessness, outputs
from harness.report.tables.prefill import prefill
from harness.report.tables.single_stream import (
    drafters_by_kind,
    rates,
    single_stream,
    speedup_by_kind,
    waiting,
)
from harness.report.tables.standings import rankings, ratios, ratios_by_place, winners
from harness.report.tables.steadiness import drift, overlap, spreads
from harness.report.tables.table import Entry, Table, figure, label, missing
from harness.report.tables.variants import variants

__all__ = [
    "TABLES",
    "Entry",
    "Table",
    "figure",
    "label",
    "missing",
    "position_depth",
]

TABLES: Mapping[str, Callable[[Summary], list[Table]]] = {
    "variants": variants,
    "goals": goals,
    "winners": winners,
    "single_stream": single_stream,
    "drafters_by_kind": drafters_by_kind,
    "speedup_by_kind": speedup_by_kind,
    "rankings": rankings,
    "ratios": ratios,
    "ratios_by_place": ratios_by_place,
    "rates": rates,
    "waiting": waiting,
    "acceptance_by_position": acceptance_by_position,
    "lengths_elsewhere": lengths_elsewhere,
    "depth": depth,
    "concurrency": concurrency,
    "decays": decays,
    "prefill": prefill,
    "losslessness": losslessness,
    "outputs": outputs,
    "engine_timings": engine_timings,
    "cost": cost,
    "roof": roof,
    "energy": energy,
    "eligibility": eligibility,
    "boots": boots,
    "cold": cold,
    "drift": drift,
    "spreads": spreads,
    "overlap": overlap,
    "caveats": caveats,
    "verdicts": verdicts,
}
