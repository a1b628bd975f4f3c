"""What the gate promises, by simulation: how often it is wrong, and what it misses.

Seeded, so a failure is a change of the code and not of luck. A matrix of two variants, one request
at a time and waves of 1, 2, 4, 8 and 16: 12 cells with 42 figures.
"""

import math
import random
from collections.abc import Callable, Sequence

import pytest

from harness.compare.difference import Sample, differences
from harness.compare.rules import Rules, Word
from harness.compare.words import say

FIGURES = (
    *["decode_rate"] * 12,
    *["ttft_p50"] * 12,
    *["aggregate_throughput"] * 10,
    *["acceptance_length"] * 6,
    *["memory_peak"] * 2,
)
EXACT = ("acceptance_length",)  # greedy decoding: every boot takes the same rounds

Night = list[list[float]]
"""Per figure, its boots' logarithms."""


def a_night(
    draw: random.Random,
    *,
    boots: int,
    spread: float,
    night_share: float = 0.0,
    shared: bool = False,
    spreads: Sequence[float] | None = None,
) -> Night:
    """`night_share` of the variance is the night's, `shared`: one night's for all figures."""
    common = draw.gauss(0, 1)
    found = []
    for number, metric in enumerate(FIGURES):
        own = 0.0 if metric in EXACT else spread * (spreads[number] if spreads else 1.0)
        whole = own * math.sqrt(night_share) * (common if shared else draw.gauss(0, 1))
        boot = own * math.sqrt(1 - night_share)
        found.append([whole + draw.gauss(0, boot) for _ in range(boots)])
    return found


def words(nights: Sequence[Night], tonight: Night) -> list[Word]:
    samples = [
        Sample(
            metric=metric,
            new=tuple(map(math.exp, tonight[number])),
            nights=tuple(tuple(map(math.exp, night[number])) for night in nights),
        )
        for number, metric in enumerate(FIGURES)
    ]
    return [
        say(sample.metric, found, Rules(), history=sample.has_history, itself=False).word
        for sample, found in zip(samples, differences(samples), strict=True)
    ]


def share_of_nights(
    make: Callable[[random.Random], Night],
    word: Word,
    *,
    tries: int,
    nights: int = 5,
    change: Callable[[Night], object] = lambda night: None,
) -> float:
    """How often one figure or more gets the word, `nights` before tonight and no other change."""
    draw = random.Random(20261130)
    hits = 0
    for _ in range(tries):
        history, tonight = [make(draw) for _ in range(nights)], make(draw)
        change(tonight)
        hits += word in words(history, tonight)
    return hits / tries


def five_per_cent_less(figure: int) -> Callable[[Night], object]:
    def change(night: Night) -> None:
        night[figure] = [log + math.log(0.95) for log in night[figure]]

    return change


def test_a_drop_of_five_per_cent_in_one_figure_is_found_nine_times_in_ten() -> None:
    """Two boots, five nights, 1 % between boots; the rate of one cell falls, nothing else moves."""

    def make(draw: random.Random) -> Night:
        return a_night(draw, boots=2, spread=0.01)

    power = share_of_nights(make, "regressed", tries=300, change=five_per_cent_less(0))

    assert power > 0.90  # 0.95; with 300 tries three standard errors are 0.04


def test_more_nights_find_more() -> None:
    def make(draw: random.Random) -> Night:
        return a_night(draw, boots=2, spread=0.01)

    power = share_of_nights(make, "regressed", tries=200, nights=10, change=five_per_cent_less(0))

    assert power > 0.96


SHAPES = pytest.mark.parametrize(
    ("night_share", "shared"),
    [(0.0, False), (0.5, False), (0.5, True), (0.95, True)],
    ids=["boots alone vary", "nights vary", "nights vary as one", "hardly anything but nights"],
)


@SHAPES
def test_fewer_than_one_quiet_night_in_twenty_rings_over_all_figures(
    night_share: float, shared: bool
) -> None:
    """At 5 % between boots, where the threshold keeps nothing from ringing."""

    def make(draw: random.Random) -> Night:
        return a_night(draw, boots=2, spread=0.05, night_share=night_share, shared=shared)

    assert share_of_nights(make, "regressed", tries=150) < 0.05


@pytest.mark.slow
@SHAPES
def test_nor_do_they_in_a_thousand_nights_at_the_threshold_itself(
    night_share: float, shared: bool
) -> None:
    def make(draw: random.Random) -> Night:
        return a_night(draw, boots=2, spread=0.02, night_share=night_share, shared=shared)

    assert share_of_nights(make, "regressed", tries=1000) < 0.05


@pytest.mark.slow
@pytest.mark.parametrize("factor", [1.5, 2.5], ids=["half as much again", "two and a half times"])
def test_cells_that_differ_in_spread_ring_no_more_often(factor: float) -> None:
    """Where a borrowed spread is most wrong: `factor` is one standard deviation of the spreads."""
    draw = random.Random(1)
    spreads = [math.exp(draw.gauss(0, math.log(factor))) for _ in FIGURES]

    def make(draw: random.Random) -> Night:
        return a_night(draw, boots=2, spread=0.03, night_share=0.5, spreads=spreads)

    assert share_of_nights(make, "regressed", tries=1500) < 0.05


def test_a_gain_is_claimed_no_more_readily_than_a_loss() -> None:
    def make(draw: random.Random) -> Night:
        return a_night(draw, boots=2, spread=0.03, night_share=0.5)

    assert share_of_nights(make, "improved", tries=150) < 0.05


def test_two_runs_of_two_boots_without_any_change_seldom_ring() -> None:
    """No history: boots are the sample, and here nights do not differ."""

    def make(draw: random.Random) -> Night:
        return a_night(draw, boots=2, spread=0.02)

    assert share_of_nights(make, "regressed", tries=150, nights=1) < 0.05


def test_a_drop_by_a_fifth_is_found_without_any_history() -> None:
    def make(draw: random.Random) -> Night:
        return a_night(draw, boots=2, spread=0.01)

    def change(night: Night) -> None:
        night[0] = [log + math.log(0.80) for log in night[0]]

    assert share_of_nights(make, "regressed", tries=100, nights=1, change=change) > 0.95
