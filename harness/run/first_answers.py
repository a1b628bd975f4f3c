"""What a boot's first answers give away, said while there is time to stop.

The report's checks judge, here of one repetition alone; nothing is stopped, for a run records what
happened and the report says it again.
"""

from harness import checks
from harness.cell_view import CellView
from harness.records import Boot, Cell
from harness.run.parse import ParsedRepetition

ASKED = (
    "speculation_active",
    "all_rejected",
    "counter_foreign_label",
    "foreign_traffic",
    "speculator_kind",
    "flags_diff",
    "preemptions",
)
"""Checks that one repetition decides, and that hours of the same would not make better."""


def told(cell: Cell, boot: Boot, repetition: ParsedRepetition) -> tuple[str, ...]:
    """A sentence per check that finds the cell void already."""
    view = CellView(
        cell=cell,
        prompt_kinds={},
        requests=repetition.requests,
        snapshots=repetition.snapshots,
        boots=(boot,),
    )
    return tuple(
        f"{verdict.check}: {verdict.message}"
        for verdict in checks.judge(view)
        if verdict.check in ASKED and verdict.level == "invalid"
    )
