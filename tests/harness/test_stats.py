"""Intervals, medians and crossovers, against pencil, paper and scipy."""

import math
import random
from statistics import fmean

import pytest
from scipy import stats as scipy_stats

from harness.analysis import stats
from harness.analysis.stats import Crossover, Interval, Level
from harness.plan import turns
from harness.records import Schedule


def test_single_stream_figure_is_the_mean_of_medians_and_not_the_pooled_median() -> None:
    groups = [[40, 41, 60], [10, 10, 11], [30]]

    assert stats.mean_of_medians(groups) == pytest.approx(27.0)


def test_a_prompt_without_a_value_leaves_no_figure() -> None:
    assert stats.mean_of_medians([[40.0], []]) is None
    assert stats.mean_of_medians([]) is None


@pytest.mark.parametrize(
    ("values", "median"),
    [([100, 200, 300, 400], 250), ([20, 10], 15), ([3, 1, 2], 2), ([5], 5), ([], None)],
)
def test_median_of_an_even_number_lies_between_the_middle_two(
    values: list[float], median: float | None
) -> None:
    assert stats.percentile(values, 0.5) == median


def test_a_percentile_needs_a_sample_that_reaches_it() -> None:
    hundred = list(range(1, 101))

    assert stats.percentile([10.0] * 11 + [100.0], 0.99) is None
    assert stats.percentile([45.4, 75.8], 0.99) is None
    assert stats.percentile(list(range(9)), 0.9) is None
    assert stats.percentile(hundred, 0.5) == pytest.approx(50.5)
    assert stats.percentile(hundred, 0.95) == pytest.approx(95.05)
    assert stats.percentile(hundred, 0.99) == pytest.approx(99.01)


def test_ratio_interval_by_hand_for_two_boots_a_side() -> None:
    # logs 0, 0.02 and 0.70, 0.72: difference -0.7, pooled deviation sqrt(2 * 2e-4 / 2) = 0.014142,
    # t(2) = 4.302653, reach 4.302653 * 0.014142 * sqrt(1/2 + 1/2) = 0.060849
    figures = [math.exp(0.70), math.exp(0.72)]
    reference = [math.exp(0.0), math.exp(0.02)]

    interval = stats.ratio_interval(figures, reference)

    assert interval is not None
    assert math.log(interval.low) == pytest.approx(0.7 - 0.060849, abs=1e-6)
    assert math.log(interval.high) == pytest.approx(0.7 + 0.060849, abs=1e-6)


def test_ratio_interval_agrees_with_scipy_on_logarithms() -> None:
    figures, reference = [31.0, 29.5, 30.2, 30.9], [8.1, 7.9, 8.0, 7.7]
    logs = [list(map(math.log, side)) for side in (figures, reference)]
    oracle = scipy_stats.ttest_ind(*logs, equal_var=True).confidence_interval(0.95)

    interval = stats.ratio_interval(figures, reference)

    assert interval is not None
    assert interval.low == pytest.approx(math.exp(oracle.low))
    assert interval.high == pytest.approx(math.exp(oracle.high))
    assert interval.method == "t over boots"


def test_one_boot_on_a_side_has_no_interval_over_boots() -> None:
    assert stats.ratio_interval([30.0], [8.0, 8.1]) is None
    assert stats.figure_interval([30.0], [[30.0], [8.0, 8.1]]) is None


def test_figure_interval_pools_the_spread_of_its_peers() -> None:
    # deviations 0.01 and 0.01 in each of two samples: pooled sqrt(4 * 1e-4 / 2) = 0.014142, t(2),
    # reach 4.302653 * 0.014142 / sqrt(2) = 0.0430265
    own = [math.exp(1.0), math.exp(1.02)]
    peer = [math.exp(3.0), math.exp(3.02)]

    interval = stats.figure_interval(own, [own, peer])

    assert interval is not None
    assert math.log(interval.low) == pytest.approx(1.01 - 0.0430265, abs=1e-6)
    assert math.log(interval.high) == pytest.approx(1.01 + 0.0430265, abs=1e-6)


def test_smallest_visible_effect_of_two_and_of_four_boots() -> None:
    # t(2) = 4.302653, t(6) = 2.446912; 1 % spread
    two = stats.smallest_visible_effect(0.01, 2, 2)
    four = stats.smallest_visible_effect(0.01, 6, 4)

    assert two == pytest.approx(math.exp(0.04302653) - 1, abs=1e-6)
    assert four == pytest.approx(math.exp(0.02446912 / math.sqrt(2)) - 1, abs=1e-6)


@pytest.mark.parametrize("boots", [2, 3, 4])
@pytest.mark.parametrize("spread", [0.01, 0.028])
def test_intervals_over_boots_cover_the_truth_as_often_as_they_say(
    boots: int, spread: float
) -> None:
    """Of 100 intervals 92 to 98 hold the true ratio, with 1 % between boots as on a quiet machine
    and with 2.8 %, which is what publishers of such figures see across boots.
    """
    generator = random.Random(20261129)
    covered, trials = 0, 2000
    for _ in range(trials):
        figures = [3.0 * generator.lognormvariate(0, spread) for _ in range(boots)]
        reference = [generator.lognormvariate(0, spread) for _ in range(boots)]
        interval = stats.ratio_interval(figures, reference)
        assert interval is not None
        covered += interval.low <= 3.0 <= interval.high

    # binomial deviation at 2000 trials is 0.5 %
    assert 0.92 <= covered / trials <= 0.98


DRIFT = 0.05  # slower by so much from the first turn to the last, evenly
TRUE_RATIO = 2.0


def drifting_ratio(order: str, boots: int) -> float:
    """Of two variants whose turns come in this order on a machine that slows down evenly."""
    sequence = turns(("plain", "drafted"), Schedule(order=order, boots=boots))  # type: ignore[arg-type]
    figures: dict[str, list[float]] = {"plain": [], "drafted": []}
    for position, variant in enumerate(sequence):
        speed = 1 - DRIFT * position / (len(sequence) - 1)
        figures[variant].append((TRUE_RATIO if variant == "drafted" else 1.0) * speed)
    return fmean(figures["drafted"]) / fmean(figures["plain"])


def test_one_boot_each_in_fixed_order_has_the_whole_drift_in_the_ratio() -> None:
    assert drifting_ratio("listed", 1) / TRUE_RATIO - 1 == pytest.approx(-DRIFT)


@pytest.mark.parametrize("boots", [2, 4])
def test_a_drift_of_5_percent_makes_a_fixed_order_wrong_and_turns_there_and_back_right(
    boots: int,
) -> None:
    """A B A B puts every second turn later: 1.7 % of 5 % with two boots, 0.7 % with four. A B B A
    has both variants at the same mean place, and nothing is left.
    """
    fixed = abs(drifting_ratio("listed", boots) / TRUE_RATIO - 1)
    turned = abs(drifting_ratio("abba", boots) / TRUE_RATIO - 1)

    assert fixed > 0.005
    assert turned < 0.005
    assert turned == pytest.approx(0, abs=1e-12)


def test_three_boots_there_and_back_leave_a_part_of_the_drift() -> None:
    """Why boots are even: A B B A A B."""
    assert 0.001 < abs(drifting_ratio("abba", 3) / TRUE_RATIO - 1) < 0.01


def test_bootstrap_is_titled_and_the_same_every_time() -> None:
    groups, reference = [[30.0, 31.0, 32.0], [20.0, 21.0, 22.0]], [[8.0, 8.1, 8.2]]

    first = stats.bootstrap_interval(groups, reference)
    second = stats.bootstrap_interval(groups, reference)

    assert first == second
    assert first is not None
    assert first.method == "bootstrap within one boot"
    # the extremes: means of medians 25 to 27 over 8 to 8.2
    assert 25 / 8.2 <= first.low < 26 / 8.1 < first.high <= 27 / 8.0


def test_bootstrap_of_single_values_would_vary_nothing() -> None:
    assert stats.bootstrap_interval([[30.0], [20.0]]) is None
    assert stats.bootstrap_interval([[30.0, 31.0], []]) is None


def level(concurrency: int, low: float, high: float, *, usable: bool = True) -> Level:
    ratio = Interval(low=low, high=high, method="t over boots")
    return Level(concurrency=concurrency, ratio=ratio, usable=usable)


def test_crossover_is_a_bracket_between_two_clear_levels() -> None:
    levels = [level(1, 2.0, 2.2), level(2, 1.1, 1.3), level(4, 0.9, 1.1), level(8, 0.7, 0.8)]

    assert stats.crossover(levels) == Crossover(last_ahead=2, first_behind=8)


def test_an_unbalanced_level_ends_the_bracket_on_neither_side() -> None:
    levels = [
        level(1, 2.0, 2.2),
        level(2, 1.1, 1.3, usable=False),
        level(4, 0.7, 0.8, usable=False),
        level(8, 0.6, 0.7),
    ]

    assert stats.crossover(levels) == Crossover(last_ahead=1, first_behind=8)


def test_a_curve_that_falls_behind_once_and_returns_has_not_crossed() -> None:
    levels = [level(1, 2.0, 2.2), level(2, 0.7, 0.8), level(4, 1.1, 1.2)]

    assert stats.crossover(levels) == Crossover(last_ahead=4, first_behind=None)


def test_an_interval_within_one_boot_decides_no_crossover() -> None:
    ratio = Interval(low=2.0, high=2.2, method="bootstrap within one boot")

    assert not stats.crossover([Level(concurrency=1, ratio=ratio, usable=True)]).found
