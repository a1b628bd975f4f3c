"""The examples for timers and CI: valid as their own tools see them, and run as written."""

import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.e2e.conftest import Project

CHECKOUT = Path(__file__).parents[1]
EXAMPLES = CHECKOUT / "configs" / "nightly"
SERVICE = "dflashbench-nightly.service"
TIMER = "dflashbench-nightly.timer"
INSTALLED = "/srv/dflashbench"  # where the examples suppose the checkout


def example(name: str, checkout: Path) -> str:
    text = (EXAMPLES / name).read_text(encoding="utf-8")
    return text.replace(INSTALLED, str(checkout))


def action() -> Mapping[str, Any]:
    found: Mapping[str, Any] = yaml.safe_load((CHECKOUT / "action.yml").read_text("utf-8"))
    return found


def workflow_step() -> Mapping[str, str]:
    """What the example workflow hands to the action."""
    workflow = yaml.safe_load((EXAMPLES / "github-workflow.yml").read_text("utf-8"))
    (step,) = (step for step in workflow["jobs"]["nightly"]["steps"] if step.get("uses") == "./")
    told: Mapping[str, str] = step["with"]
    return told


def program(name: str) -> str:
    found = shutil.which(name, path=f"{Path(sys.executable).parent}:{os.environ.get('PATH', '')}")
    if found is None:
        pytest.skip(f"{name} is not installed")
    return found


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A project with a matrix of seconds, and the command where an installation has it."""
    project = Project(tmp_path)
    matrix = tmp_path / "configs" / "matrices" / "nightly.yaml"
    matrix.parent.mkdir(parents=True)
    project.matrix(boots=2).rename(matrix)
    command = tmp_path / ".venv" / "bin" / "dflashbench"
    command.parent.mkdir(parents=True)
    command.write_text(
        f'#!/bin/sh\nPYTHONPATH={CHECKOUT} exec {sys.executable} -m harness.cli "$@"\n'
    )
    command.chmod(0o755)
    return tmp_path


# --- as their tools see them ----------------------------------------------------------------------


def test_systemd_finds_nothing_wrong_with_the_units(checkout: Path) -> None:
    for name in (SERVICE, TIMER):
        (checkout / name).write_text(example(name, checkout))

    done = subprocess.run(
        [program("systemd-analyze"), "verify", str(checkout / SERVICE), str(checkout / TIMER)],
        capture_output=True,
        text=True,
    )

    assert (done.returncode, done.stderr) == (0, "")


def test_the_timer_and_the_crontab_ring_at_the_same_hour() -> None:
    (calendar,) = re.findall(r"^OnCalendar=(.+)$", example(TIMER, CHECKOUT), re.MULTILINE)
    ((minute, hour),) = re.findall(r"^(\d+) (\d+) \* \* \* ", example("crontab", CHECKOUT), re.M)

    assert calendar == f"*-*-* {int(hour):02}:{int(minute):02}:00"


@pytest.mark.parametrize(
    ("schema", "file"),
    [
        ("vendor.github-workflows", EXAMPLES / "github-workflow.yml"),
        ("vendor.github-actions", CHECKOUT / "action.yml"),
    ],
    ids=["workflow", "action"],
)
def test_github_would_take_the_workflow_and_the_action(schema: str, file: Path) -> None:
    done = subprocess.run(
        [program("check-jsonschema"), "--builtin-schema", schema, str(file)],
        capture_output=True,
        text=True,
    )

    assert done.returncode == 0, done.stdout


def test_actionlint_finds_nothing_wrong_with_the_workflow(tmp_path: Path) -> None:
    """In a repository of its own, so that `uses: ./` is held against action.yml too."""
    lint = program("actionlint")
    workflows = tmp_path / ".github" / "workflows"
    workflows.mkdir(parents=True)
    shutil.copy(EXAMPLES / "github-workflow.yml", workflows)
    shutil.copy(CHECKOUT / "action.yml", tmp_path)
    subprocess.run(["git", "init", "-q", str(tmp_path)], check=True)

    done = subprocess.run([lint], cwd=tmp_path, capture_output=True, text=True)

    assert (done.returncode, done.stdout) == (0, "")


def test_the_workflow_gives_what_the_action_takes() -> None:
    inputs = action()["inputs"]

    assert set(workflow_step()) <= set(inputs)
    assert {name for name, told in inputs.items() if told.get("required")} <= set(workflow_step())


def test_no_text_of_a_user_becomes_a_part_of_the_actions_script() -> None:
    (step,) = action()["runs"]["steps"]
    assert "${{" not in step["run"]


# --- as they are written --------------------------------------------------------------------------


def night_of_systemd(checkout: Path) -> int:
    (line,) = re.findall(r"^ExecStart=(.+)$", example(SERVICE, checkout), re.MULTILINE)
    return subprocess.run(shlex.split(line), cwd=checkout).returncode


def night_of_cron(checkout: Path) -> str:
    """What cron would mail."""
    (line,) = re.findall(r"^0 2 \* \* \* (.+)$", example("crontab", checkout), re.MULTILINE)
    return subprocess.run(["sh", "-c", line], capture_output=True, text=True).stdout


def night_of_github(checkout: Path) -> tuple[int, str, str]:
    """The exit code, the outputs and the step summary of the action, as a runner would run it."""
    given = {name: told.get("default", "") for name, told in action()["inputs"].items()}
    given |= workflow_step()
    (step,) = action()["runs"]["steps"]
    filled = {
        name: re.sub(r"\$\{\{ inputs\.([\w-]+) \}\}", lambda found: given[found[1]], written)
        for name, written in step["env"].items()
    }
    outputs, summary = checkout / "outputs", checkout / "summary.md"
    files = {"GITHUB_OUTPUT": str(outputs), "GITHUB_STEP_SUMMARY": str(summary)}
    done = subprocess.run(
        ["bash", "-e", "-o", "pipefail", "-c", step["run"]],
        cwd=checkout,
        env={**os.environ, **filled, **files},
    )
    return done.returncode, outputs.read_text(), summary.read_text()


@pytest.mark.slow
def test_three_nights_by_systemd_cron_and_github(checkout: Path) -> None:
    assert night_of_systemd(checkout) == 3  # the first has nothing to be held against
    assert (checkout / "site" / "index.html").is_file()

    mailed = night_of_cron(checkout)
    log = (checkout / "nightly.log").read_text()
    assert "against baseline nightly, 1 night" in log
    assert mailed in ("", log)

    code, outputs, summary = night_of_github(checkout)
    assert outputs == f"exit-code={code}\n"
    assert code in (0, 1, 2)  # scripted engines on a busy machine may differ by anything
    assert summary.startswith("### dflashbench: ")
    assert (checkout / "nightly.xml").is_file()
    assert len(list((checkout / "site" / "runs").iterdir())) == 3
