"""What a budget cuts, worked out by hand."""

from dataclasses import replace

import pytest

from harness.budget import applied, within
from harness.errors import UsageError
from harness.plan import make_plan
from harness.price import Durations
from harness.records import Budget, Matrix, Schedule

from .test_plan import GENERATE, PLAIN, WAVES, matrix

WAVE = replace(WAVES, levels=(10,), repetitions=2)  # ten prompts: each wave holds each of them once
WHOLE = matrix(variants=(PLAIN,), workloads=(GENERATE, WAVE), schedule=Schedule(boots=4))


def durations(whole: Matrix) -> Durations:
    """A boot 10 s, a repetition of generate 20 s, of the wave 5 s; warm-ups cost nothing."""
    repetition_s = {
        cell.cell_id: 20.0 if cell.workload == "generate" else 5.0
        for cell in make_plan(whole).cells
    }
    return Durations(boot_s=10.0, warmup_s={}, repetition_s=repetition_s)


def budget(budget_s: float, whole: Matrix = WHOLE) -> Budget:
    return within(whole, budget_s, durations(whole))


# whole: 4 x (10 + 3 x 20 + 2 x 5) = 320 s


def test_what_fits_is_not_cut() -> None:
    found = budget(320.0)
    assert (found.repetitions, found.boots, found.cuts) == ((3, 2), 4, ())
    assert applied(WHOLE, found) == WHOLE


def test_repetitions_are_cut_first_where_there_are_most() -> None:
    found = budget(319.0)  # 4 x (10 + 2 x 20 + 2 x 5) = 240
    assert (found.repetitions, found.boots) == ((2, 2), 4)
    assert found.cuts == ("generate, load single, c = 1: 2 repetitions instead of 3",)


def test_boots_are_cut_last_and_stay_even() -> None:
    found = budget(100.0)  # 4 x (10 + 20 + 5) = 140, 2 x 35 = 70
    assert (found.repetitions, found.boots) == ((1, 1), 2)
    assert found.cuts == (
        "generate, load single, c = 1: 1 repetition instead of 3",
        "concurrency, load wave, c = 10: 1 repetition instead of 2",
        "2 boots per variant instead of 4",
    )
    assert make_plan(applied(WHOLE, found), durations(WHOLE)).estimated_s == 70.0


def test_boots_in_the_listed_order_may_be_one() -> None:
    listed = replace(WHOLE, schedule=Schedule(order="listed", boots=3))
    assert budget(35.0, listed).boots == 1


def test_a_balanced_wave_that_needs_its_repetitions_is_not_said_to_be_cut() -> None:
    # ten waves of one: each of the ten prompts once
    single = replace(WHOLE, workloads=(replace(WAVES, levels=(1,), repetitions=2),))
    found = budget(125.0, single)  # 4 x (10 + 10 x 5) = 240 whatever is asked, 2 boots 120
    assert found.cuts == ("2 boots per variant instead of 4",)


def test_what_never_fits_is_refused_with_what_it_takes() -> None:
    with pytest.raises(UsageError, match=r"one repetition and 2 boots of \S+ take 70 s"):
        budget(69.0)


def test_what_takes_a_little_more_is_not_told_as_if_it_fitted() -> None:
    # 70 s as above, and a wait of 0.2 s after each of two boots
    longer = replace(WHOLE, schedule=replace(WHOLE.schedule, cooldown_s=0.2))
    with pytest.raises(UsageError, match="take 71 s"):
        budget(70.0, longer)


def test_without_a_stored_run_nobody_can_tell() -> None:
    with pytest.raises(UsageError, match="measure it once without a budget"):
        within(WHOLE, 100.0, None)


def test_a_matrix_with_other_workloads_is_left_as_it_is() -> None:
    more = replace(WHOLE, workloads=(*WHOLE.workloads, replace(GENERATE, max_tokens=9)))
    assert applied(more, budget(100.0)) == more
