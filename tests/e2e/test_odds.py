"""From outputs that part to the word on the page: asked in a reference's last block, or in a start
of its own, or after a crash.
"""

import pytest

from harness.analysis.summary import summarise
from harness.config import load_matrix
from harness.errors import ConfigError
from harness.plan import make_plan, remarks
from harness.publish.run_page import side_by_side
from harness.records import Rescore, Session
from harness.report.tables.outputs import losslessness
from harness.run import commands
from harness.run.progress import PlainLines
from harness.store import RunFolder

from .conftest import Project

MATRIX = """
name: parting
engines:
  scripted:
    adapter: dflash2
    command: ["{{python}}", "-m", "harness.scripted_server", "--odds-gap-nats", "{gap}"]
    ready_timeout_s: 60
variants:
  - {{name: plain, engine: scripted, target: model}}
  - name: DFlash2
    engine: scripted
    target: model
    drafter: {{method: dflash2, model: drafter, k: 7}}
    flags: {{parts_at: 12}}
workloads:
  - {{kind: generate, prompts: two, repetitions: 1, max_tokens: 32}}
{schedule}
{more}
"""


def measured(project: Project, *, gap: float, schedule: str, more: str = "") -> RunFolder:
    path = project.path / "parting.yaml"
    path.write_text(MATRIX.format(gap=gap, schedule=f"schedule: {schedule}", more=more))
    return commands.run_matrix(path, results_dir=project.results, progress=PlainLines())


def test_a_reference_is_asked_in_its_last_block_and_the_page_tells_near_ties(
    project: Project,
) -> None:
    folder = measured(project, gap=0.1, schedule="{order: abba, boots: 2}")
    asked = folder.read(Rescore)

    assert len(asked) == 4  # two prompts in two boots
    assert {record.asked_boot_id for record in asked} == {"b4-s1"}
    assert {(record.index, record.token_id) for record in asked} == {(12, 512)}
    assert {record.reference_token_id for record in asked} == {12}
    assert len(folder.boots()) == 4

    (_, drafted) = summarise(folder).losslessness
    assert (drafted.num_identical, drafted.num_near_ties, drafted.num_real) == (0, 4, 0)
    assert drafted.largest_gap_nats == pytest.approx(0.1)
    summary = summarise(folder)
    (table,) = losslessness(summary)
    assert [entry.text for entry in table.rows[1]][3:] == [
        "0 of 4",
        "p1, token 12",
        "4",
        "0",
        "0",
        "0.10",
        "0.25",
    ]
    first, _ = side_by_side(summary)
    # w0 to w9 and w10, w11, with a space behind each, and the w of both w12 and w512
    assert first.outputs[1].remark == (
        "differs from the reference after 39 characters, by a near-tie: its token is 0.10 nats "
        "less likely than the target's"
    )


def test_a_reference_that_ran_first_is_started_once_more_and_a_real_difference_is_invalid(
    project: Project,
) -> None:
    folder = measured(project, gap=1.7, schedule="{order: listed, boots: 1}")
    boots = [str(boot.where.boot_id) for boot in folder.boots()]

    assert boots == ["b1-s1", "b2-s1", "b1-rescore-s1"]
    assert {record.asked_boot_id for record in folder.read(Rescore)} == {"b1-rescore-s1"}
    assert all(boot.stopped_at is not None for boot in folder.boots())
    summary = summarise(folder)
    assert summary.losslessness[1].num_real == 2
    (verdict,) = [each for each in summary.verdicts if each.check == "lossless" and each.message]
    assert verdict.level == "invalid"
    matrix = load_matrix(project.path / "parting.yaml")
    assert any(
        "in one more start of it, if any differs" in remark
        for remark in remarks(matrix, make_plan(matrix))
    )


def test_what_a_crash_left_unasked_a_resume_asks(project: Project) -> None:
    folder = measured(project, gap=0.1, schedule="{order: listed, boots: 1}")
    answers = folder.path / "rescores.jsonl"
    first, _ = answers.read_text().splitlines(keepends=True)
    answers.write_text(first)  # as if it had ended behind the first

    resumed = commands.resume(folder.path, progress=PlainLines())
    assert [record.asked_boot_id for record in resumed.read(Rescore)] == [
        "b1-rescore-s1",
        "b1-rescore-s2",
    ]
    assert len(resumed.read(Session)) == 2
    again = commands.resume(folder.path, progress=PlainLines())
    assert len(again.read(Session)) == 2


def test_nobody_is_asked_where_the_matrix_says_so(project: Project) -> None:
    more = "losslessness: {rescore: false, tolerance_nats: 0.5}"
    folder = measured(project, gap=0.1, schedule="{order: listed, boots: 1}", more=more)

    assert (folder.read(Rescore), len(folder.boots())) == ([], 2)
    (_, drafted) = summarise(folder).losslessness
    assert (drafted.num_unknown, drafted.unknown_reason) == (2, "the run did not ask for odds")
    assert drafted.tolerance_nats == 0.5


def test_a_matrix_may_not_hold_a_tolerance_of_nothing(project: Project) -> None:
    more = "losslessness: {tolerance_nats: 0}"
    with pytest.raises(ConfigError, match="tolerance_nats"):
        measured(project, gap=0.1, schedule="{boots: 2}", more=more)
