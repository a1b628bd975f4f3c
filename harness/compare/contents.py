"""What a baseline holds, figure by figure, and where two of them differ. No word is said of it."""

import math
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from statistics import fmean, stdev

from harness.compare.night import GATED, ByBoot, Night, Subject


@dataclass(frozen=True, kw_only=True)
class Held:
    """One figure over the nights that have it. `spread`: standard deviation of the logarithms of
    its nights; None with one night.
    """

    variant: str
    work: str
    metric: str
    key: str
    mean: float
    num_nights: int
    num_boots: int
    spread: float | None


@dataclass(frozen=True, kw_only=True)
class Changed:
    """A figure of two baselines; None: that side does not hold it."""

    old: Held | None
    new: Held | None

    @property
    def shown(self) -> Held:
        held = self.new or self.old
        assert held is not None
        return held

    @property
    def change(self) -> float | None:
        """-0.1 is a tenth less."""
        return None if self.old is None or self.new is None else self.new.mean / self.old.mean - 1


def contents(nights: Sequence[Night]) -> tuple[Held, ...]:
    """In the order in which the nights have them."""
    subjects: dict[tuple[str, str], list[Subject]] = defaultdict(list)
    for night in nights:
        for subject in night.subjects:
            subjects[subject.key, subject.variant].append(subject)
    return tuple(held for same in subjects.values() for held in _held(same))


def _held(subjects: Sequence[Subject]) -> Iterator[Held]:
    last = subjects[-1]
    for metric in GATED:
        boots = [item.figures[metric].by_boot for item in subjects if metric in item.figures]
        if not boots:
            continue
        means = [_mean_log(by_boot) for by_boot in boots]
        yield Held(
            variant=last.variant,
            work=last.work,
            metric=metric,
            key=last.key,
            mean=math.exp(fmean(means)),
            num_nights=len(boots),
            num_boots=sum(map(len, boots)),
            spread=stdev(means) if len(means) > 1 else None,
        )


def _mean_log(by_boot: ByBoot) -> float:
    return fmean(math.log(value) for value in by_boot.values())


def changes(old: Sequence[Night], new: Sequence[Night]) -> tuple[Changed, ...]:
    """The new side's order, then what only the old side holds."""
    theirs = {(held.key, held.variant, held.metric): held for held in contents(old)}
    ours = {(held.key, held.variant, held.metric): held for held in contents(new)}
    kept = [Changed(old=theirs.get(place), new=held) for place, held in ours.items()]
    gone = [Changed(old=held, new=None) for place, held in theirs.items() if place not in ours]
    return (*kept, *gone)
