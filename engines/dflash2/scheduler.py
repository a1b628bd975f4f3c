"""The queue in front of the engine: first come, first served, one request at a time, own thread.

Knows jobs, their order and their end; knows neither HTTP nor what a request contains. The worker
thread alone decodes and books, so that an event loop beside it stays free for /health and /metrics.
"""

from __future__ import annotations

import threading
import time
import traceback
from collections import deque
from collections.abc import Callable, Generator
from contextlib import closing
from dataclasses import dataclass, field
from typing import Literal

from engines.dflash2.engine import Finished, GenerationRequest, Piece
from engines.dflash2.metrics import FINISH_REASONS, Ledger

SHUTTING_DOWN = "the server is shutting down"


@dataclass(frozen=True, kw_only=True)
class Failed:
    """The end of a job that got no answer, through no fault of its request."""

    message: str
    code: Literal["internal_error", "shutting_down"]


Delivery = Piece | Finished | Failed
Run = Callable[[GenerationRequest, float], Generator[Piece | Finished, None, None]]


@dataclass(kw_only=True, eq=False)
class Job:
    """One request in the queue; `deliver` is called in the worker's thread."""

    request: GenerationRequest
    deliver: Callable[[Delivery], None]
    queued_at_s: float
    cancelled: threading.Event = field(default_factory=threading.Event)


@dataclass(frozen=True, kw_only=True)
class Status:
    """A consistent look at the queue and the books."""

    num_running: int
    num_waiting: int
    ledger: Ledger
    finished: dict[str, int]  # by reason, see metrics.FINISH_REASONS

    @property
    def quiet(self) -> bool:
        return self.num_running == 0 and self.num_waiting == 0


class Scheduler:
    """Runs jobs in a thread of its own, from `start` to `stop`."""

    def __init__(self, run: Run, clock: Callable[[], float] = time.perf_counter) -> None:
        self._run = run
        self._clock = clock
        self._changed = threading.Condition()  # guards everything below
        self._waiting: deque[Job] = deque()
        self._running: Job | None = None
        self._stopping = False
        self._ledger = Ledger()
        self._finished = dict.fromkeys(FINISH_REASONS, 0)
        # A daemon, because a prefill cannot be interrupted and must not keep the process alive.
        self._worker = threading.Thread(target=self._work, name="dflash2-worker", daemon=True)

    def start(self) -> None:
        self._worker.start()

    def submit(self, request: GenerationRequest, deliver: Callable[[Delivery], None]) -> Job:
        job = Job(request=request, deliver=deliver, queued_at_s=self._clock())
        with self._changed:
            if not self._stopping:
                self._waiting.append(job)
                self._changed.notify()
                return job
        deliver(Failed(message=SHUTTING_DOWN, code="shutting_down"))
        return job

    def cancel(self, job: Job) -> None:
        """Forget a job whose client has gone: at once if it waits, after its round if it runs."""
        job.cancelled.set()
        with self._changed:
            if job in self._waiting:
                self._waiting.remove(job)
                self._finished["abort"] += 1

    def status(self) -> Status:
        with self._changed:
            return Status(
                num_running=int(self._running is not None),
                num_waiting=len(self._waiting),
                ledger=self._ledger,
                finished=dict(self._finished),
            )

    def stop(self) -> None:
        """Tell every job's client that it will get no answer, and let the worker end.

        Returns at once, although the running job's round, or its long prefill, goes on: what it
        still delivers comes after the end and is not read.
        """
        with self._changed:
            self._stopping = True
            unanswered = (
                [*self._waiting] if self._running is None else [self._running, *self._waiting]
            )
            self._finished["error"] += len(self._waiting)
            self._waiting.clear()
            self._changed.notify()
        for job in unanswered:
            job.deliver(Failed(message=SHUTTING_DOWN, code="shutting_down"))
            job.cancelled.set()

    def join(self, timeout_s: float) -> bool:
        """Whether the worker has ended."""
        self._worker.join(timeout_s)
        return not self._worker.is_alive()

    def _work(self) -> None:
        while (job := self._next()) is not None:
            self._run_job(job)

    def _next(self) -> Job | None:
        """The oldest waiting job, now running; None when the scheduler stops."""
        with self._changed:
            self._changed.wait_for(lambda: self._waiting or self._stopping)
            if self._stopping:
                return None
            self._running = self._waiting.popleft()
            return self._running

    def _run_job(self, job: Job) -> None:
        end: Finished | Failed | None
        try:
            end = self._decode(job)
        except Exception as error:  # whatever went wrong with one request, the next one is served
            traceback.print_exc()
            end = Failed(
                message=f"internal error: {type(error).__name__}: {error}", code="internal_error"
            )
        # The books are closed before the client hears of the end, so that whoever has read an
        # answer finds it counted and the engine quiet.
        self._close(job, end)
        if not job.cancelled.is_set() and end is not None:
            job.deliver(end)

    def _decode(self, job: Job) -> Finished | None:
        """Deliver the pieces as they come; the job's end, None if nobody waits for it any more."""
        with closing(self._run(job.request, self._clock() - job.queued_at_s)) as pieces:
            for piece in pieces:
                if isinstance(piece, Finished):
                    return piece
                self._book(piece.entry)
                if job.cancelled.is_set():
                    return None
                job.deliver(piece)
        raise RuntimeError("the engine ended without saying how")

    def _book(self, entry: Ledger) -> None:
        with self._changed:
            self._ledger += entry

    def _close(self, job: Job, end: Finished | Failed | None) -> None:
        with self._changed:
            self._running = None
            self._finished[_reason(end)] += 1


def _reason(end: Finished | Failed | None) -> str:
    if end is None:
        return "abort"
    return end.finish_reason if isinstance(end, Finished) else "error"
