"""Stored runs that lost a part: told in one message, by the file that lost it."""

from pathlib import Path

import pytest

from harness import cli

from . import synthetic


@pytest.mark.parametrize(("file", "lost"), [("sessions", "session"), ("boots", "boot")])
def test_a_run_whose_file_was_cut_off_is_refused_by_the_name_of_that_file(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], file: str, lost: str
) -> None:
    folder = synthetic.write_run(tmp_path, synthetic.matrix(levels=(), repetitions=1))
    path = folder.path / f"{file}.jsonl"
    path.write_bytes(path.read_bytes()[:100])

    assert cli.main(["show", folder.path.name, "--results", str(tmp_path)]) == 3

    said = capsys.readouterr().err
    assert f"{path} holds no {lost} " in said
    assert "restore it" in said
