"""Whether all was measured that the plan has."""

from dataclasses import replace

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


def records_whole(view: CellView) -> Finding:
    """A file that was cut off leaves fewer requests than were measured, and medians of the rest."""
    for end in view.ends:
        there = view.asked_in(replace(end.where, request_id=None)).num_requests
        if there != end.num_requests:
            return invalid(
                f"Repetition {end.where.repetition} of boot {end.where.boot_id} had "
                f"{end.num_requests} requests, and requests.jsonl has {there} of them: it was cut "
                "off or edited. Restore it, or measure the cell again."
            )
    return OK


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
