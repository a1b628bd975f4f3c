"""Walk through a plan: boot, let every cell have its turn, stop. It records facts, judges nothing.

What can go wrong with an engine ends that block's cells as `unavailable` and the next block begins;
what the user does (Ctrl-C, SIGTERM, SIGHUP) arrives as cancellation, stops the engine for certain
and leaves a run that can be resumed.
"""

import asyncio
import os
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

import msgspec

from harness.adapters import ADAPTERS
from harness.differences import compared_with
from harness.errors import BootError, EngineError, HarnessError
from harness.records import (
    Block,
    Boot,
    Cell,
    CellEnd,
    LogEntry,
    Matrix,
    Plan,
    PlannedCell,
    RepetitionEnd,
    Session,
    Variant,
    Where,
    Workload,
)
from harness.run import boot, rescore
from harness.run.boot import RunningEngine
from harness.run.clock import utc_now
from harness.run.control import told_control
from harness.run.load import Fleet
from harness.run.machine import Sampler, memory_now
from harness.run.progress import Pace, Reporter
from harness.run.raw import read_spool
from harness.run.rendering import rendered
from harness.run.turn import Turn, append_spool
from harness.run.worker import Parser
from harness.store import RunFolder
from harness.turns import repetitions_of

State = Literal["running", "finished", "stopped", "failed"]


async def run(
    matrix: Matrix,
    plan: Plan,
    folder: RunFolder,
    session: Session,
    reporter: Reporter,
    fleet: Fleet | None = None,
) -> None:
    """Every (block, cell) of `plan` that is not finished yet."""
    runner = _Runner(
        matrix=matrix, plan=plan, folder=folder, session=session, reporter=reporter, fleet=fleet
    )
    with Parser(runner.tell_of_parser) as runner.parser:
        await runner.run()


# --- blocks ---------------------------------------------------------------------------------------


@dataclass(kw_only=True)
class _Runner:
    matrix: Matrix
    plan: Plan
    folder: RunFolder
    session: Session
    reporter: Reporter
    fleet: Fleet | None
    parser: Parser = field(init=False)
    pace: Pace = field(default_factory=lambda: Pace(0.0))
    attached: dict[str, Boot] = field(default_factory=dict)  # variant -> as it was found first
    warm: set[tuple[str | None, str]] = field(default_factory=set)  # boot, cell
    later: frozenset[str] = frozenset()  # variants that have a turn after this one

    async def run(self) -> None:
        todo = self._todo()
        total = sum(self._work(block, cell) for block, cells in todo for cell in cells)
        self.pace = Pace(total)
        self.reporter.begin(f"run {self.folder.manifest.run_id}", total)
        state: State = "failed"
        try:
            done = 0.0
            for number, (block, cells) in enumerate(todo):
                if number:
                    await asyncio.sleep(self.matrix.schedule.cooldown_s)
                self.later = frozenset(each.variant for each, _ in todo[number + 1 :])
                await self._block(block, cells)
                done += sum(self._work(block, cell) for cell in cells)
                self._advance(done - self.pace.done)  # what a dead engine left undone
            await self._ask_odds_that_are_left()
            state = "finished"
        except asyncio.CancelledError:
            state = "stopped"
            self._log(self.session.where, "stopped", "stopped by the user; it can be resumed")
            raise
        finally:
            self.tell_status(state, self.session.where)
            self.reporter.end()

    def _todo(self) -> list[tuple[Block, list[Cell]]]:
        by_id = {cell.cell_id: cell for cell in self.plan.cells}
        finished = self.folder.finished_cells()
        blocks = [
            (block, [by_id[i] for i in block.cell_ids if (block.block_id, i) not in finished])
            for block in self.plan.blocks
        ]
        return [(block, cells) for block, cells in blocks if cells]

    async def _block(self, block: Block, cells: Sequence[Cell]) -> None:
        where = replace(self.session.where, block_id=block.block_id, boot_id=self._boot_id(block))
        self.folder.append(*(PlannedCell(where=where, cell=cell) for cell in cells))
        how = "asking the server" if block.repetitions is not None else "starting the engine"
        self._say(where, "boot", f"{block.block_id}: {how} of {block.variant}")
        self.tell_status("running", where)
        left = list(cells)
        try:
            await self._boot_and_measure(where, block, left)
            self._tell_control(where, cells)
        except HarnessError as error:
            self.attached.pop(block.variant, None)  # what answers there later is another boot
            self._say(where, "unavailable", str(error))
            for cell in left:
                self.folder.append(
                    CellEnd(
                        where=replace(where, cell_id=cell.cell_id),
                        outcome="unavailable",
                        message=str(error),
                    )
                )

    def _tell_control(self, where: Where, cells: Sequence[Cell]) -> None:
        controls = [cell for cell in cells if cell.control_of is not None]
        if controls and self.session.resumed:
            for sentence in told_control(self.folder, controls, where.session_id):
                self._say(where, "control", sentence)

    def _boot_id(self, block: Block) -> str:
        """All turns of an attached server are one boot, called by the first of the session."""
        first = self.attached.get(block.variant)
        if first is not None and first.where.boot_id is not None:
            return first.where.boot_id
        return f"{block.block_id}-{self.session.where.session_id}"

    async def _boot_and_measure(self, where: Where, block: Block, left: list[Cell]) -> None:
        """Cells that are done leave `left`."""
        assert where.boot_id is not None
        variant = self._variant(block.variant)
        settings = {**self.matrix.held_constant, **variant.flags}
        log_folder = self.folder.server_folder(where.boot_id)
        attached = variant.engine.kind == "attach"
        before = None if attached else await asyncio.to_thread(memory_now)
        engine = await boot.launch(variant, settings, where, log_folder)
        sampler, error = None, None
        try:
            self.folder.append(engine.boot)  # from here on a killed harness leaves its engine named
            await boot.wait_ready(engine, variant.target.name)
            await self._note_rendered(engine, variant, left)
            self.folder.append(engine.boot)
            if attached:
                _refuse_another_build(engine, self.attached.setdefault(variant.name, engine.boot))
            sampler = Sampler(where, engine.pids(), before)
            await self._measure(engine, sampler, where, block, left)
        except HarnessError as failure:
            error = str(failure)
            raise
        finally:
            peak = sampler.memory_peak if sampler else None
            engine.boot = replace(engine.boot, memory_read_from=peak.read_from if peak else None)
            peak_bytes = peak.peak_bytes if peak else None
            self.folder.append(await boot.stop(engine, memory_peak_bytes=peak_bytes, error=error))

    async def _note_rendered(
        self, engine: RunningEngine, variant: Variant, cells: Sequence[Cell]
    ) -> None:
        """Not by a server that counts its requests."""
        if variant.engine.max_rate_per_s is not None:
            return
        sets = {cell.prompt_set: self._workload_of(cell).prompts for cell in cells}
        try:
            found = await rendered(
                engine.http,
                engine.adapter,
                variant.target.name,
                sets.values(),
                self.matrix.sampling,
            )
        except EngineError as error:
            self._say(engine.boot.where, "rendering", f"its prompts' tokens stay unknown: {error}")
        else:
            engine.boot = replace(engine.boot, rendered=found)

    async def _measure(
        self, engine: RunningEngine, sampler: Sampler, where: Where, block: Block, left: list[Cell]
    ) -> None:
        sampling = asyncio.create_task(sampler.run())
        try:
            for cell in tuple(left):
                await self._turn(cell, engine, sampler, where, block).run()
                self.warm.add((where.boot_id, cell.cell_id))
                left.remove(cell)
            await self._ask_odds(engine, where, block.variant)
        finally:
            sampling.cancel()
            self.folder.append(*sampler.take())

    # --- odds at differences ----------------------------------------------------------------------

    async def _ask_odds(self, engine: RunningEngine, where: Where, variant: str) -> None:
        """In a reference's last block, when no output is to come that is held against its own."""
        if self.later & {cell.variant for cell in compared_with(self.plan, variant)}:
            return
        asked = self._questions(variant)
        rate = self._variant(variant).engine.max_rate_per_s

        async def pause() -> None:
            await asyncio.sleep(1 / rate if rate else 0)

        try:
            await rescore.ask(
                engine,
                asked,
                self.folder,
                workload_of=self._workload_of,
                timeout_s=self._variant(variant).engine.timeouts.first_event_s,
                pause=pause,
                at=self.reporter.at,
            )
        except EngineError as error:
            self._say(where, "rescore", f"differing outputs could not all be asked for: {error}")

    async def _ask_odds_that_are_left(self) -> None:
        """Of references whose last block lay before an output that is held against theirs: each in
        a boot for nothing else.
        """
        for variant in self.matrix.variants:
            asked = self._questions(variant.name)
            if not asked:
                continue
            adapter = ADAPTERS[variant.engine.adapter]
            if adapter.score is None:
                reason = rescore.no_words(adapter)
                self.folder.append(*(rescore.untold(each, reason) for each in asked))
                continue
            last = [block for block in self.plan.blocks if block.variant == variant.name][-1]
            alone = Block(block_id=f"{last.block_id}-rescore", variant=variant.name, cell_ids=())
            await self._block(alone, [])

    def _questions(self, variant: str) -> tuple[rescore.Question, ...]:
        if not self.matrix.losslessness.rescore:
            return ()
        return rescore.questions(self.folder, self.plan, variant)

    # --- a cell's turn ----------------------------------------------------------------------------

    def _turn(
        self, cell: Cell, engine: RunningEngine, sampler: Sampler, where: Where, block: Block
    ) -> Turn:
        def told(where: Where, label: str) -> None:
            self.reporter.at(f"{cell.cell_id}  {label}")
            self.tell_status("running", where)

        def done(where: Where) -> None:
            self.folder.append(*sampler.take())
            self._advance(work_of(cell) if (where.repetition or 0) >= 0 else 0.0)

        def noticed(sentence: str) -> None:
            self._say(where, "noticed", f"{cell.cell_id}: {sentence}")

        return Turn(
            cell=cell,
            workload=self._workload_of(cell),
            variant=self._variant(cell.variant),
            transport_name=self.matrix.transport,
            engine=engine,
            block=where,
            repetitions=repetitions_of(block, cell),
            warms_up=(where.boot_id, cell.cell_id) not in self.warm,
            again=self._again(cell, where) if engine.boot.attached else "",
            folder=self.folder,
            parser=self.parser,
            told=told,
            done=done,
            noticed=noticed,
            fleet=self.fleet,
        )

    def _again(self, cell: Cell, where: Where) -> str:
        """What this server may have been sent before: by an earlier session, or for a control."""
        session_id = str(where.session_id) if self.session.resumed else ""
        return f"{session_id}.{where.block_id}" if cell.control_of else session_id

    # --- looking things up ------------------------------------------------------------------------

    def _variant(self, name: str) -> Variant:
        return next(variant for variant in self.matrix.variants if variant.name == name)

    def _workload_of(self, cell: Cell) -> Workload:
        """The workload that the plan made `cell` of."""
        return next(
            workload
            for workload in self.matrix.workloads
            if workload.kind == cell.workload
            and workload.prompts.name == cell.prompt_set
            and workload.load == cell.load
            and workload.assignment == cell.assignment
            and workload.length == cell.length
            and workload.max_tokens == cell.max_tokens
            and workload.rate_per_s == cell.rate_per_s
            and workload.cache == cell.cache
            and cell.concurrency in workload.levels
        )

    def _work(self, block: Block, cell: Cell) -> float:
        return len(repetitions_of(block, cell)) * work_of(cell)

    # --- telling ----------------------------------------------------------------------------------

    def tell_of_parser(self, message: str) -> None:
        self._say(self.session.where, "parser", message)

    def _say(self, where: Where, event: str, message: str) -> None:
        self.reporter.note(message)
        self._log(where, event, message)

    def _log(self, where: Where, event: str, message: str) -> None:
        self.folder.append(LogEntry(where=where, at=utc_now(), event=event, message=message))

    def _advance(self, work: float) -> None:
        if work > 0:
            self.pace.done += work
            self.reporter.advance(work)

    def tell_status(self, state: State, where: Where) -> None:
        self.folder.write_status(
            {
                "state": state,
                "pid": os.getpid(),
                "at": utc_now(),
                "share_done": self.pace.done / self.pace.total if self.pace.total else 1.0,
                "left_s": self.pace.left_s(),
                **msgspec.to_builtins(where),
            }
        )


def _refuse_another_build(engine: RunningEngine, first: Boot) -> None:
    """A server of somebody else may be replaced between two turns."""
    if engine.boot.build != first.build:
        raise BootError(
            f"the server at {first.url} is another than in block {first.where.block_id} (version "
            f"{first.version or 'unknown'} then, {engine.boot.version or 'unknown'} now, or other "
            "facts): `dflashbench resume` measures the rest as a boot of its own"
        )


def work_of(cell: Cell) -> float:
    """One repetition's share of the time, in tokens per place."""
    return cell.num_requests * cell.max_tokens / cell.concurrency


# --- what another session left --------------------------------------------------------------------


async def end_left_over(folder: RunFolder, reporter: Reporter) -> None:
    """Stop the engines of a killed session: they hold memory, and may hold the processor.

    The log entry comes first, for it takes the folder's lock: the engines of a session that still
    lives are not touched.
    """
    for old in boot.left_over(folder.boots()):
        message = f"stopping process {old.pid}, an engine that a killed session left running"
        folder.append(LogEntry(where=old.where, at=utc_now(), event="left over", message=message))
        reporter.note(message)
        folder.append(await boot.stop_left_over(old))


async def recover(folder: RunFolder, reporter: Reporter) -> None:
    """Parse what a killed session had spooled but not parsed, so that no measured repetition is
    lost.
    """
    left = folder.path / "spool"
    for part in left.glob("*.part"):  # killed in mid-repetition: not whole, measured again
        part.unlink()
    spools = sorted(left.glob("*.bin"))
    if not spools:
        return
    adapters = {cell.cell_id: cell.adapter for cell in folder.manifest.plan.cells}
    there = {end.where for end in folder.read(RepetitionEnd)}
    with Parser(reporter.note) as parser:
        for spool in spools:
            where = read_spool(spool).end.where
            if where in there:  # killed between the last record and the removal
                spool.unlink()
                continue
            await append_spool(folder, spool, adapters[where.cell_id or ""], parser)
