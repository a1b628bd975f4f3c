"""IO cases: a results folder that is killed, full or shared loses nothing and mixes nothing."""

import json
import os
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path

import pytest

from harness.analysis.summary import summarise
from harness.errors import ResultsError
from harness.records import CellEnd, LogEntry, Request, Where
from harness.run import commands
from harness.store import RunFolder, new_run_id
from tests.harness import synthetic

CHECKOUT = Path(__file__).parents[3]


def small_run(path: Path) -> RunFolder:
    return synthetic.write_run(path, synthetic.matrix(boots=1, levels=(), drafters=()))


def entry(message: str) -> LogEntry:
    where = Where(run_id="r", session_id="s1")
    return LogEntry(where=where, at="2026-11-29T12:00:00Z", event="note", message=message)


# --- B117 -----------------------------------------------------------------------------------------


def test_b117_a_torn_last_line_costs_that_line_alone_and_is_told_once(tmp_path: Path) -> None:
    folder = small_run(tmp_path)
    path = folder.path / "requests.jsonl"
    whole = folder.read(Request)
    *lines, last = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join(lines) + last[: len(last) // 2])  # as kill -9 leaves it

    torn = RunFolder.open(folder.path)
    assert torn.read(Request) == whole[:-1]
    assert torn.read(Request) == whole[:-1]
    assert torn.notes == (f"{path}: the last line was cut off by a crash and is left out",)
    assert f"{path.name}: the last line was cut off" in " ".join(summarise(torn).data.notes)

    torn.append(whole[-1])  # what a resumed run does: measure it again
    torn.close()
    again = RunFolder.open(folder.path)
    assert again.read(Request) == whole
    assert again.notes == ()
    assert all(json.loads(line) for line in path.read_text(encoding="utf-8").split("\n")[:-1])
    assert (folder.path / "requests.jsonl.torn").read_bytes() == last[: len(last) // 2] + b"\n"


def test_b117_a_cell_whose_end_was_torn_is_to_be_measured_again(tmp_path: Path) -> None:
    folder = small_run(tmp_path)
    path = folder.path / "ends.jsonl"
    path.write_bytes(path.read_bytes()[:-20])

    torn = RunFolder.open(folder.path)
    assert torn.read(CellEnd) == []
    assert torn.finished_cells() == set()
    assert commands.exit_code(torn) == 3


def test_b117_a_bad_line_in_the_middle_is_an_error_and_is_not_skipped(tmp_path: Path) -> None:
    folder = small_run(tmp_path)
    path = folder.path / "requests.jsonl"
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join([*lines[:3], lines[3][:50] + b"\n", *lines[4:]]))

    with pytest.raises(ResultsError, match=r"requests\.jsonl:4: .*changed after it was written"):
        RunFolder.open(folder.path).read(Request)
    with pytest.raises(ResultsError, match=r"requests\.jsonl:4"):
        summarise(RunFolder.open(folder.path))


# --- B119 -----------------------------------------------------------------------------------------


def test_b119_unicode_line_separators_in_a_record_end_no_line(tmp_path: Path) -> None:
    folder = small_run(tmp_path)
    before = len(folder.read(LogEntry))
    odd = "x\u2028y\x85z\u2029w\x0b\x0c\x1c"
    folder.append(entry(odd), entry("b"))
    folder.close()

    messages = [item.message for item in RunFolder.open(folder.path).read(LogEntry)][before:]
    assert messages == [odd, "b"]
    data = (folder.path / "log.jsonl").read_bytes()
    assert "\u2028".encode() in data  # raw, so a reader that splits there would break
    assert data.count(b"\n") == before + 2


# --- B121 -----------------------------------------------------------------------------------------

RACE = """
import sys, time
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from harness.errors import ResultsError
from harness.store import RunFolder, new_run_id
from tests.harness.cases.test_results_cases import entry

results, source, word = Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3]
manifest = RunFolder.open(source).manifest
run_id = new_run_id(results, "twins", datetime(2026, 11, 29, tzinfo=UTC))
while not (results / "go").exists():
    time.sleep(0.001)
try:
    folder = RunFolder.create(results, replace(manifest, run_id=run_id))
except ResultsError as error:
    print(error)
    sys.exit(error.exit_code)
for number in range(200):
    folder.append(entry(word))
"""


def test_b121_two_runs_that_want_one_folder_never_mix(tmp_path: Path) -> None:
    """Same second, same matrix: one gets the folder, the other a message; nothing interleaves."""
    source = small_run(tmp_path / "source").path
    results = tmp_path / "results"
    results.mkdir()
    script = tmp_path / "race.py"
    script.write_text(RACE, encoding="utf-8")
    racers = [
        subprocess.Popen(
            [sys.executable, str(script), str(results), str(source), word],
            stdout=subprocess.PIPE,
            text=True,
            cwd=CHECKOUT,
            env={**os.environ, "PYTHONPATH": str(CHECKOUT)},
        )
        for word in ("one", "two")
    ]
    (results / "go").touch()
    said = [racer.communicate(timeout=300)[0] for racer in racers]

    runs = sorted(path for path in results.iterdir() if path.is_dir())
    for path in runs:
        messages = [item.message for item in RunFolder.open(path).read(LogEntry)]
        assert len(messages) == 200
        assert len(set(messages)) == 1
    codes = sorted(racer.returncode for racer in racers)
    if len(runs) == 1:
        assert codes == [0, 3]
        assert "another run has this id; start again" in "".join(said)
    else:  # the second looked after the first had made its folder
        assert codes == [0, 0]
        assert [path.name for path in runs] == ["20261129-000000-twins", "20261129-000000-twins-2"]


def test_b121_a_second_writer_is_refused_by_the_name_of_the_first(tmp_path: Path) -> None:
    folder = small_run(tmp_path)
    folder.write_status({"pid": os.getpid()})
    folder.append(entry("one"))

    second = RunFolder.open(folder.path)
    with pytest.raises(ResultsError, match=rf"another dflashbench \(process {os.getpid()}\)"):
        second.append(entry("two"))
    folder.close()
    assert [item.message for item in second.read(LogEntry)][-1] == "one"


def test_b121_what_is_missing_is_counted_from_the_plan_and_not_from_what_survived(
    tmp_path: Path,
) -> None:
    folder = synthetic.write_run(
        tmp_path, synthetic.matrix(boots=2, levels=()), broken_variant="DFlash2"
    )
    found = commands.status(folder.path)
    summary = summarise(folder)

    assert (found.cells_finished, found.cells_planned) == (2, 4)
    assert commands.exit_code(folder) == 3
    assert [verdict.level for verdict in summary.verdicts if verdict.check == "available"] == [
        "ok",
        "invalid",
    ]


def test_b121_an_id_that_is_taken_gets_a_number(tmp_path: Path) -> None:
    now = datetime(2026, 11, 29, 12, 0, 0, tzinfo=UTC)
    for wanted in ("20261129-120000-x", "20261129-120000-x-2", "20261129-120000-x-3"):
        found = new_run_id(tmp_path, "x", now)
        assert found == wanted
        (tmp_path / found).mkdir()
