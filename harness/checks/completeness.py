"""Whether all was measured that the plan has."""

from harness.cell_view import CellView
from harness.checks.finding import OK, Finding, invalid, warning


def available(view: CellView) -> Finding:
    if not view.unfinished:
        return OK
    message = (
        f"{len(view.unfinished)} of its blocks did not finish the cell: {view.unfinished[0]} "
        "`dflashbench resume RUN` measures the rest."
    )
    return warning(message) if view.requests else invalid(message)


def within_one_boot(view: CellView) -> Finding:
    if len(view.by_boot) != 1:
        return OK
    if view.boots[0].attached:
        return warning(
            "Measured on a server that is attached to and cannot be booted: its interval is within "
            "one boot, knows nothing of what changes from boot to boot, and decides nothing. For a "
            "claim let the harness start the engine (`kind: process`)."
        )
    return warning(
        "Measured in one boot: its interval knows nothing of what changes from boot to boot, and "
        "decides nothing. Set `schedule: {boots: 4}`."
    )
