"""What is said of a boot after its first repetition."""

from collections.abc import Callable
from dataclasses import replace

import pytest

from harness.analysis import dataset
from harness.cell_view import CellView
from harness.records import Snapshot
from harness.run import first_answers
from harness.run.parse import ParsedRepetition

from . import synthetic


@pytest.fixture(scope="module")
def drafted(tmp_path_factory: pytest.TempPathFactory) -> CellView:
    folder = synthetic.write_run(tmp_path_factory.mktemp("results"), synthetic.matrix(levels=()))
    return next(v for v in dataset.load(folder).views if v.cell.variant == "DFlash2")


def told(
    view: CellView, edit: Callable[[Snapshot], Snapshot] = lambda snapshot: snapshot
) -> tuple[str, ...]:
    """Of the first repetition of its first boot."""
    end = view.ends[0]
    parsed = ParsedRepetition(
        end=end,
        requests=tuple(
            each for each in view.requests if replace(each.where, request_id=None) == end.where
        ),
        snapshots=tuple(
            edit(each)
            for each in view.snapshots
            if replace(each.where, request_id=None) == end.where
        ),
    )
    assert len(parsed.requests) == 5
    return first_answers.told(view.cell, view.boots[0], parsed)


def test_of_an_engine_that_drafts_as_asked_nothing_is_said(drafted: CellView) -> None:
    assert told(drafted) == ()


def test_an_engine_that_drafted_nothing_is_told_after_five_answers(drafted: CellView) -> None:
    def silent(snapshot: Snapshot) -> Snapshot:
        assert snapshot.counters is not None
        nothing = {"drafts": 0, "draft_tokens": 0, "accepted_tokens": 0, "plain_steps": 0}
        return replace(snapshot, counters=replace(snapshot.counters, **nothing))

    (sentence,) = told(drafted, silent)

    assert sentence.startswith("speculation_active: dflash2 drafted nothing although")


def test_an_engine_that_names_another_drafter_is_told(drafted: CellView) -> None:
    boots = tuple(replace(boot, health={"drafter": "mtp"}) for boot in drafted.boots)

    (sentence,) = told(replace(drafted, boots=boots))

    assert sentence.startswith("speculator_kind: ")


def test_what_more_repetitions_may_mend_is_not_told(drafted: CellView) -> None:
    """One repetition is one boot and an uneven mix; a version is missing in the report, too."""
    boots = tuple(replace(boot, version=None) for boot in drafted.boots)

    assert told(replace(drafted, boots=boots)) == ()
