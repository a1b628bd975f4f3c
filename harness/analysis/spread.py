"""Where a spread comes from: what was accepted, or how long a round took; in a boot, or between.

A rate is tokens per round over seconds per round, so its logarithm is a difference of two, each of
which has its own spread. Prompts are fixed: their own differences are in none of these.
"""

import math
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import TYPE_CHECKING

from harness.analysis import stats
from harness.cell_view import CellView

if TYPE_CHECKING:
    from harness.analysis.summary import Summary  # which is made of what this module makes


@dataclass(frozen=True, kw_only=True)
class Parts:
    """Standard deviations of logarithms: 0.01 is 1 %."""

    rate: float
    tokens_per_round: float
    round_time: float


@dataclass(frozen=True, kw_only=True)
class Spread:
    """`within`: over repetitions of a prompt in a boot. `across`: over boots. None: too few."""

    within: Parts | None
    across: Parts | None


@dataclass(frozen=True, kw_only=True)
class Split:
    """Of one variant."""

    word: str
    view: CellView
    within: Parts | None
    across: Parts | None


@dataclass(frozen=True, kw_only=True)
class _Figures:
    rate: float
    tokens_per_round: float
    round_time: float


def spread(view: CellView) -> Spread | None:
    """Of decoding one at a time, where the rounds were counted around every request."""
    if view.cell.load != "single" or view.cell.workload == "prefill":
        return None
    found = _figures(view)
    return Spread(within=_within(found), across=_across(found)) if found else None


def splits(summary: "Summary") -> Iterator[Split]:
    for section in summary.sections:
        for view in section.views:
            found = summary.spreads[view.cell.cell_id]
            if found is not None:
                yield Split(word=section.word, view=view, within=found.within, across=found.across)


def _figures(view: CellView) -> dict[tuple[str, str], list[_Figures]]:
    """By boot and prompt; empty where a request's rounds are not known."""
    found: dict[tuple[str, str], list[_Figures]] = defaultdict(list)
    rounds = {
        entry.where.request_id: entry.delta.drafts
        for entry in view.ledger
        if entry.delta is not None and entry.where is not None
    }
    rows = zip(
        view.ok.ids(),
        view.ok.words("boot_id"),
        view.ok.words("prompt_id"),
        view.ok.values("output_tokens"),
        view.ok.values("wall_s"),
        view.ok.values("ttft_s"),
        strict=True,
    )
    for request_id, boot_id, prompt_id, n, wall_s, ttft_s in rows:
        own = _of_request(n, wall_s, ttft_s, rounds.get(request_id))
        if own is None:
            return {}
        found[(str(boot_id), str(prompt_id))].append(own)
    return found


def _of_request(
    n: int | None, wall_s: float | None, ttft_s: float | None, rounds: int | None
) -> _Figures | None:
    if not rounds or not n or wall_s is None or ttft_s is None or wall_s <= ttft_s:
        return None
    seconds = wall_s - ttft_s
    return _Figures(rate=n / seconds, tokens_per_round=n / rounds, round_time=seconds / rounds)


def _within(found: dict[tuple[str, str], list[_Figures]]) -> Parts | None:
    return _parts(list(found.values()))


def _across(found: dict[tuple[str, str], list[_Figures]]) -> Parts | None:
    """Of each boot's geometric means."""
    by_boot: dict[str, list[list[_Figures]]] = defaultdict(list)
    for (boot_id, _), figures in found.items():
        by_boot[boot_id].append(figures)
    return _parts([[_mean(groups) for groups in by_boot.values()]])


def _mean(groups: Sequence[Sequence[_Figures]]) -> _Figures:
    """Geometric, over a prompt's repetitions and then over prompts."""

    def of(name: str) -> float:
        logs = [fmean(math.log(getattr(each, name)) for each in group) for group in groups]
        return math.exp(fmean(logs))

    return _Figures(
        rate=of("rate"), tokens_per_round=of("tokens_per_round"), round_time=of("round_time")
    )


def _parts(groups: Sequence[Sequence[_Figures]]) -> Parts | None:
    spreads = [
        stats.log_spread([[getattr(each, name) for each in group] for group in groups])
        for name in ("rate", "tokens_per_round", "round_time")
    ]
    if spreads[0] is None or spreads[1] is None or spreads[2] is None:
        return None
    return Parts(rate=spreads[0][0], tokens_per_round=spreads[1][0], round_time=spreads[2][0])
