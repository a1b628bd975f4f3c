"""One cell in one boot: its warm-up and its repetitions on a running engine.

A repetition is whole on disk or not there: its reads are spooled while it runs, parsed in a worker
process after it, and its records appended with the `RepetitionEnd` last. A failed request is data;
an engine that is gone, or answers nothing any more, ends the turn with an error that quotes its
log.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal

import msgspec

from harness import keys
from harness.adapters.base import Ask
from harness.checks.warmup import passes_agree
from harness.errors import BootError
from harness.plan import WARMUP, arrivals_s, requests_of, salts_of
from harness.prompts import salted
from harness.records import (
    Cell,
    CellEnd,
    Prompt,
    RepetitionEnd,
    Request,
    RequestError,
    Snapshot,
    TransportName,
    Variant,
    Where,
    Workload,
)
from harness.run import first_answers
from harness.run.boot import RunningEngine
from harness.run.client import Endpoint, Exchange, Transport
from harness.run.clock import Anchor, slept_s, slept_since
from harness.run.counters import CounterReader
from harness.run.load import Fleet, Load, Patience, run_load
from harness.run.parse import ParsedRepetition
from harness.run.raw import Asked, RawRepetition, finish_spool, raw_exchange
from harness.run.spool import Spool
from harness.run.transports import TRANSPORTS
from harness.run.worker import Parser
from harness.store import RunFolder

WARMUP_TOKENS = 64
"""Enough to reach every kernel and cache; a warm-up answer is never measured."""

DEATH_NOTICE_S = 0.5
"""How long a failed request may come before the news that its engine died, and how long what is in
flight may outlive it.
"""


@dataclass(kw_only=True)
class Turn:
    """`told` hears of every repetition before it begins, `done` when it is on the disk, `noticed`
    what the first one gives away.

    again: what tells its requests from those that one and the same server was sent before.
    """

    cell: Cell
    workload: Workload
    variant: Variant
    transport_name: TransportName
    engine: RunningEngine
    block: Where
    repetitions: range
    warms_up: bool
    again: str
    folder: RunFolder
    parser: Parser
    told: Callable[[Where, str], None]
    done: Callable[[Where], None]
    noticed: Callable[[str], None]
    fleet: Fleet | None = None  # shares the requests of cells that name `clients`

    def __post_init__(self) -> None:
        adapter, engine = self.engine.adapter, self.variant.engine
        self._endpoint = Endpoint.of(self.engine.boot.url, adapter.chat_path, self.engine.headers)
        self._timeouts = self.workload.timeouts or engine.timeouts
        self._where = replace(self.block, cell_id=self.cell.cell_id)
        self._transport: Transport = TRANSPORTS[self.transport_name](self._endpoint, self._timeouts)
        self._counters = CounterReader(
            self.engine.http, adapter, metrics_urls=self.variant.engine.metrics_urls
        )
        self._patience = Patience.for_concurrency(self.cell.concurrency)
        self._ghosts = Ghosts()
        self._is_judged = False

    async def run(self) -> None:
        try:
            if self.workload.warmup is not None and self.warms_up:
                await self._warm_up()
            for repetition in self.repetitions:
                await self._repetition(repetition)
        finally:
            await self._transport.aclose()
        if self._counters.last_page is not None and self.block.boot_id is not None:
            page = self._counters.last_page.encode()
            self.folder.write_page(self.cell.cell_id, self.block.boot_id, page)
        self.folder.append(CellEnd(where=self._where, outcome="finished", message=None))

    async def _warm_up(self) -> None:
        """Until two passes in a row took as long, or the workload's patience ends."""
        before = await self._repetition(WARMUP)
        for repetition in range(WARMUP - 1, WARMUP - self.workload.warmup_passes, -1):
            after = await self._repetition(repetition)
            if passes_agree(before.requests, after.requests):
                return
            before = after

    async def _repetition(self, repetition: int) -> ParsedRepetition:
        where = replace(self._where, repetition=repetition)
        label = label_of(repetition, self.cell.repetitions)
        self.engine.mark(f"{self.cell.cell_id} {label}")
        self.told(where, label)
        spool = await self._measured(where)
        parsed = await append_spool(self.folder, spool, self.cell.adapter, self.parser)
        self.done(where)
        await self._refuse_dead_engine(parsed)
        self._refuse_hung_engine()
        self._tell_first_answers(parsed)
        return parsed

    def _tell_first_answers(self, parsed: ParsedRepetition) -> None:
        """Of the first repetition that was counted: a warm-up is not."""
        if parsed.snapshots and not self._is_judged:
            self._is_judged = True
            for sentence in first_answers.told(self.cell, self.engine.boot, parsed):
                self.noticed(sentence)

    # --- measuring --------------------------------------------------------------------------------

    async def _measured(self, where: Where) -> Path:
        """The repetition in its spool, reads and all that belongs to them."""
        spool = Spool(self._spool_path(where))
        try:
            ledger = _Ledger(reader=self._counters, where=where)
            anchor, slept_before_s = Anchor.now(), slept_s()
            asked, load = await self._send(where, ledger, spool)
            suspended_s = slept_since(slept_before_s)
            raw = self._raw(where, anchor, asked, load, ledger.snapshots, suspended_s)
        except BaseException:  # stopped in the middle as well: half a repetition is no repetition
            spool.discard()
            raise
        return await asyncio.to_thread(finish_spool, spool, raw)

    def _spool_path(self, where: Where) -> Path:
        assert where.cell_id is not None
        assert where.boot_id is not None
        assert where.repetition is not None
        return self.folder.spool_path(where.cell_id, where.boot_id, where.repetition)

    def _raw(
        self,
        where: Where,
        anchor: Anchor,
        asked: list[Asked],
        load: Load,
        snapshots: list[Snapshot],
        suspended_s: float | None,
    ) -> RawRepetition:
        self._ghosts.note(load.exchanges, snapshots)
        end = RepetitionEnd(
            where=where,
            started_at=anchor.date(anchor.perf_ns),
            window_s=load.window_s,
            num_requests=len(asked),
            num_failed=0,
            in_flight_max=load.in_flight_max,
            cpu_share=load.cpu_share,
            loop_lag_max_s=load.loop_lag_max_s,
            suspended_s=suspended_s,
            clients=load.clients or None,
        )
        exchanges = tuple(
            raw_exchange(
                each,
                anchor.date(exchange.t0_ns),
                exchange,
                after_failure=self._ghosts.may_haunt(exchange.t0_ns),
            )
            for each, exchange in zip(asked, load.exchanges, strict=True)
        )
        return RawRepetition(end=end, exchanges=exchanges, snapshots=tuple(snapshots))

    async def _send(
        self, where: Where, ledger: "_Ledger", spool: Spool
    ) -> tuple[list[Asked], Load]:
        assert where.repetition is not None
        is_warmup = where.repetition < 0
        prompts = self._prompts(where.repetition)
        limit = min(self.cell.max_tokens, WARMUP_TOKENS) if is_warmup else self.cell.max_tokens
        salts = self._salts(where.repetition, len(prompts))
        asked = [
            self._asked(where, prompt, index, limit, salt)
            for index, (prompt, salt) in enumerate(zip(prompts, salts, strict=True))
        ]
        counts_requests = self.cell.load == "single" and not is_warmup
        counts_repetition = self.cell.load != "single" and not is_warmup
        if counts_repetition:
            await ledger.note("before")
        requests = [self._request(*each) for each in zip(prompts, asked, strict=True)]
        async with self._death_ends_what_is_in_flight():
            if self.fleet is not None and self.cell.clients and not is_warmup:
                load = await self._load_of_fleet(self.fleet, where.repetition, requests, spool)
            else:
                around = ledger if counts_requests else None
                load = await self._load(where.repetition, requests, around, spool)
        if counts_repetition:
            await ledger.note("after")
        return asked, load

    async def _load(
        self, repetition: int, requests: Sequence[bytes], around: "_Ledger | None", spool: Spool
    ) -> Load:
        return await run_load(
            self.cell.load,
            requests,
            self._transport,
            concurrency=self.cell.concurrency,
            arrivals_s=arrivals_s(self.workload, repetition, len(requests)),
            around=around,
            retries=self.workload.retries,
            max_rate_per_s=self.variant.engine.max_rate_per_s,
            patience=self._patience,
            spool=spool,
        )

    async def _load_of_fleet(
        self, fleet: Fleet, repetition: int, requests: Sequence[bytes], spool: Spool
    ) -> Load:
        assert self.cell.clients is not None
        return await fleet.run_load(
            self.cell.load,
            requests,
            clients=self.cell.clients,
            endpoint=self._endpoint,
            timeouts=self._timeouts,
            concurrency=self.cell.concurrency,
            arrivals_s=arrivals_s(self.workload, repetition, len(requests)),
            retries=self.workload.retries,
            patience=self._patience,
            spool=spool,
        )

    def _prompts(self, repetition: int) -> tuple[Prompt, ...]:
        warmup = self.workload.warmup if repetition < 0 else None
        return requests_of(self.cell, warmup or self.workload.prompts, repetition)

    def _salts(self, repetition: int, count: int) -> tuple[str | None, ...]:
        """Nothing where the engine has words of its own for a prompt that no cache may answer."""
        as_written = self.cell.cache == "warm" or self.engine.adapter.uncached is not None
        if as_written or repetition < 0:
            return (None,) * count
        return salts_of(self.workload, self.cell.concurrency, repetition, self.again)

    def _request(self, prompt: Prompt, asked: Asked) -> bytes:
        adapter = self.engine.adapter
        ask = Ask(
            model=self.cell.target,
            messages=salted(prompt.messages, asked.salt) if asked.salt else prompt.messages,
            max_tokens=asked.max_tokens,
            sampling=self.cell.sampling,
            length=self.cell.length,
        )
        body = adapter.request_body(ask)
        if self.cell.cache == "cold" and adapter.uncached is not None:
            # the run's id too: an attached server may remember what another run sent; hashed, as
            # vLLM takes 128 characters at most and no slash
            body |= adapter.uncached(
                keys.short_hash([asked.where.run_id, asked.where.request_id], length=32)
            )
        return self._transport.encode(msgspec.json.encode(body))

    def _asked(
        self, where: Where, prompt: Prompt, index: int, max_tokens: int, salt: str | None
    ) -> Asked:
        return Asked(
            where=replace(where, request_id=_request_id(where, index)),
            prompt_id=prompt.prompt_id,
            kind=prompt.kind,
            index=index,
            max_tokens=max_tokens,
            forced=self.cell.length == "forced",
            salt=salt,
        )

    # --- engines that go away ---------------------------------------------------------------------

    @asynccontextmanager
    async def _death_ends_what_is_in_flight(self) -> AsyncIterator[None]:
        """A child of a dead engine may hold its sockets open, and then no read ever ends."""
        process = self.engine.process
        if process is None:
            yield
            return

        async def watch() -> None:
            code = await process.wait()
            await asyncio.sleep(DEATH_NOTICE_S)
            message = f"the engine's process ended with exit code {code}"
            self._transport.fail_all(RequestError(kind="truncated", message=message))

        watching = asyncio.create_task(watch())
        try:
            yield
        finally:
            watching.cancel()

    async def _refuse_dead_engine(self, parsed: ParsedRepetition) -> None:
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
        if self.engine.process is None and _none_connected(parsed.requests):
            raise BootError(
                f"{self.engine.boot.url} takes no connections any more; start that server again, "
                "then `dflashbench resume`"
            )

    def _refuse_hung_engine(self) -> None:
        if self._patience.exhausted:
            raise BootError(
                f"the engine of {self.cell.variant!r} hangs: during {self.cell.cell_id} "
                f"{self._patience.unanswered} requests in a row went unanswered; what was measured "
                "is kept, `dflashbench resume` runs the rest (raise `timeouts` if the engine only "
                f"needs longer); {self.engine.last_words()}"
            )


def label_of(repetition: int, repetitions: int) -> str:
    if repetition < 0:
        return f"warm-up, pass {-repetition}"
    return f"repetition {repetition + 1} of {repetitions}"


def _none_connected(requests: tuple[Request, ...]) -> bool:
    return all(request.error and request.error.kind == "connect" for request in requests)


# --- what a failed request leaves behind ----------------------------------------------------------


@dataclass(kw_only=True)
class Ghosts:
    """Whether the engine may still be working on a request that the client gave up.

    A moment at which the engine said that it was quiet ends all ghosts of before.
    """

    _given_up_ns: list[int] = field(default_factory=list)
    _quiet_ns: list[int] = field(default_factory=list)

    def note(self, exchanges: tuple[Exchange, ...], snapshots: list[Snapshot]) -> None:
        self._given_up_ns += [each.end_ns for each in exchanges if _was_given_up(each)]
        self._quiet_ns += [each.at_ns for each in snapshots if each.quiet]

    def may_haunt(self, at_ns: int) -> bool:
        """A request that is sent at that moment."""
        given_up_ns = max((each for each in self._given_up_ns if each <= at_ns), default=None)
        if given_up_ns is None:
            return False
        return not any(given_up_ns <= quiet_ns <= at_ns for quiet_ns in self._quiet_ns)


def _was_given_up(exchange: Exchange) -> bool:
    """Answered with an error, or never connected, the engine works on nothing."""
    return exchange.error is not None and exchange.error.kind in ("timeout", "stall", "truncated")


# --- counters -------------------------------------------------------------------------------------


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


def _request_id(where: Where, index: int) -> str:
    return f"{where.cell_id}.{where.boot_id}.{where.repetition}.{index}"


# --- from the spool to the folder -----------------------------------------------------------------


async def append_spool(
    folder: RunFolder, spool: Path, adapter_name: str, parser: Parser
) -> ParsedRepetition:
    """Parse in the worker, append with the end last, and drop the spool."""
    parsed = await parser.parse(spool, folder.path, adapter_name)
    folder.append(*parsed.requests, *parsed.snapshots, parsed.end)
    spool.unlink()
    return parsed
