"""A results folder, gathered into one view per cell. Nothing is computed and nothing is judged
here.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from datetime import datetime, timedelta
from typing import TypeVar

import pandas as pd

from harness.cell_view import CellView, OutputEvents
from harness.errors import ResultsError
from harness.records import (
    Boot,
    Cell,
    CellEnd,
    MachineSample,
    Manifest,
    RepetitionEnd,
    Request,
    Rescore,
    Session,
    Snapshot,
)
from harness.store import RunFolder

R = TypeVar("R", Request, Snapshot, RepetitionEnd, Rescore)
N = TypeVar("N", Boot, Session)
Name = TypeVar("Name", str, str | None)


@dataclass(frozen=True, kw_only=True)
class Dataset:
    """`views` are in the plan's order; `notes` say what reading left out."""

    manifest: Manifest
    sessions: tuple[Session, ...]
    boots: tuple[Boot, ...]
    views: tuple[CellView, ...]
    notes: tuple[str, ...]


def load(folder: RunFolder) -> Dataset:
    """Usable records only: what a later boot has measured again is left out by the store."""
    records = _Records(folder)
    cells = folder.manifest.plan.cells
    views = {cell.cell_id: records.view(cell) for cell in cells if cell.control_of is None}
    controls = [
        replace(records.view(cell), reference=views[cell.control_of])
        for cell in cells
        if cell.control_of is not None
    ]
    return Dataset(
        manifest=folder.manifest,
        sessions=tuple(records.sessions.values()),
        boots=tuple(records.boots.values()),
        views=tuple(
            _with_controls(_with_reference(view, views), controls) for view in views.values()
        ),
        notes=folder.notes,
    )


def requests_frame(dataset: Dataset) -> pd.DataFrame:
    """One row per measured request with the ids and scalars that a spreadsheet wants."""
    rows = [
        {
            "variant": view.cell.variant,
            "workload": view.cell.workload,
            "load": view.cell.load,
            "concurrency": view.cell.concurrency,
            "cell_id": view.cell.cell_id,
            "boot_id": request.where.boot_id,
            "repetition": request.where.repetition,
            "prompt_id": request.prompt_id,
            "kind": request.kind,
            "status": request.status,
            "error": request.error.kind if request.error else None,
            "prompt_tokens": request.prompt_tokens,
            "cached_tokens": request.cached_tokens,
            "output_tokens": request.output_tokens,
            "output_tokens_source": request.output_tokens_source,
            "event_tokens_source": request.event_tokens_source,
            "first_tokens": request.first_tokens,
            "first_tokens_source": request.first_tokens_source,
            "num_output_events": request.num_output_events,
            "num_reads": request.num_reads,
            "send_lateness_s": request.send_lateness_s,
            "connect_s": request.connect_s,
            "ttfr_s": request.ttfr_s,
            "ttft_s": request.ttft_s,
            "ttfa_s": request.ttfa_s,
            "t_last_s": request.t_last_s,
            "wall_s": request.wall_s,
            "finish_reason": request.finish_reason,
            "distinct_4gram_share": request.distinct_4gram_share,
            "flags": " ".join(request.flags) or None,
        }
        for view in dataset.views
        for request in view.requests
    ]
    # Int64 and not int64: a count that is not known must stay empty, not become 0 or 12.0
    return pd.DataFrame(rows).convert_dtypes()


def _with_reference(view: CellView, views: Mapping[str, CellView]) -> CellView:
    reference = views.get(view.cell.reference_cell_id or "")
    return replace(view, reference=reference) if reference is not None else view


def _with_controls(view: CellView, controls: Sequence[CellView]) -> CellView:
    """Those that did the same work, whoever did it."""
    work = (view.cell.workload_key, view.cell.protocol_id)
    return replace(
        view,
        controls=tuple(
            each for each in controls if (each.cell.workload_key, each.cell.protocol_id) == work
        ),
    )


class _Records:
    """The folder's records by cell; each file is read once."""

    def __init__(self, folder: RunFolder) -> None:
        self.folder = folder
        self.sessions = {item.where.session_id: item for item in folder.read(Session)}
        self.boots = {item.where.boot_id: item for item in folder.boots()}
        self.requests = _by_cell(_measured_forwards(folder.usable(Request)))
        self.snapshots = _by_cell(folder.usable(Snapshot))
        self.ends = _by_cell(_measured_forwards(folder.usable(RepetitionEnd)))
        self.rescores = _by_cell(folder.usable(Rescore))
        self.cell_ends = folder.read(CellEnd)
        self.samples: dict[str | None, list[tuple[datetime, MachineSample]]] = defaultdict(list)
        for sample in folder.read(MachineSample):
            at = datetime.fromisoformat(sample.at)
            self.samples[sample.where.boot_id].append((at, sample))
        self.warmups: dict[str | None, list[Request]] = defaultdict(list)
        for requests in self.requests.values():
            for request in requests:
                if not _measured(request):
                    self.warmups[request.where.boot_id].append(request)

    def view(self, cell: Cell) -> CellView:
        requests = tuple(item for item in self.requests[cell.cell_id] if _measured(item))
        boot_ids = tuple(dict.fromkeys(request.where.boot_id for request in requests))
        boots = self._named(self.boots, boot_ids, "boot")
        session_ids = dict.fromkeys(boot.where.session_id for boot in boots)
        return CellView(
            cell=cell,
            prompt_kinds=self.folder.manifest.prompt_kinds[cell.prompt_set],
            requests=requests,
            warmups=tuple(item for boot_id in boot_ids for item in self.warmups[boot_id]),
            snapshots=tuple(item for item in self.snapshots[cell.cell_id] if _measured(item)),
            boots=boots,
            ends=tuple(item for item in self.ends[cell.cell_id] if _measured(item)),
            sessions=self._named(self.sessions, session_ids, "session"),
            events=self._events(cell, requests),
            unfinished=self._unfinished(cell),
            machine=self._machine(cell),
            models=self.folder.manifest.models,
            device=self.folder.manifest.device,
            rescores={str(item.where.request_id): item for item in self.rescores[cell.cell_id]},
            losslessness=self.folder.manifest.losslessness,
        )

    def _named(self, there: Mapping[Name, N], named: Iterable[Name], what: str) -> tuple[N, ...]:
        """A folder that lost a record which others name was cut off after it was measured."""
        lost = [name for name in named if name not in there]
        if lost:
            raise ResultsError(
                f"{self.folder.path}/{what}s.jsonl holds no {what} {lost[0]!r}, which others of "
                "the run's records name; it was cut off after it was written, restore it"
            )
        return tuple(there[name] for name in named)

    def _machine(self, cell: Cell) -> tuple[MachineSample, ...]:
        """Of the seconds in which a repetition ran: between them the machine may rest."""
        found: list[MachineSample] = []
        for end in filter(_measured, self.ends[cell.cell_id]):
            began = datetime.fromisoformat(end.started_at)
            ended = began + timedelta(seconds=end.window_s)
            found += [
                sample for at, sample in self.samples[end.where.boot_id] if began <= at <= ended
            ]
        return tuple(found)

    def _events(self, cell: Cell, requests: Sequence[Request]) -> Mapping[str, OutputEvents]:
        """Only where a figure needs them: they are most of a folder and may be left out."""
        if cell.load not in ("single", "closed") or cell.max_tokens == 1:
            return {}
        found: dict[str, OutputEvents] = {}
        repetitions = dict.fromkeys(
            (str(item.where.boot_id), item.where.repetition) for item in requests
        )
        for boot_id, repetition in repetitions:
            assert repetition is not None
            if not self.folder.events_path(cell.cell_id, boot_id, repetition).exists():
                continue
            for row in self.folder.read_events(cell.cell_id, boot_id, repetition):
                found[row.request_id] = OutputEvents(
                    offsets_ns=row.offset_ns,
                    tokens=row.tokens,
                    text=row.text,
                    token_ids=row.token_ids,
                )
        return found

    def _unfinished(self, cell: Cell) -> tuple[str, ...]:
        """Per block of the plan that has not finished the cell, the last word on why."""
        ends = {
            end.where.block_id: end for end in self.cell_ends if end.where.cell_id == cell.cell_id
        }
        blocks = [
            block.block_id
            for block in self.folder.manifest.plan.blocks
            if cell.cell_id in block.cell_ids
        ]
        messages = []
        for block_id in blocks:
            end = ends.get(block_id)
            if end is None:
                messages.append(f"block {block_id} was not measured.")
            elif end.outcome != "finished":
                reason = (end.message or "no reason was recorded").rstrip(".")
                messages.append(f"block {block_id}: {reason}.")
        return tuple(messages)


def _measured_forwards(records: Sequence[R]) -> Sequence[R]:
    """The same records, none of which holds a negative duration: to show such a one as 0 or to
    leave it out would hide a clock that steps.
    """
    for record in records:
        for field in fields(record):
            value = getattr(record, field.name)
            if field.name.endswith("_s") and isinstance(value, float) and value < 0:
                raise ResultsError(
                    f"{record.where.request_id or record.where.cell_id}: `{field.name}` is "
                    f"{value:g} s, and no time is negative; its clock or its record is broken, so "
                    "measure the cell again"
                )
    return records


def _measured(record: Request | Snapshot | RepetitionEnd) -> bool:
    """Repetition -1 is the warm-up."""
    return record.where.repetition is not None and record.where.repetition >= 0


def _by_cell(records: Sequence[R]) -> dict[str, list[R]]:
    grouped: dict[str, list[R]] = defaultdict(list)
    for record in records:
        grouped[str(record.where.cell_id)].append(record)
    return grouped
