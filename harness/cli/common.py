"""What several commands do: find a stored run, open a console, write a comparison's forms."""

import argparse
import difflib
import getpass
import os
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING

from harness.errors import UsageError

if TYPE_CHECKING:
    from rich.console import Console

    from harness.compare.compare import Comparison

INVALID = 3
WIDTH_IN_FILES = 160


def find_run(written: str, results_dir: Path) -> Path:
    """A run's folder from its id, its path or `latest`."""
    from harness.store import latest_run

    if written == "latest":
        return latest_run(results_dir)
    for folder in (results_dir / written, Path(written)):
        if (folder / "manifest.json").is_file():
            return folder
    known = sorted(path.parent.name for path in results_dir.glob("*/manifest.json"))
    close = difflib.get_close_matches(written, known, n=1, cutoff=0.4)
    hint = f"; did you mean {close[0]}?" if close else ""
    raise UsageError(f"there is no run {written!r} in {results_dir}{hint}")


def find_other(written: str, results_dir: Path) -> Path:
    """A run that stands for a baseline."""
    from harness.compare import baselines

    try:
        return find_run(written, results_dir)
    except UsageError as error:
        known = ", ".join(baselines.names(results_dir)) or "there is none"
        raise UsageError(
            f"no baseline is called {written!r} (known: {known}), and {error}"
        ) from None


def cluster() -> ModuleType:
    """`harness.cluster.head`, for `--on ray`."""
    try:
        return import_module("harness.cluster.head")
    except ModuleNotFoundError as error:
        raise UsageError(
            f"--on ray: {error.name} is not installed; pip install 'dflashbench[ray]'"
        ) from None


def console() -> "Console":
    """As wide as the terminal; in a file or a pipe as wide as the tables want to be."""
    from rich.console import Console

    made = Console()
    if not made.is_terminal and "COLUMNS" not in os.environ:
        made.width = WIDTH_IN_FILES
    return made


def user() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        raise UsageError("this system does not tell who you are: add --by NAME") from None


def step_summary() -> Path:
    path = os.environ.get("GITHUB_STEP_SUMMARY")
    if not path:
        raise UsageError(
            "--step-summary: $GITHUB_STEP_SUMMARY is not set, so this is no job of GitHub Actions; "
            "--markdown FILE writes the same"
        )
    return Path(path)


def write_forms(found: "Comparison", options: argparse.Namespace) -> None:
    from harness.report.comparison import build

    build.write_files(
        found,
        markdown=options.markdown,
        junit=options.junit,
        bencher=options.bencher,
        action_benchmark=options.action_benchmark,
        step_summary=step_summary() if options.step_summary else None,
    )
