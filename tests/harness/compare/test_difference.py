"""What is a sample, its interval and its noise floor: by pencil, with quantiles from a table."""

import math

import pytest

from harness.analysis import stats
from harness.analysis.stats import Spread
from harness.compare.difference import OVER_BOOTS, OVER_NIGHTS, Sample, differences
from harness.compare.rules import FALSE_ALARMS_PER_NIGHT

T_2, T_4 = 4.302653, 2.776445  # 97.5 % of Student's t with 2 and with 4 degrees of freedom


def of_logs(new: tuple[float, ...], *nights: tuple[float, ...]) -> Sample:
    return Sample(
        metric="decode_rate",
        new=tuple(map(math.exp, new)),
        nights=tuple(tuple(map(math.exp, night)) for night in nights),
    )


def test_with_five_nights_a_night_is_one_observation() -> None:
    # night means 0, 0.01, 0.02, 0.03, 0.04: mean 0.02, variance 0.00025
    # the run's mean is 0.00, so the change is -0.02 and its variance 0.00025 * (1 + 1/5)
    nights = [(mean - 0.005, mean + 0.005) for mean in (0.0, 0.01, 0.02, 0.03, 0.04)]

    (found,) = differences([of_logs((-0.01, 0.01), *nights)])

    assert found.change == pytest.approx(-0.02)
    assert found.reach == pytest.approx(T_4 * math.sqrt(0.00025 * 1.2), rel=1e-5)
    assert found.method == OVER_NIGHTS
    assert found.baseline == pytest.approx(math.exp(0.02))


def test_how_far_boots_of_one_night_lie_apart_says_nothing_of_nights() -> None:
    """Boots of a night that agree do not make the night any surer."""
    means = (0.0, 0.01, 0.02, 0.03, 0.04)
    close = differences([of_logs((0.0, 0.0), *[(mean, mean) for mean in means])])
    apart = differences([of_logs((-0.1, 0.1), *[(mean - 0.1, mean + 0.1) for mean in means])])

    assert close[0].reach == pytest.approx(apart[0].reach)


def test_a_run_with_fewer_boots_than_the_nights_may_lie_further_off() -> None:
    # one boot against nights of two: twice the variance of a night, 0.00025 * (2 + 1/5)
    nights = [(mean, mean) for mean in (0.0, 0.01, 0.02, 0.03, 0.04)]

    (found,) = differences([of_logs((0.0,), *nights)])

    assert found.reach == pytest.approx(T_4 * math.sqrt(0.00025 * 2.2), rel=1e-5)


def test_nights_of_one_boot_are_nights_all_the_same() -> None:
    (found,) = differences([of_logs((0.0,), (0.0,), (0.01,), (0.02,), (0.03,), (0.04,))])

    assert found.reach == pytest.approx(T_4 * math.sqrt(0.00025 * 1.2), rel=1e-5)


def test_with_fewer_nights_boots_are_the_sample() -> None:
    # the two-sample interval of measurement.md, section 4: pooled variance
    # (2 * 0.01^2 + 2 * 0.02^2) / 2 = 0.0005, times 1/2 + 1/2
    (found,) = differences([of_logs((-0.12, -0.08), (-0.01, 0.01))])
    other = differences([of_logs((-0.12, -0.08), (-0.02, 0.02))])[0]

    assert found.change == pytest.approx(-0.10)
    assert other.reach == pytest.approx(T_2 * math.sqrt(2 * 0.02**2), rel=1e-5)
    assert found.method == OVER_BOOTS


def test_it_is_the_interval_that_a_report_would_print() -> None:
    new, baseline = (31.0, 29.5, 30.2), (33.1, 32.9, 33.0)
    (found,) = differences([Sample(metric="decode_rate", new=new, nights=(baseline,))])
    interval = stats.ratio_interval(new, baseline)

    assert interval is not None
    assert found.reach is not None
    assert math.exp(found.change - found.reach) == pytest.approx(interval.low)
    assert math.exp(found.change + found.reach) == pytest.approx(interval.high)


@pytest.mark.parametrize(
    ("new", "nights"),
    [((0.0,), [(0.0, 0.01)]), ((0.0, 0.01), [(0.0,)]), ((0.0,), [(0.0,), (0.01,), (0.02,)])],
    ids=["one boot tonight", "one boot in the baseline", "three nights of one boot"],
)
def test_one_boot_without_five_nights_has_no_interval(
    new: tuple[float, ...], nights: list[tuple[float, ...]]
) -> None:
    (found,) = differences([of_logs(new, *nights)])

    assert (found.reach, found.noise_floor) == (None, None)


def test_the_noise_floor_rises_with_the_number_of_figures() -> None:
    sample = of_logs((0.0, 0.0), *[(mean, mean) for mean in (0.0, 0.01, 0.02, 0.03, 0.04)])
    exact = Sample(metric="acceptance_length", new=(4.0, 4.0), nights=((4.0, 4.0),) * 5)
    (alone,) = differences([sample])
    among = differences([sample, *[exact] * 9])[0]

    deviation = math.sqrt(0.00025 * 1.2)
    assert alone.noise_floor == pytest.approx(
        stats.t_quantile(4, FALSE_ALARMS_PER_NIGHT) * deviation
    )
    assert among.noise_floor == pytest.approx(
        stats.t_quantile(4, FALSE_ALARMS_PER_NIGHT / 10) * deviation
    )


def test_what_never_varied_has_neither_reach_nor_floor() -> None:
    exact = Sample(metric="acceptance_length", new=(3.9, 3.9), nights=((4.0, 4.0),) * 5)
    noisy = of_logs((0.0, 0.0), *[(mean, mean) for mean in (0.0, 0.01, 0.02, 0.03, 0.04)])

    found = differences([exact, noisy])[0]

    assert found.reach == pytest.approx(0.0, abs=1e-12)
    assert found.noise_floor == pytest.approx(0.0, abs=1e-12)


# --- spreads that learn from each other -----------------------------------------------------------


def test_peers_of_equal_spread_lend_as_many_degrees_of_freedom_as_may_be_borrowed() -> None:
    """Equal spreads scatter less than chance alone would have it, so they are taken for one."""
    peers = [Spread(variance=0.0004, freedom=4)] * 6

    assert stats.moderated(peers) == tuple([Spread(variance=0.0004, freedom=12)] * 6)


def test_a_spread_that_is_small_by_luck_is_drawn_towards_its_peers() -> None:
    peers = [Spread(variance=v, freedom=4) for v in (0.0001, 0.0004, 0.0005, 0.0003, 0.0004)]

    smallest, *_, last = stats.moderated(peers)

    assert 0.0001 < smallest.variance < 0.0004
    assert smallest.freedom > 4
    # 4 of 12 parts its own, 8 of 12 the mean of all five
    assert smallest.variance == pytest.approx((4 * 0.0001 + 8 * 0.00034) / 12)
    assert last.variance < 0.0004


def test_peers_that_disagree_by_orders_of_magnitude_lend_next_to_nothing() -> None:
    peers = [Spread(variance=10.0**-power, freedom=40) for power in range(2, 10)]

    for own, found in zip(peers, stats.moderated(peers), strict=True):
        assert found.freedom < 1.1 * own.freedom
        assert found.variance == pytest.approx(own.variance, rel=0.5)


def test_two_peers_lend_no_more_than_they_have() -> None:
    found = stats.moderated([Spread(variance=0.0004, freedom=4)] * 2)

    assert [spread.freedom for spread in found] == [8, 8]


def test_an_exact_figure_teaches_nothing_and_learns_nothing() -> None:
    exact = Spread(variance=0.0, freedom=4)
    alone = Spread(variance=0.0004, freedom=4)

    assert stats.moderated([exact, alone]) == (exact, alone)
