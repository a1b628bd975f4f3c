"""Where a figure stepped in a row of nights, whatever the baseline says.

A gate asks whether tonight differs from a baseline; a trend asks since when. Nights are walked in
order, and each is asked whether the last few, two at least, lie apart from those before by more
than chance makes them in years of nights. A step that is found ends a level, and the next is looked
for behind it. It knows no threshold but that: a step may be small, if the nights are quiet.
"""

import math
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from statistics import fmean

from harness.analysis import stats
from harness.compare.night import GATED, ByBoot, Night

NIGHTS_BEFORE = 5
NIGHTS_AFTER = 2
LOOK_BACK = 10  # a step that went unseen for so many nights is a drift
CHANCE = 1e-6
"""Of one split of one figure in one night: fifty figures in a year of nights are a hundred thousand
questions, and none of them should ring.
"""
LEAST_STEP = 0.01  # figures that never vary would ring at their last digit


@dataclass(frozen=True, kw_only=True)
class ChangePoint:
    """`index`: of the first value behind the step; `change`: -0.04 is 4 % less than before."""

    index: int
    change: float
    found_at: int  # index of the value that made it certain


def change_points(values: Sequence[float]) -> tuple[ChangePoint, ...]:
    """Of one figure's nights, oldest first."""
    logs = [math.log(value) for value in values]
    found: list[ChangePoint] = []
    begin = 0
    for end in range(1, len(logs) + 1):
        step = _step(logs[begin:end])
        if step is not None:
            at, change = step
            found.append(ChangePoint(index=begin + at, change=math.expm1(change), found_at=end - 1))
            begin += at
    return tuple(found)


def _step(logs: Sequence[float]) -> tuple[int, float] | None:
    """Where the end of a level parts from the rest most clearly, and by how much, if it does."""
    last = len(logs) - NIGHTS_AFTER
    splits = range(max(NIGHTS_BEFORE, len(logs) - LOOK_BACK), last + 1)
    candidates = [_apart(logs, at) for at in splits]
    clear = [item for item in candidates if item[0] > 1 and abs(item[2]) >= LEAST_STEP]
    if not clear:
        return None
    _, at, change = max(clear)
    return at, change


def _apart(logs: Sequence[float], at: int) -> tuple[float, int, float]:
    """How many times what chance allows the two sides lie apart; the split; the difference."""
    before, after = logs[:at], logs[at:]
    change = fmean(after) - fmean(before)
    freedom = len(logs) - 2
    deviation = math.sqrt((_squares(before) + _squares(after)) / freedom)
    allowed = stats.t_quantile(freedom, CHANCE / 2) * deviation
    allowed *= math.sqrt(1 / len(before) + 1 / len(after))
    return (abs(change) / allowed if allowed > 0 else math.inf), at, change


def _squares(logs: Sequence[float]) -> float:
    mean = fmean(logs)
    return math.fsum((log - mean) ** 2 for log in logs)


# --- nights ---------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class History:
    """One figure of one subject on one device, over the nights that have it, oldest first.

    Cells that are invalid are no part of it.
    """

    device_key: str
    key: str
    variant: str
    work: str
    metric: str
    run_ids: tuple[str, ...]
    values: tuple[float, ...]


@dataclass(frozen=True, kw_only=True)
class Step:
    """A change-point of a figure, by the run that was the first behind it."""

    variant: str
    work: str
    metric: str
    run_id: str
    change: float
    found_in: str  # the run that made it certain


def histories(nights: Sequence[Night]) -> tuple[History, ...]:
    """In the order in which the nights have them."""
    rows: dict[tuple[str, str, str, str, str], list[tuple[str, float]]] = defaultdict(list)
    for night in nights:
        for subject in night.subjects:
            if subject.level == "invalid":
                continue
            for metric in GATED:
                if metric in subject.figures:
                    figure = _mean(subject.figures[metric].by_boot)
                    place = night.device_key, subject.key, subject.variant, subject.work, metric
                    rows[place].append((night.run_id, figure))
    return tuple(
        History(
            device_key=device_key,
            key=key,
            variant=variant,
            work=work,
            metric=metric,
            run_ids=tuple(run_id for run_id, _ in row),
            values=tuple(value for _, value in row),
        )
        for (device_key, key, variant, work, metric), row in rows.items()
    )


def steps(nights: Sequence[Night]) -> tuple[Step, ...]:
    """Of all figures that tonight (the last) has, over the nights on its device."""
    tonight = nights[-1].run_id
    return tuple(
        step
        for history in histories(nights)
        if history.run_ids[-1] == tonight
        for step in steps_of(history)
    )


def steps_of(history: History) -> Iterator[Step]:
    for point in change_points(history.values):
        yield Step(
            variant=history.variant,
            work=history.work,
            metric=history.metric,
            run_id=history.run_ids[point.index],
            change=point.change,
            found_in=history.run_ids[point.found_at],
        )


def _mean(by_boot: ByBoot) -> float:
    return math.exp(fmean(math.log(value) for value in by_boot.values()))
