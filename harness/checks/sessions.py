"""Whether the machine was the same from beginning to end, and from one start of the harness to the
next.

A control is a cell that repeats another: the same work of the same subject, at another time. What
it took longer, the machine has slowed down, whatever is measured beside it.
"""

from collections.abc import Iterable, Sequence
from dataclasses import replace
from statistics import median

import numpy as np

from harness.cell_view import CellView
from harness.checks.finding import OK, Finding, invalid, warning
from harness.requests import Groups, middle

CONTROL_LIMIT = 0.05
SUSPENDED_LIMIT_S = 1.0


def split_session(view: CellView) -> Finding:
    """Silent where a control says of every session after the first that it is like the others."""
    boots = [*view.boots, *(view.reference.boots if view.reference else ())]
    in_order = sorted(boots, key=lambda boot: boot.started_at)
    sessions = list(dict.fromkeys(boot.where.session_id for boot in in_order))
    found = [change_of_session(view, session_id) for session_id in sessions[1:]]
    known = [change for change in found if change is not None]
    if len(known) == len(found) and all(abs(change) <= CONTROL_LIMIT for change in known):
        return OK
    told = f" {_told_control(view, max(known, key=abs))}" if known else ""
    return warning(
        f"This figure and its reference come from {len(sessions)} starts of the harness, so the "
        f"machine may have changed in between.{told} For a claim, measure both in one session."
    )


def control(view: CellView) -> Finding:
    """First and last boot of the control within one session."""
    changes = [
        change
        for each in view.controls
        for session_id in _sessions(each)
        if (change := change_within(each, session_id)) is not None
    ]
    if not changes or max(map(abs, changes)) <= CONTROL_LIMIT:
        return OK
    return warning(
        f"{_told_control(view, max(changes, key=abs), 'at the end', 'at first')} The machine moved "
        "while all of this was measured. Let it cool down (`cooldown_s`) and measure again."
    )


def suspended(view: CellView) -> Finding:
    """Clocks that stand still while the machine sleeps make a request look fast; others make it
    look slow.
    """
    told_s = [end.suspended_s for end in view.ends if end.suspended_s is not None]
    slept_s = [each for each in told_s if each >= SUSPENDED_LIMIT_S]
    if not slept_s:
        return OK
    return invalid(
        f"The machine was suspended for {sum(slept_s):.0f} s while {len(slept_s)} of "
        f"{len(view.ends)} repetitions ran, so their times are not those of the engine. Keep it "
        "awake (`systemd-inhibit dflashbench ...`) and measure the cell again."
    )


# --- what a control tells -------------------------------------------------------------------------


def change_of_session(view: CellView, session_id: str) -> float | None:
    """How much longer the control took in that session than what it repeats took in others; None
    without a control there.
    """
    changes = [
        change
        for each in view.controls
        if each.reference is not None
        and (change := _change(_others(each.reference, session_id), _within(each, session_id)))
        is not None
    ]
    return max(changes, key=abs, default=None)


def change_within(control: CellView, session_id: str) -> float | None:
    """How much longer a control took in its last boot of a session than in its first; None for a
    session with one boot of it.
    """
    boot_ids = [b.where.boot_id for b in control.boots if b.where.session_id == session_id]
    if len(boot_ids) < 2:
        return None
    first, last = (control.of_boot(str(boot_id)) for boot_id in (boot_ids[0], boot_ids[-1]))
    return _change(first, last)


def _change(before: CellView, after: CellView) -> float | None:
    """Of the time that the same requests took: the median over prompts, or over repetitions of a
    load that keeps several in flight.
    """
    earlier, later = _times_s(before), _times_s(after)
    ratios = [middle(later[key]) / middle(earlier[key]) for key in earlier.keys() & later.keys()]
    return median(ratios) - 1 if ratios else None


def _times_s(view: CellView) -> Groups:
    if view.cell.load != "single":
        return {None: np.array([end.window_s for end in view.ends])} if view.ends else {}
    return view.ok.grouped("wall_s")


def _within(view: CellView, session_id: str) -> CellView:
    return _of_sessions(view, {session_id})


def _others(view: CellView, session_id: str) -> CellView:
    return _of_sessions(view, _sessions(view) - {session_id})


def _of_sessions(view: CellView, session_ids: Iterable[str]) -> CellView:
    wanted = set(session_ids)
    return replace(
        view,
        requests=view.sent.where("session_id", *wanted),
        ends=tuple(each for each in view.ends if each.where.session_id in wanted),
    )


def _sessions(view: CellView) -> set[str]:
    return {boot.where.session_id for boot in view.boots}


def _told_control(
    view: CellView, change: float, then: str = "there", before: str = "before"
) -> str:
    names: Sequence[str] = sorted({each.cell.variant for each in view.controls})
    word = "longer" if change > 0 else "less"
    return (
        f"The control, {', '.join(names)}, took {abs(change) * 100:.1f} % {word} {then} than "
        f"{before}."
    )
