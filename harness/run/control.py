"""What a control says as soon as it is measured: whether the machine is still that of before.

The same judgement as in a report, made while there is time to stop. Nothing depends on it.
"""

from collections.abc import Sequence
from dataclasses import replace

from harness.cell_view import CellView
from harness.checks import sessions
from harness.records import Cell, RepetitionEnd, Request
from harness.store import RunFolder


def told_control(folder: RunFolder, controls: Sequence[Cell], session_id: str) -> tuple[str, ...]:
    """A sentence per control that repeats what another session measured."""
    cells = {cell.cell_id: cell for cell in folder.manifest.plan.cells}
    requests, ends = folder.usable(Request), folder.usable(RepetitionEnd)
    boots = folder.boots()

    def view(cell: Cell) -> CellView:
        own = tuple(r for r in requests if r.where.cell_id == cell.cell_id and _measured(r))
        used = {request.where.boot_id for request in own}
        return CellView(
            cell=cell,
            prompt_kinds={},
            requests=own,
            ends=tuple(e for e in ends if e.where.cell_id == cell.cell_id and _measured(e)),
            boots=tuple(boot for boot in boots if boot.where.boot_id in used),
        )

    told = []
    for control in controls:
        repeated = view(cells[control.control_of or ""])
        measured = replace(view(control), reference=repeated)
        change = sessions.change_of_session(replace(repeated, controls=(measured,)), session_id)
        if change is not None:
            told.append(_sentence(repeated.cell.cell_id, change))
    return tuple(told)


def _measured(record: Request | RepetitionEnd) -> bool:
    return (record.where.repetition or 0) >= 0


def _sentence(cell_id: str, change: float) -> str:
    word = "longer" if change > 0 else "less"
    limit = sessions.CONTROL_LIMIT
    said = f"control: {cell_id} took {abs(change) * 100:.1f} % {word} than before"
    if abs(change) <= limit:
        return f"{said}: what is measured now may stand beside it"
    return (
        f"{said}, more than {limit * 100:.0f} %: the machine is not as it was, and what is "
        "measured now will be marked so"
    )
