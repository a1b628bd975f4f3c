"""From a difference to a word. Pure rules on numbers; the words are those of docs/terms.md.

`regressed` asks for two things at once: the whole interval is worse than the threshold allows, and
the change is larger than the noise floor of all figures together. One of the two alone is
`inconclusive`. So is a change beyond the threshold that has no five nights to be measured by:
what a night does is not known then.
"""

import math
from dataclasses import dataclass

from harness.compare.difference import Difference
from harness.compare.night import direction_of
from harness.compare.rules import NIGHTS_NEEDED, Rules, Word, least_gain, worst_allowed

SLACK = 1e-9
"""Of logarithms: 110 is not above 100 + 10 %, whatever floats make of it."""


@dataclass(frozen=True, kw_only=True)
class Said:
    word: Word
    reason: str | None = None


def say(metric: str, found: Difference, rules: Rules, *, history: bool, itself: bool) -> Said:
    """`history`: the baseline has the nights needed. `itself`: both sides are one run."""
    if itself:
        return Said(word="within noise", reason="the run is its own baseline")
    if found.reach is None or found.noise_floor is None:
        return Said(
            word="inconclusive",
            reason=f"fewer than two boots on a side and fewer than {NIGHTS_NEEDED} nights: the "
            "spread between boots is not known",
        )
    threshold = rules.threshold_of(metric)
    worse = found.change if direction_of(metric) == "lower" else -found.change
    allowed = abs(math.log(worst_allowed(metric, threshold)))
    gain = abs(math.log(least_gain(metric, threshold)))
    noise = max(found.noise_floor, SLACK)
    if -worse - found.reach >= gain - SLACK and -worse > noise:
        return Said(word="improved")
    beyond_threshold = worse - found.reach > allowed + SLACK
    beyond_noise = worse > noise
    if beyond_threshold and beyond_noise:
        return Said(word="regressed")
    if worse <= allowed + SLACK or not (beyond_threshold or beyond_noise or not history):
        return Said(word="within noise")
    return Said(word="inconclusive", reason=_doubt(beyond_threshold, beyond_noise))


def _doubt(beyond_threshold: bool, beyond_noise: bool) -> str:
    if beyond_noise:
        return "there is a change, but its interval reaches into what the threshold allows"
    if beyond_threshold:
        return "beyond the threshold, but one of so many figures may be by chance"
    return (
        f"worse than the threshold allows, but not clearly, and fewer than {NIGHTS_NEEDED} nights "
        "say what a night does"
    )


def least_visible(metric: str, found: Difference, rules: Rules) -> float | None:
    """The smallest change for the worse that would have been called a regression, as a share."""
    if found.reach is None or found.noise_floor is None:
        return None
    allowed = abs(math.log(worst_allowed(metric, rules.threshold_of(metric))))
    needed = max(allowed + found.reach, found.noise_floor)
    return math.expm1(needed) if direction_of(metric) == "lower" else -math.expm1(-needed)
