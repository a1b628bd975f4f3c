"""When a warm-up is over: passes of known durations."""

from collections.abc import Callable
from dataclasses import replace

import pytest

from harness import checks
from harness.analysis import dataset
from harness.cell_view import CellView
from harness.checks.warmup import passes_agree
from harness.records import Request, RequestError

from . import synthetic


@pytest.fixture(scope="module")
def view(tmp_path_factory: pytest.TempPathFactory) -> CellView:
    asked = synthetic.matrix(levels=(), drafters=(), boots=2)
    (only,) = dataset.load(synthetic.write_run(tmp_path_factory.mktemp("run"), asked)).views
    return only


def requests(view: CellView, *walls_s: float) -> list[Request]:
    return [replace(view.warmups[0], wall_s=wall_s) for wall_s in walls_s]


@pytest.mark.parametrize(
    ("before", "after", "agree"),
    [
        ((1.0, 1.0), (1.09, 1.09), True),
        ((1.0, 1.0), (0.91, 0.91), True),
        ((1.0, 1.0), (1.0, 1.3), False),  # 2.3 s against 2 s
        ((2.0, 1.0), (1.0, 2.0), True),  # all requests together took as long
        ((), (), False),
    ],
)
def test_passes_agree_within_a_tenth(
    view: CellView, before: tuple[float, ...], after: tuple[float, ...], agree: bool
) -> None:
    assert passes_agree(requests(view, *before), requests(view, *after)) is agree


def test_a_pass_with_a_failure_agrees_with_none(view: CellView) -> None:
    (good,) = requests(view, 1.0)
    failed = replace(good, status="failed", error=RequestError(kind="http", message="500"))
    assert not passes_agree([good], [failed])
    assert not passes_agree([failed], [good])


def test_a_boot_whose_last_passes_differ_is_told(view: CellView) -> None:
    assert judged(view, lambda wall_s: wall_s) == ("ok", "")
    level, message = judged(view, lambda wall_s: 1.2 * wall_s)
    assert level == "warning"
    assert "In boot b1-s1 the warm-up ended after 2 passes" in message


def judged(view: CellView, second: Callable[[float], float]) -> tuple[str, str]:
    """The check's word when the first boot has a second pass with other durations."""
    first = [r for r in view.warmups if r.where.boot_id == view.boot_ids[0]]
    again = [
        replace(r, where=replace(r.where, repetition=-2), wall_s=second(r.wall_s or 0.0))
        for r in first
    ]
    found = checks.CHECKS["warmed_up"].judge(replace(view, warmups=(*view.warmups, *again)))
    return found.level, found.message
