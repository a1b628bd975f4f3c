"""Walk through a plan: boot, warm up, measure, write, stop. It records facts and judges nothing.

A repetition is whole on disk or not there: its reads are spooled, parsed in a worker process, and
its records appended with the `RepetitionEnd` last. What can go wrong with an engine ends that
block's cells as `unavailable` and the next block begins; what the user does (Ctrl-C, SIGTERM,
SIGHUP) arrives as cancellation, stops the engine for certain and leaves a run that can be resumed.
"""

import asyncio
import multiprocessing
import os
import signal
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from multiprocessing.connection import wait as wait_for_any
from pathlib import Path
from typing import Literal

import msgspec

from harness.adapters.base import Ask
from harness.errors import BootError, HarnessError
from harness.plan import WARMUP, requests_of
from harness.records import (
    Block,
    Cell,
    CellEnd,
    LogEntry,
    Matrix,
    Plan,
    PlannedCell,
    Prompt,
    RepetitionEnd,
    Session,
    Snapshot,
    Variant,
    Where,
    Workload,
)
from harness.run import boot
from harness.run.boot import RunningEngine
from harness.run.client import Endpoint, Pool, Timeouts
from harness.run.clock import Anchor, utc_now
from harness.run.counters import CounterReader
from harness.run.load import Load, run_load
from harness.run.machine import Sampler
from harness.run.parse import ParsedRepetition, parse_spool
from harness.run.progress import Pace, Reporter
from harness.run.raw import Asked, RawRepetition, encoded, raw_exchange, read_spool
from harness.store import RunFolder

WARMUP_TOKENS = 64
"""Enough to reach every kernel and cache; a warm-up answer is never measured."""

DEATH_NOTICE_S = 0.5
"""How long a failed request may come before the news that its engine died."""

State = Literal["running", "finished", "stopped", "failed"]


async def run(
    matrix: Matrix,
    plan: Plan,
    folder: RunFolder,
    session: Session,
    reporter: Reporter,
    timeouts: Timeouts | None = None,
) -> None:
    """Every (block, cell) of `plan` that is not finished yet."""
    with _parser() as parser:
        runner = _Runner(
            matrix=matrix,
            plan=plan,
            folder=folder,
            session=session,
            reporter=reporter,
            timeouts=timeouts or Timeouts(),
            parser=parser,
        )
        await runner.run()


# --- the worker that parses -----------------------------------------------------------------------


@contextmanager
def _parser() -> Iterator[ProcessPoolExecutor]:
    pool = ProcessPoolExecutor(
        max_workers=1,
        mp_context=multiprocessing.get_context("spawn"),
        initializer=_prepare_worker,
    )
    try:
        yield pool
    finally:
        pool.shutdown(wait=True, cancel_futures=True)


def _prepare_worker() -> None:
    """Signals are the parent's to handle; without a parent there is nothing to parse for."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    parent = multiprocessing.parent_process()
    assert parent is not None

    def leave_with_parent() -> None:
        wait_for_any([parent.sentinel])
        os._exit(1)

    threading.Thread(target=leave_with_parent, daemon=True).start()


# --- blocks ---------------------------------------------------------------------------------------


@dataclass(kw_only=True)
class _Runner:
    matrix: Matrix
    plan: Plan
    folder: RunFolder
    session: Session
    reporter: Reporter
    timeouts: Timeouts
    parser: ProcessPoolExecutor
    pace: Pace = field(default_factory=lambda: Pace(0.0))

    async def run(self) -> None:
        todo = self._todo()
        total = sum(self._work(cell) for _, cells in todo for cell in cells)
        self.pace = Pace(total)
        self.reporter.begin(f"run {self.folder.manifest.run_id}", total)
        state: State = "failed"
        try:
            done = 0.0
            for number, (block, cells) in enumerate(todo):
                if number:
                    await asyncio.sleep(self.matrix.schedule.cooldown_s)
                await self._block(block, cells)
                done += sum(self._work(cell) for cell in cells)
                self._advance(done - self.pace.done)  # what a dead engine left undone
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
        boot_id = f"{block.block_id}-{self.session.where.session_id}"
        where = replace(self.session.where, block_id=block.block_id, boot_id=boot_id)
        self.folder.append(*(PlannedCell(where=where, cell=cell) for cell in cells))
        self._say(where, "boot", f"{block.block_id}: starting the engine of {block.variant}")
        self.tell_status("running", where)
        left = list(cells)
        try:
            await self._boot_and_measure(where, self._variant(block.variant), left)
        except HarnessError as error:
            self._say(where, "unavailable", str(error))
            for cell in left:
                self.folder.append(
                    CellEnd(
                        where=replace(where, cell_id=cell.cell_id),
                        outcome="unavailable",
                        message=str(error),
                    )
                )

    async def _boot_and_measure(self, where: Where, variant: Variant, left: list[Cell]) -> None:
        """Cells that are done leave `left`."""
        assert where.boot_id is not None
        settings = {**self.matrix.held_constant, **variant.flags}
        log_folder = self.folder.server_folder(where.boot_id)
        engine = await boot.launch(variant, settings, where, log_folder)
        sampler, error = None, None
        try:
            self.folder.append(engine.boot)  # from here on a killed harness leaves its engine named
            await boot.wait_ready(engine, variant.target.name)
            self.folder.append(engine.boot)
            sampler = Sampler(where, engine.pids())
            await self._measure(engine, sampler, where, left)
        except HarnessError as failure:
            error = str(failure)
            raise
        finally:
            peak = sampler.engine_peak_bytes if sampler else None
            self.folder.append(await boot.stop(engine, memory_peak_bytes=peak, error=error))

    async def _measure(
        self, engine: RunningEngine, sampler: Sampler, where: Where, left: list[Cell]
    ) -> None:
        sampling = asyncio.create_task(sampler.run())
        try:
            for cell in tuple(left):
                turn = _Turn(runner=self, engine=engine, sampler=sampler, cell=cell, block=where)
                await turn.run()
                left.remove(cell)
        finally:
            sampling.cancel()
            self.folder.append(*sampler.take())

    # --- looking things up
    # ----------------------------------------------------------------------------

    def _variant(self, name: str) -> Variant:
        return next(variant for variant in self.matrix.variants if variant.name == name)

    def workload_of(self, cell: Cell) -> Workload:
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
            and cell.concurrency in workload.levels
        )

    def _work(self, cell: Cell) -> float:
        return cell.repetitions * work_of(cell)

    # --- telling
    # --------------------------------------------------------------------------------------

    def _say(self, where: Where, event: str, message: str) -> None:
        self.reporter.note(message)
        self._log(where, event, message)

    def _log(self, where: Where, event: str, message: str) -> None:
        self.folder.append(LogEntry(where=where, at=utc_now(), event=event, message=message))

    def finished_repetition(self, cell: Cell, where: Where) -> None:
        self._advance(work_of(cell) if where.repetition != WARMUP else 0.0)

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


def work_of(cell: Cell) -> float:
    """One repetition's share of the time, in tokens per place."""
    return cell.num_requests * cell.max_tokens / cell.concurrency


# --- one cell in one boot -------------------------------------------------------------------------


@dataclass(kw_only=True)
class _Turn:
    """A cell's warm-up and repetitions on a running engine."""

    runner: _Runner
    engine: RunningEngine
    sampler: Sampler
    cell: Cell
    block: Where

    def __post_init__(self) -> None:
        adapter = self.engine.adapter
        url, path = self.engine.boot.url, adapter.chat_path
        endpoint = Endpoint.of(url, path, self.engine.headers)
        self._where = replace(self.block, cell_id=self.cell.cell_id)
        self._pool = Pool(endpoint, self.runner.timeouts)
        self._counters = CounterReader(self.engine.http, adapter)
        self._workload = self.runner.workload_of(self.cell)

    async def run(self) -> None:
        folder, cell = self.runner.folder, self.cell
        try:
            if self._workload.warmup is not None:
                await self._repetition(WARMUP)
            for repetition in range(cell.repetitions):
                await self._repetition(repetition)
        finally:
            self._pool.abort()
        if self._counters.last_page is not None and self.block.boot_id is not None:
            folder.write_page(cell.cell_id, self.block.boot_id, self._counters.last_page.encode())
        folder.append(CellEnd(where=self._where, outcome="finished", message=None))

    async def _repetition(self, repetition: int) -> None:
        where = replace(self._where, repetition=repetition)
        label = "warm-up" if repetition == WARMUP else f"repetition {repetition + 1}"
        self.runner.reporter.at(f"{self.cell.cell_id}  {label} of {self.cell.repetitions}")
        self.engine.mark(f"{self.cell.cell_id} {label}")
        self.runner.tell_status("running", where)
        ledger = _Ledger(reader=self._counters, where=where)
        anchor = Anchor.now()
        asked, load = await self._send(where, ledger)
        end = RepetitionEnd(
            where=where,
            started_at=anchor.date(anchor.perf_ns),
            window_s=load.window_s,
            num_requests=len(asked),
            num_failed=0,
            in_flight_max=load.in_flight_max,
            cpu_share=load.cpu_share,
            loop_lag_max_s=load.loop_lag_max_s,
        )
        exchanges = tuple(
            raw_exchange(each, anchor.date(exchange.t0_ns), exchange)
            for each, exchange in zip(asked, load.exchanges, strict=True)
        )
        raw = RawRepetition(end=end, exchanges=exchanges, snapshots=tuple(ledger.snapshots))
        parsed = await parse_and_append(
            self.runner.folder, raw, self.cell.adapter, self.runner.parser
        )
        self.runner.folder.append(*self.sampler.take())
        self.runner.finished_repetition(self.cell, where)
        await self._refuse_dead_engine(parsed)

    async def _send(self, where: Where, ledger: "_Ledger") -> tuple[list[Asked], Load]:
        is_warmup = where.repetition == WARMUP
        prompts = self._prompts(where.repetition)
        limit = min(self.cell.max_tokens, WARMUP_TOKENS) if is_warmup else self.cell.max_tokens
        asked = [_asked(where, prompt, i, limit) for i, prompt in enumerate(prompts)]
        bodies = [self._body(prompt, limit) for prompt in prompts]
        counts_requests = self.cell.load == "single" and not is_warmup
        counts_repetition = self.cell.load != "single" and not is_warmup
        if counts_repetition:
            await ledger.note("before")
        load = await run_load(
            self.cell.load,
            bodies,
            self._pool,
            concurrency=self.cell.concurrency,
            around=ledger if counts_requests else None,
        )
        if counts_repetition:
            await ledger.note("after")
        return asked, load

    def _prompts(self, repetition: int | None) -> tuple[Prompt, ...]:
        assert repetition is not None
        warmup = self._workload.warmup if repetition == WARMUP else None
        return requests_of(self.cell, warmup or self._workload.prompts, repetition)

    def _body(self, prompt: Prompt, max_tokens: int) -> bytes:
        ask = Ask(
            model=self.cell.target,
            messages=prompt.messages,
            max_tokens=max_tokens,
            sampling=self.cell.sampling,
            length=self.cell.length,
        )
        return self._pool.endpoint.encode(
            msgspec.json.encode(self.engine.adapter.request_body(ask))
        )

    async def _refuse_dead_engine(self, parsed: ParsedRepetition) -> None:
        """Failed requests are data; an engine that is gone is the end of its block."""
        failed = [request for request in parsed.requests if request.error is not None]
        if failed and self.engine.process is not None:
            await asyncio.wait(
                [asyncio.create_task(self.engine.process.wait())], timeout=DEATH_NOTICE_S
            )
        if self.engine.died:
            raise BootError(
                f"the engine of {self.cell.variant!r} died during {self.cell.cell_id}; what was "
                f"measured is kept, `dflashbench resume` runs the rest; {self.engine.last_words()}"
            )
        unreachable = [r for r in failed if r.error is not None and r.error.kind == "connect"]
        if self.engine.process is None and len(unreachable) == len(parsed.requests):
            raise BootError(
                f"{self.engine.boot.url} takes no connections any more; start that server again, "
                "then `dflashbench resume`"
            )


@dataclass(kw_only=True)
class _Ledger:
    """The counters of a repetition: around each request, or around the whole."""

    reader: CounterReader
    where: Where
    snapshots: list[Snapshot] = field(default_factory=list)

    async def note(self, moment: Literal["before", "after"]) -> None:
        self.snapshots.append(await self.reader.snapshot(self.where, "repetition", moment))

    async def before(self, index: int) -> None:
        self.snapshots.append(await self._around_request(index, "before"))

    async def after(self, index: int) -> None:
        self.snapshots.append(await self._around_request(index, "after"))

    async def _around_request(self, index: int, moment: Literal["before", "after"]) -> Snapshot:
        where = replace(self.where, request_id=_request_id(self.where, index))
        return await self.reader.snapshot(where, "request", moment)


def _asked(where: Where, prompt: Prompt, index: int, max_tokens: int) -> Asked:
    return Asked(
        where=replace(where, request_id=_request_id(where, index)),
        prompt_id=prompt.prompt_id,
        kind=prompt.kind,
        index=index,
        max_tokens=max_tokens,
    )


def _request_id(where: Where, index: int) -> str:
    return f"{where.cell_id}.{where.boot_id}.{where.repetition}.{index}"


# --- from memory to the folder --------------------------------------------------------------------


async def parse_and_append(
    folder: RunFolder,
    raw: RawRepetition,
    adapter_name: str,
    parser: ProcessPoolExecutor,
) -> ParsedRepetition:
    """Spool, parse in the worker, append with the end last, and drop the spool."""
    where = raw.end.where
    assert where.cell_id is not None
    assert where.boot_id is not None
    assert where.repetition is not None
    spool = await asyncio.to_thread(
        folder.write_spool, where.cell_id, where.boot_id, where.repetition, encoded(raw)
    )
    return await append_spool(folder, spool, adapter_name, parser)


async def append_spool(
    folder: RunFolder,
    spool: Path,
    adapter_name: str,
    parser: ProcessPoolExecutor,
) -> ParsedRepetition:
    loop = asyncio.get_running_loop()
    parsed = await loop.run_in_executor(parser, parse_spool, spool, folder.path, adapter_name)
    folder.append(*parsed.requests, *parsed.snapshots, parsed.end)
    spool.unlink()
    return parsed


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


async def recover(folder: RunFolder) -> None:
    """Parse what a killed session had spooled but not parsed, so that no measured repetition is
    lost.
    """
    spools = sorted((folder.path / "spool").glob("*.bin"))
    if not spools:
        return
    adapters = {cell.cell_id: cell.adapter for cell in folder.manifest.plan.cells}
    there = {end.where for end in folder.read(RepetitionEnd)}
    with _parser() as parser:
        for spool in spools:
            where = read_spool(spool).end.where
            if where in there:  # killed between the last record and the removal
                spool.unlink()
                continue
            await append_spool(folder, spool, adapters[where.cell_id or ""], parser)
