"""PLOTS: the pictures of a report, as SVG and PNG; a row for each, a file for each.

Each plot says first what it shows and what it cannot (`Picture`), without drawing; drawing comes
last, so that the page and its numbers are on disk whatever happens to a picture. A variant has one
colour in all of them.
"""

from collections.abc import Callable, Mapping

from harness.analysis.summary import Summary
from harness.report.plots.acceptance_by_position import acceptance_by_position
from harness.report.plots.decode_rate_by_kind import decode_rate_by_kind
from harness.report.plots.picture import Picture, save
from harness.report.plots.throughput_by_concurrency import throughput_by_concurrency

__all__ = ["PLOTS", "Picture", "pictures", "save"]

PLOTS: Mapping[str, Callable[[Summary], list[Picture]]] = {
    "decode_rate_by_kind": decode_rate_by_kind,
    "throughput_by_concurrency": throughput_by_concurrency,
    "acceptance_by_position": acceptance_by_position,
}


def pictures(summary: Summary) -> tuple[Picture, ...]:
    return tuple(picture for make in PLOTS.values() for picture in make(summary))
