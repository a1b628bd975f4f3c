"""How far apart a run and its baseline are, and how far apart they would be without any change.

What is a sample depends on what is there. With five nights or more a night is one observation: it
has the mean of its boots, and the spread between nights holds what the hour, the temperature and
the neighbours do. With fewer, boots are the sample, as within a run, and nothing is known of what
a night does. Everything is on logarithms. Metrics have no meaning here, only names that say which
figures are peers; whether a change is good or allowed is for rules.py and words.py.
"""

import math
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean, harmonic_mean, variance

from harness.analysis import stats
from harness.analysis.stats import Spread
from harness.compare.rules import FALSE_ALARMS_PER_NIGHT, NIGHTS_NEEDED

OVER_NIGHTS = "t over nights"
OVER_BOOTS = "t over boots"


@dataclass(frozen=True, kw_only=True)
class Sample:
    """One figure: per boot of the run, and per night and boot of the baseline."""

    metric: str
    new: tuple[float, ...]
    nights: tuple[tuple[float, ...], ...]

    @property
    def has_history(self) -> bool:
        return len(self.nights) >= NIGHTS_NEEDED


@dataclass(frozen=True, kw_only=True)
class Difference:
    """Geometric means of both sides; `change` is the logarithm of their ratio.

    `reach`: the 95 % interval is change ± reach. `noise_floor`: what a change exceeds by chance in
    one of `FALSE_ALARMS_PER_NIGHT` comparisons, all of their figures taken together. Both None: no
    spread is known.
    """

    baseline: float
    new: float
    change: float
    reach: float | None = None
    noise_floor: float | None = None
    method: str | None = None


@dataclass(frozen=True, kw_only=True)
class _Draft:
    """`scale`: the change has this many times the variance of one observation."""

    change: float
    baseline: float
    new: float
    spread: Spread | None
    scale: float
    method: str


def differences(samples: Sequence[Sample]) -> tuple[Difference, ...]:
    """One per sample, in their order; the samples are all that one comparison looks at."""
    drafts = [_over_nights(item) if item.has_history else _over_boots(item) for item in samples]
    peers: dict[tuple[str, str], list[int]] = defaultdict(list)
    for number, (sample, draft) in enumerate(zip(samples, drafts, strict=True)):
        if draft.spread is not None:
            peers[sample.metric, draft.method].append(number)
    spreads: dict[int, Spread] = {}
    for numbers in peers.values():
        own = [spread for number in numbers if (spread := drafts[number].spread) is not None]
        spreads.update(zip(numbers, stats.moderated(own), strict=True))
    return tuple(
        _difference(draft, spreads.get(number), num_figures=len(spreads))
        for number, draft in enumerate(drafts)
    )


def _over_nights(sample: Sample) -> _Draft:
    means = [_mean_log(night) for night in sample.nights]
    new, baseline = _mean_log(sample.new), fmean(means)
    # a run with fewer boots than the nights had may lie further off than a night does
    boots_per_night = harmonic_mean([len(night) for night in sample.nights])
    own = max(1.0, boots_per_night / len(sample.new))
    return _Draft(
        change=new - baseline,
        baseline=math.exp(baseline),
        new=math.exp(new),
        spread=Spread(variance=variance(means), freedom=len(means) - 1),
        scale=own + 1 / len(means),
        method=OVER_NIGHTS,
    )


def _over_boots(sample: Sample) -> _Draft:
    ours = [math.log(value) for value in sample.new]
    theirs = [math.log(value) for night in sample.nights for value in night]
    new, baseline = fmean(ours), fmean(theirs)
    spread = None
    if len(ours) >= 2 and len(theirs) >= 2:
        squares = sum((x - new) ** 2 for x in ours) + sum((x - baseline) ** 2 for x in theirs)
        freedom = len(ours) + len(theirs) - 2
        spread = Spread(variance=squares / freedom, freedom=freedom)
    return _Draft(
        change=new - baseline,
        baseline=math.exp(baseline),
        new=math.exp(new),
        spread=spread,
        scale=1 / len(ours) + 1 / len(theirs),
        method=OVER_BOOTS,
    )


def _mean_log(values: Sequence[float]) -> float:
    return fmean(math.log(value) for value in values)


def _difference(draft: _Draft, spread: Spread | None, *, num_figures: int) -> Difference:
    if spread is None:
        return Difference(baseline=draft.baseline, new=draft.new, change=draft.change)
    deviation = math.sqrt(spread.variance * draft.scale)
    chance = FALSE_ALARMS_PER_NIGHT / num_figures
    return Difference(
        baseline=draft.baseline,
        new=draft.new,
        change=draft.change,
        reach=stats.t_quantile(spread.freedom) * deviation,
        noise_floor=stats.t_quantile(spread.freedom, chance) * deviation,
        method=draft.method,
    )
