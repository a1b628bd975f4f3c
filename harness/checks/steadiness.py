"""Whether the same work took the same time again."""

from statistics import median

import numpy as np

from harness.cell_view import CellView
from harness.checks.finding import OK, Finding, warning
from harness.requests import Groups, middle

COLD_FACTOR = 1.5  # a first request this much slower than its repetitions paid for something else
SCATTER_LIMIT = 0.10
DRIFT_LIMIT = 0.05


def cold_in_measured(view: CellView) -> Finding:
    """The first request of a boot against the same prompt's later ones, one request at a time."""
    if view.cell.load != "single":
        return OK
    for boot_id in view.boot_ids:
        walls = _walls(view, boot_id)
        first = next(iter(walls.values()), np.zeros(0))
        if len(first) > 2 and first[0] > COLD_FACTOR * middle(first[1:]):
            return warning(
                f"The first request of boot {boot_id} took {first[0] / middle(first[1:]):.1f} "
                "times as long as the same prompt later: something was loaded or compiled within "
                "what is measured. Give the workload a longer warm-up."
            )
    return OK


def scatter(view: CellView) -> Finding:
    """Per prompt and boot (longest - shortest) / median; of these the median."""
    if view.cell.load != "single" or view.cell.sampling.temperature > 0:
        return OK
    ranges = [
        float(walls.max() - walls.min()) / middle(walls)
        for boot_id in view.boot_ids
        for walls in _walls(view, boot_id).values()
        if len(walls) > 1
    ]
    if not ranges or median(ranges) <= SCATTER_LIMIT:
        return OK
    return warning(
        f"Repetitions of one prompt lie {median(ranges) * 100:.0f} % apart within a boot (median "
        "over prompts): something else used the machine. Keep it quiet, or measure more "
        "repetitions."
    )


def drift(view: CellView) -> Finding:
    """The same work in the first boot and the last: with A/B/B/A a plain variant has the ends."""
    if view.cell.load != "single" or len(view.boot_ids) < 2:
        return OK
    first, last = (_walls(view, boot_id) for boot_id in (view.boot_ids[0], view.boot_ids[-1]))
    ratios = [middle(last[prompt]) / middle(first[prompt]) for prompt in first.keys() & last.keys()]
    if not ratios or abs(median(ratios) - 1) <= DRIFT_LIMIT:
        return OK
    change = median(ratios) - 1
    return warning(
        f"A request took {abs(change) * 100:.1f} % {'longer' if change > 0 else 'less'} in the "
        "last boot than in the first (median over prompts), so the machine moved while it was "
        "measured. Let it cool down (`cooldown_s`), or measure more boots."
    )


def _walls(view: CellView, boot_id: str) -> Groups:
    """Durations by prompt in one boot, in the order they were sent."""
    return view.ok.where("boot_id", boot_id).grouped("wall_s")
