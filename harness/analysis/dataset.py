"""A results folder, gathered into one view per cell. Nothing is computed and nothing is judged
here.
"""

from bisect import bisect_left, bisect_right
from collections import OrderedDict, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from functools import cache, partial
from typing import TypeVar

import pyarrow as pa

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
    Where,
)
from harness.store import RunFolder
from harness.stored import StoredRecords, StoredRequests, is_measured, refuse_negative

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


REQUEST_COLUMNS = pa.schema(
    [
        ("variant", pa.string()),
        ("workload", pa.string()),
        ("load", pa.string()),
        ("concurrency", pa.int64()),
        ("cell_id", pa.string()),
        ("boot_id", pa.string()),
        ("repetition", pa.int64()),
        ("prompt_id", pa.string()),
        ("kind", pa.string()),
        ("status", pa.string()),
        ("error", pa.string()),
        ("prompt_tokens", pa.int64()),
        ("cached_tokens", pa.int64()),
        ("output_tokens", pa.int64()),
        ("output_tokens_source", pa.string()),
        ("event_tokens_source", pa.string()),
        ("first_tokens", pa.int64()),
        ("first_tokens_source", pa.string()),
        ("num_output_events", pa.int64()),
        ("num_reads", pa.int64()),
        ("send_lateness_s", pa.float64()),
        ("connect_s", pa.float64()),
        ("ttfr_s", pa.float64()),
        ("ttft_s", pa.float64()),
        ("ttfa_s", pa.float64()),
        ("t_last_s", pa.float64()),
        ("wall_s", pa.float64()),
        ("finish_reason", pa.string()),
        ("distinct_4gram_share", pa.float64()),
        ("flags", pa.string()),
    ]
)
_OF_THE_CELL = ("variant", "workload", "load", "concurrency", "cell_id")


def requests_table(view: CellView) -> pa.Table:
    """One row per measured request with the ids and scalars that a spreadsheet wants."""
    num_rows = len(view.sent)
    columns = [
        pa.repeat(pa.scalar(getattr(view.cell, field.name), field.type), num_rows)
        if field.name in _OF_THE_CELL
        else view.sent.array(field.name).cast(field.type)
        for field in REQUEST_COLUMNS
    ]
    return pa.table(columns, schema=REQUEST_COLUMNS)


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
    """The folder's records by cell. What grows with the number of requests is not held."""

    def __init__(self, folder: RunFolder) -> None:
        self.folder = folder
        self.sessions = {item.where.session_id: item for item in folder.read(Session)}
        self.boots = {item.where.boot_id: item for item in folder.boots()}
        counts = cache(folder.counting())
        self.requests = StoredRequests(folder, counts)
        self.snapshots = StoredRecords(folder, Snapshot, counts)
        self.ends: dict[str, list[RepetitionEnd]] = defaultdict(list)
        for end in folder.read(RepetitionEnd):
            if counts(end.where):
                refuse_negative(end)
                if is_measured(end.where):
                    self.ends[str(end.where.cell_id)].append(end)
        self.cell_ends: dict[str | None, dict[str | None, CellEnd]] = defaultdict(dict)
        for cell_end in folder.read(CellEnd):
            self.cell_ends[cell_end.where.cell_id][cell_end.where.block_id] = cell_end
        self.rescores: dict[str, dict[str, Rescore]] = defaultdict(dict)
        for rescore in folder.read(Rescore):
            where = rescore.where
            if counts(where):
                self.rescores[str(where.cell_id)][str(where.request_id)] = rescore
        self.samples = _Samples(folder.read(MachineSample))
        self.warmups: dict[str | None, list[Request]] = defaultdict(list)
        for cell_id in self.requests.cell_ids:
            for request in self.requests.warmups(cell_id):
                self.warmups[request.where.boot_id].append(request)
        self.events = _EventFiles(folder)
        self.blocks: dict[str, list[str]] = defaultdict(list)
        for block in folder.manifest.plan.blocks:
            for cell_id in block.cell_ids:
                self.blocks[cell_id].append(block.block_id)

    def view(self, cell: Cell) -> CellView:
        places = self.requests.places(cell.cell_id)
        boot_ids = tuple(dict.fromkeys(place.boot_id for place in places))
        boots = self._named(self.boots, boot_ids, "boot")
        session_ids = dict.fromkeys(boot.where.session_id for boot in boots)
        ends = tuple(self.ends[cell.cell_id])
        return CellView(
            cell=cell,
            prompt_kinds=self.folder.manifest.prompt_kinds[cell.prompt_set],
            requests=self.requests.measured(cell.cell_id),
            warmups=tuple(item for boot_id in boot_ids for item in self.warmups[boot_id]),
            snapshots=self.snapshots.of_cell(cell.cell_id),
            boots=boots,
            ends=ends,
            sessions=self._named(self.sessions, session_ids, "session"),
            events=self._events(cell, places),
            unfinished=self._unfinished(cell),
            machine=tuple(sample for end in ends for sample in self.samples.within(end)),
            models=self.folder.manifest.models,
            device=self.folder.manifest.device,
            rescores=self.rescores[cell.cell_id],
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

    def _events(self, cell: Cell, places: Sequence[Where]) -> Mapping[str, OutputEvents]:
        """Only where a figure needs them: they are most of a folder and may be left out."""
        if cell.load not in ("single", "closed") or cell.max_tokens == 1:
            return {}
        return self.events.of(cell.cell_id, places)

    def _unfinished(self, cell: Cell) -> tuple[str, ...]:
        """Per block of the plan that has not finished the cell, the last word on why."""
        ends = self.cell_ends[cell.cell_id]
        messages = []
        for block_id in self.blocks[cell.cell_id]:
            end = ends.get(block_id)
            if end is None:
                messages.append(f"block {block_id} was not measured.")
            elif end.outcome != "finished":
                reason = (end.message or "no reason was recorded").rstrip(".")
                messages.append(f"block {block_id}: {reason}.")
        return tuple(messages)


class _Samples:
    """The seconds of the machine, to be found by the time of a repetition."""

    def __init__(self, samples: Iterable[MachineSample]) -> None:
        self.by_boot: dict[str | None, list[tuple[datetime, MachineSample]]] = defaultdict(list)
        for sample in samples:
            at = datetime.fromisoformat(sample.at)
            self.by_boot[sample.where.boot_id].append((at, sample))
        for own in self.by_boot.values():
            own.sort(key=_time)

    def within(self, end: RepetitionEnd) -> list[MachineSample]:
        """While it ran: between repetitions the machine may rest."""
        own = self.by_boot[end.where.boot_id]
        began = datetime.fromisoformat(end.started_at)
        ended = began + timedelta(seconds=end.window_s)
        first = bisect_left(own, began, key=_time)
        behind = bisect_right(own, ended, key=_time)
        return [sample for _, sample in own[first:behind]]


def _time(timed: tuple[datetime, MachineSample]) -> datetime:
    return timed[0]


# --- output events --------------------------------------------------------------------------------

CELLS_OF_EVENTS_HELD = 2  # a cell and its reference


class _EventFiles:
    """The events of cells, read when somebody asks for one and dropped when others were."""

    def __init__(self, folder: RunFolder) -> None:
        self.folder = folder
        self.there = folder.event_files()
        self.held: OrderedDict[str, Mapping[str, OutputEvents]] = OrderedDict()

    def of(self, cell_id: str, places: Sequence[Where]) -> Mapping[str, OutputEvents]:
        repetitions = [(str(place.boot_id), place.repetition or 0) for place in places]
        there = [
            (boot_id, repetition)
            for boot_id, repetition in repetitions
            if self.folder.events_path(cell_id, boot_id, repetition).name in self.there
        ]
        return _CellEvents(self, cell_id, there) if there else {}

    def read(
        self, cell_id: str, repetitions: Sequence[tuple[str, int]]
    ) -> Mapping[str, OutputEvents]:
        if cell_id not in self.held:
            self.held[cell_id] = {
                row.request_id: OutputEvents(
                    offsets_ns=row.offset_ns,
                    tokens=row.tokens,
                    text=row.text,
                    token_ids=row.token_ids,
                )
                for boot_id, repetition in repetitions
                for row in self.folder.read_events(cell_id, boot_id, repetition)
            }
            while len(self.held) > CELLS_OF_EVENTS_HELD:
                self.held.popitem(last=False)
        self.held.move_to_end(cell_id)
        return self.held[cell_id]


class _CellEvents(Mapping[str, OutputEvents]):
    """By request id."""

    def __init__(
        self, files: _EventFiles, cell_id: str, repetitions: Sequence[tuple[str, int]]
    ) -> None:
        self._read = partial(files.read, cell_id, repetitions)

    def __getitem__(self, request_id: str) -> OutputEvents:
        return self._read()[request_id]

    def __iter__(self) -> Iterator[str]:
        return iter(self._read())

    def __len__(self) -> int:
        return len(self._read())

    def __bool__(self) -> bool:
        return True  # there is a file, which need not be read to know that
