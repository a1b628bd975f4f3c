"""Every start of the harness: when, on which machine, what it measured, and what a control says of
it.
"""

from collections.abc import Iterator, Mapping
from dataclasses import replace

from harness.analysis.summary import Section, Summary
from harness.cell_view import CellView
from harness.checks.sessions import CONTROL_LIMIT, change_of_session, change_within
from harness.records import MachineFacts, Session
from harness.report import format as fmt
from harness.report.tables.places import named
from harness.report.tables.table import Entry, Table, label, missing

MACHINE_NOTE = (
    "Machines are numbered; two of one kind are two machines. What ran on unlike machines is not "
    "held against each other: an identity includes the device."
)


def sessions(summary: Summary) -> list[Table]:
    """A row each, the first one too; a run of one session says all of it in its set-up."""
    if len(summary.data.sessions) < 2:
        return []
    machines = _numbered(summary)
    return [
        Table(
            name="sessions",
            title="Sessions, their machines and what they measured",
            columns=("session", "began", "machine", "cells", "client adds, ms", "control"),
            rows=tuple(
                _row(summary, session, machines[session.machine.hostname_hash])
                for session in summary.data.sessions
            ),
            notes=(*_control_notes(summary), *([MACHINE_NOTE] if len(machines) > 1 else [])),
            num_labels=4,
        )
    ]


def _numbered(summary: Summary) -> Mapping[str, int]:
    found = dict.fromkeys(each.machine.hostname_hash for each in summary.data.sessions)
    return {machine: number for number, machine in enumerate(found, start=1)}


def _row(summary: Summary, session: Session, machine: int) -> tuple[Entry, ...]:
    lateness = session.client_lateness_s
    own = _cells_of(summary, session.where.session_id)
    return (
        label(session.where.session_id),
        label(session.started_at),
        label(f"{machine}: {told_machine(session.machine)}"),
        Entry(text=named(summary, own) or fmt.DASH, value=" ".join(own)),
        missing("not calibrated")
        if lateness is None
        else Entry(text=fmt.milliseconds(lateness), value=lateness),
        _control(summary, session.where.session_id),
    )


def told_machine(machine: MachineFacts) -> str:
    memory = "unknown memory"
    if machine.memory_bytes is not None:
        memory = f"{machine.memory_bytes / 2**30:.0f} GiB"
    devices = f", {', '.join(machine.accelerators)}" if machine.accelerators else ""
    return f"{machine.cpu}, {machine.num_cpus} CPUs, {memory}{devices}"


def _cells_of(summary: Summary, session_id: str) -> list[str]:
    return [
        view.cell.cell_id
        for view in summary.data.views
        if any(boot.where.session_id == session_id for boot in view.boots)
    ]


# --- controls -------------------------------------------------------------------------------------


def _control(summary: Summary, session_id: str) -> Entry:
    """The largest change that a control shows there."""
    changes = _changes(summary, session_id)
    if not changes:
        return missing("no control was measured there and elsewhere")
    change = max(changes.values(), key=abs)
    return Entry(text=fmt.change(change), value=change)


def _changes(summary: Summary, session_id: str) -> Mapping[str, float]:
    """Control and its work -> how much longer it took there than what it repeats took elsewhere."""
    found: dict[str, float] = {}
    for section in summary.sections:
        for view in section.views:
            for control in view.controls:
                change = change_of_session(replace(view, controls=(control,)), session_id)
                if change is not None:
                    found[_work(section, control)] = change
    return found


def _work(section: Section, control: CellView) -> str:
    at = "" if section.is_single else f" at c = {control.cell.concurrency}"
    return f"{control.cell.variant} in {section.word}{at}"


def _control_notes(summary: Summary) -> Iterator[str]:
    """What each session after the first may be believed to be."""
    for session in summary.data.sessions[1:]:
        session_id = session.where.session_id
        if _cells_of(summary, session_id):
            yield _judged(session_id, _changes(summary, session_id))


def _judged(session_id: str, changes: Mapping[str, float]) -> str:
    if not changes:
        return (
            f"No control was measured in {session_id}: nothing tells whether its machine was as it "
            "was before. Do not quote its rows over those of another session."
        )
    worst = max(changes, key=lambda work: abs(changes[work]))
    word = "longer" if changes[worst] > 0 else "less"
    told = (
        f"In {session_id} the control, {worst}, took {fmt.percent(abs(changes[worst]))} {word} "
        f"than what it repeats took before (tolerance {fmt.percent(CONTROL_LIMIT)}"
    )
    if len(changes) > 1:
        told += f"; the largest of {len(changes)} such changes"
    if abs(changes[worst]) <= CONTROL_LIMIT:
        return f"{told}): rows of both may stand in one table."
    return (
        f"{told}): the machine is not as it was, so the rows of {session_id} are not comparable "
        "with those before."
    )


def controls_within(summary: Summary) -> Iterator[str]:
    """What controls at both ends of a session say of it, good or bad."""
    for session in summary.data.sessions:
        session_id = session.where.session_id
        changes = {
            _work(section, control): change
            for section in summary.sections
            for view in section.views
            for control in view.controls
            if (change := change_within(control, session_id)) is not None
        }
        if changes:
            yield _from_end_to_end(session_id, changes)


def _from_end_to_end(session_id: str, changes: Mapping[str, float]) -> str:
    worst = max(changes, key=lambda work: abs(changes[work]))
    word = "longer" if changes[worst] > 0 else "less"
    held = "within" if abs(changes[worst]) <= CONTROL_LIMIT else "beyond"
    return (
        f"The control of {session_id} was measured first and last: {worst} took "
        f"{fmt.percent(abs(changes[worst]))} {word} at the end, {held} the tolerance of "
        f"{fmt.percent(CONTROL_LIMIT)}."
    )
