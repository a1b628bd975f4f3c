"""The queue: order, visibility, cancelling, failing and stopping, with a scripted engine."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import pytest

from engines.dflash2.engine import Finished, GenerationRequest, Piece
from engines.dflash2.metrics import prefill_entry
from engines.dflash2.sampling import SamplingParams
from engines.dflash2.scheduler import Delivery, Failed, QueueFull, Scheduler, Status

NUM_SLOTS = 2
BROKEN = 13  # a prompt at which the engine's pass fails
NAN = 14  # a prompt whose own logits are not numbers
UNFIT = 15  # a prompt that the engine refuses to start


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
REFUSAL = Failed(message="the server is shutting down", code="shutting_down")


@dataclass(kw_only=True, eq=False)
class ScriptedAnswer:
    name: int
    items: list[Any] = field(default_factory=lambda: [piece(0), piece(1), piece(2)])


class GatedEngine:
    """Moves every answer on by one piece for each `let_go`; remembers what it was asked for."""

    max_concurrent_requests = NUM_SLOTS

    def __init__(self) -> None:
        self.gate = threading.Semaphore(0)
        self.started: list[int] = []
        self.abandoned: list[int] = []
        self._answers: list[ScriptedAnswer] = []

    def start(self, request: GenerationRequest, *, queued_at_s: float) -> ScriptedAnswer:
        name = request.prompt_ids[0]
        if name == UNFIT:
            raise ValueError("it does not fit")
        assert len(self._answers) < NUM_SLOTS
        self.started.append(name)
        self._answers.append(ScriptedAnswer(name=name))
        return self._answers[-1]

    def abandon(self, answer: ScriptedAnswer) -> None:
        self.abandoned.append(answer.name)
        self._answers.remove(answer)

    def abandon_all(self) -> None:
        self.abandoned += [answer.name for answer in self._answers]
        self._answers.clear()

    def step(self) -> list[tuple[ScriptedAnswer, Any]]:
        if not self._answers:
            return []
        assert self.gate.acquire(timeout=10)
        if any(answer.name == BROKEN for answer in self._answers):
            raise ArithmeticError("the drafter's scores are NaN")
        found: list[tuple[ScriptedAnswer, Any]] = []
        for answer in [*self._answers]:
            if answer.name == NAN:
                found.append((answer, ArithmeticError("logits are NaN")))
                self._answers.remove(answer)
                continue
            found.append((answer, answer.items.pop(0)))
            if not answer.items:
                found.append((answer, END))
                self._answers.remove(answer)
        return found

    def let_go(self, num_passes: int) -> None:
        self.gate.release(num_passes)


@pytest.fixture
def engine() -> GatedEngine:
    return GatedEngine()


@pytest.fixture
def scheduler(engine: GatedEngine) -> Iterator[Scheduler]:
    scheduler = Scheduler(engine, max_waiting=2)
    scheduler.start()
    yield scheduler
    scheduler.stop()
    engine.let_go(100)
    assert scheduler.join(timeout_s=10)


class Inbox:
    """What one client hears."""

    def __init__(self) -> None:
        self._items: queue.Queue[Delivery] = queue.Queue()
        self.put = self._items.put

    def next(self) -> Delivery:
        return self._items.get(timeout=10)

    def take(self, count: int) -> list[Delivery]:
        return [self.next() for _ in range(count)]

    @property
    def is_empty(self) -> bool:
        return self._items.empty()


def wait_for(scheduler: Scheduler, condition: Callable[[Status], bool]) -> Status:
    deadline_s = time.monotonic() + 10
    while not condition(status := scheduler.status()):
        assert time.monotonic() < deadline_s, status
        time.sleep(0.005)
    return status


def running(scheduler: Scheduler, num_running: int) -> Status:
    return wait_for(scheduler, lambda status: status.num_running == num_running)


def test_as_many_jobs_run_as_there_are_slots_and_the_others_follow_in_order(
    scheduler: Scheduler, engine: GatedEngine
) -> None:
    inboxes = [Inbox() for _ in range(4)]
    for name, inbox in enumerate(inboxes):
        scheduler.submit(request(name), inbox.put)
    status = running(scheduler, 2)
    assert (status.num_waiting, status.quiet) == (2, False)
    assert engine.started == [0, 1]
    engine.let_go(3)
    for inbox in inboxes[:2]:
        assert inbox.take(4) == [piece(0), piece(1), piece(2), END]
    wait_for(scheduler, lambda status: (status.num_running, status.num_waiting) == (2, 0))
    assert engine.started == [0, 1, 2, 3]
    engine.let_go(3)
    for inbox in inboxes[2:]:
        assert inbox.take(4) == [piece(0), piece(1), piece(2), END]
    assert scheduler.status().finished == {"stop": 4, "length": 0, "abort": 0, "error": 0}


def test_a_job_that_comes_while_another_runs_joins_it_after_the_pass(
    scheduler: Scheduler, engine: GatedEngine
) -> None:
    first, second = Inbox(), Inbox()
    scheduler.submit(request(1), first.put)
    engine.let_go(1)
    assert first.next() == piece(0)
    scheduler.submit(request(2), second.put)
    engine.let_go(1)
    running(scheduler, 2)
    assert first.next() == piece(1)
    engine.let_go(3)
    assert first.take(2) == [piece(2), END]
    assert second.take(4) == [piece(0), piece(1), piece(2), END]


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


def test_b54_a_client_that_has_gone_frees_its_slot_within_one_pass_and_its_counts_are_final(
    scheduler: Scheduler, engine: GatedEngine
) -> None:
    gone, stays, waits = Inbox(), Inbox(), Inbox()
    job = scheduler.submit(request(1), gone.put)
    scheduler.submit(request(2), stays.put)
    scheduler.submit(request(3), waits.put)
    running(scheduler, 2)
    engine.let_go(1)
    assert gone.next() == piece(0)
    scheduler.cancel(job)
    engine.let_go(1)
    status = wait_for(scheduler, lambda status: status.num_waiting == 0)
    assert engine.abandoned == [1]
    assert engine.started == [1, 2, 3]
    assert status.finished["abort"] == 1
    # Two of each, counted before the slot was given away: the pass that was under way is the last.
    assert status.ledger.num_tokens == 4
    assert gone.is_empty
    engine.let_go(3)
    assert stays.take(4)[-1] == END
    assert waits.take(4)[-1] == END
    assert scheduler.status().ledger.num_tokens == 2 + 3 + 3


def test_cancelling_a_waiting_job_takes_it_out_of_the_queue_at_once(
    scheduler: Scheduler, engine: GatedEngine
) -> None:
    for name in (1, 2):
        scheduler.submit(request(name), lambda item: None)
    waiting = scheduler.submit(request(3), lambda item: None)
    running(scheduler, 2)
    scheduler.cancel(waiting)
    assert scheduler.status().num_waiting == 0
    engine.let_go(3)
    status = wait_for(scheduler, lambda status: status.quiet)
    assert engine.started == [1, 2]
    assert status.finished["abort"] == 1


def test_a_full_queue_refuses_and_says_when_to_come_back(
    scheduler: Scheduler, engine: GatedEngine
) -> None:
    for name in range(4):  # two that start at once, and two places to wait in
        scheduler.submit(request(name), lambda item: None)
    running(scheduler, 2)
    with pytest.raises(QueueFull, match="2 requests are waiting and no more may") as refused:
        scheduler.submit(request(4), lambda item: None)
    assert refused.value.retry_after_s == 1  # nothing has ended yet that could say more
    engine.let_go(3)
    wait_for(scheduler, lambda status: status.num_waiting == 0)
    scheduler.submit(request(5), lambda item: None)


def test_the_time_to_come_back_is_when_the_next_of_the_slots_is_expected_to_be_free() -> None:
    engine, now_s = GatedEngine(), [0.0]
    scheduler = Scheduler(engine, max_waiting=0, clock=lambda: now_s[0])
    scheduler.start()
    inbox = Inbox()
    scheduler.submit(request(1), inbox.put)
    running(scheduler, 1)
    now_s[0] = 15.0
    engine.let_go(3)
    assert inbox.take(4)[-1] == END
    for name in (2, 3):  # without a place to wait in, the free slots are still there to be used
        scheduler.submit(request(name), inbox.put)
    with pytest.raises(QueueFull) as refused:
        scheduler.submit(request(4), inbox.put)
    assert refused.value.retry_after_s == 8  # one request took 15 s, and two run at a time
    scheduler.stop()
    engine.let_go(100)
    assert scheduler.join(timeout_s=10)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        (NAN, "internal error: ArithmeticError: logits are NaN"),
        (UNFIT, "internal error: ValueError: it does not fit"),
    ],
)
def test_a_failure_of_one_job_ends_it_alone(
    scheduler: Scheduler,
    engine: GatedEngine,
    capfd: pytest.CaptureFixture[str],
    name: int,
    message: str,
) -> None:
    inbox, other = Inbox(), Inbox()
    scheduler.submit(request(1), other.put)
    running(scheduler, 1)
    scheduler.submit(request(name), inbox.put)
    engine.let_go(4)
    assert inbox.next() == Failed(message=message, code="internal_error")
    assert other.take(4) == [piece(0), piece(1), piece(2), END]
    assert scheduler.status().finished == {"stop": 1, "length": 0, "abort": 0, "error": 1}
    assert message.removeprefix("internal error: ") in capfd.readouterr().err  # for the log


def test_a_failure_of_a_pass_ends_all_its_jobs_and_the_next_ones_are_served(
    scheduler: Scheduler, engine: GatedEngine, capfd: pytest.CaptureFixture[str]
) -> None:
    inboxes = [Inbox() for _ in range(3)]
    for inbox, name in zip(inboxes, (BROKEN, 1, 2), strict=True):
        scheduler.submit(request(name), inbox.put)
    running(scheduler, 2)
    engine.let_go(4)
    message = "internal error: ArithmeticError: the drafter's scores are NaN"
    assert inboxes[0].next() == Failed(message=message, code="internal_error")
    assert inboxes[1].next() == Failed(message=message, code="internal_error")
    assert inboxes[2].take(4) == [piece(0), piece(1), piece(2), END]
    assert engine.abandoned == [BROKEN, 1]
    assert scheduler.status().finished == {"stop": 1, "length": 0, "abort": 0, "error": 2}
    assert "ArithmeticError" in capfd.readouterr().err


def test_stopping_tells_all_clients_at_once_even_during_a_long_pass(
    scheduler: Scheduler, engine: GatedEngine
) -> None:
    inbox = Inbox()
    for name in (1, 2, 3):
        scheduler.submit(request(name), inbox.put)
    running(scheduler, 2)
    scheduler.stop()  # the engine is held before its first piece
    scheduler.stop()  # and nobody hears of it twice
    assert inbox.take(3) == [REFUSAL] * 3
    assert not scheduler.join(timeout_s=0)
    engine.let_go(1)
    assert scheduler.join(timeout_s=10)
    assert inbox.is_empty
    scheduler.submit(request(4), inbox.put)
    assert inbox.next() == REFUSAL
    assert engine.started == [1, 2]
    status = scheduler.status()
    assert status.quiet
    assert status.finished == {"stop": 0, "length": 0, "abort": 0, "error": 3}
