"""The command line as a program: exit codes, messages, and what a script may rely on."""

import json
import re
from pathlib import Path

import pytest

from harness import cli, config
from harness.cli.common import find_run
from harness.errors import BootError
from harness.plan import make_plan
from harness.run import commands
from harness.store import RunFolder

from . import synthetic


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("results")
    synthetic.write_run(folder, synthetic.matrix(levels=()))
    return folder


RUN_ID = "20261129-120000-synthetic"


@pytest.mark.parametrize(
    "arguments",
    [[], ["frobnicate"], ["show"], ["show", "latest", "--frobnicate"]],
    ids=["nothing", "unknown command", "no run", "unknown option"],
)
def test_a_wrong_argument_ends_with_four_and_says_how_it_is_used(
    arguments: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(arguments) == 4
    assert "usage: dflashbench" in capsys.readouterr().err


def test_help_names_every_command(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="0"):
        cli.main(["--help"])

    told = capsys.readouterr().out
    commands = ("plan", "run", "resume", "report", "show", "compare", "baseline", "nightly")
    for command in (*commands, "doctor", "status"):
        assert f"\n    {command} " in told


def test_a_run_is_found_by_id_by_path_and_as_the_latest(results: Path) -> None:
    folder = results / RUN_ID

    assert find_run(RUN_ID, results) == folder
    assert find_run(str(folder), Path("elsewhere")) == folder
    assert find_run("latest", results) == folder


def test_an_unknown_run_is_quoted_with_the_nearest_one(
    results: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["show", "20261129-120000-synthetc", "--results", str(results)]) == 4

    told = capsys.readouterr().err
    assert "'20261129-120000-synthetc'" in told
    assert f"did you mean {RUN_ID}?" in told
    assert "Traceback" not in told


def test_no_run_at_all_is_a_message(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["show", "latest", "--results", str(tmp_path)]) == 3
    assert "no run in" in capsys.readouterr().err


def test_a_missing_matrix_is_a_message(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["plan", "configs/matrices/nowhere.yaml"]) == 4
    assert "nowhere.yaml" in capsys.readouterr().err


def test_show_prints_tables(results: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["show", "latest", "--results", str(results)]) == 0

    told = capsys.readouterr().out
    assert "Decode rate, tok/s" in told
    assert "verdict: ok" in told


def test_show_json_prints_one_object_per_line(
    results: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["show", RUN_ID, "--json", "--results", str(results)]) == 0

    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    (rate,) = [
        line
        for line in lines
        if (line["variant"], line["kind"], line["metric"]) == ("plain", "all", "decode_rate")
    ]
    assert rate["unit"] == "tok/s"
    assert rate["n"] == 30


def test_report_prints_where_it_lies(
    results: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["report", RUN_ID, "--results", str(results), "--reports", str(tmp_path)]

    assert cli.main(arguments) == 0
    assert Path(capsys.readouterr().out.strip()).is_file()


def test_status_counts_cells(results: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["status", RUN_ID, "--results", str(results)]) == 0
    assert "cells finished: 4 of 4" in capsys.readouterr().out


def test_run_ends_with_one_line_of_json(
    results: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    measured = RunFolder.open(results / RUN_ID)
    monkeypatch.setattr(commands, "run_matrix", lambda path, **_: measured)

    code = cli.main(["run", "m.yaml", "--json", "--reports", str(tmp_path)])

    last = capsys.readouterr().out.splitlines()[-1]
    assert code == 0
    assert json.loads(last) == {
        "run_id": RUN_ID,
        "results": str(results / RUN_ID),
        "report": str(tmp_path / RUN_ID / "RESULTS.md"),
        "verdict": "ok",
    }


def test_a_run_whose_variant_does_not_boot_ends_with_three_and_still_reports(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = synthetic.write_run(tmp_path, synthetic.matrix(levels=()), broken_variant="DFlash2")
    monkeypatch.setattr(commands, "run_matrix", lambda path, **_: folder)

    assert cli.main(["run", "m.yaml", "--reports", str(tmp_path / "reports")]) == 3

    told = capsys.readouterr()
    # one cell of two blocks, which failed alike: said once
    assert told.err.count("the server ended with code 1 before it was ready") == 1
    assert told.err.count("dflash2-generate-c1") == 1
    assert "verdict: invalid" in told.out


def test_an_engine_error_is_one_message_with_its_exit_code(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def refuse(path: Path, **_: object) -> RunFolder:
        raise BootError("port 8000 is in use; stop what listens there")

    monkeypatch.setattr(commands, "run_matrix", refuse)

    assert cli.main(["run", "m.yaml"]) == 3
    assert capsys.readouterr().err == "dflashbench: port 8000 is in use; stop what listens there\n"


def test_ctrl_c_ends_with_130_and_says_how_to_go_on(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def stop(path: Path, **_: object) -> RunFolder:
        raise KeyboardInterrupt

    monkeypatch.setattr(commands, "run_matrix", stop)

    assert cli.main(["run", "m.yaml"]) == 130
    assert "dflashbench resume latest" in capsys.readouterr().err


def test_plan_prints_order_cells_references_and_what_two_boots_can_see(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.setattr(config, "load_matrix", lambda path: synthetic.matrix(levels=()))

    assert cli.main(["plan", "m.yaml", "--results", str(tmp_path)]) == 0

    told = capsys.readouterr().out
    blocks = [line.split()[:2] for line in told.splitlines() if re.match(r"b\d", line)]
    assert blocks == [["b1", "plain"], ["b2", "DFlash2"], ["b3", "DFlash2"], ["b4", "plain"]]
    assert "none: is the reference" in told
    # t(2) x 1 % is 4.3 % on logarithms, 4.4 % as a ratio
    assert "a difference below 4.4 % cannot be told from none" in told
    assert "estimated time: not known before a first run" in told


def test_plan_in_a_pipe_keeps_whole_cell_ids(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("COLUMNS", raising=False)
    monkeypatch.setattr(config, "load_matrix", lambda path: synthetic.matrix(levels=(1, 8)))

    assert cli.main(["plan", "m.yaml", "--results", str(tmp_path)]) == 0

    told = capsys.readouterr().out
    assert "…" not in told
    for cell in make_plan(synthetic.matrix(levels=(1, 8))).cells:
        assert f"{cell.cell_id} " in told


def test_plan_estimates_from_a_stored_run_of_the_same_matrix(
    results: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(config, "load_matrix", lambda path: synthetic.matrix(levels=()))

    assert cli.main(["plan", "m.yaml", "--results", str(results)]) == 0
    # four boots of 2.5 s; per boot four passes of 680 tokens, 7.5 s plain and 2.8 s drafted: 92 s
    assert "estimated time: 2 min" in capsys.readouterr().out
