"""A matrix on a cluster of nodes: whole, and whatever dies in the middle of it."""

import os
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from typing import Any

import psutil
import pytest

from harness.cluster import head
from harness.records import CellEnd, LogEntry, RepetitionEnd, Request, Session
from harness.run import commands
from harness.run.progress import PlainLines
from harness.store import RunFolder

from .conftest import Project

AddMachine = Callable[..., Any]
SLOW_ROUNDS = ("--round-ms", "60")


def run(project: Project, address: str, **matrix: Any) -> RunFolder:
    return head.run_matrix(
        project.matrix(**matrix),
        results_dir=project.results,
        progress=PlainLines(),
        address=address,
    )


def is_whole_and_nothing_is_there_twice(folder: RunFolder, *, per_cell: int) -> None:
    """Every planned cell is finished, with each of its requests once."""
    assert commands.exit_code(folder) == 0
    planned = {(b.block_id, c) for b in folder.manifest.plan.blocks for c in b.cell_ids}
    measured = [r.where for r in folder.usable(Request) if (r.where.repetition or 0) >= 0]
    counts = Counter((where.block_id, where.cell_id) for where in measured)
    assert counts == dict.fromkeys(planned, per_cell)
    assert len({(w.block_id, w.cell_id, w.repetition, w.request_id) for w in measured}) == len(
        measured
    )


def boots_that_overlap(folder: RunFolder) -> list[tuple[str, str]]:
    spans = sorted((boot.started_at, boot.stopped_at or "never") for boot in folder.boots())
    return [(stopped, begun) for (_, stopped), (begun, _) in pairwise(spans) if begun < stopped]


def sessions_of_blocks(folder: RunFolder) -> dict[str | None, str]:
    """Which session's figures stand for each block."""
    return {end.where.block_id: end.where.session_id for end in folder.usable(RepetitionEnd)}


# --- nothing dies ---------------------------------------------------------------------------------


def test_two_machines_share_a_matrix_by_whole_there_and_backs(
    ray_head: Any, add_machine: AddMachine, project: Project
) -> None:
    add_machine("first", box=1)
    add_machine("second", box=1)
    folder = run(project, ray_head.address, boots=4)
    is_whole_and_nothing_is_there_twice(folder, per_cell=2)
    by = sessions_of_blocks(folder)
    assert len({by[f"b{number}"] for number in (1, 2, 3, 4)}) == 1
    assert len({by[f"b{number}"] for number in (5, 6, 7, 8)}) == 1
    assert by["b1"] != by["b5"]
    assert {session.where.session_id for session in folder.read(Session)} == set(by.values())
    for end in folder.usable(RepetitionEnd):
        where = end.where
        rows = folder.read_events(where.cell_id, where.boot_id, where.repetition)  # type: ignore[arg-type]
        assert len(rows) == 2


def test_one_measures_at_a_time_on_one_device(
    ray_head: Any, add_machine: AddMachine, project: Project
) -> None:
    add_machine("only", box=1)
    folder = run(project, ray_head.address, boots=4)
    is_whole_and_nothing_is_there_twice(folder, per_cell=2)
    assert boots_that_overlap(folder) == []


@pytest.mark.usefixtures("_impatient")
def test_what_no_machine_can_run_is_given_up_in_bounded_time(
    ray_head: Any, add_machine: AddMachine, project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(head, "MACHINE_WAIT_S", 2.0)
    add_machine("only", box=1)
    folder = run(project, ray_head.address, resources="tower: 1")
    assert commands.exit_code(folder) == 3
    (told,) = {end.message for end in folder.read(CellEnd)}
    assert told is not None
    assert told.startswith("no machine with resources tower: 1 was free or came")


def test_a_machine_of_another_kind_measures_nothing_that_would_be_compared(
    ray_head: Any, add_machine: AddMachine, project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    add_machine("first", box=1)
    add_machine("second", box=1)
    monkeypatch.setattr(head, "about", _about_by_lock_folder)
    folder = run(project, ray_head.address, boots=4)
    is_whole_and_nothing_is_there_twice(folder, per_cell=2)
    assert boots_that_overlap(folder) == []


def _about_by_lock_folder() -> Any:
    """As if each node's processor were another."""
    import os

    from harness.cluster.node import About

    return About(
        hostname_hash="", device_key=os.environ["DFLASHBENCH_LOCK_DIR"], cpu="", accelerators=()
    )


def test_without_a_cluster_it_says_how_to_begin_one(project: Project) -> None:
    with pytest.raises(head.UsageError, match="ray start --head"):
        run(project, "127.0.0.1:1")


# --- something dies -------------------------------------------------------------------------------


@contextmanager
def in_the_middle(project: Project, fault: Callable[[], object]) -> Iterator[None]:
    """`fault` strikes when the first repetition of the run has arrived at the head."""

    def strike() -> None:
        while not list(project.results.glob("*/repetitions.jsonl")):
            time.sleep(0.1)
        fault()

    thread = threading.Thread(target=strike, daemon=True)
    thread.start()
    yield
    thread.join(10.0)
    assert not thread.is_alive(), "the run ended before the fault could strike"


def processes(word: str, project: Project) -> list[psutil.Process]:
    """Of the machines of this test alone."""
    return [process for process in psutil.process_iter() if _is_ours(process, word, project)]


def _is_ours(process: psutil.Process, word: str, project: Project) -> bool:
    try:
        lock = process.environ().get("DFLASHBENCH_LOCK_DIR", "")
        return word in " ".join(process.cmdline()) and lock.startswith(str(project.path))
    except psutil.Error:
        return False


def kill_one(word: str, project: Project, number: int = signal.SIGKILL) -> int:
    victim = processes(word, project)[0]
    victim.send_signal(number)
    return victim.pid


@pytest.mark.slow
@pytest.mark.usefixtures("_impatient")
def test_another_machine_goes_on_where_one_was_lost(
    ray_head: Any, add_machine: AddMachine, project: Project
) -> None:
    by_lock = {str(project.path / name): add_machine(name, box=1) for name in ("first", "second")}

    def lose() -> None:
        (part,) = processes("harness.cluster.part", project)
        ray_head.remove_node(by_lock[part.environ()["DFLASHBENCH_LOCK_DIR"]])

    with in_the_middle(project, lose):
        folder = run(project, ray_head.address, repetitions=3, arguments=SLOW_ROUNDS)
    is_whole_and_nothing_is_there_twice(folder, per_cell=6)
    assert len(folder.read(Session)) == 2
    assert any("is lost with p1" in entry.message for entry in folder.read(LogEntry))
    assert not processes("harness.scripted_server", project)


@pytest.mark.slow
@pytest.mark.usefixtures("_impatient")
@pytest.mark.parametrize("word", ["ray::Node", "harness.cluster.part"])
def test_what_a_killed_actor_or_part_had_begun_is_measured_again(
    ray_head: Any, add_machine: AddMachine, project: Project, word: str
) -> None:
    add_machine("only", box=1)
    with in_the_middle(project, lambda: kill_one(word, project)):
        folder = run(project, ray_head.address, repetitions=3, arguments=SLOW_ROUNDS)
    is_whole_and_nothing_is_there_twice(folder, per_cell=6)
    assert len(folder.read(Session)) == 2
    assert not processes("harness.scripted_server", project)


@pytest.mark.slow
@pytest.mark.usefixtures("_impatient")
def test_a_node_that_falls_silent_stops_by_itself_and_is_not_counted_twice(
    ray_head: Any, add_machine: AddMachine, project: Project
) -> None:
    """As when the network between breaks: the actor does not answer, its part hears nothing."""
    for name in ("first", "second"):
        add_machine(name, box=1)
    silenced: list[int] = []

    def silence() -> None:
        silenced.append(kill_one("ray::Node", project, signal.SIGSTOP))

    with in_the_middle(project, silence):
        folder = run(project, ray_head.address, repetitions=3, arguments=SLOW_ROUNDS)
    is_whole_and_nothing_is_there_twice(folder, per_cell=6)
    assert any("answered nothing" in entry.message for entry in folder.read(LogEntry))
    _wait_until(lambda: not processes("harness.cluster.part", project))
    assert not processes("harness.scripted_server", project)
    for pid in silenced:
        if psutil.pid_exists(pid):
            os.kill(pid, signal.SIGKILL)


def _wait_until(condition: Callable[[], bool], patience_s: float = 30.0) -> None:
    end = time.monotonic() + patience_s
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.2)


@pytest.mark.slow
@pytest.mark.usefixtures("_impatient")
def test_a_machine_behind_a_cut_wire_is_lost_and_another_goes_on(
    ray_head: Any,
    far_machine: Any,
    add_machine: AddMachine,
    project: Project,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The wire is cut for good: what the far side measures afterwards reaches nobody."""
    add_machine("near", box=1)
    everywhere = head.machines
    monkeypatch.setattr(
        head, "machines", lambda: sorted(everywhere(), key=lambda each: "10.77." not in each.name)
    )
    with in_the_middle(project, far_machine.cut):
        folder = run(project, ray_head.address, repetitions=3, arguments=SLOW_ROUNDS)
    is_whole_and_nothing_is_there_twice(folder, per_cell=6)
    assert len(folder.read(Session)) == 2
    _wait_until(lambda: not processes("harness.cluster.part", project))
    assert not processes("harness.scripted_server", project)


DRIVER = """
import sys
from pathlib import Path
from harness.cluster import head
from harness.run.progress import PlainLines
head.run_matrix(Path(sys.argv[1]), results_dir=Path(sys.argv[2]), progress=PlainLines(),
                address=sys.argv[3])
"""


@pytest.mark.slow
@pytest.mark.usefixtures("_impatient")
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT])
def test_a_head_that_was_killed_or_stopped_is_resumed(
    ray_head: Any, add_machine: AddMachine, project: Project, number: int
) -> None:
    add_machine("only", box=1)
    matrix = project.matrix(repetitions=3, arguments=SLOW_ROUNDS)
    driver = subprocess.Popen(
        [sys.executable, "-c", DRIVER, str(matrix), str(project.results), ray_head.address],
        cwd=Path(head.PROJECT),
    )
    _wait_until(lambda: bool(list(project.results.glob("*/repetitions.jsonl"))), 60.0)
    driver.send_signal(number)
    driver.wait(60.0)
    _wait_until(lambda: not processes("harness.cluster.part", project))
    assert not processes("harness.scripted_server", project)
    (path,) = project.results.iterdir()
    assert commands.exit_code(RunFolder.open(path)) == 3
    folder = head.resume(path, progress=PlainLines(), address=ray_head.address)
    is_whole_and_nothing_is_there_twice(folder, per_cell=6)
