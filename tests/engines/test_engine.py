"""The engine between requests and rounds: text, cuts, books and times, with scripted rounds."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from engines.dflash2.engine import Answer, Engine, Finished, GenerationRequest, Piece
from engines.dflash2.metrics import Ledger
from engines.dflash2.sampling import SamplingParams
from engines.dflash2.selector import NonFiniteError

from .serving.support import prefill, step

STOP_ID = 9


class Letters:
    """A tokenizer whose token n is the letter n: 0 is "a"."""

    def stream_decoder(self) -> Letters:
        return self

    def feed(self, token_ids: list[int]) -> str:
        return "".join(chr(ord("a") + token_id) for token_id in token_ids)

    def finish(self) -> str:
        return ""


class Clock:
    def __init__(self) -> None:
        self.now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


@dataclasses.dataclass(kw_only=True, eq=False)
class Scripted:
    rounds: Iterator[Any]
    stop_ids: frozenset[int]
    started_at_s: float | None = None


class Loop:
    """Gives each sequence its own script's next round in every step, which takes a second."""

    num_slots = 4
    num_bytes = 1000
    num_used_positions = 7

    def __init__(self, clock: Clock, *scripts: list[Any]) -> None:
        self._clock = clock
        self._scripts = iter(scripts)
        self.sequences: list[Scripted] = []

    def add(self, prompt_ids: tuple[int, ...], **wishes: Any) -> Scripted:
        rounds = iter(next(self._scripts))
        self.sequences.append(Scripted(rounds=rounds, stop_ids=wishes["stop_ids"]))
        return self.sequences[-1]

    def remove(self, sequence: Scripted) -> None:
        self.sequences.remove(sequence)

    def clear(self) -> None:
        self.sequences.clear()

    def step(self) -> list[tuple[Scripted, Any]]:
        found = []
        for sequence in [*self.sequences]:
            if sequence.started_at_s is None:
                sequence.started_at_s = self._clock.now_s
            outcome = next(sequence.rounds)
            found.append((sequence, outcome))
            if isinstance(outcome, Exception) or outcome.finish_reason is not None:
                self.sequences.remove(sequence)
        self._clock.now_s += 1.0
        return found


Make = Callable[..., tuple[Engine, Loop, Clock]]


@pytest.fixture
def make() -> Make:
    """make(script, ...): an engine, its loop and its clock; a script for each request to come."""

    def make(*scripts: list[Any]) -> tuple[Engine, Loop, Clock]:
        clock = Clock()
        loop = Loop(clock, *scripts)
        tokenizer: Any = Letters()
        engine = Engine(
            loop=loop,
            tokenizer=tokenizer,
            stop_ids=frozenset({STOP_ID}),
            kv_len=100,
            vocab_size=26,
            depth=7,
            block_size=8,
            clock=clock,
        )
        return engine, loop, clock

    return make


def request(**changes: Any) -> GenerationRequest:
    values: dict[str, Any] = {
        "prompt_ids": (1, 2, 3),
        "max_tokens": 50,
        "min_tokens": 0,
        "sampling": SamplingParams(),
        "stop": (),
        "ignore_eos": False,
    }
    return GenerationRequest(**{**values, **changes})


def run(engine: Engine, loop: Loop) -> list[tuple[Answer, Any]]:
    found: list[tuple[Answer, Any]] = []
    while loop.sequences:
        found += engine.step()
    return found


def texts(found: list[tuple[Answer, Any]], answer: Answer) -> list[str]:
    return [item.text for who, item in found if who is answer and isinstance(item, Piece)]


def test_a_stop_string_inside_an_accepted_block_ends_one_answer_and_frees_its_slot(
    make: Make,
) -> None:
    engine, loop, _ = make(
        [prefill(0), step([1, 2, 3, 4, 5, 6, 7, 8]), step([1])],
        [prefill(10), step([11, 12]), step([13], finish_reason="length")],
    )
    cut = engine.start(request(stop=("de",)))
    whole = engine.start(request())
    found = run(engine, loop)
    assert texts(found, cut) == ["a", "bc"]
    assert texts(found, whole) == ["k", "lm", "n"]
    pieces = [item for who, item in found if who is cut and isinstance(item, Piece)]
    assert pieces[1].token_ids == (1, 2, 3, 4)  # up to the token that completed the stop string
    assert pieces[1].entry.num_trimmed == 4
    ends = [item for _, item in found if isinstance(item, Finished)]
    assert [end.finish_reason for end in ends] == ["stop", "length"]


@pytest.mark.parametrize(
    ("changes", "stop_ids"),
    [
        ({}, {STOP_ID}),
        ({"ignore_eos": True}, set()),
        ({"stop_token_ids": frozenset({4})}, {STOP_ID, 4}),
        ({"ignore_eos": True, "stop_token_ids": frozenset({4})}, {4}),
    ],
)
def test_ignore_eos_takes_away_the_models_stop_tokens_and_not_the_requests(
    make: Make, changes: dict[str, Any], stop_ids: set[int]
) -> None:
    engine, loop, _ = make([])
    engine.start(request(**changes))
    assert loop.sequences[0].stop_ids == stop_ids


def test_a_request_waited_for_the_whole_of_each_pass_and_the_books_have_it_once(
    make: Make,
) -> None:
    shared = dataclasses.replace(step([1, 2]), draft_s=0.3, verify_s=0.9, num_sharing=3)
    last = dataclasses.replace(shared, finish_reason="length")
    engine, loop, _ = make(*[[prefill(0), shared, last]] * 3)
    answers = [engine.start(request()) for _ in range(3)]
    found = run(engine, loop)
    for answer in answers:
        (timings,) = [i.timings for a, i in found if a is answer and isinstance(i, Finished)]
        assert timings["draft_ms"] == pytest.approx(600)
        assert timings["verify_ms"] == pytest.approx(1800)
    books = sum((i.entry for _, i in found if isinstance(i, Piece)), Ledger())
    assert books.draft_s == pytest.approx(0.6)
    assert books.verify_s == pytest.approx(1.8)
    assert (books.num_requests, books.num_rounds) == (3, 6)
    # tokens = requests + rounds + plain steps + accepted - trimmed
    assert books.num_tokens == 3 + 6 + 0 + books.num_accepted - books.num_trimmed == 15


def test_times_of_a_request_add_up_to_the_time_from_its_arrival_to_its_last_token(
    make: Make,
) -> None:
    engine, loop, clock = make(
        [prefill(0), *[step([1])] * 9, step([1], finish_reason="length")],
        [prefill(0), step([1]), step([1], finish_reason="length")],
    )
    engine.start(request())
    engine.step()
    arrived_at_s = clock.now_s - 0.25
    late = engine.start(request(), queued_at_s=arrived_at_s)
    loop.sequences[1].started_at_s = clock.now_s + 0.5  # a round of the other came first
    found = run(engine, loop)
    (end,) = [item for who, item in found if who is late and isinstance(item, Finished)]
    assert end.timings["queue_ms"] == 750
    assert end.timings["prompt_ms"] == 500  # with whatever else was done between its chunks
    assert end.timings["predicted_ms"] == 2000
    assert end.timings["predicted_per_second"] == 1.0


def test_an_abandoned_request_leaves_the_loop_and_is_heard_of_no_more(make: Make) -> None:
    engine, loop, _ = make([prefill(0), step([1])], [prefill(5), step([6], finish_reason="stop")])
    gone, stays = engine.start(request()), engine.start(request())
    engine.step()
    engine.abandon(gone)
    assert len(loop.sequences) == 1
    assert {who for who, _ in run(engine, loop)} == {stays}


def test_a_failed_sequence_ends_its_own_answer_with_the_error(make: Make) -> None:
    engine, loop, _ = make(
        [prefill(0), step([1], finish_reason="length")], [NonFiniteError("logits are NaN")]
    )
    healthy, failed = engine.start(request()), engine.start(request())
    found = run(engine, loop)
    assert [str(item) for who, item in found if who is failed] == ["logits are NaN"]
    assert texts(found, healthy) == ["a", "b"]


def test_when_all_requests_are_abandoned_the_next_one_finds_an_empty_loop(make: Make) -> None:
    engine, loop, _ = make([prefill(1)], [prefill(1)], [prefill(1, "length")])
    for _ in range(2):
        engine.start(request())
    loop.remove(loop.sequences[0])  # a step that failed had got so far
    engine.abandon_all()
    assert loop.sequences == []
    answer = engine.start(request())
    assert [(who, type(item)) for who, item in run(engine, loop)] == [
        (answer, Piece),
        (answer, Finished),
    ]


def test_one_request_alone_gives_pieces_and_how_it_ended(make: Make) -> None:
    engine, loop, _ = make([prefill(0), step([1, 2], finish_reason="length")])
    *pieces, end = engine.generate(request())
    assert [piece.text for piece in pieces if isinstance(piece, Piece)] == ["a", "bc"]
    assert isinstance(end, Finished)
    assert loop.sequences == []


def test_closing_a_request_alone_frees_its_slot(make: Make) -> None:
    engine, loop, _ = make([prefill(0), step([1])])
    pieces = engine.generate(request())
    next(pieces)
    pieces.close()
    assert loop.sequences == []


def test_the_engine_says_how_much_it_can_hold_and_holds(make: Make) -> None:
    engine, _, _ = make()
    assert engine.max_concurrent_requests == 4
    assert (engine.kv_bytes, engine.kv_used_tokens) == (1000, 7)
    assert engine.kv_capacity_tokens == 4 * 100
