"""The head of a run on Ray: it plans, places parts on nodes, gathers what they write, and goes on
when a node is lost. It is the only writer of the run's folder and measures nothing itself.

A part whose node is lost (the node, its actor, or the network between) is taken up by another
machine of the same kind: what was gathered stays, unfinished cells are measured again in a session
of their own, and the lost session ends by itself when it hears nothing for `LEASE_S`.
"""

import asyncio
import logging
import os
import socket
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TypeVar

import msgspec
import ray
from ray.exceptions import RayError
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from harness.cluster.bundle import Seen, join
from harness.cluster.node import GRACE_S, About, Delivery, Node, about
from harness.cluster.part import Job
from harness.cluster.placement import Part, Resources, fits, parts_of
from harness.errors import UsageError
from harness.plan import WARMUP, told_resources
from harness.records import (
    Block,
    CellEnd,
    LogEntry,
    Matrix,
    PlannedCell,
    RepetitionEnd,
    Session,
    Where,
)
from harness.run import commands, machine
from harness.run.clock import utc_now
from harness.run.processes import PROJECT
from harness.run.progress import Pace, Reporter
from harness.run.runner import State, work_of
from harness.store import Record, RunFolder

T = TypeVar("T")

ASK_EVERY_S = 1.0
KNOCK_S = 10.0
ANSWER_S = 30.0
"""A node that answers nothing for so long is lost."""

LEASE_S = 60.0
"""A part that hears nothing for so long stops: longer than `ANSWER_S`, so that no head gives up
later than its node.
"""

MACHINE_WAIT_S = 300.0
"""How long a part waits for a machine to appear."""

MOST_TRIES = 3
"""How often a part is begun before its cells are given up."""


class NodeLostError(Exception):
    """Nothing comes from a node any more."""


class NodeRefusesError(Exception):
    """A node says that it cannot measure this."""


def run_matrix(
    path: Path, *, results_dir: Path, progress: Reporter, address: str | None
) -> RunFolder:
    """`run --on ray`: as `commands.run_matrix`, on the cluster at `address` (None: this one's)."""
    with _connected(address):
        matrix, folder = commands.begin(path, results_dir=results_dir, tell=progress.note)
        _measure(matrix, folder, progress)
    return folder


def resume(run: Path, *, progress: Reporter, address: str | None) -> RunFolder:
    """`resume --on ray`: what the run left undone, wherever it was begun."""
    folder = RunFolder.open(run)
    matrix = commands.same_matrix(folder.manifest)
    if commands.exit_code(folder) == 0:
        progress.note(f"{folder.manifest.run_id} is complete, nothing is left to do")
        return folder
    with _connected(address):
        _measure(matrix, folder, progress)
    return folder


def _measure(matrix: Matrix, folder: RunFolder, progress: Reporter) -> None:
    try:
        commands.run_until_stopped(Head(matrix=matrix, folder=folder, progress=progress).run())
    finally:
        folder.close()


@contextmanager
def _connected(address: str | None) -> Iterator[None]:
    """A connection to the cluster, which goes on without us."""
    written = address or "auto"
    try:
        _knock(address)
        ray.init(address=written, log_to_driver=False, logging_level=logging.ERROR)
    except (OSError, ValueError) as error:
        raise UsageError(
            f"no Ray cluster answers at {written} ({error}); begin one with `ray start --head`, or "
            "name it with --address HOST:PORT"
        ) from error
    try:
        yield
    finally:
        ray.shutdown()


def _knock(address: str | None) -> None:
    """Ray itself would try for minutes."""
    if address is not None:
        host, _, port = address.rpartition(":")
        socket.create_connection((host, int(port)), KNOCK_S).close()


# --- machines -------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Machine:
    """A node of the cluster."""

    node_id: str
    name: str
    offers: Mapping[str, float]

    @property
    def here(self) -> NodeAffinitySchedulingStrategy:
        return NodeAffinitySchedulingStrategy(self.node_id, soft=False)


def machines() -> tuple[Machine, ...]:
    """The nodes that are alive."""
    return tuple(
        Machine(
            node_id=node["NodeID"],
            name=f"{node['NodeManagerAddress']} ({node['NodeID'][:8]})",
            offers=node["Resources"],
        )
        for node in ray.nodes()  # type: ignore[no-untyped-call]
        if node["Alive"]
    )


async def _answer(of: Awaitable[T], within_s: float | None = None) -> T:
    within_s = within_s or ANSWER_S
    try:
        return await asyncio.wait_for(of, within_s)
    except TimeoutError:
        raise NodeLostError(f"it answered nothing for {within_s:.0f} s") from None
    except RayError as error:
        raise NodeLostError(str(error).partition("\n")[0]) from error


# --- the head -------------------------------------------------------------------------------------


@dataclass(kw_only=True)
class _Waiting:
    """A part with what is left of it."""

    part: Part
    tries: int = 0
    since_s: float = field(default_factory=time.monotonic)


@dataclass(kw_only=True)
class Head:
    matrix: Matrix
    folder: RunFolder
    progress: Reporter

    def __post_init__(self) -> None:
        parts = parts_of(self.matrix, self.folder.manifest.plan)
        self._waiting = [_Waiting(part=left) for part in parts if (left := self._left_of(part))]
        self._busy: dict[str, asyncio.Task[None]] = {}  # by node id
        self._refused: set[str] = set()  # nodes that said no
        self._losses: Counter[str] = Counter()  # by node id
        self._devices = _devices_of(self.folder)
        self._abouts: dict[str, About] = {}
        self._sessions = _highest_session(self.folder)
        self._cells = {cell.cell_id: cell for cell in self.folder.manifest.plan.cells}
        self._commit, _ = machine.commit_of(PROJECT)
        self._pace = Pace(0.0)
        self._doing = self._where(session_id="head")

    async def run(self) -> None:
        total = sum(self._work(block) for each in self._waiting for block in each.part.blocks)
        self._pace = Pace(total)
        self.progress.begin(f"run {self.folder.manifest.run_id}", total)
        state: State = "failed"
        try:
            while self._waiting or self._busy:
                await self._set_to_work()
                self._give_up_unplaced()
                await asyncio.sleep(ASK_EVERY_S)
                self._tell_status("running")
            state = "finished"
        except asyncio.CancelledError:
            state = "stopped"
            raise
        finally:
            await self._stop_all()
            self._tell_status(state)
            self.progress.end()

    # --- placing ----------------------------------------------------------------------------------

    async def _set_to_work(self) -> None:
        """Every idle machine takes the first waiting part that it can run."""
        for node_id in [node_id for node_id, task in self._busy.items() if task.done()]:
            self._busy.pop(node_id).result()
        # who was lost before may be so still, and Ray takes a while to notice
        steadiest_first = sorted(await asyncio.to_thread(machines), key=self._num_losses)
        for each in steadiest_first:
            if each.node_id in self._busy or each.node_id in self._refused:
                continue
            if (found := await self._first_for(each)) is not None:
                self._waiting.remove(found)
                self._busy[each.node_id] = asyncio.create_task(self._carry_out(found, each))

    def _num_losses(self, node: Machine) -> int:
        return self._losses[node.node_id]

    async def _first_for(self, node: Machine) -> _Waiting | None:
        for waiting in self._waiting:
            if fits(waiting.part, node.offers) and await self._is_of_its_kind(node, waiting.part):
                return waiting
        return None

    async def _is_of_its_kind(self, node: Machine, part: Part) -> bool:
        """Whether the machine is like the one that measured with these resources before."""
        try:
            device = (await self._about(node)).device_key
        except NodeLostError:
            return False
        return self._devices.setdefault(part.resources, device) == device

    async def _about(self, node: Machine) -> About:
        if node.node_id not in self._abouts:
            ask = ray.remote(about).options(num_cpus=0, scheduling_strategy=node.here)
            self._abouts[node.node_id] = await _answer(ask.remote())
        return self._abouts[node.node_id]

    def _give_up_unplaced(self) -> None:
        """Parts that no machine took for too long, while none that could is busy."""
        for waiting in list(self._waiting):
            waited_s = time.monotonic() - waiting.since_s
            if waited_s > MACHINE_WAIT_S and not self._busy:
                self._waiting.remove(waiting)
                needed = told_resources(dict(waiting.part.resources))
                self._give_up(
                    waiting.part,
                    f"no machine with resources {needed} was free or came for {waited_s:.0f} s",
                )

    # --- one part on one node ---------------------------------------------------------------------

    async def _carry_out(self, waiting: _Waiting, node: Machine) -> None:
        waiting.tries += 1
        try:
            await self._follow(waiting.part, node)
        except NodeRefusesError as error:
            self._refused.add(node.node_id)
            self._note(f"{node.name} does not measure {waiting.part.part_id}: {error}")
            waiting.tries -= 1  # nothing was begun
        except NodeLostError as error:
            self._note(f"{node.name} is lost with {waiting.part.part_id}: {error}")
            self._losses[node.node_id] += 1
            self._abouts.pop(node.node_id, None)  # asked again before it is given work again
        else:
            return
        self._take_back(waiting)

    def _take_back(self, waiting: _Waiting) -> None:
        left = self._left_of(waiting.part)
        if left is None:
            return
        if waiting.tries >= MOST_TRIES:
            self._give_up(left, f"begun {waiting.tries} times, and its node was lost each time")
        else:
            self._waiting.append(_Waiting(part=left, tries=waiting.tries))

    async def _follow(self, part: Part, node: Machine) -> None:
        """Until the part's process has ended. Raises NodeLostError, NodeRefusesError."""
        session_id = self._new_session()
        self._note(
            f"{part.part_id} ({len(part.blocks)} blocks) goes to {node.name} as {session_id}"
        )
        actor = _placed(part, node)
        gathering = _Gathering(actor=actor, folder=self.folder, hear=self._hear)
        try:
            await _answer(actor.begin.remote(self._job(part, session_id)), MACHINE_WAIT_S)
            ended = await gathering.whole()
            if ended.exit_code == 0:
                await _answer(actor.forget.remote())
        except asyncio.CancelledError:
            await self._stop(actor, gathering)
            raise
        finally:
            ray.kill(actor)
        _refuse_failure(ended)

    def _job(self, part: Part, session_id: str) -> bytes:
        job = Job(
            manifest=self.folder.manifest,
            commit=self._commit,
            session_id=session_id,
            blocks=part.blocks,
            lease_s=LEASE_S,
        )
        return msgspec.json.encode(job)

    async def _stop(self, actor: Any, gathering: "_Gathering") -> None:
        """The user wants to go: the engine is stopped and what was measured brought over."""
        try:
            await _answer(actor.stop.remote(), GRACE_S + ANSWER_S)
            await gathering.whole()
        except NodeLostError as error:
            self._note(f"a node was not heard of any more: {error}")

    async def _stop_all(self) -> None:
        for task in self._busy.values():
            task.cancel()
        await asyncio.gather(*self._busy.values(), return_exceptions=True)

    # --- what was measured ------------------------------------------------------------------------

    def _left_of(self, part: Part) -> Part | None:
        """The part without its finished cells; None when nothing is left."""
        finished = self.folder.finished_cells()
        blocks = [
            replace(
                block,
                cell_ids=tuple(i for i in block.cell_ids if (block.block_id, i) not in finished),
            )
            for block in part.blocks
        ]
        left = tuple(block for block in blocks if block.cell_ids)
        return replace(part, blocks=left) if left else None

    def _give_up(self, part: Part, reason: str) -> None:
        self._note(f"{part.part_id}: {reason}")
        session_id = self._new_session()
        for block in part.blocks:
            where = self._where(session_id=session_id, block_id=block.block_id)
            self.folder.append(
                *(
                    CellEnd(
                        where=replace(where, cell_id=cell_id), outcome="unavailable", message=reason
                    )
                    for cell_id in block.cell_ids
                )
            )

    def _new_session(self) -> str:
        self._sessions += 1
        return f"s{self._sessions}"

    # --- telling ----------------------------------------------------------------------------------

    def _hear(self, record: Record) -> None:
        if isinstance(record, LogEntry):
            self.progress.note(f"{record.where.session_id}: {record.message}")
        if isinstance(record, RepetitionEnd) and record.where.repetition != WARMUP:
            cell = self._cells[record.where.cell_id or ""]
            self._doing = record.where
            self._pace.done += work_of(cell)
            self.progress.at(f"{record.where.session_id}: {cell.cell_id}")
            self.progress.advance(work_of(cell))

    def _note(self, message: str) -> None:
        self.progress.note(message)
        where = self._where(session_id="head")
        self.folder.append(LogEntry(where=where, at=utc_now(), event="cluster", message=message))

    def _where(self, *, session_id: str, block_id: str | None = None) -> Where:
        return Where(run_id=self.folder.manifest.run_id, session_id=session_id, block_id=block_id)

    def _tell_status(self, state: State) -> None:
        self.folder.write_status(
            {
                "state": state,
                "pid": os.getpid(),
                "at": utc_now(),
                "share_done": self._pace.done / self._pace.total if self._pace.total else 1.0,
                "left_s": self._pace.left_s(),
                **msgspec.to_builtins(self._doing),
            }
        )

    def _work(self, block: Block) -> float:
        return sum(
            self._cells[cell_id].repetitions * work_of(self._cells[cell_id])
            for cell_id in block.cell_ids
        )


def _placed(part: Part, node: Machine) -> Any:
    """The actor that holds the part's resources on the node, waiting until nobody else does."""
    options = ray.remote(Node).options(
        num_cpus=0,
        resources=dict(part.resources) or None,
        scheduling_strategy=node.here,
        max_restarts=0,
    )
    return options.remote()


@dataclass(kw_only=True)
class _Gathering:
    """What one part wrote, brought over once."""

    actor: Any
    folder: RunFolder
    hear: Callable[[Record], None]
    _seen: Seen = field(default_factory=Seen)

    async def whole(self) -> Delivery:
        """Until the part's process has ended and nothing is left to bring over."""
        while True:
            delivery: Delivery = await _answer(self.actor.gather.remote(self._seen))
            records = join(self.folder, delivery.bundle)
            self._seen = delivery.bundle.seen
            for record in records:
                self.hear(record)
            if delivery.exit_code is not None and delivery.bundle.is_empty:
                return delivery
            await asyncio.sleep(ASK_EVERY_S)


def _refuse_failure(ended: Delivery) -> None:
    if ended.exit_code == UsageError.exit_code:  # a ConfigError has the same
        raise NodeRefusesError(ended.last_words)
    if ended.exit_code != 0:
        raise NodeLostError(f"its process ended with {ended.exit_code}: {ended.last_words}")


def _devices_of(folder: RunFolder) -> dict[Resources, str]:
    """On which kind of machine the cells of each resources were measured so far."""
    keys_of = {session.where.session_id: session.device_key for session in folder.read(Session)}
    return {
        tuple(sorted((planned.cell.resources or {}).items())): keys_of[planned.where.session_id]
        for planned in folder.read(PlannedCell)
        if planned.where.session_id in keys_of
    }


def _highest_session(folder: RunFolder) -> int:
    numbers = [session.where.session_id[1:] for session in folder.read(Session)]
    return max((int(number) for number in numbers if number.isdecimal()), default=0)
