"""Whether the machine stayed as it was: controls that took a known time longer."""

import re
from collections.abc import Callable
from dataclasses import replace

import pytest

from harness import checks
from harness.analysis import dataset
from harness.analysis.dataset import Dataset
from harness.cell_view import CellView
from harness.checks.sessions import change_of_session
from harness.records import Request, Schedule

from . import synthetic


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Dataset:
    """Plain, the control first and last, DFlash2; one at a time and in waves of two."""
    asked = replace(synthetic.matrix(levels=(2,)), schedule=Schedule(boots=2, control="plain"))
    folder = synthetic.write_run(tmp_path_factory.mktemp("run"), asked, boot_spread=0.0)
    return dataset.load(folder)


@pytest.fixture
def drafted(data: Dataset) -> CellView:
    return next(v for v in data.views if v.cell.drafter and v.cell.load == "single")


def slower(view: CellView, factor: float, moved: Callable[[Request], bool]) -> CellView:
    """Requests that took `factor` as long, where they are moved."""
    return replace(
        view,
        requests=tuple(
            replace(r, wall_s=(r.wall_s or 0.0) * factor) if moved(r) else r for r in view.requests
        ),
    )


def judged(check: str, view: CellView) -> tuple[str, str]:
    found = checks.CHECKS[check].judge(view)
    return found.level, found.message


def test_a_control_is_no_row_and_stands_behind_all_of_its_work(data: Dataset) -> None:
    assert not any(view.cell.control_of for view in data.views)
    for view in data.views:
        (control,) = view.controls
        assert control.cell.workload_key == view.cell.workload_key
        assert control.reference is not None
        assert control.reference.cell.cell_id == control.cell.control_of
        assert control.boot_ids == ("b1-s1", "b6-s1")


@pytest.mark.parametrize(
    ("factor", "level"), [(1.0, "ok"), (1.04, "ok"), (1.07, "warning"), (0.93, "warning")]
)
def test_a_control_that_took_longer_at_the_end_is_told(
    drafted: CellView, factor: float, level: str
) -> None:
    (control,) = drafted.controls
    moved = slower(control, factor, lambda request: request.where.boot_id == "b6-s1")
    found, message = judged("control", replace(drafted, controls=(moved,)))
    assert found == level
    if level == "warning":
        word = "longer" if factor > 1 else "less"
        # the synthetic engine scatters by a thousandth
        told = rf"The control, plain, took (6\.9|7\.[01]) % {word} at the end than at first\."
        assert re.match(told, message)


def test_a_run_without_a_control_says_nothing_of_it(drafted: CellView) -> None:
    assert judged("control", replace(drafted, controls=())) == ("ok", "")


# --- two sessions ---------------------------------------------------------------------------------


def in_session(view: CellView, session_id: str) -> CellView:
    """The whole view, as if it had been measured then."""
    return replace(
        view,
        boots=tuple(
            replace(
                boot,
                where=replace(boot.where, session_id=session_id),
                started_at=boot.started_at.replace("2026-11-29", f"2026-12-{session_id[1:]:0>2}"),
            )
            for boot in view.boots
        ),
        requests=tuple(
            replace(r, where=replace(r.where, session_id=session_id)) for r in view.requests
        ),
        ends=tuple(replace(e, where=replace(e.where, session_id=session_id)) for e in view.ends),
    )


@pytest.mark.parametrize("load", ["single", "wave"])
@pytest.mark.parametrize(("factor", "level"), [(1.0, "ok"), (1.04, "ok"), (1.08, "warning")])
def test_two_sessions_are_split_unless_a_control_says_that_they_are_alike(
    data: Dataset, load: str, factor: float, level: str
) -> None:
    view = next(v for v in data.views if v.cell.drafter and v.cell.load == load)
    (control,) = view.controls
    again = slower(in_session(control, "s2"), factor, lambda _: True)
    again = replace(again, ends=tuple(replace(e, window_s=e.window_s * factor) for e in again.ends))
    later = replace(in_session(view, "s2"), controls=(again,))
    change = change_of_session(later, "s2")
    assert change == pytest.approx(factor - 1, abs=0.01)
    assert judged("split_session", later)[0] == level


def test_without_a_control_two_sessions_are_split(drafted: CellView) -> None:
    level, message = judged("split_session", replace(in_session(drafted, "s2"), controls=()))
    assert level == "warning"
    assert "2 starts of the harness" in message


def test_a_control_of_one_session_says_nothing_of_a_third(drafted: CellView) -> None:
    (control,) = drafted.controls
    assert drafted.reference is not None
    boots = drafted.reference.boots
    third = replace(
        in_session(drafted, "s2"),
        controls=(in_session(control, "s2"),),
        reference=replace(
            drafted.reference,
            boots=(boots[0], *in_session(replace(drafted.reference, boots=boots[1:]), "s3").boots),
        ),
    )
    assert judged("split_session", third)[0] == "warning"


# --- a machine that slept -------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("suspended_s", "level"), [(None, "ok"), (0.0, "ok"), (0.02, "ok"), (41.0, "invalid")]
)
def test_a_repetition_during_which_the_machine_slept_is_void(
    drafted: CellView, suspended_s: float | None, level: str
) -> None:
    first, *rest = drafted.ends
    ends = (replace(first, suspended_s=suspended_s), *rest)
    found, message = judged("suspended", replace(drafted, ends=ends))
    assert found == level
    if level == "invalid":
        assert "suspended for 41 s while 1 of 6 repetitions ran" in message
