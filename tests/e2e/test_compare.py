"""Two runs of real processes, the second engine sleeping longer in every step."""

import json

import pytest

from harness import cli
from harness.run import commands
from harness.run.progress import PlainLines

from .conftest import Project


@pytest.mark.slow
def test_an_engine_that_was_made_to_sleep_per_step_is_a_regression_of_the_step(
    project: Project, capsys: pytest.CaptureFixture[str]
) -> None:
    """A round of 4 ms becomes one of 16; the engine's command is its build, not its identity."""
    runs = []
    for round_ms in ("4", "16"):
        matrix = project.matrix(arguments=("--round-ms", round_ms), boots=2)
        folder = commands.run_matrix(matrix, results_dir=project.results, progress=PlainLines())
        runs.append(folder.manifest.run_id)
    capsys.readouterr()

    old, new = runs
    code = cli.main(["compare", new, old, "--json", "--results", str(project.results)])

    told = json.loads(capsys.readouterr().out)
    rates = [row for row in told["rows"] if row["metric"] == "decode_rate"]
    assert len(rates) == 8  # two variants: generate, waves of one and two, two in flight
    # on a machine that stutters a figure of two boots may stay in doubt, but not all of them
    assert {row["word"] for row in rates} <= {"regressed", "inconclusive"}
    assert {row["causes"][0]["part"] for row in rates} == {"step"}
    assert code == 1
    assert cli.main(["compare", new, new, "--results", str(project.results)]) == 0
