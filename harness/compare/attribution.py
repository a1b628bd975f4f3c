"""Why a figure moved: acceptance, the step, or prefill.

One identity carries it: a stream's rate is the tokens a step emits over the time a step takes. So
the logarithm of a rate's change is acceptance's change less the step's, to the last digit, and the
time per step needs no clock of its own. A stream's time is its prefill and its decoding; their
shares in the baseline weigh the two where a figure holds both. What is left over (requests that
waited, places left empty, answers of another length) is called the rest, and never spread over the
others.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Literal, TypeAlias

Part: TypeAlias = Literal["acceptance", "step", "prefill", "rest"]


@dataclass(frozen=True, kw_only=True)
class Cause:
    """What one part alone would have made of the figure: a change of -0.1 is a tenth less."""

    part: Part
    change: float


@dataclass(frozen=True, kw_only=True)
class Moved:
    """Geometric means of one metric on both sides."""

    baseline: float
    new: float

    @property
    def log_ratio(self) -> float:
        return math.log(self.new / self.baseline)


Figures: TypeAlias = Mapping[str, Moved]
"""By metric; one that a side does not have is missing."""


def causes(metric: str, figures: Figures) -> tuple[Cause, ...]:
    """The largest first; empty where the figure is no sum of parts, or a part is not known."""
    split = SPLITS.get(metric)
    parts = split(figures) if split else {}
    found = [Cause(part=part, change=math.expm1(log)) for part, log in parts.items()]
    return tuple(sorted(found, key=lambda cause: abs(cause.change), reverse=True))


Parts: TypeAlias = Mapping[Part, float]
"""Logarithms; they add up to the figure's own."""


def _of_decode_rate(figures: Figures) -> Parts:
    return _decoding(figures) if "decode_rate" in figures else {}


def _decoding(figures: Figures) -> Parts:
    """Without a drafter every step emits one token, and a rate's change is the step's."""
    rate = figures["decode_rate"].log_ratio
    tokens = figures.get("tokens_per_step") or figures.get("acceptance_length")
    if tokens is None:
        return {"step": rate}
    return {"acceptance": tokens.log_ratio, "step": rate - tokens.log_ratio}


def _of_aggregate(figures: Figures) -> Parts:
    """By the median request's time, of which the first token took its share."""
    needed = ("aggregate_throughput", "decode_rate", "ttft_p50", "wall_p50")
    if any(name not in figures for name in needed):
        return {}
    first, wall = figures["ttft_p50"], figures["wall_p50"]
    prefill = -math.log1p((first.new - first.baseline) / wall.baseline)
    share = 1 - first.baseline / wall.baseline
    parts: dict[Part, float] = {"prefill": prefill}
    parts |= {part: share * log for part, log in _decoding(figures).items()}
    rest = figures["aggregate_throughput"].log_ratio - math.fsum(parts.values())
    return {**parts, "rest": rest}


def _of_ttft(figures: Figures) -> Parts:
    return {"prefill": figures["ttft_p50"].log_ratio} if "ttft_p50" in figures else {}


def _of_acceptance(figures: Figures) -> Parts:
    found = figures.get("acceptance_length")
    return {"acceptance": found.log_ratio} if found else {}


SPLITS: Mapping[str, Callable[[Figures], Parts]] = {
    "decode_rate": _of_decode_rate,
    "aggregate_throughput": _of_aggregate,
    "ttft_p50": _of_ttft,
    "acceptance_length": _of_acceptance,
}
