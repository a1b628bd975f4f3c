"""The queue in front of the engine: first come, first served, as many at once as it has slots for.

Knows jobs, their order and their end; knows neither HTTP nor what a request contains. The worker
thread alone decodes and books, so that an event loop beside it stays free for /health and /metrics.
"""

from __future__ import annotations

import math
import threading
import time
import traceback
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

from engines.dflash2.engine import Finished, GenerationRequest, Piece
from engines.dflash2.limits import MAX_WAITING
from engines.dflash2.metrics import FINISH_REASONS, Ledger

SHUTTING_DOWN = "the server is shutting down"


class QueueFull(Exception):  # noqa: N818 - the reason, which is no error of anybody's
    """There is no place to wait in. The message is fit for the client."""

    def __init__(self, num_waiting: int, retry_after_s: int) -> None:
        super().__init__(
            f"{num_waiting} requests are waiting and no more may; try again in {retry_after_s} s"
        )
        self.retry_after_s = retry_after_s


@dataclass(frozen=True, kw_only=True)
class Failed:
    """The end of a job that got no answer, through no fault of its request."""

    message: str
    code: Literal["internal_error", "shutting_down"]


Delivery = Piece | Finished | Failed


class Engine(Protocol):
    """`engine.Engine`, as far as the queue is concerned."""

    @property
    def max_concurrent_requests(self) -> int: ...

    def start(self, request: GenerationRequest, *, queued_at_s: float) -> Any: ...

    def step(self) -> list[tuple[Any, Piece | Finished | ArithmeticError]]: ...

    def abandon(self, answer: Any) -> None: ...

    def abandon_all(self) -> None: ...


@dataclass(kw_only=True, eq=False)
class Job:
    """One request in the queue; `deliver` is called in the worker's thread."""

    request: GenerationRequest
    deliver: Callable[[Delivery], None]
    queued_at_s: float
    started_at_s: float | None = None  # None while it waits
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

    def __init__(
        self,
        engine: Engine,
        *,
        max_waiting: int = MAX_WAITING,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        """max_waiting: beside those that can start at once."""
        self._engine = engine
        self.max_waiting = max_waiting
        self._clock = clock
        self._changed = threading.Condition()  # guards everything below
        self._waiting: deque[Job] = deque()
        self._running: dict[Any, Job] = {}  # by the engine's answer
        self._is_stopping = False
        self._ledger = Ledger()
        self._finished = dict.fromkeys(FINISH_REASONS, 0)
        self._num_ended, self._ended_s = 0, 0.0  # jobs that ran to their end, and for how long
        # A daemon, because a pass cannot be interrupted and must not keep the process alive.
        self._worker = threading.Thread(target=self._work, name="dflash2-worker", daemon=True)

    def start(self) -> None:
        self._worker.start()

    def submit(self, request: GenerationRequest, deliver: Callable[[Delivery], None]) -> Job:
        """Queue a request; QueueFull if too many wait already."""
        job = Job(request=request, deliver=deliver, queued_at_s=self._clock())
        with self._changed:
            if not self._is_stopping:
                num_free = self._engine.max_concurrent_requests - len(self._running)
                if len(self._waiting) >= self.max_waiting + num_free:
                    raise QueueFull(len(self._waiting), self._retry_after_s())
                self._waiting.append(job)
                self._changed.notify()
                return job
        deliver(Failed(message=SHUTTING_DOWN, code="shutting_down"))
        return job

    def cancel(self, job: Job) -> None:
        """Forget a job whose client has gone: at once if it waits, after its pass if it runs."""
        job.cancelled.set()
        with self._changed:
            if job in self._waiting:
                self._waiting.remove(job)
                self._finished["abort"] += 1

    def status(self) -> Status:
        with self._changed:
            return Status(
                num_running=len(self._running),
                num_waiting=len(self._waiting),
                ledger=self._ledger,
                finished=dict(self._finished),
            )

    def stop(self) -> None:
        """Tell every job's client that it will get no answer, and let the worker end.

        Returns at once, although the pass that runs goes on: what it still delivers comes after the
        end and is not read.
        """
        with self._changed:
            self._is_stopping = True
            unanswered = [job for job in self._running.values() if not job.cancelled.is_set()]
            unanswered += self._waiting
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

    def _retry_after_s(self) -> int:
        """When a place becomes free: with all slots busy, one request ends in this time."""
        if self._num_ended == 0:
            return 1
        mean_s = self._ended_s / self._num_ended
        return max(1, math.ceil(mean_s / self._engine.max_concurrent_requests))

    # --- the worker's thread ---

    def _work(self) -> None:
        while self._admit():
            try:
                results = self._engine.step()
            except Exception as error:  # whatever went wrong in a pass, the next ones are served
                self._fail_all(error)
            else:
                for answer, item in results:
                    self._hand_over(answer, item)

    def _admit(self) -> bool:
        """Let go whoever has left, and take in whoever there is a slot for; False: stop."""
        unfit: list[tuple[Job, Exception]] = []
        with self._changed:
            self._changed.wait_for(lambda: self._waiting or self._running or self._is_stopping)
            self._let_go()
            if self._is_stopping:
                return False
            while self._waiting and len(self._running) < self._engine.max_concurrent_requests:
                job = self._waiting.popleft()
                try:
                    answer = self._engine.start(job.request, queued_at_s=job.queued_at_s)
                except Exception as error:
                    self._finished["error"] += 1
                    unfit.append((job, error))
                else:
                    job.started_at_s = self._clock()
                    self._running[answer] = job
        for job, error in unfit:
            _tell(job, _failure(error))
        return True

    def _let_go(self) -> None:
        for answer, job in [*self._running.items()]:
            if job.cancelled.is_set():
                self._engine.abandon(answer)
                self._close(answer, "error" if self._is_stopping else "abort")

    def _hand_over(self, answer: Any, item: Piece | Finished | ArithmeticError) -> None:
        job = self._running[answer]
        if isinstance(item, Piece):
            with self._changed:
                self._ledger += item.entry
            _tell(job, item)
            return
        # The books are closed before the client hears of the end, so that whoever has read an
        # answer finds it counted and the engine quiet.
        if isinstance(item, Finished):
            self._close(answer, item.finish_reason)
            _tell(job, item)
        else:
            self._close(answer, "error")
            _tell(job, _failure(item))

    def _fail_all(self, error: Exception) -> None:
        """End every job that was in the pass: nobody knows whose fault it was."""
        self._engine.abandon_all()
        failure = _failure(error)
        for answer, job in [*self._running.items()]:
            self._close(answer, "error")
            _tell(job, failure)

    def _close(self, answer: Any, reason: str) -> None:
        with self._changed:
            job = self._running.pop(answer)
            self._finished[reason] += 1
            if job.started_at_s is not None and reason in ("stop", "length"):
                self._num_ended += 1
                self._ended_s += self._clock() - job.started_at_s


def _tell(job: Job, item: Delivery) -> None:
    if not job.cancelled.is_set():
        job.deliver(item)


def _failure(error: Exception) -> Failed:
    traceback.print_exception(error)
    message = f"internal error: {type(error).__name__}: {error}"
    return Failed(message=message, code="internal_error")
