"""Pieces of the runner that need no engine; tests/e2e/test_run.py has whole runs."""

import asyncio
import io
import os
import signal
from concurrent.futures import Executor, ProcessPoolExecutor, ThreadPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console

from harness.errors import ResultsError
from harness.records import (
    Cell,
    Manifest,
    Plan,
    RepetitionEnd,
    Request,
    RequestError,
    Sampling,
    Snapshot,
    Where,
)
from harness.run import commands, runner
from harness.run.client import new_exchange
from harness.run.parse import ParsedRepetition
from harness.run.progress import Bar, PlainLines, time_left
from harness.run.raw import Asked, RawExchange, RawRepetition, finish_spool, read_spool
from harness.run.spool import Spool
from harness.run.turn import Ghosts
from harness.run.worker import Parser, worker_process
from harness.scripted_server import DONE, chunk, event, usage
from harness.store import RunFolder

WHERE = Where(
    run_id="r", session_id="s1", block_id="b1", boot_id="b1-s1", cell_id="cell", repetition=0
)
NOON = "2026-01-01T12:00:00.000Z"


def repetition() -> RawRepetition:
    """One request that went well and one whose stream broke off."""
    last = event({"choices": [], "usage": usage(5, 2)})
    reads = ((1_100, chunk({"content": "\u4e2d "})), (2_100, chunk({}, "stop") + last + DONE))
    where = replace(WHERE, request_id="cell.b1-s1.0.0")
    whole = RawExchange(
        asked=Asked(where=where, prompt_id="p", kind="prose", index=0, max_tokens=9),
        started_at=NOON,
        t_sched_ns=50,
        t0_ns=100,
        end_ns=2_200,
        connect_s=None,
        http_status=200,
        content_type="text/event-stream",
        content_encoding="",
        reads=reads,
        error=None,
    )
    other = replace(where, request_id="cell.b1-s1.0.1")
    torn = replace(
        whole, asked=replace(whole.asked, where=other, index=1), reads=reads[:1], number=1
    )
    end = RepetitionEnd(
        where=WHERE,
        started_at=NOON,
        window_s=1.0,
        num_requests=2,
        num_failed=0,
        in_flight_max=1,
        cpu_share=None,
        loop_lag_max_s=None,
    )
    before = Snapshot(
        where=where,
        scope="request",
        moment="before",
        at_ns=40,
        quiet=True,
        settle_s=0.0,
        counters=None,
        error=None,
    )
    return RawRepetition(end=end, exchanges=(whole, torn), snapshots=(before,))


def folder_of(tmp_path) -> RunFolder:
    cell = Cell(
        cell_id="cell",
        variant="plain",
        workload="generate",
        prompt_set="two",
        concurrency=1,
        load="single",
        assignment="balanced",
        length="natural",
        sampling=Sampling(),
        max_tokens=9,
        repetitions=1,
        num_requests=2,
        engine="e",
        adapter="openai",
        target="m",
        drafter=None,
        k=None,
        workload_key="w",
        subject_key="s",
        protocol_id="p",
        reference_cell_id=None,
        reference_reason=None,
    )
    manifest = Manifest(
        schema=1,
        run_id="r",
        created_at=NOON,
        tool="dflashbench",
        matrix_yaml="",
        matrix_path="m.yaml",
        name="m",
        purpose="smoke",
        prompt_sets={},
        prompt_kinds={},
        models={},
        held_constant={},
        plan=Plan(cells=(cell,), blocks=(), plan_hash="h", estimated_s=None),
    )
    return RunFolder.create(tmp_path, manifest)


def test_a_spool_gives_back_what_was_put_in(tmp_path):
    path = spooled(folder_of(tmp_path))
    assert read_spool(path) == repetition()
    assert [found.name for found in path.parent.iterdir()] == ["cell.b1-s1.0.bin"]


def spooled(folder: RunFolder) -> Path:
    """As a repetition leaves it: reads as they came, then the rest."""
    spool, whole = Spool(folder.spool_path("cell", "b1-s1", 0)), repetition()
    for exchange in whole.exchanges:
        for at_ns, data in exchange.reads:
            spool.append(exchange.number, at_ns, data)
    bare = tuple(replace(exchange, reads=()) for exchange in whole.exchanges)
    return finish_spool(spool, replace(whole, exchanges=bare))


def test_reads_of_an_attempt_that_was_given_up_belong_to_nobody(tmp_path):
    spool, whole = Spool(tmp_path / "a.bin"), repetition()
    spool.append(0, 1_000, b"too many requests")
    spool.append(5, 1_100, b"data")
    second = replace(whole.exchanges[0], reads=(), number=5, attempts=2)
    path = finish_spool(spool, replace(whole, exchanges=(second,)))
    assert read_spool(path).exchanges == (replace(second, reads=((1_100, b"data"),)),)


def test_a_spool_that_is_none_is_named_with_what_to_do(tmp_path):
    path = tmp_path / "a.bin"
    path.write_bytes(b"")  # no trailer
    with pytest.raises(ResultsError, match=r"a\.bin.*remove the file"):
        read_spool(path)


@pytest.fixture
def _parser_in_a_thread(monkeypatch):
    def parser(note):
        return Parser(note, start=lambda: ThreadPoolExecutor(1))

    monkeypatch.setattr(runner, "Parser", parser)


@pytest.mark.usefixtures("_parser_in_a_thread")
async def test_what_a_killed_session_spooled_is_parsed_later(tmp_path):
    folder = folder_of(tmp_path)
    spooled(folder)
    torn = folder.path / "spool" / "cell.b1-s1.1.bin.part"
    torn.write_bytes(b"a repetition that was running")
    await runner.recover(folder, PlainLines())
    (end,) = folder.read(RepetitionEnd)
    assert (end.num_requests, end.num_failed) == (2, 1)
    assert [snapshot.moment for snapshot in folder.read(Snapshot)] == ["before"]
    # sent at 100 ns, [DONE] at 2,100; the torn one was given up at 2,200
    assert end.window_s == 2_100e-9
    assert [request.status for request in folder.read(Request)] == ["ok", "failed"]
    assert folder.read_events("cell", "b1-s1", 0)[0].text == "\u4e2d "
    assert list((folder.path / "spool").iterdir()) == []


@pytest.mark.usefixtures("_parser_in_a_thread")
async def test_a_spool_whose_records_are_there_is_only_removed(tmp_path):
    folder = folder_of(tmp_path)
    folder.append(repetition().end)
    spooled(folder)
    await runner.recover(folder, PlainLines())
    assert len(folder.read(RepetitionEnd)) == 1
    assert list((folder.path / "spool").iterdir()) == []


# --- the process that parses ----------------------------------------------------------------------


class Dies:
    """An executor whose worker dies as often as told."""

    def __init__(self, times: int) -> None:
        self.left = times
        self.started = 0

    def __call__(self) -> Executor:
        self.started += 1
        return self

    def submit(self, work, *arguments):
        with ThreadPoolExecutor(1) as pool:
            return pool.submit(self._work, work, *arguments)

    def _work(self, work, *arguments):
        if self.left:
            self.left -= 1
            raise BrokenProcessPool
        return work(*arguments)

    def shutdown(self, **_: bool) -> None:
        pass


async def test_a_worker_that_died_is_told_and_its_spool_parsed_again(tmp_path):
    folder, said, dies = folder_of(tmp_path), [], Dies(1)
    with Parser(said.append, start=dies) as parser:
        parsed = await parser.parse(spooled(folder), folder.path, "openai")
    assert isinstance(parsed, ParsedRepetition)
    assert len(parsed.requests) == 2
    assert dies.started == 2
    assert said == ["the process that parses died over cell.b1-s1.0.bin; another one begins"]


async def test_a_spool_that_kills_every_worker_is_kept_and_named(tmp_path):
    folder = folder_of(tmp_path)
    spool = spooled(folder)
    with (
        Parser(lambda _: None, start=Dies(9)) as parser,
        pytest.raises(ResultsError, match=r"cell\.b1-s1\.0\.bin: .* died 2 times .* resume"),
    ):
        await parser.parse(spool, folder.path, "openai")
    assert spool.exists()


async def test_a_real_worker_is_replaced_when_it_is_killed(tmp_path):
    folder, said = folder_of(tmp_path), []
    spool = spooled(folder)
    executors: list[ProcessPoolExecutor] = []

    def start() -> Executor:
        executors.append(worker_process())
        return executors[-1]

    with Parser(said.append, start=start) as parser:
        executors[0].submit(os.getpid).result()
        (worker,) = executors[0]._processes.values()
        worker.kill()
        worker.join()
        parsed = await parser.parse(spool, folder.path, "openai")
    assert len(parsed.requests) == 2
    assert len(said) == 1
    executors[0].shutdown()


# --- after a failure ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("quiet_ns", "at_ns", "haunted"),
    [
        (None, 300, True),  # given up at 200, and nobody knows what the engine does
        (None, 150, False),  # sent before it was given up
        (250, 300, False),  # the engine said in between that it was quiet
        (350, 300, True),
        (100, 300, True),
    ],
)
async def test_b54_a_request_after_one_that_was_given_up_is_known_as_such(quiet_ns, at_ns, haunted):
    given_up = new_exchange(b"")
    given_up.finish(RequestError(kind="timeout", message=""), 200)
    answered = new_exchange(b"")
    answered.finish(None, 120)
    before = repetition().snapshots[0]
    snapshots = [replace(before, at_ns=quiet_ns)] if quiet_ns is not None else []
    ghosts = Ghosts()
    ghosts.note((given_up, answered), snapshots)
    assert ghosts.may_haunt(at_ns) is haunted


# --- signals --------------------------------------------------------------------------------------


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_lets_work_clean_up_and_a_second_one_does_not_disturb_it(number):
    cleaned: list[str] = []

    async def work() -> None:
        try:
            os.kill(os.getpid(), number)
            await asyncio.sleep(30)
        finally:
            os.kill(os.getpid(), number)
            await asyncio.sleep(0.05)
            cleaned.append("yes")

    with pytest.raises(KeyboardInterrupt):
        commands.run_until_stopped(work())
    assert cleaned == ["yes"]


# --- progress -------------------------------------------------------------------------------------


def test_plain_lines_say_share_and_cell(capsys):
    lines = PlainLines()
    lines.begin("run r", 8.0)
    lines.at("cell  repetition 1 of 2")
    lines.advance(2.0)
    lines.end()
    said = capsys.readouterr().err.splitlines()
    assert said[0] == "run r"
    assert said[1].startswith(" 25%  cell  repetition 1 of 2  about ")


def test_a_bar_on_a_terminal():
    screen = io.StringIO()
    bar = Bar(Console(file=screen, force_terminal=True, width=120))
    bar.begin("run r", 8.0)
    bar.at("cell")
    bar.advance(2.0)
    bar.note("a note [in] brackets")
    bar.end()
    assert "25 %" in screen.getvalue()
    assert "a note [in] brackets" in screen.getvalue()


def test_the_time_left_in_words():
    assert time_left(None) == ""
    assert time_left(40.4) == "about 40 s left"
    assert time_left(600) == "about 10 min left"
