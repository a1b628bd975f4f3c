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
from harness.report.tables.concurrency import concurrency, decays, further_concurrency
from harness.report.tables.cost import cost, energy, roof
from harness.report.tables.depth import depth
from harness.report.tables.eligibility import eligibility
from harness.report.tables.goals import goals, goals_by_cell
from harness.report.tables.outputs import losslessness, outputs
from harness.report.tables.prefill import further_prefill, prefill
from harness.report.tables.sessions import sessions
from harness.report.tables.single_stream import (
    drafters_by_kind,
    rates,
    single_stream,
    speedup_by_kind,
    waiting,
)
from harness.report.tables.standings import rankings, ratios, ratios_by_place, winners
from harness.report.tables.steadiness import drift, overlap, spreads
from harness.report.tables.table import Accusation, Entry, Table, figure, label, missing
from harness.report.tables.variants import variants

__all__ = [
    "TABLES",
    "Accusation",
    "Entry",
    "Table",
    "figure",
    "label",
    "missing",
    "position_depth",
]

TABLES: Mapping[str, Callable[[Summary], list[Table]]] = {
    "variants": variants,
    "single_stream": single_stream,
    "drafters_by_kind": drafters_by_kind,
    "speedup_by_kind": speedup_by_kind,
    "rates": rates,
    "waiting": waiting,
    "acceptance_by_position": acceptance_by_position,
    "lengths_elsewhere": lengths_elsewhere,
    "outputs": outputs,
    "concurrency": concurrency,
    "decays": decays,
    "further_concurrency": further_concurrency,
    "prefill": prefill,
    "further_prefill": further_prefill,
    "rankings": rankings,
    "ratios": ratios,
    "ratios_by_place": ratios_by_place,
    "engine_timings": engine_timings,
    "cost": cost,
    "energy": energy,
    "eligibility": eligibility,
    "roof": roof,
    "winners": winners,
    "drift": drift,
    "boots": boots,
    "spreads": spreads,
    "cold": cold,
    "losslessness": losslessness,
    "depth": depth,
    "overlap": overlap,
    "caveats": caveats,
    "verdicts": verdicts,
    "sessions": sessions,
    "goals": goals,
    "goals_by_cell": goals_by_cell,
}
