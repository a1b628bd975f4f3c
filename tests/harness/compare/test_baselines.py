"""Baselines on the disk: what may become one, what a file holds, and that it reads back equal."""

import json
import os
from dataclasses import replace
from pathlib import Path

import pytest

from harness import cli
from harness.analysis import dataset
from harness.compare import baselines, commands
from harness.compare.baselines import Promoted
from harness.compare.compare import compare
from harness.compare.night import Night, night_of
from harness.compare.rules import Rules
from harness.errors import ResultsError, UsageError
from harness.records import Request
from harness.store import RunFolder
from tests.harness import synthetic
from tests.harness.cases.from_records import timed_out
from tests.harness.compare import nights as made


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> RunFolder:
    return synthetic.write_run(
        tmp_path_factory.mktemp("results"), synthetic.matrix(boots=2, levels=(2,))
    )


@pytest.fixture(scope="module")
def night(run: RunFolder) -> Night:
    return night_of(dataset.load(run))


def promoted(night: Night, why: str = "a quiet night") -> Promoted:
    return Promoted(format=1, by="someone", at="2026-11-30T02:00:00Z", why=why, night=night)


# --- files ----------------------------------------------------------------------------------------


def test_a_night_reads_back_as_it_was_written(tmp_path: Path, night: Night) -> None:
    member = promoted(night, why="first light | with a pipe, a line\nbreak and \u2028")
    folder = baselines.replace(tmp_path, "main", [member])

    assert folder == tmp_path / "baselines" / "main"
    assert [path.name for path in folder.iterdir()] == [f"{night.run_id}.json"]
    assert baselines.load(tmp_path, "main").members == (member,)


def test_a_file_holds_figures_of_every_boot_and_prompt_and_the_keys(night: Night) -> None:
    told = json.loads(baselines.encoded(promoted(night)))

    assert (told["by"], told["at"], told["why"]) == (
        "someone",
        "2026-11-30T02:00:00Z",
        "a quiet night",
    )
    generate = told["night"]["subjects"][0]
    assert generate["cell"]["workload_key"]
    assert generate["cell"]["subject_key"]
    rate = generate["figures"]["decode_rate"]
    assert list(rate["by_boot"]) == ["b1-s1", "b4-s1"]
    assert set(rate["by_prompt"]) == {f"{kind}-1" for kind in synthetic.KINDS}
    assert all(set(boots) == set(rate["by_boot"]) for boots in rate["by_prompt"].values())
    assert generate["builds"] == ["b" * 12]
    assert "results/" not in json.dumps(told)


def test_one_figure_of_one_prompt_is_one_line_of_a_review(night: Night) -> None:
    lines = baselines.encoded(promoted(night)).decode().splitlines()

    assert [line.strip() for line in lines if '"acceptance_length": ' in line]
    (prompt, *_) = (line for line in lines if '"prose-1": {"b1-s1": ' in line)
    assert len(prompt) <= baselines.LINE_LENGTH


def test_a_figure_that_moved_changes_its_own_lines_alone(night: Night) -> None:
    subject = night.subjects[0]
    figures = {**subject.figures, "ttft_p50": made.figure([0.5, 0.6])}
    other = replace(night, subjects=(replace(subject, figures=figures), *night.subjects[1:]))
    before, after = (
        set(baselines.encoded(promoted(each)).decode().splitlines()) for each in (night, other)
    )

    assert len(after - before) == 1


def test_set_leaves_these_nights_and_no_other_and_add_keeps_what_is_there(tmp_path: Path) -> None:
    first, second, third = (promoted(item) for item in made.plain_nights([1.0], [2.0], [3.0]))
    baselines.replace(tmp_path, "main", [first, second])
    baselines.replace(tmp_path, "main", [third])
    assert baselines.load(tmp_path, "main").members == (third,)

    baselines.add(tmp_path, "main", [first])
    assert baselines.load(tmp_path, "main").members == (first, third)
    assert baselines.names(tmp_path) == ("main",)


def test_a_night_or_the_whole_baseline_can_go(tmp_path: Path) -> None:
    first, second = (promoted(item) for item in made.plain_nights([1.0], [2.0]))
    baselines.replace(tmp_path, "main", [first, second])

    with pytest.raises(UsageError, match="does not hold 'x'; it holds 20261101-020000-nightly, "):
        baselines.remove(tmp_path, "main", "x")
    baselines.remove(tmp_path, "main", first.night.run_id)
    assert baselines.load(tmp_path, "main").members == (second,)
    baselines.remove(tmp_path, "main", second.night.run_id)
    assert baselines.names(tmp_path) == ()
    with pytest.raises(UsageError, match=r"no baseline 'main' .*\(known: there is none\)"):
        baselines.remove(tmp_path, "main")


@pytest.mark.parametrize("name", ["latest", "../main", "20261130-011946-quickstart", "", ".main"])
def test_a_name_is_no_path_and_no_run(tmp_path: Path, name: str) -> None:
    with pytest.raises(UsageError, match="cannot name a baseline"):
        baselines.add(tmp_path, name, [])


@pytest.mark.parametrize(
    ("data", "told"),
    [
        (b'{"format": 2}', "format 2, this dflashbench reads 1"),
        (b'{"format": 1, "by": NaN}', "set the baseline again"),
        (b'{"format": 1, "by"', "set the baseline again"),
    ],
    ids=["a newer form", "no JSON", "cut off"],
)
def test_a_file_that_cannot_be_read_is_named(tmp_path: Path, data: bytes, told: str) -> None:
    path = tmp_path / "baselines" / "main" / "x.json"
    path.parent.mkdir(parents=True)
    path.write_bytes(data)

    with pytest.raises(ResultsError, match=rf"x\.json.*{told}"):
        baselines.load(tmp_path, "main")


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_a_folder_that_may_not_be_written_is_an_error_and_keeps_the_old(tmp_path: Path) -> None:
    (member,) = (promoted(item) for item in made.plain_nights([1.0]))
    folder = baselines.replace(tmp_path, "main", [member])
    folder.parent.chmod(0o500)
    with pytest.raises(ResultsError, match="choose a folder that you may read and write"):
        baselines.replace(tmp_path, "main", [member])
    folder.parent.chmod(0o700)
    assert baselines.load(tmp_path, "main").members == (member,)


# --- what may become one --------------------------------------------------------------------------


def test_an_invalid_run_never_becomes_a_baseline(tmp_path: Path) -> None:
    def half_fail(request: Request) -> Request:
        return timed_out(request) if request.index % 2 else request

    folder = synthetic.write_run(tmp_path, synthetic.matrix(levels=(), drafters=()), edit=half_fail)
    with pytest.raises(
        ResultsError, match=r"has invalid cells .*: plain all cells, plain generate"
    ):
        commands.promote([folder.path], by="someone", at="now", why="because")


def test_a_smoke_run_never_becomes_a_baseline(tmp_path: Path) -> None:
    asked = replace(synthetic.matrix(levels=(), drafters=()), purpose="smoke")
    folder = synthetic.write_run(tmp_path, asked)

    with pytest.raises(ResultsError, match="purpose smoke never becomes a baseline"):
        commands.promote([folder.path], by="someone", at="now", why="because")


def test_a_run_is_equal_to_its_stored_self(tmp_path: Path, night: Night) -> None:
    baselines.replace(tmp_path, "main", [promoted(night)])
    found = compare(
        replace(night, run_id="another"),
        baselines.load(tmp_path, "main").nights,
        baseline="main",
        rules=Rules(),
    )

    assert {row.word for row in found.rows} == {"within noise"}
    assert {row.change.value for row in found.rows if row.change} == {0.0}


def test_a_run_that_is_part_of_the_baseline_is_held_against_the_others() -> None:
    nights = made.plain_nights([100.0, 101.0], [200.0, 201.0])
    found = compare(nights[1], nights, baseline="main", rules=Rules())

    assert found.nights == nights[:1]
    assert "held against the others alone" in found.notes[0]
    assert found.rows[0].baseline == pytest.approx((100.0 * 101.0) ** 0.5)


def test_memory_is_compared_once_per_variant_and_with_boots_that_ran_the_same(
    night: Night,
) -> None:
    memory = [subject for subject in night.subjects if "memory_peak" in subject.figures]

    assert [(subject.variant, subject.work) for subject in memory] == [
        ("plain", "all cells"),
        ("DFlash2", "all cells"),
    ]
    assert set(memory[0].figures["memory_peak"].by_boot.values()) == {380 * 1024**2}


# --- the command line -----------------------------------------------------------------------------


def test_a_baseline_from_the_command_line_to_a_green_comparison(
    run: RunFolder, capsys: pytest.CaptureFixture[str]
) -> None:
    where = ["--results", str(run.path.parent)]
    written = ["baseline", "set", "main", "latest", "--why", "first", "--by", "someone", *where]
    assert cli.main(written) == 0
    assert cli.main(["baseline", "list", *where]) == 0
    assert cli.main(["baseline", "show", "main", *where]) == 0
    assert cli.main(["baseline", "diff", "main", "latest", *where]) == 0
    told = capsys.readouterr().out
    assert "someone" in told
    assert "spread of nights" in told
    assert "0.0 %" in told

    assert cli.main(["compare", "latest", "main", *where]) == 0
    assert "The run is its own baseline" in capsys.readouterr().out
    assert cli.main(["baseline", "rm", "main", *where]) == 0
    assert cli.main(["baseline", "list", *where]) == 0
    assert "no baseline in" in capsys.readouterr().out


def test_a_torn_file_does_not_hide_the_other_baselines(
    tmp_path: Path, night: Night, capsys: pytest.CaptureFixture[str]
) -> None:
    baselines.replace(tmp_path, "main", [promoted(night)])
    torn = baselines.replace(tmp_path, "torn", [promoted(night)]) / f"{night.run_id}.json"
    torn.write_bytes(torn.read_bytes()[:100])

    assert cli.main(["baseline", "list", "--results", str(tmp_path)]) == 3

    told = capsys.readouterr().out
    assert [line.split()[:2] for line in told.splitlines() if line.startswith("main")] == [
        ["main", "1"]
    ]
    assert f"baseline torn is unreadable: {torn}: " in told
    assert "restore it, or set the baseline again" in told


def test_nobody_promotes_a_run_without_saying_why(
    run: RunFolder, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["baseline", "set", "main", "latest", "--results", str(run.path.parent)]) == 4
    assert "--why" in capsys.readouterr().err
