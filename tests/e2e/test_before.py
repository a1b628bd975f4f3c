"""What is asked before the first start and after the first answers, in whole runs."""

import json

import pytest

from harness.errors import ConfigError
from harness.records import LogEntry, Session
from harness.run import commands
from harness.run.progress import PlainLines


def test_a_refused_matrix_starts_nothing_and_leaves_no_folder(project):
    config = project.path / "drafter" / "config.json"
    config.write_text(json.dumps({"dflash_config": {"block_size": 4}}))
    told: list[str] = []

    with pytest.raises(ConfigError, match="DFlash2: k_le_block: k = 7, but") as refused:
        commands.begin(project.matrix(), results_dir=project.results, tell=told.append)

    assert "Nothing was started" in str(refused.value)
    assert not project.results.exists()


def test_nor_does_it_add_to_a_stored_run(project):
    path = project.matrix()
    _, folder = commands.begin(path, results_dir=project.results, tell=lambda _: None)
    folder.close()
    (project.path / "model" / "model.safetensors").unlink()

    with pytest.raises(ConfigError, match=r"model .*lacks model\.safetensors"):
        commands.run_into(path, folder.path, only=None, progress=PlainLines())

    assert not folder.read(Session)


def test_an_engine_that_does_not_draft_is_told_of_before_the_run_ends(project, capsys):
    """Its start is as it should be; only the drafter is not there."""
    path = project.matrix()
    drafter = "drafter: {method: dflash2, model: drafter, k: 7}"
    silent = f'{drafter}\n    flags: {{dflash2: "off"}}'
    assert drafter in path.read_text()
    path.write_text(path.read_text().replace(drafter, silent))

    folder = commands.run_matrix(path, results_dir=project.results, progress=PlainLines())

    noticed = [entry for entry in folder.read(LogEntry) if entry.event == "noticed"]
    assert "speculation_active: scripted drafted nothing although" in noticed[0].message
    assert noticed[0].message.startswith("dflash2-generate-c1-")
    assert "drafted nothing" in capsys.readouterr().err
    assert commands.exit_code(folder) == 0  # facts are recorded; the report judges
