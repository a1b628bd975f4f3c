"""An edited matrix and a stored run: exactly what changed is measured, beside a control."""

import shutil
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from harness import cli
from harness.analysis.summary import summarise
from harness.checks import sessions
from harness.errors import UsageError
from harness.records import Amendment, CellEnd, LogEntry, PlannedCell, Request, Session, Verdict
from harness.run import commands
from harness.run.progress import PlainLines
from harness.store import RunFolder

from .conftest import Project, known_calibration

MATRIX = """
name: growing
engines:
  scripted:
    adapter: dflash2
    command: ["{python}", "-m", "harness.scripted_server", "--round-ms", "12"]
    ready_timeout_s: 60
variants:
  - {name: plain, engine: scripted, target: model}
  - name: DFlash2
    engine: scripted
    target: model
    drafter: {method: dflash2, model: drafter, k: 7}
held_constant: {kv_len: 2048}
workloads:
  - {kind: generate, prompts: two, repetitions: 2, max_tokens: 32}
  - {kind: concurrency, prompts: two_warmup, levels: [2], repetitions: 1, max_tokens: 16}
schedule: {order: listed, boots: 1}
"""

SLOTTED = """
  - name: DFlash2 s4
    engine: scripted
    target: model
    drafter: {method: dflash2, model: drafter, k: 7}
    flags: {slots: 4}
""".removeprefix("\n")


@pytest.fixture(scope="module")
def measured(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A project with a finished run in it, to be copied."""
    project = Project(tmp_path_factory.mktemp("measured"))
    path = project.path / "growing.yaml"
    path.write_text(MATRIX)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(commands, "calibrate", known_calibration)
        commands.run_matrix(path, results_dir=project.results, progress=PlainLines())
    return project.path


class Grown:
    """A copy of the project, whose matrix may be edited and measured into the run."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.matrix = path / "growing.yaml"
        (self.run,) = (path / "results").iterdir()

    def edit(self, before: str, after: str) -> None:
        text = self.matrix.read_text()
        assert before in text
        self.matrix.write_text(text.replace(before, after))

    def measure(self, *more: str) -> int:
        """`dflashbench run --into` of it; its exit code."""
        folders = ["--results", str(self.path / "results"), "--reports", str(self.path / "reports")]
        return cli.main(["run", str(self.matrix), "--into", self.run.name, *more, *folders])

    @property
    def folder(self) -> RunFolder:
        return RunFolder.open(self.run)

    def measured_in(self, session_id: str) -> set[str]:
        """Variant and workload of the cells that were finished then; controls are called so."""
        cells = {planned.cell.cell_id: planned.cell for planned in self.folder.read(PlannedCell)}
        ends = [end.where for end in self.folder.read(CellEnd) if end.outcome == "finished"]
        found = [cells[str(w.cell_id)] for w in ends if w.session_id == session_id]
        return {
            f"{cell.variant} {cell.workload}{' control' if cell.control_of else ''}"
            for cell in found
        }

    def verdicts(self, check: str) -> Mapping[str, Verdict]:
        summary = summarise(self.folder)
        return {str(v.cell_id): v for v in summary.verdicts if v.check == check}


@pytest.fixture
def grown(measured: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Grown:
    # answers of a tenth of a second on a busy machine: half as long again is no slower machine yet
    monkeypatch.setattr(sessions, "CONTROL_LIMIT", 0.5)
    shutil.copytree(measured, tmp_path / "project")
    return Grown(tmp_path / "project")


# --- one variant alone ----------------------------------------------------------------------------


def test_a_variant_is_added_beside_a_control_that_says_the_machine_is_the_same(
    grown: Grown, capsys: pytest.CaptureFixture[str]
) -> None:
    grown.edit("held_constant:", SLOTTED + "held_constant:")
    before = (grown.run / "requests.jsonl").read_bytes()
    assert grown.measure("--only", "DFlash2 s4") == 0

    assert grown.measured_in("s2") == {
        "plain generate control",
        "plain concurrency control",
        "DFlash2 s4 generate",
        "DFlash2 s4 concurrency",
    }
    said = capsys.readouterr().err
    assert "2 cells to measure, after the control plain, 4 kept" in said
    assert "what is measured now may stand beside it" in said
    assert (grown.run / "requests.jsonl").read_bytes().startswith(before)
    summary = summarise(grown.folder)
    assert [v.cell.variant for v in summary.data.views] == [
        "plain",
        "plain",
        "DFlash2",
        "DFlash2",
        "DFlash2 s4",
        "DFlash2 s4",
    ]
    assert {v.level for v in grown.verdicts("split_session").values()} == {"ok"}
    (speedup,) = [
        row
        for row in summary.rows
        if (row.variant, row.metric, row.workload, row.kind)
        == ("DFlash2 s4", "speedup", "generate", "all")
    ]
    assert speedup.estimate.value is not None
    assert [session.resumed for session in grown.folder.read(Session)] == [False, True]


def test_a_machine_that_has_slowed_down_is_told_and_marked(
    grown: Grown, capsys: pytest.CaptureFixture[str]
) -> None:
    grown.edit("held_constant:", SLOTTED + "held_constant:")
    grown.edit('"--round-ms", "12"', '"--round-ms", "24"')
    assert grown.measure("--only", "DFlash2 s4") == 0

    assert "the machine is not as it was" in capsys.readouterr().err
    split = grown.verdicts("split_session")
    assert {v.level for cell, v in split.items() if cell.startswith("dflash2-s4")} == {"warning"}
    assert {v.level for cell, v in split.items() if not cell.startswith("dflash2-s4")} == {"ok"}
    message = next(v.message for cell, v in split.items() if cell.startswith("dflash2-s4"))
    assert "The control, plain, took" in message
    assert [entry.event for entry in grown.folder.read(LogEntry)].count("control") == 2


def test_a_variant_is_measured_anew_and_its_old_figures_count_no_more(grown: Grown) -> None:
    assert grown.measure("--only", "DFlash2") == 0

    folder = grown.folder
    drafting = [c.cell_id for c in folder.manifest.plan.cells if c.drafter and not c.control_of]
    used = {r.where.session_id for r in folder.usable(Request) if r.where.cell_id in drafting}
    assert used == {"s2"}
    assert {r.where.session_id for r in folder.read(Request)} == {"s1", "s2"}
    assert commands.status(grown.run).cells_finished == commands.status(grown.run).cells_planned


def test_an_unknown_variant_is_told_with_the_nearest(
    grown: Grown, capsys: pytest.CaptureFixture[str]
) -> None:
    assert grown.measure("--only", "DFlash") == 4
    said = capsys.readouterr().err
    assert "--only 'DFlash'" in said
    assert "did you mean `DFlash2`?; it has: plain, DFlash2" in said
    assert len(grown.folder.read(Session)) == 1


def test_another_machine_is_refused(grown: Grown, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(commands.keys, "device_key", lambda _: "another")
    with pytest.raises(UsageError, match="another kind of machine"):
        commands.run_into(grown.matrix, grown.run, only="DFlash2", progress=PlainLines())


def test_a_matrix_that_changed_for_the_others_too_is_refused(
    grown: Grown, capsys: pytest.CaptureFixture[str]
) -> None:
    grown.edit("held_constant: {kv_len: 2048}", "held_constant: {kv_len: 1024}")
    assert grown.measure("--only", "DFlash2") == 4
    assert "changed for plain too" in capsys.readouterr().err
    assert grown.folder.read(Amendment) == []


def test_another_matrix_is_refused(grown: Grown, capsys: pytest.CaptureFixture[str]) -> None:
    grown.edit("name: growing", "name: other")
    assert grown.measure() == 4
    assert "was made by a matrix with `name: growing`" in capsys.readouterr().err


def test_one_variant_alone_needs_a_run(grown: Grown, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["run", str(grown.matrix), "--only", "plain"]) == 4
    assert "say which with --into RUN" in capsys.readouterr().err


# --- an edited matrix -----------------------------------------------------------------------------


def flag(grown: Grown) -> None:
    grown.edit("drafter, k: 7}", "drafter, k: 7}\n    flags: {slots: 4}")


def prompt(grown: Grown) -> None:
    path = grown.path / "prompts" / "two.jsonl"
    path.write_text(path.read_text().replace("Tell me of the sea.", "Tell me of the wide sea."))


def repetitions(grown: Grown) -> None:
    grown.edit("levels: [2], repetitions: 1", "levels: [2], repetitions: 2")


def comment(grown: Grown) -> None:
    grown.edit("schedule:", "# as we did last year\nschedule:")


@pytest.mark.parametrize(
    ("edit", "expected"),
    [
        (
            flag,
            {
                "plain generate control",
                "plain concurrency control",
                "DFlash2 generate",
                "DFlash2 concurrency",
            },
        ),
        (prompt, {"plain generate", "DFlash2 generate"}),
        (repetitions, {"plain concurrency", "DFlash2 concurrency"}),
        (comment, set()),
    ],
)
def test_exactly_what_an_edit_changes_is_measured(
    grown: Grown, edit: Callable[[Grown], None], expected: set[str]
) -> None:
    edit(grown)
    assert grown.measure() == 0

    assert grown.measured_in("s2") == expected
    folder = grown.folder
    assert commands.exit_code(folder) == 0
    usable = [r for r in folder.usable(Request) if (r.where.repetition or 0) >= 0]
    places = [(r.where.block_id, r.where.cell_id, r.where.repetition, r.index) for r in usable]
    assert len(places) == len(set(places))
    assert len(summarise(folder).data.views) == 4
    assert grown.measure() == 0  # and then there is nothing left to do
    assert len(folder.read(Session)) == (2 if expected else 1)


def test_an_edit_that_is_taken_back_has_the_figures_of_before_and_measures_nothing(
    grown: Grown, capsys: pytest.CaptureFixture[str]
) -> None:
    text = grown.matrix.read_text()
    flag(grown)
    assert grown.measure() == 0
    grown.matrix.write_text(text)
    capsys.readouterr()
    assert grown.measure() == 0

    assert "has all that the matrix asks for" in capsys.readouterr().err
    folder = grown.folder
    assert len(folder.read(Session)) == 2
    assert commands.exit_code(folder) == 0
    drafting = {c.cell_id for c in folder.manifest.plan.cells if c.drafter is not None}
    assert len(drafting) == 2
    used = [r.where for r in folder.usable(Request) if r.where.cell_id in drafting]
    assert {where.session_id for where in used} == {"s1"}


def test_a_variant_that_is_removed_is_not_called_unavailable(grown: Grown) -> None:
    text = grown.matrix.read_text()
    grown.edit("held_constant:", SLOTTED.replace("scripted", "broken") + "held_constant:")
    broken = '  broken: {adapter: dflash2, command: ["{python}", "-c", "raise SystemExit(7)"]}'
    grown.edit("engines:", f"engines:\n{broken}")
    assert grown.measure() == 3
    assert {end.outcome for end in commands.unavailable(grown.folder)} == {"unavailable"}

    grown.matrix.write_text(text)
    assert grown.measure() == 0
    assert commands.unavailable(grown.folder) == ()
    assert commands.status(grown.run).unavailable == ()


def test_an_edit_that_was_stopped_half_way_is_gone_on_with(grown: Grown) -> None:
    grown.edit("held_constant:", SLOTTED.replace("scripted", "broken") + "held_constant:")
    broken = '  broken: {adapter: dflash2, command: ["{python}", "-c", "raise SystemExit(7)"]}'
    grown.edit("engines:", f"engines:\n{broken}")
    assert grown.measure() == 3
    assert grown.measured_in("s2") == {"plain generate control", "plain concurrency control"}

    grown.edit('"-c", "raise SystemExit(7)"', '"-m", "harness.scripted_server"')
    commands.resume(grown.run, progress=PlainLines())
    assert commands.exit_code(grown.folder) == 0
    assert grown.measured_in("s3") == {"DFlash2 s4 generate", "DFlash2 s4 concurrency"}
