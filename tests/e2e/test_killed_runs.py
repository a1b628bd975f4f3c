"""Killed at any moment, harness or engine: once resumed, a run holds what an unbroken one holds.

The moments come from a seed, so a failure can be had again on the same machine; how far a run had
come by then is the machine's business, and every outcome has to be a good one.
"""

import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import psutil
import pytest

from harness.records import Boot, RepetitionEnd, Request, Session, Snapshot
from harness.run import commands
from harness.store import FILES, RunFolder

from .conftest import Project

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(sys.platform != "linux", reason="only Linux ends a process with its parent"),
]

CHECKOUT = Path(__file__).parents[2]
HARNESS_KILLS = 20
ENGINE_KILLS = 10
NO_KILL_BEFORE_END_S = 120.0

DRIVER = """
import sys
from pathlib import Path
from harness.run import commands
from harness.run.progress import PlainLines
from tests.e2e.conftest import known_calibration
commands.calibrate = known_calibration
if __name__ == "__main__":
    matrix, results = map(Path, sys.argv[1:])
    begun = sorted(results.glob("*/manifest.json"))
    if begun:
        folder = commands.resume(begun[-1].parent, progress=PlainLines())
    else:
        folder = commands.run_matrix(matrix, results_dir=results, progress=PlainLines())
    sys.exit(commands.exit_code(folder))
"""


def go_on(project: Project) -> subprocess.Popen[bytes]:
    """Begin the run, or go on with it, in a process of its own."""
    script = project.path / "driver.py"
    script.write_text(DRIVER)
    matrix = project.matrix(arguments=("--round-ms", "4"), boots=2)
    return subprocess.Popen(
        [sys.executable, str(script), str(matrix), str(project.results)],
        cwd=project.path,
        env={**os.environ, "PYTHONPATH": str(CHECKOUT)},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
    )


def the_run(project: Project) -> RunFolder | None:
    manifests = list(project.results.glob("*/manifest.json"))
    assert len(manifests) <= 1
    return RunFolder.open(manifests[0].parent) if manifests else None


def answers(folder: RunFolder) -> dict[tuple[object, ...], tuple[object, ...]]:
    """What was asked, and what came back, without anything that only a clock decides."""
    counted = Counter(_place(request) for request in folder.usable(Request))
    assert set(counted.values()) == {1}, "a request stands twice"
    return {
        _place(request): (request.status, request.output_tokens, request.text_sha256)
        for request in folder.usable(Request)
        if (request.where.repetition or 0) >= 0
    }


def _place(request: Request) -> tuple[object, ...]:
    where = request.where
    return where.block_id, where.cell_id, where.repetition, request.index


def same_set(folder: RunFolder, unbroken: RunFolder) -> None:
    assert commands.exit_code(folder) == 0
    assert folder.finished_cells() == unbroken.finished_cells()
    assert answers(folder) == answers(unbroken)
    for kind in (RepetitionEnd, Snapshot):
        assert len(folder.usable(kind)) == len(unbroken.usable(kind))


@pytest.fixture(scope="module")
def unbroken(tmp_path_factory: pytest.TempPathFactory) -> RunFolder:
    project = Project(tmp_path_factory.mktemp("unbroken"))
    process = go_on(project)
    _, said = process.communicate(timeout=NO_KILL_BEFORE_END_S)
    assert process.returncode == 0, said.decode()
    folder = the_run(project)
    assert folder is not None
    return folder


def test_a_harness_killed_at_twenty_moments_leaves_the_set_of_an_unbroken_run(
    project: Project, unbroken: RunFolder
) -> None:
    draw = random.Random(20261130)
    finished: set[tuple[str, str]] = set()
    for _ in range(HARNESS_KILLS):
        process = go_on(project)
        _let_it_work(project, process, draw)
        process.kill()
        process.communicate(timeout=60)
        folder = the_run(project)
        if folder is None:
            continue  # killed before it began
        for kind in FILES:
            folder.read(kind)  # whatever is there can be read
        assert folder.finished_cells() >= finished, "what was finished was lost"
        finished = folder.finished_cells()
        if commands.exit_code(folder) == 0:
            same_set(folder, unbroken)
            _begin_anew(project)
            finished = set()
    process = go_on(project)
    _, said = process.communicate(timeout=NO_KILL_BEFORE_END_S)
    assert process.returncode == 0, said.decode()
    folder = the_run(project)
    assert folder is not None
    same_set(folder, unbroken)
    assert not _living_engines(folder)


def test_engines_killed_at_ten_moments_leave_the_set_of_an_unbroken_run(
    project: Project, unbroken: RunFolder
) -> None:
    draw = random.Random(20261201)
    killed: set[int] = set()
    while len(killed) < ENGINE_KILLS:
        process = go_on(project)
        while process.poll() is None and len(killed) < ENGINE_KILLS:
            _kill_an_engine(project, killed, draw)
        _, said = process.communicate(timeout=NO_KILL_BEFORE_END_S)
        assert process.returncode in (0, 3), said.decode()
        folder = the_run(project)
        assert folder is not None
        if process.returncode == 0:
            same_set(folder, unbroken)
            _begin_anew(project)
    process = go_on(project)
    _, said = process.communicate(timeout=NO_KILL_BEFORE_END_S)
    assert process.returncode == 0, said.decode()
    folder = the_run(project)
    assert folder is not None
    same_set(folder, unbroken)


def _let_it_work(project: Project, process: subprocess.Popen[bytes], draw: random.Random) -> None:
    """A random while: four times in five counted from the moment that it begins to measure."""
    if draw.random() < 0.8:
        before = _num_sessions(project)
        deadline_s = time.monotonic() + 60
        while _num_sessions(project) == before and process.poll() is None:
            assert time.monotonic() < deadline_s, "it never began to measure"
            time.sleep(0.01)
    time.sleep(draw.uniform(0.0, 2.0))


def _num_sessions(project: Project) -> int:
    folder = the_run(project)
    return len(folder.read(Session)) if folder else 0


def _begin_anew(project: Project) -> None:
    """Put a finished run away, so that the next kill meets a run that has something to lose."""
    project.results.rename(project.path / f"finished-{time.monotonic_ns()}")


def _kill_an_engine(project: Project, killed: set[int], draw: random.Random) -> None:
    """The youngest that lives and was not killed yet, after a random while."""
    folder = the_run(project)
    living = [pid for pid in _living_engines(folder) if pid not in killed] if folder else []
    if not living:
        time.sleep(0.02)
        return
    time.sleep(draw.uniform(0.0, 1.0))
    try:
        os.kill(living[-1], signal.SIGKILL)
    except ProcessLookupError:
        return  # its block ended meanwhile
    killed.add(living[-1])


def _living_engines(folder: RunFolder) -> list[int]:
    """By process id, and by what it runs: an id may have passed to somebody else."""
    found = []
    for boot in folder.read(Boot):
        try:
            command = psutil.Process(boot.pid or 0).cmdline()
        except psutil.NoSuchProcess:
            continue
        if "harness.scripted_server" in command and boot.stopped_at is None:
            found.append(boot.pid or 0)
    return list(dict.fromkeys(found))
