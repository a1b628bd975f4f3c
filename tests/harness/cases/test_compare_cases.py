"""CMP cases, as far as one run can meet them: what is not the same work is never compared.

Baselines, their thresholds and the exit codes of a comparison are another command's.
"""

from dataclasses import replace
from pathlib import Path

import pytest

from harness import keys
from harness.analysis.summary import summarise
from harness.plan import make_plan
from harness.run import commands
from tests.harness import synthetic


def cell_of(**changes: object) -> keys.Any:
    """The plain cell of one request at a time, under a workload with these fields changed."""
    asked = synthetic.matrix(levels=(), drafters=())
    (workload,) = asked.workloads
    changed = replace(asked, workloads=(replace(workload, **changes),))  # type: ignore[arg-type]
    return make_plan(changed).cells[0]


@pytest.mark.parametrize(
    "changes",
    [
        {"prompts": replace(synthetic.prompt_set(), sha256="b" * 64)},
        {"max_tokens": 16},
        {"length": "forced"},
    ],
    ids=["other prompts", "another limit", "forced length"],
)
def test_b94_other_prompts_or_another_length_are_other_work_under_the_same_name(
    changes: dict[str, object],
) -> None:
    base, new = cell_of(), cell_of(**changes)

    assert base.variant == new.variant
    assert base.workload_key != new.workload_key
    assert base.cell_id != new.cell_id


def test_b94_the_same_work_has_the_same_key_however_often_it_is_repeated() -> None:
    assert cell_of().workload_key == cell_of(repetitions=7).workload_key
    assert cell_of().cell_id == cell_of(repetitions=7).cell_id


def test_b96_a_cell_without_its_reference_is_no_comparison_and_no_success(tmp_path: Path) -> None:
    """Nothing could be held against anything: no speed-up of 1 or 0, and not exit code 0."""
    folder = synthetic.write_run(
        tmp_path, synthetic.matrix(boots=2, levels=()), broken_variant="plain"
    )
    summary = summarise(folder)
    speedups = [row for row in summary.rows if row.metric == "speedup" and row.variant == "DFlash2"]

    assert speedups
    assert {row.estimate.value for row in speedups} == {None}
    assert all("reference" in str(row.estimate.reason) for row in speedups)
    assert summary.level == "invalid"
    assert commands.exit_code(folder) == 3
