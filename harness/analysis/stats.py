"""Medians, percentiles, intervals: the arithmetic of `docs/terms.md`, on plain numbers.

Prompts are a fixed set and boots are the sample, so an interval speaks of "another boot of these
engines", not of "other prompts". Everything here refuses to know what a figure means; None stands
for "these numbers cannot tell".
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from statistics import fmean
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray
from scipy import special
from scipy import stats as distributions

from harness.requests import middle

CONFIDENCE = 0.95
BOOTSTRAP_SEED = 20261129  # fixed: a report built twice from the same files is the same report
BOOTSTRAP_DRAWS = 4000

Group: TypeAlias = Sequence[float] | NDArray[np.float64]
Groups: TypeAlias = Sequence[Group]
"""One inner sequence per prompt (or one for all waves): the values of its repetitions."""


@dataclass(frozen=True, kw_only=True)
class Interval:
    low: float
    high: float
    method: str


def mean_of_medians(groups: Groups) -> float | None:
    """The study's figure: each prompt's median over its repetitions, then the mean over prompts.

    A prompt without a value leaves no figure: the mean over the other prompts would be another
    quantity.
    """
    if not groups or not all(map(len, groups)):
        return None
    return fmean(map(middle, groups))


def percentile(values: Sequence[float] | NDArray[Any], share: float) -> float | None:
    """Linear interpolation; None below `1 / (1 - share)` values, where it would repeat the largest.

    So p90 wants 10 values and p99 wants 100; a median is defined for one.
    """
    if len(values) < smallest_sample(share):
        return None
    return float(np.quantile(np.asarray(values), share))


def smallest_sample(share: float) -> int:
    """How many values a percentile needs."""
    return 1 if share <= 0.5 else round(1 / (1 - share))


def log_spread(samples: Groups) -> tuple[float, int] | None:
    """Pooled standard deviation of logarithms within samples, and its degrees of freedom."""
    centred = [each for sample in samples for each in _centred(sample)]
    freedom = len(centred) - sum(1 for sample in samples if len(sample))
    if freedom < 1:
        return None
    return math.sqrt(math.fsum(value**2 for value in centred) / freedom), freedom


def _centred(sample: Group) -> list[float]:
    """Logarithms less their mean."""
    logs = [math.log(value) for value in sample]
    centre = fmean(logs) if logs else 0.0
    return [value - centre for value in logs]


@cache
def t_quantile(freedom: float, beyond: float = (1 - CONFIDENCE) / 2) -> float:
    """What Student's t exceeds with probability `beyond`; the default is a 95 % interval's."""
    return float(distributions.t.isf(beyond, freedom))


def ratio_interval(figures: Sequence[float], reference: Sequence[float]) -> Interval | None:
    """Two-sample t interval of a ratio, on the logarithms of per-boot figures (2B - 2 degrees).

    None with fewer than two boots on a side. Boots are paired by nothing but the hour: a paired
    interval would need six pairs to be narrower than this one.
    """
    if len(figures) < 2 or len(reference) < 2:
        return None
    spread = log_spread((figures, reference))
    assert spread is not None
    deviation, freedom = spread
    centre = fmean(map(math.log, figures)) - fmean(map(math.log, reference))
    reach = t_quantile(freedom) * deviation * math.sqrt(1 / len(figures) + 1 / len(reference))
    return Interval(
        low=math.exp(centre - reach), high=math.exp(centre + reach), method="t over boots"
    )


def figure_interval(figures: Sequence[float], peers: Groups) -> Interval | None:
    """t interval of one figure over its boots, the spread pooled over `peers`, a table's variants.

    `peers` holds `figures` too. Two boots alone would leave one degree of freedom, an interval of
    thirteen standard errors; what the variants of a table share is the machine, and it is the
    machine that spreads them.
    """
    spread = log_spread(peers)
    if len(figures) < 2 or spread is None:
        return None
    deviation, freedom = spread
    centre = fmean(map(math.log, figures))
    reach = t_quantile(freedom) * deviation / math.sqrt(len(figures))
    return Interval(
        low=math.exp(centre - reach), high=math.exp(centre + reach), method="t over boots"
    )


def smallest_visible_effect(deviation: float, freedom: int, boots: int) -> float:
    """The difference that this many boots a side can just tell from none, at this spread."""
    return math.exp(t_quantile(freedom) * deviation * math.sqrt(2 / boots)) - 1


# --- spreads that learn from each other -----------------------------------------------------------

NO_SPREAD = 1e-20
"""A variance of logarithms below this is equal figures and the rounding of their logarithms."""

BORROWED_AT_MOST = 2.0
"""Degrees of freedom that a figure may take from its peers, as a multiple of its own.

Peers that differ in spread know less of each other than few nights can show: in simulations,
borrowing without a limit doubled the rate of false alarms (tests/harness/compare).
"""


@dataclass(frozen=True, kw_only=True)
class Spread:
    """Variance of a log figure between its boots (or nights), and how well it is known."""

    variance: float
    freedom: float


def moderated(spreads: Sequence[Spread]) -> tuple[Spread, ...]:
    """Each spread drawn towards those of its peers, as far as the peers agree among themselves.

    Five nights know a spread with four degrees of freedom: the figure that happened to stand still
    would raise an alarm at its first move. The peers are the same metric in other cells, on the
    same machine in the same nights. Empirical Bayes as in Smyth, Linear models and empirical Bayes
    methods for assessing differential expression (2004), section 6.2. What did not vary at all
    (greedy acceptance) is exact, teaches nothing and stays as it is.
    """
    known = [spread for spread in spreads if spread.variance > NO_SPREAD]
    if len(known) < 2:
        return tuple(spreads)
    common = _common_spread(known)
    return tuple(
        _drawn_towards(spread, common) if spread.variance > NO_SPREAD else spread
        for spread in spreads
    )


def _drawn_towards(own: Spread, common: Spread) -> Spread:
    weight = min(common.freedom, BORROWED_AT_MOST * own.freedom)
    freedom = own.freedom + weight
    variance = (own.freedom * own.variance + weight * common.variance) / freedom
    return Spread(variance=variance, freedom=freedom)


def _common_spread(spreads: Sequence[Spread]) -> Spread:
    """What the peers share, and how many degrees of freedom their agreement is worth."""
    halves = np.asarray([spread.freedom / 2 for spread in spreads])
    variances = np.asarray([spread.variance for spread in spreads])
    # the logarithm of a chi-square variate has mean digamma and variance trigamma of half its
    # degrees of freedom; what the spreads scatter beyond that is their own difference
    logs = np.log(variances) - special.digamma(halves) + np.log(halves)
    excess = float(np.var(logs, ddof=1) - np.mean(special.polygamma(1, halves)))
    others = float(2 * np.sum(halves) * (1 - 1 / len(spreads)))
    if excess <= 0:
        return Spread(variance=float(np.average(variances, weights=halves)), freedom=others)
    half = _inverse_trigamma(excess)
    centre = float(np.mean(logs) + special.digamma(half) - math.log(half))
    return Spread(variance=math.exp(centre), freedom=min(2 * half, others))


def _inverse_trigamma(value: float) -> float:
    """Newton's method on 1 / trigamma, which is nearly a straight line."""
    at = 0.5 + 1 / value
    for _ in range(100):
        trigamma = float(special.polygamma(1, at))
        step = trigamma * (1 - trigamma / value) / float(special.polygamma(2, at))
        at += step
        if abs(step) < 1e-10 * at:
            break
    return at


def bootstrap_interval(groups: Groups, reference: Groups | None = None) -> Interval | None:
    """Percentile bootstrap over repetitions, of a figure or of its ratio to a reference's.

    It knows nothing of what changes from boot to boot, so it carries its title and never decides a
    verdict. None when no group has two values: nothing would vary.
    """
    sides = [groups] if reference is None else [groups, reference]
    if any(not side or not all(map(len, side)) for side in sides):
        return None
    if all(len(group) < 2 for side in sides for group in side):
        return None
    generator = np.random.default_rng(BOOTSTRAP_SEED)
    draws = [_resampled_figures(side, generator) for side in sides]
    figures = draws[0] if reference is None else draws[0] / draws[1]
    low, high = np.quantile(figures, [(1 - CONFIDENCE) / 2, (1 + CONFIDENCE) / 2])
    return Interval(low=float(low), high=float(high), method="bootstrap within one boot")


def _resampled_figures(groups: Groups, generator: np.random.Generator) -> NDArray[np.float64]:
    medians = []
    for group in groups:
        drawn = generator.choice(np.asarray(group), size=(BOOTSTRAP_DRAWS, len(group)))
        medians.append(np.median(drawn, axis=1))
    return np.asarray(np.mean(medians, axis=0), dtype=np.float64)


@dataclass(frozen=True, kw_only=True)
class Level:
    """One concurrency of a comparison A over B. `usable` False: unbalanced mix, invalid, or no
    figure.
    """

    concurrency: int
    ratio: Interval | None
    usable: bool


@dataclass(frozen=True, kw_only=True)
class Crossover:
    """A bracket: A clearly ahead at `last_ahead`, B clearly ahead from `first_behind` on; None:
    never.
    """

    last_ahead: int | None
    first_behind: int | None

    @property
    def found(self) -> bool:
        return self.last_ahead is not None and self.first_behind is not None


def crossover(levels: Sequence[Level]) -> Crossover:
    """Where B overtakes A. A level that is not usable can end the bracket on neither side.

    "Clearly" is an interval over boots that lies wholly on one side of 1; B must stay ahead at
    every usable level above, else the curves only touched.
    """
    usable = [
        (level.concurrency, level.ratio)
        for level in sorted(levels, key=lambda level: level.concurrency)
        if level.usable and level.ratio is not None and level.ratio.method == "t over boots"
    ]
    first_behind = None
    for concurrency, ratio in reversed(usable):
        if ratio.high >= 1:
            break
        first_behind = concurrency
    ahead = [
        concurrency
        for concurrency, ratio in usable
        if ratio.low > 1 and (first_behind is None or concurrency < first_behind)
    ]
    return Crossover(last_ahead=max(ahead, default=None), first_behind=first_behind)
