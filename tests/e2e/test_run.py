"""Whole runs on the scripted engine: its law says what every record must hold."""

import gzip
import hashlib
import os
import re
import signal
import subprocess
import sys
import time
from collections import Counter, defaultdict
from pathlib import Path

import psutil
import pytest

from harness import measures
from harness.errors import ConfigError, UsageError
from harness.records import (
    Cell,
    CellEnd,
    LogEntry,
    PlannedCell,
    RepetitionEnd,
    Request,
    Session,
    Snapshot,
)
from harness.run import commands
from harness.run.progress import PlainLines
from harness.scripted_server import natural_length, rounds_of
from harness.store import RunFolder

TEXTS = {"p1": "Tell me of the sea.", "p2": "Write a loop in C, please."}


def cells(folder: RunFolder) -> dict[str | None, Cell]:
    return {cell.cell_id: cell for cell in folder.manifest.plan.cells}


def measured(folder: RunFolder) -> list[Request]:
    return [request for request in folder.usable(Request) if request.where.repetition != -1]


# --- a run that nothing disturbs ------------------------------------------------------------------


def test_every_planned_request_was_sent_and_answered_as_the_law_says(finished_run):
    by_id = cells(finished_run)
    for request in measured(finished_run):
        cell = by_id[request.where.cell_id]
        wanted = natural_length(TEXTS[request.prompt_id])
        assert request.status == "ok"
        assert request.output_tokens == min(wanted, cell.max_tokens)
        assert request.finish_reason == ("stop" if wanted < cell.max_tokens else "length")
        assert request.prompt_tokens == len(TEXTS[request.prompt_id])
        assert request.distinct_4gram_share == 1.0
    # per boot: 2 x 2 in generate, 2 in waves of one, 2 waves of two, 4 closed; four boots
    assert len(measured(finished_run)) == 4 * (4 + 2 + 4 + 4)
    assert commands.exit_code(finished_run) == 0


def test_text_is_the_same_with_and_without_a_drafter(finished_run):
    hashes = defaultdict(set)
    for request in measured(finished_run):
        hashes[request.prompt_id, request.output_tokens].add(request.text_sha256)
    assert {len(found) for found in hashes.values()} == {1}


def test_blocks_take_turns_and_each_is_one_boot_of_its_own(finished_run):
    boots = finished_run.boots()
    assert [boot.variant for boot in boots] == ["plain", "DFlash2", "DFlash2", "plain"]
    assert [boot.where.boot_id for boot in boots] == ["b1-s1", "b2-s1", "b3-s1", "b4-s1"]
    assert len({boot.pid for boot in boots}) == 4
    for boot in boots:
        assert boot.stopped_at is not None
        assert boot.error is None
        assert not psutil.pid_exists(boot.pid or 0)


def test_every_boot_says_what_its_engine_makes_of_the_prompts(finished_run):
    """The scripted engine takes a character for a token."""
    hashes = {
        prompt_id: hashlib.sha256(",".join(str(ord(sign)) for sign in text).encode()).hexdigest()
        for prompt_id, text in TEXTS.items()
    }
    assert [boot.rendered for boot in finished_run.boots()] == [{"two": hashes}] * 4


def test_in_generate_the_counters_stand_around_every_request_and_explain_every_token(finished_run):
    around = defaultdict(dict)
    for snapshot in finished_run.usable(Snapshot):
        if snapshot.scope == "request":
            around[snapshot.where.request_id][snapshot.moment] = snapshot
    by_id = cells(finished_run)
    requests = [r for r in measured(finished_run) if by_id[r.where.cell_id].workload == "generate"]
    assert {request.where.request_id for request in requests} == set(around)
    for request in requests:
        before, after = (around[request.where.request_id][m] for m in ("before", "after"))
        assert before.quiet is True
        assert after.quiet is True
        assert before.at_ns < request.t0_ns < after.at_ns
        delta = measures.counters_delta(before.counters, after.counters)
        assert isinstance(delta, measures.CountersDelta)
        tokens = request.output_tokens or 0
        assert delta.generation_tokens == tokens
        assert delta.requests == 1
        assert measures.token_identity_residual(delta, tokens, 1) == 0
        drafting = by_id[request.where.cell_id].drafter is not None
        rounds = rounds_of(tokens, drafting=drafting)
        assert (delta.drafts if drafting else delta.plain_steps) == len(rounds)


def test_in_concurrency_the_counters_stand_around_each_repetition(finished_run):
    by_id = cells(finished_run)
    shared = [s for s in finished_run.usable(Snapshot) if s.scope == "repetition"]
    assert {by_id[s.where.cell_id].workload for s in shared} == {"concurrency"}
    moments = Counter(snapshot.moment for snapshot in shared)
    # per boot: two waves of one, two of two, one closed
    assert moments == {"before": 4 * 5, "after": 4 * 5}


def test_waves_and_closed_loads_keep_c_in_flight(finished_run):
    by_id = cells(finished_run)
    for end in finished_run.usable(RepetitionEnd):
        cell = by_id[end.where.cell_id]
        assert end.in_flight_max == cell.concurrency
        if end.where.repetition != -1:
            assert end.num_requests == cell.num_requests
        assert end.num_failed == 0
        assert end.window_s > 0


def test_warm_ups_are_other_prompts_and_kept_apart(finished_run):
    warm = [r for r in finished_run.read(Request) if r.where.repetition == -1]
    assert {request.prompt_id for request in warm} == {"w1"}
    assert len(warm) == 4  # one prompt in one workload, four boots


def test_events_hold_time_and_tokens_of_every_output(finished_run):
    for request in measured(finished_run):
        where = request.where
        rows = finished_run.read_events(where.cell_id, where.boot_id, where.repetition)
        row = next(row for row in rows if row.request_id == where.request_id)
        assert sum(tokens or 0 for tokens in row.tokens) == request.output_tokens
        assert row.token_ids == tuple(range(request.output_tokens or 0))
        assert row.offset_ns[0] == round((request.ttft_s or 0) * 1e9)
        assert row.text == "".join(f"w{token} " for token in row.token_ids)


def test_the_metrics_page_is_kept_once_per_cell_and_the_spool_is_gone(finished_run):
    pages = sorted((finished_run.path / "pages").iterdir())
    assert len(pages) == 4 * 4
    assert b"dflash2:generation_tokens_total" in gzip.decompress(pages[0].read_bytes())
    assert list((finished_run.path / "spool").iterdir()) == []


def test_cells_are_marked_in_the_engines_log(finished_run):
    log = (finished_run.server_folder("b1-s1") / "stderr.log").read_text()
    for cell in finished_run.manifest.plan.cells:
        assert (cell.cell_id in log) == (cell.variant == "plain")


def test_a_session_says_where_and_by_which_code(finished_run):
    (session,) = finished_run.read(Session)
    assert session.client_lateness_s == 0.001
    assert session.device_key
    assert not session.resumed
    assert session.plan_hash == finished_run.manifest.plan.plan_hash


def test_status_of_a_finished_run(finished_run):
    found = commands.status(finished_run.path)
    assert (found.state, found.share_done, found.left_s) == ("finished", 1.0, None)
    assert (found.cells_finished, found.cells_planned) == (16, 16)
    assert found.unavailable == ()


def test_resuming_a_finished_run_starts_nothing(finished_run, capsys):
    commands.resume(finished_run.path, progress=PlainLines())
    assert len(finished_run.read(Session)) == 1
    assert len(finished_run.boots()) == 4
    assert "nothing is left to do" in capsys.readouterr().err


# --- engines that fail ----------------------------------------------------------------------------


def test_a_variant_that_does_not_boot_is_unavailable_and_the_others_go_on(project, capsys):
    path = project.matrix(plain_engine="broken")
    folder = commands.run_matrix(path, results_dir=project.results, progress=PlainLines())
    by_id = cells(folder)
    outcomes = {(by_id[e.where.cell_id].variant, e.outcome) for e in folder.read(CellEnd)}
    assert outcomes == {("plain", "unavailable"), ("DFlash2", "finished")}
    assert commands.exit_code(folder) == 3
    reasons = {end.message for end in commands.unavailable(folder)}
    assert any("refusing to boot as asked" in str(reason) for reason in reasons)
    assert "refusing to boot as asked" in capsys.readouterr().err
    assert len(measured(folder)) == 14


def test_an_engine_that_dies_leaves_failed_requests_and_the_rest_unavailable(project):
    # readiness is request 1, the warm-up 2, then p1 p2 | p1 p2: the fourth measured one kills it
    path = project.matrix(arguments=("--die-at-request", "6"))
    folder = commands.run_matrix(path, results_dir=project.results, progress=PlainLines())
    generate = [r for r in folder.read(Request) if r.where.boot_id == "b1-s1"]
    statuses = [(r.where.repetition, r.status) for r in generate]
    assert statuses == [(-1, "ok"), (0, "ok"), (0, "ok"), (1, "ok"), (1, "failed")]
    ends = [end for end in folder.read(CellEnd) if end.where.boot_id == "b1-s1"]
    assert {end.outcome for end in ends} == {"unavailable"}
    assert len(ends) == 4
    assert "died during plain-generate" in str(ends[0].message)
    assert "dying as asked" in str(ends[0].message)
    (boot,) = [boot for boot in folder.boots() if boot.where.boot_id == "b1-s1"]
    assert boot.exit_code == 1
    assert boot.error == ends[0].message
    events = [entry.event for entry in folder.read(LogEntry)]
    assert events.count("unavailable") == 2  # both engines die alike
    assert commands.exit_code(folder) == 3


# --- the user stops it ----------------------------------------------------------------------------

DRIVER = """
import sys
from pathlib import Path
sys.path.insert(0, {checkout!r})
from harness.run import commands
from harness.run.progress import PlainLines
from tests.e2e.conftest import known_calibration
commands.calibrate = known_calibration
if __name__ == "__main__":
    commands.run_matrix(Path({matrix!r}), results_dir=Path({results!r}), progress=PlainLines())
"""


def started(project) -> subprocess.Popen[bytes]:
    """A run in a process of its own, slow enough to be caught in its second block."""
    checkout = Path(__file__).parents[2]
    script = project.path / "driver.py"
    matrix = project.matrix(arguments=("--round-ms", "8"))
    script.write_text(
        DRIVER.format(checkout=str(checkout), matrix=str(matrix), results=str(project.results))
    )
    return subprocess.Popen([sys.executable, str(script)], cwd=checkout, stderr=subprocess.PIPE)


def wait_for(condition, timeout_s: float = 120.0) -> None:
    deadline_s = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline_s, "nothing happened"
        time.sleep(0.02)


def test_a_stopped_run_leaves_no_process_and_resumes_to_the_same_set(project):
    process = started(project)
    try:
        wait_for(lambda: _second_boot(project))
        process.send_signal(signal.SIGINT)
        _, said = process.communicate(timeout=120)
    finally:
        process.kill()
    assert process.returncode != 0, said
    (path,) = project.results.iterdir()
    folder = RunFolder.open(path)
    assert commands.status(path).state == "stopped"
    for boot in folder.boots():
        assert boot.stopped_at is not None
        assert _group_is_gone(boot.pid or 0)
    assert 4 <= len(folder.finished_cells()) < 8  # all of the first block, not all of the second

    commands.resume(path, progress=PlainLines())
    assert commands.exit_code(folder) == 0
    planned = {(b.block_id, c) for b in folder.manifest.plan.blocks for c in b.cell_ids}
    assert folder.finished_cells() == planned
    seen = Counter(
        (r.where.block_id, r.where.cell_id, r.where.repetition, r.index) for r in measured(folder)
    )
    assert len(seen) == 28
    assert set(seen.values()) == {1}
    assert [session.resumed for session in folder.read(Session)] == [False, True]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_other_signals_stop_a_run_as_cleanly(project, number):
    process = started(project)
    try:
        wait_for(lambda: _second_boot(project))
        process.send_signal(number)
        process.send_signal(number)  # impatience does not interrupt the clean-up
        _, said = process.communicate(timeout=120)
    finally:
        process.kill()
    assert process.returncode != 0, said
    (path,) = project.results.iterdir()
    folder = RunFolder.open(path)
    assert commands.status(path).state == "stopped"
    for boot in folder.boots():
        assert boot.stopped_at is not None
        assert _group_is_gone(boot.pid or 0)
    assert [entry.event for entry in folder.read(LogEntry)][-1] == "stopped"


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux ends a process with its parent")
def test_a_run_that_was_killed_outright_takes_its_engine_along_and_is_gone_on_with(project):
    process = started(project)
    try:
        wait_for(lambda: _second_boot(project))
    finally:
        process.kill()
        process.communicate(timeout=60)
    (path,) = project.results.iterdir()
    folder = RunFolder.open(path)
    orphan = folder.boots()[-1]
    wait_for(lambda: _group_is_gone(orphan.pid or 0))
    assert commands.status(path).state == "interrupted"

    commands.resume(path, progress=PlainLines())
    assert commands.exit_code(folder) == 0
    assert len(measured(folder)) == 28


def test_status_tells_what_is_being_done_and_not_what_was_done_last(project):
    process = started(project)
    try:
        wait_for(lambda: _second_boot(project))
        (path,) = project.results.iterdir()
        found = commands.status(path)
    finally:
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=120)
    assert found.state == "running"
    assert re.fullmatch(
        r"block b2, dflash2-[a-z0-9-]+, (warm-up(, pass \d+)?|repetition [12])", found.doing
    )


def _second_boot(project) -> bool:
    return any("b2-s1" in path.read_text() for path in project.results.glob("*/requests.jsonl"))


def _group_is_gone(group: int) -> bool:
    for process in psutil.process_iter():
        try:
            in_group = os.getpgid(process.pid) == group
            if in_group and process.status() != psutil.STATUS_ZOMBIE:
                return False
        except (ProcessLookupError, psutil.NoSuchProcess):
            continue
    return True


def test_a_killed_run_is_called_interrupted_and_resumes_to_the_same_set(project):
    folder = commands.run_matrix(
        project.matrix(), results_dir=project.results, progress=PlainLines()
    )
    _tear(folder)
    status = commands.status(folder.path)
    assert status.state == "interrupted"
    commands.resume(folder.path, progress=PlainLines())
    assert commands.exit_code(folder) == 0
    assert len(measured(folder)) == 28


def _tear(folder: RunFolder) -> None:
    """What SIGKILL leaves in the last cell: no end, half a record, a status that says running."""
    ends = folder.path / "ends.jsonl"
    lines = ends.read_bytes().splitlines(keepends=True)
    ends.write_bytes(b"".join(lines[:-1]) + lines[-1][:40])
    with open(folder.path / "requests.jsonl", "ab") as requests:
        requests.write(b'{"where":{"run_id"')
    folder.write_status({**(folder.read_status() or {}), "state": "running", "pid": 2**22 + 1})


def test_resume_refuses_a_matrix_that_now_says_something_else(project):
    path = project.matrix(plain_engine="broken")
    folder = commands.run_matrix(path, results_dir=project.results, progress=PlainLines())
    path.write_text(path.read_text().replace("max_tokens: 32", "max_tokens: 33"))
    with pytest.raises(ConfigError, match="changed since"):
        commands.resume(folder.path, progress=PlainLines())
    path.unlink()
    with pytest.raises(ConfigError, match="is gone; put it back"):
        commands.resume(folder.path, progress=PlainLines())


def test_resume_refuses_another_machine(finished_run, monkeypatch):
    monkeypatch.setattr(commands.keys, "device_key", lambda _: "another")
    with pytest.raises(UsageError, match="another kind of machine"):
        commands.resume(finished_run.path, progress=PlainLines())


def test_cells_are_announced_before_they_run(finished_run):
    announced = [(p.where.block_id, p.cell.cell_id) for p in finished_run.read(PlannedCell)]
    assert len(announced) == len(set(announced)) == 16
