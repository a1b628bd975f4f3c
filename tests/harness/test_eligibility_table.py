"""The report's table of who can run what."""

from dataclasses import replace

import pytest

from harness.analysis.summary import Summary, summarise
from harness.report.tables import TABLES

from . import synthetic

TARGET = {"hidden_size": 320, "vocab_size": 2048, "num_hidden_layers": 10}
DRAFTER = {
    "architectures": ["DFlash2DraftModel"],
    "hidden_size": 320,
    "dflash_config": {"block_size": 8},
}


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Summary:
    folder = synthetic.write_run(tmp_path_factory.mktemp("results"), synthetic.matrix(levels=()))
    return summarise(folder)


def knowing(summary: Summary, *, hidden_size: int) -> Summary:
    """With the files of both models, and a drafter of this size."""
    models = {
        "demo-dense": {"path": "a", "config": TARGET},
        "demo-dflash2": {"path": "b", "config": {**DRAFTER, "hidden_size": hidden_size}},
    }
    manifest = replace(summary.manifest, models=models)
    return replace(summary, data=replace(summary.data, manifest=manifest))


def test_a_run_of_which_all_fits_or_nothing_is_known_has_no_such_table(run: Summary) -> None:
    assert TABLES["eligibility"](run) == []
    assert TABLES["eligibility"](knowing(run, hidden_size=320)) == []


def test_a_pair_that_does_not_fit_is_told_with_its_reason(run: Summary) -> None:
    (table,) = TABLES["eligibility"](knowing(run, hidden_size=512))

    assert [[entry.text for entry in row] for row in table.rows] == [
        ["demo-dense", "plain", "yes"],
        ["demo-dense", "DFlash 2 demo-dflash2, k = 7", "no [1]"],
    ]
    assert "its hidden_size is 512" in table.notes[1]
