"""Since when: one step in sixty nights is found at once, and flat histories have none."""

import math
import random
from dataclasses import replace

import pytest

from harness.compare.night import Night
from harness.compare.trend import change_points, steps
from tests.harness.compare import nights as made

NIGHTS = 60
SPREAD = 0.01 / math.sqrt(2)  # 1 % between boots, two boots a night


def a_history(seed: int, *, at: int | None = None, factor: float = 1.0) -> list[float]:
    draw = random.Random(seed)
    return [
        100 * math.exp(draw.gauss(0, SPREAD)) * (factor if at is not None and night >= at else 1)
        for night in range(NIGHTS)
    ]


@pytest.mark.parametrize("factor", [0.96, 1.04], ids=["down", "up"])
@pytest.mark.parametrize("at", [20, 35, 50])
def test_a_step_of_four_per_cent_is_found_within_two_nights(at: int, factor: float) -> None:
    (point,) = change_points(a_history(3, at=at, factor=factor))

    assert point.index == at
    assert point.found_at == at + 1  # the second night behind it
    assert point.change == pytest.approx(factor - 1, abs=0.015)


def test_nine_steps_of_four_per_cent_in_ten_are_found_by_the_third_night() -> None:
    found = [change_points(a_history(seed, at=30, factor=0.96)) for seed in range(100)]

    in_time = [points for points in found if points and 30 <= points[0].found_at <= 32]
    assert len(in_time) >= 90


def test_twenty_flat_histories_have_no_step() -> None:
    assert [change_points(a_history(seed)) for seed in range(20)] == [()] * 20


def test_two_steps_are_two() -> None:
    values = a_history(5, at=20, factor=0.96)
    values[40:] = [value * 1.06 for value in values[40:]]

    assert [point.index for point in change_points(values)] == [20, 40]


def test_one_bad_night_is_no_step() -> None:
    values = a_history(5)
    values[30] *= 0.9

    assert change_points(values) == ()


def test_what_never_varied_steps_where_it_does() -> None:
    (point,) = change_points([4.0] * 10 + [3.6] * 3)

    assert (point.index, point.found_at) == (10, 11)
    assert point.change == pytest.approx(-0.10)
    assert change_points([4.0] * 10 + [3.999] * 3) == ()


def test_too_few_nights_have_no_step() -> None:
    assert change_points([]) == ()
    assert change_points([100.0]) == ()
    assert change_points([100.0, 100.1, 100.0, 50.0, 50.1, 50.0]) == ()


# --- nights ---------------------------------------------------------------------------------------


def a_month() -> list[Night]:
    """Thirty nights; from the 21st on the rate is 4 % less, and the time what it was."""
    cell = made.cells()[0]
    draw = random.Random(7)

    def two(value: float) -> list[float]:
        return [value * math.exp(draw.gauss(0, 0.01)) for _ in range(2)]

    return [
        made.night(
            number,
            made.subject(
                cell,
                {"decode_rate": two(100 if number < 21 else 96), "ttft_p50": two(0.1)},
            ),
        )
        for number in range(1, 31)
    ]


def test_a_step_is_told_by_the_run_that_came_first_behind_it() -> None:
    (step,) = steps(a_month())

    assert (step.variant, step.work, step.metric) == ("plain", "generate", "decode_rate")
    assert step.run_id == "20261121-020000-nightly"
    assert step.change == pytest.approx(-0.04, abs=0.01)


def test_nights_on_another_device_and_invalid_cells_are_no_part_of_a_trend() -> None:
    month = a_month()
    elsewhere = [replace(night, device_key="e" * 12) for night in month[20:29]]
    invalid = [
        replace(night, subjects=tuple(replace(s, level="invalid") for s in night.subjects))
        for night in month[20:29]
    ]

    assert steps([*month[:20], *elsewhere, month[29]]) == ()
    assert steps([*month[:20], *invalid, month[29]]) == ()


def test_a_figure_that_tonight_does_not_have_is_not_told_again() -> None:
    month = a_month()

    assert steps([*month, made.night(31)]) == ()
