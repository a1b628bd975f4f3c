"""The queue: order, visibility, cancelling, failing and stopping, with a scripted engine."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Iterator

import pytest

from engines.dflash2.engine import Finished, GenerationRequest, Piece
from engines.dflash2.metrics import prefill_entry
from engines.dflash2.sampling import SamplingParams
from engines.dflash2.scheduler import Delivery, Failed, Scheduler, Status


def request(first_token: int = 0) -> GenerationRequest:
    return GenerationRequest(
        prompt_ids=(first_token,),
        max_tokens=4,
        min_tokens=0,
        sampling=SamplingParams(),
        stop=(),
        ignore_eos=False,
    )


def piece(token: int) -> Piece:
    entry = prefill_entry(num_prompt_tokens=1, num_tokens=1, prefill_s=0.1)
    return Piece(text=str(token), token_ids=(token,), entry=entry)


END = Finished(finish_reason="stop", timings={})


class GatedEngine:
    """Gives one piece for each `let_go`, then ends; remembers what it was asked for."""

    def __init__(self) -> None:
        self.gate = threading.Semaphore(0)
        self.started: list[int] = []
        self.closed = threading.Event()

    def run(self, request: GenerationRequest, queue_s: float) -> Iterator[Piece | Finished]:
        self.started.append(request.prompt_ids[0])
        try:
            for token in range(3):
                assert self.gate.acquire(timeout=10)
                yield piece(token)
            yield END
        finally:
            self.closed.set()

    def let_go(self, num_pieces: int) -> None:
        self.gate.release(num_pieces)


@pytest.fixture
def engine() -> GatedEngine:
    return GatedEngine()


@pytest.fixture
def scheduler(engine: GatedEngine) -> Iterator[Scheduler]:
    scheduler = Scheduler(engine.run)
    scheduler.start()
    yield scheduler
    scheduler.stop()
    engine.let_go(100)
    assert scheduler.join(timeout_s=10)


def wait_for(scheduler: Scheduler, condition: Callable[[Status], bool]) -> Status:
    deadline_s = time.monotonic() + 10
    while not condition(status := scheduler.status()):
        assert time.monotonic() < deadline_s, status
        time.sleep(0.005)
    return status


def test_jobs_run_one_at_a_time_in_the_order_they_came(
    scheduler: Scheduler, engine: GatedEngine
) -> None:
    inbox: queue.Queue[Delivery] = queue.Queue()
    for first_token in (1, 2, 3):
        scheduler.submit(request(first_token), inbox.put)
    status = wait_for(scheduler, lambda status: status.num_running == 1)
    assert (status.num_waiting, status.quiet) == (2, False)
    assert engine.started == [1]
    engine.let_go(9)
    deliveries = [inbox.get(timeout=10) for _ in range(12)]
    assert engine.started == [1, 2, 3]
    assert deliveries == [piece(0), piece(1), piece(2), END] * 3
    assert scheduler.status().finished == {"stop": 3, "length": 0, "abort": 0, "error": 0}


def test_whoever_has_read_the_end_finds_it_counted_and_the_engine_quiet(
    scheduler: Scheduler, engine: GatedEngine
) -> None:
    seen_at_the_end: queue.Queue[Status] = queue.Queue()

    def deliver(item: Delivery) -> None:
        if isinstance(item, Finished):
            seen_at_the_end.put(scheduler.status())

    scheduler.submit(request(), deliver)
    engine.let_go(3)
    status = seen_at_the_end.get(timeout=10)
    assert status.quiet
    assert status.ledger.num_tokens == 3
    assert status.finished["stop"] == 1


def test_cancelling_the_running_job_frees_the_engine_within_one_round(
    scheduler: Scheduler, engine: GatedEngine
) -> None:
    inbox: queue.Queue[Delivery] = queue.Queue()
    job = scheduler.submit(request(), inbox.put)
    engine.let_go(1)
    assert inbox.get(timeout=10) == piece(0)
    scheduler.cancel(job)
    engine.let_go(1)
    status = wait_for(scheduler, lambda status: status.quiet)
    assert engine.closed.is_set()
    assert status.finished["abort"] == 1
    assert status.ledger.num_tokens == 2  # the round that was under way is counted
    assert inbox.empty()


def test_cancelling_a_waiting_job_takes_it_out_of_the_queue_at_once(
    scheduler: Scheduler, engine: GatedEngine
) -> None:
    scheduler.submit(request(1), lambda item: None)
    waiting = scheduler.submit(request(2), lambda item: None)
    wait_for(scheduler, lambda status: status.num_waiting == 1)
    scheduler.cancel(waiting)
    assert scheduler.status().num_waiting == 0
    engine.let_go(3)
    status = wait_for(scheduler, lambda status: status.quiet)
    assert engine.started == [1]
    assert status.finished["abort"] == 1


def test_an_internal_failure_ends_its_request_and_the_next_one_is_served(
    capfd: pytest.CaptureFixture[str],
) -> None:
    def run(request: GenerationRequest, queue_s: float) -> Iterator[Piece | Finished]:
        yield piece(0)
        if request.prompt_ids[0] == 13:
            raise ArithmeticError("logits are NaN")
        yield END

    scheduler = Scheduler(run)
    scheduler.start()
    inbox: queue.Queue[Delivery] = queue.Queue()
    scheduler.submit(request(13), inbox.put)
    scheduler.submit(request(1), inbox.put)
    assert [inbox.get(timeout=10) for _ in range(4)] == [
        piece(0),
        Failed(message="internal error: ArithmeticError: logits are NaN", code="internal_error"),
        piece(0),
        END,
    ]
    assert scheduler.status().finished == {"stop": 1, "length": 0, "abort": 0, "error": 1}
    scheduler.stop()
    assert scheduler.join(timeout_s=10)
    assert "ArithmeticError" in capfd.readouterr().err  # the traceback is for the log


def test_stopping_tells_all_clients_at_once_even_during_a_long_prefill(
    scheduler: Scheduler, engine: GatedEngine
) -> None:
    inbox: queue.Queue[Delivery] = queue.Queue()
    scheduler.submit(request(1), inbox.put)
    scheduler.submit(request(2), inbox.put)
    wait_for(scheduler, lambda status: status.num_running == 1)
    scheduler.stop()  # the engine is held before its first piece
    refusal = Failed(message="the server is shutting down", code="shutting_down")
    assert [inbox.get(timeout=10) for _ in range(2)] == [refusal, refusal]
    assert not scheduler.join(timeout_s=0)
    engine.let_go(1)
    assert scheduler.join(timeout_s=10)
    assert inbox.empty()
    scheduler.submit(request(3), inbox.put)
    assert inbox.get(timeout=10) == refusal
    assert engine.started == [1]
