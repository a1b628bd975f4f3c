"""PLOTS: the pictures of a report, as SVG and PNG; a row for each, a file for each.

Each plot says first what it shows and what it cannot (`Picture`), without drawing; drawing comes
last, so that the page and its numbers are on disk whatever happens to a picture. A variant has one
colour in all of them.
"""

from collections.abc import Callable, Mapping

from harness.analysis.summary import Summary
from harness.report.plots.acceptance_by_concurrency import acceptance_by_concurrency
from harness.report.plots.acceptance_by_position import acceptance_by_position
from harness.report.plots.decode_rate_by_kind import decode_rate_by_kind
from harness.report.plots.drift import drift
from harness.report.plots.forest import forest
from harness.report.plots.picture import Picture, save
from harness.report.plots.prefill_by_length import prefill_by_length
from harness.report.plots.speedup_by_concurrency import speedup_by_concurrency
from harness.report.plots.throughput_by_concurrency import throughput_by_concurrency
from harness.report.plots.tokens_per_round import tokens_per_round
from harness.report.plots.ttft import ttft

__all__ = ["PLOTS", "Picture", "pictures", "save"]

PLOTS: Mapping[str, Callable[[Summary], list[Picture]]] = {
    "decode_rate_by_kind": decode_rate_by_kind,
    "tokens_per_round": tokens_per_round,
    "acceptance_by_position": acceptance_by_position,
    "throughput_by_concurrency": throughput_by_concurrency,
    "speedup_by_concurrency": speedup_by_concurrency,
    "acceptance_by_concurrency": acceptance_by_concurrency,
    "ttft": ttft,
    "prefill_by_length": prefill_by_length,
    "drift": drift,
    "forest": forest,
}


def pictures(summary: Summary) -> tuple[Picture, ...]:
    return tuple(picture for make in PLOTS.values() for picture in make(summary))
