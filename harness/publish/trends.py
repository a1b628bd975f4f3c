"""Trends: every figure over the nights, with the band of its baseline and the steps in it.

A trend is a page: the nights of one matrix on one kind of device. Its series are matched by keys,
as a comparison matches them, so an edited matrix goes on where its cells are the same.
"""

import json
import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime

from harness.compare.baselines import Baseline
from harness.compare.contents import Held, contents
from harness.compare.history import matrix_of
from harness.compare.night import Night, direction_of
from harness.compare.trend import History, Step, histories, steps_of
from harness.publish import charts
from harness.publish.charts import Band, Frame
from harness.report import format as fmt
from harness.report.comparison.table import METRICS, change

DEVIATIONS = 2.0
"""A band holds the baseline's mean and so many standard deviations of its nights on either side."""


@dataclass(frozen=True, kw_only=True)
class StepMark:
    x: float
    is_loss: bool
    told: str
    run_id: str
    href: str | None


@dataclass(frozen=True, kw_only=True)
class Chart:
    """One figure's nights, ready for the page. `points` is JSON for the script."""

    name: str
    last: str
    summary: str
    points: str
    line: str
    dots: str
    scale: tuple[str, str, str]  # at the top, in the middle, at the bottom
    band: tuple[float, float] | None  # its upper edge and its height
    band_told: str | None
    steps: tuple[StepMark, ...]
    first_day: str
    last_day: str


@dataclass(frozen=True, kw_only=True)
class Trend:
    name: str
    device: str
    file: str
    num_nights: int
    num_steps: int
    charts: Mapping[str, tuple[Chart, ...]]  # by variant


def trends(
    nights: Sequence[Night], baselines: Sequence[Baseline], pages: Mapping[str, str]
) -> tuple[Trend, ...]:
    """`pages`: run id -> the address of its page, seen from a trend's."""
    grouped: dict[tuple[str, str], list[Night]] = defaultdict(list)
    for night in nights:
        grouped[matrix_of(night.run_id), night.device_key].append(night)
    counts: dict[str, int] = defaultdict(int)
    found = []
    for (name, _), members in sorted(grouped.items()):
        if len(members) < 2:
            continue  # one night has no trend
        counts[name] += 1
        file = f"{name}-{counts[name]}" if counts[name] > 1 else name
        found.append(_trend(name, file, members, baselines, pages))
    return tuple(found)


def _trend(
    name: str,
    file: str,
    nights: Sequence[Night],
    baselines: Sequence[Baseline],
    pages: Mapping[str, str],
) -> Trend:
    bands = _bands(baselines, nights[-1].device_key)
    times = {night.run_id: datetime.fromisoformat(night.created_at) for night in nights}
    by_variant: dict[str, list[Chart]] = defaultdict(list)
    for history in histories(nights):
        if len(history.values) > 1:
            band = bands.get((history.key, history.variant, history.metric))
            by_variant[history.variant].append(_chart(history, times, band, pages))
    charts_of = {variant: tuple(found) for variant, found in by_variant.items()}
    return Trend(
        name=name,
        device=nights[-1].device,
        file=f"{file}.html",
        num_nights=len(nights),
        num_steps=sum(len(chart.steps) for found in charts_of.values() for chart in found),
        charts=charts_of,
    )


# --- baselines ------------------------------------------------------------------------------------


def _bands(baselines: Sequence[Baseline], device_key: str) -> Mapping[tuple[str, str, str], Band]:
    """By key, variant and metric; of two baselines that hold a figure, that of the later nights."""
    found: dict[tuple[str, str, str], Band] = {}
    for baseline in sorted(baselines, key=lambda item: item.nights[-1].created_at):
        nights = [night for night in baseline.nights if night.device_key == device_key]
        for held in contents(nights):
            if held.spread is not None:
                found[held.key, held.variant, held.metric] = _band(baseline.name, held)
    return found


def _band(name: str, held: Held) -> Band:
    assert held.spread is not None
    reach = DEVIATIONS * held.spread
    return Band(
        name=name,
        num_nights=held.num_nights,
        low=held.mean * math.exp(-reach),
        high=held.mean * math.exp(reach),
    )


# --- charts ---------------------------------------------------------------------------------------


def _chart(
    history: History,
    times: Mapping[str, datetime],
    band: Band | None,
    pages: Mapping[str, str],
) -> Chart:
    metric = METRICS[history.metric]
    days = [times[run_id] for run_id in history.run_ids]
    seconds = [day.timestamp() for day in days]
    frame = charts.frame(seconds, history.values, band)
    points = [
        (frame.x(at), frame.y(value)) for at, value in zip(seconds, history.values, strict=True)
    ]
    steps = tuple(steps_of(history))
    name = f"{history.work}, {metric.name}"
    last = f"{metric.show(history.values[-1])} {metric.unit}"
    return Chart(
        name=name,
        last=last,
        summary=_summary(history, name, last, steps),
        points=_points(history, points, pages),
        line=charts.line(points),
        dots=charts.dots(points),
        scale=_scale(history.metric, frame),
        band=None if band is None else _place(frame, band),
        band_told=None if band is None else _told(history.metric, band),
        steps=tuple(_mark(step, history, frame, seconds, pages) for step in steps),
        first_day=f"{days[0]:%Y-%m-%d}",
        last_day=f"{days[-1]:%Y-%m-%d}",
    )


def _summary(history: History, name: str, last: str, steps: Sequence[Step]) -> str:
    """What a screen reader says of the picture."""
    found = fmt.counted(len(steps), "step") if steps else "no step"
    nights = fmt.counted(len(history.values), "night")
    return f"{history.variant}, {name}, over {nights}, last {last}, {found}"


def _points(
    history: History, points: Sequence[tuple[float, float]], pages: Mapping[str, str]
) -> str:
    metric = METRICS[history.metric]
    told = [
        {
            "x": x,
            "y": y,
            "number": value,
            "value": f"{metric.show(value)} {metric.unit}",
            "run": run_id,
            "href": pages.get(run_id),
        }
        for (x, y), value, run_id in zip(points, history.values, history.run_ids, strict=True)
    ]
    return json.dumps(told, ensure_ascii=False, allow_nan=False, separators=(",", ":"))


def _scale(metric: str, frame: Frame) -> tuple[str, str, str]:
    show = METRICS[metric].show
    return show(frame.high), show(frame.middle), show(frame.low)


def _place(frame: Frame, band: Band) -> tuple[float, float]:
    top = frame.y(band.high)
    return top, round(frame.y(band.low) - top, 1)


def _told(metric: str, band: Band) -> str:
    show = METRICS[metric].show
    nights = fmt.counted(band.num_nights, "night")
    return f"band: baseline {band.name}, {nights}, {show(band.low)} to {show(band.high)}"


def _mark(
    step: Step,
    history: History,
    frame: Frame,
    seconds: Sequence[float],
    pages: Mapping[str, str],
) -> StepMark:
    """Drawn midway between the nights on its two sides."""
    index = history.run_ids.index(step.run_id)
    lower_is_better = direction_of(step.metric) == "lower"
    return StepMark(
        x=frame.x((seconds[index - 1] + seconds[index]) / 2),
        is_loss=(step.change > 0) == lower_is_better,
        told=change(step.change),
        run_id=step.run_id,
        href=pages.get(step.run_id),
    )
