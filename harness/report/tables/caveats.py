"""What a reader must know before a figure is quoted, by rule, with the cells it touches."""

from harness.analysis.caveats import caveats as found_caveats
from harness.analysis.summary import Summary
from harness.checks import CHECKS
from harness.report.tables.places import cells_entry
from harness.report.tables.table import Table, count, label


def caveats(summary: Summary) -> list[Table]:
    rows = tuple(
        (label(caveat.rule), label(caveat.text), cells_entry(summary, caveat.cell_ids))
        for caveat in found_caveats(summary)
    )
    if not rows:
        return []
    return [
        Table(
            name="caveats",
            title="Caveats, by rule",
            columns=("rule", "what it says", "cells"),
            rows=rows,
            num_labels=3,
        )
    ]


def verdicts(summary: Summary) -> list[Table]:
    """Checks that accuse a cell: how many cells each found questionable and void, and which."""
    rows = []
    for name in CHECKS:
        own = [verdict for verdict in summary.verdicts if verdict.check == name]
        levels = [verdict.level for verdict in own]
        accused = tuple(v.cell_id for v in own if v.level != "ok" and v.cell_id is not None)
        if accused:
            counts = (levels.count("ok"), levels.count("warning"), levels.count("invalid"))
            rows.append((label(name), *map(count, counts), cells_entry(summary, accused)))
    if not rows:
        return []
    return [
        Table(
            name="verdicts",
            title="Verdicts",
            columns=("check", "cells ok", "warning", "invalid", "accused"),
            rows=tuple(rows),
        )
    ]
