"""The process in which repetitions are parsed: one per session, and another one if it dies.

It leaves the client's processor alone while a repetition runs, and a stream that kills the parser
costs no measurement: its spool lies on the disk, and is parsed again.
"""

import asyncio
import multiprocessing
import os
import signal
import threading
from collections.abc import Callable
from concurrent.futures import Executor, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from multiprocessing.connection import wait as wait_for_any
from pathlib import Path
from types import TracebackType

from harness.errors import ResultsError
from harness.run.parse import ParsedRepetition, parse_spool

ATTEMPTS = 2


def worker_process() -> Executor:
    return ProcessPoolExecutor(
        max_workers=1,
        mp_context=multiprocessing.get_context("spawn"),
        initializer=_prepare_worker,
    )


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


class Parser:
    """Parses spools, one after the other. `note` is told when the worker died."""

    def __init__(
        self, note: Callable[[str], None], start: Callable[[], Executor] = worker_process
    ) -> None:
        self._note = note
        self._start = start
        self._executor = start()

    async def parse(self, spool: Path, run: Path, adapter_name: str) -> ParsedRepetition:
        loop = asyncio.get_running_loop()
        for _ in range(ATTEMPTS):
            try:
                return await loop.run_in_executor(
                    self._executor, parse_spool, spool, run, adapter_name
                )
            except BrokenProcessPool:
                self._note(f"the process that parses died over {spool.name}; another one begins")
                self._executor = self._start()
        raise ResultsError(
            f"{spool}: the process that parses died {ATTEMPTS} times over it (is there memory "
            "enough?); the file is kept, and `dflashbench resume` parses it"
        )

    def __enter__(self) -> "Parser":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._executor.shutdown(wait=True, cancel_futures=True)
