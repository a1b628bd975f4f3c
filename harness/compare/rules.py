"""Rules: how large a change must be to matter, and how sure one must be of it.

A threshold is a change relative to the baseline: 2 % allows 98 of 100 tok/s and 102 of 100 ms. What
stands exactly at the threshold passes.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, TypeAlias

from harness.compare.night import GATED, direction_of
from harness.errors import UsageError

Word: TypeAlias = Literal["improved", "within noise", "regressed", "inconclusive", "not comparable"]

NIGHTS_NEEDED = 5
FALSE_ALARMS_PER_NIGHT = 0.03
"""Promised are fewer than 5 % over all figures of a comparison. The rest is room for spreads that
are borrowed from peers (`stats.moderated`); the simulations in tests/harness/compare use it up to
4 %.
"""


@dataclass(frozen=True, kw_only=True)
class Rules:
    threshold: float = 0.02
    thresholds: Mapping[str, float] = field(default_factory=dict)  # by metric, where another holds

    def threshold_of(self, metric: str) -> float:
        return self.thresholds.get(metric, self.threshold)


def worst_allowed(metric: str, threshold: float) -> float:
    """The ratio to the baseline that still passes: 0.98 of a rate, 1.02 of a time."""
    return 1 + threshold if direction_of(metric) == "lower" else 1 - threshold


def least_gain(metric: str, threshold: float) -> float:
    """The ratio from which on a change is an improvement: 1.02 of a rate, 0.98 of a time."""
    return 1 - threshold if direction_of(metric) == "lower" else 1 + threshold


def read_rules(written: Sequence[str]) -> Rules:
    """From what `--threshold` was given: `2%`, or `ttft_p50=10%` for one metric."""
    rules = Rules()
    for item in written:
        metric, equals, share = item.rpartition("=")
        if not equals:
            rules = Rules(threshold=_share(share), thresholds=rules.thresholds)
        elif metric not in GATED:
            raise UsageError(f"--threshold {item}: {metric!r} is none of {', '.join(GATED)}")
        else:
            thresholds = {**rules.thresholds, metric: _share(share)}
            rules = Rules(threshold=rules.threshold, thresholds=thresholds)
    return rules


def _share(written: str) -> float:
    found = re.fullmatch(r"(\d+(?:\.\d+)?) ?%", written)
    if found is None:
        raise UsageError(f"--threshold {written}: write a change in per cent, such as 2%")
    share = float(found[1]) / 100
    if share >= 1:
        raise UsageError(
            f"--threshold {written}: it is a change and no ratio; to allow a tenth, write 10%"
        )
    return share
