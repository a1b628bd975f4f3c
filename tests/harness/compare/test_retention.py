"""Which nights lose their raw data, and which never do."""

from dataclasses import replace
from pathlib import Path

import pytest

from harness.compare import baselines, history, retention
from harness.compare.baselines import Promoted
from tests.harness.compare import nights as made


@pytest.fixture
def folders(tmp_path: Path) -> tuple[Path, Path]:
    """Ten nights, each with a folder of raw data and one for its report."""
    results, reports = tmp_path / "results", tmp_path / "reports"
    for number in range(1, 11):
        night = made.night(number)
        (results / night.run_id).mkdir(parents=True)
        (results / night.run_id / "manifest.json").write_text("{}")
        (reports / night.run_id).mkdir(parents=True)
        (reports / night.run_id / "RESULTS.md").write_text(f"run `{night.run_id}`\n")
        history.remember(reports / night.run_id, night, None)
    return results, reports


def run_id(number: int) -> str:
    return f"202611{number:02}-020000-nightly"


def expired(folders: tuple[Path, Path], keep: int, **more: object) -> list[int]:
    found = retention.expired(*folders, matrix="nightly", keep=keep, **more)  # type: ignore[arg-type]
    return [int(name[6:8]) for name in found]


def test_the_newest_nights_keep_their_raw_data(folders: tuple[Path, Path]) -> None:
    assert expired(folders, keep=7) == [1, 2, 3]
    assert expired(folders, keep=10) == []
    assert expired(folders, keep=30) == []


def test_nights_of_a_baseline_keep_theirs(folders: tuple[Path, Path]) -> None:
    member = Promoted(
        format=baselines.FORMAT, by="me", at="2026-11-02T03:00:00Z", why="", night=made.night(2)
    )
    baselines.add(folders[0], "main", [member])

    assert expired(folders, keep=7) == [1, 3]


def test_a_run_that_another_report_names_keeps_its_raw_data(folders: tuple[Path, Path]) -> None:
    _, reports = folders
    (reports / "claim.md").write_text(f"As run `{run_id(1)}` shows.\n")
    (reports / run_id(9) / "comparison.json").write_text(f'{{"nights": ["{run_id(3)}"]}}')

    assert expired(folders, keep=7) == [2]


def test_what_a_step_began_with_keeps_its_raw_data(folders: tuple[Path, Path]) -> None:
    assert expired(folders, keep=7, named=[run_id(2)]) == [1, 3]


def test_other_matrices_and_runs_that_were_no_nights_are_not_touched(
    folders: tuple[Path, Path],
) -> None:
    results, reports = folders
    by_hand = results / "20261001-120000-nightly"
    by_hand.mkdir()
    (by_hand / "manifest.json").write_text("{}")
    other = replace(made.night(1), run_id="20261001-020000-other")
    (results / other.run_id).mkdir()
    (results / other.run_id / "manifest.json").write_text("{}")
    (reports / other.run_id).mkdir()
    history.remember(reports / other.run_id, other, None)

    assert expired(folders, keep=7) == [1, 2, 3]


def test_what_is_removed_leaves_its_report_and_is_not_named_again(
    folders: tuple[Path, Path],
) -> None:
    results, reports = folders
    retention.remove(results, [run_id(1), run_id(2)])

    assert sorted(path.name for path in results.iterdir()) == [run_id(n) for n in range(3, 11)]
    assert (reports / run_id(1) / "RESULTS.md").is_file()
    assert expired(folders, keep=7) == [3]


def test_a_removal_that_was_killed_half_way_is_finished_the_next_time(
    folders: tuple[Path, Path],
) -> None:
    results, _ = folders
    (results / run_id(1)).rename(results / f".removed-{run_id(1)}")

    retention.remove(results, [])

    assert not list(results.glob(".removed-*"))
