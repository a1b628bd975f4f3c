"""Whether the same work took the same time again."""

from collections import defaultdict
from collections.abc import Mapping
from statistics import median

from harness.cell_view import CellView
from harness.checks.finding import OK, Finding, warning

COLD_FACTOR = 1.5  # a first request this much slower than its repetitions paid for something else
SCATTER_LIMIT = 0.10
DRIFT_LIMIT = 0.05


def cold_in_measured(view: CellView) -> Finding:
    """The first request of a boot against the same prompt's later ones, one request at a time."""
    if view.cell.load != "single":
        return OK
    for boot_id in view.boot_ids:
        walls = _walls(view, boot_id)
        first = next(iter(walls.values()), [])
        if len(first) > 2 and first[0] > COLD_FACTOR * median(first[1:]):
            return warning(
                f"The first request of boot {boot_id} took {first[0] / median(first[1:]):.1f} "
                "times as long as the same prompt later: something was loaded or compiled within "
                "what is measured. Give the workload a longer warm-up."
            )
    return OK


def scatter(view: CellView) -> Finding:
    """Per prompt and boot (longest - shortest) / median; of these the median."""
    if view.cell.load != "single" or view.cell.sampling.temperature > 0:
        return OK
    ranges = [
        (max(walls) - min(walls)) / median(walls)
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
    ratios = [median(last[prompt]) / median(first[prompt]) for prompt in first.keys() & last.keys()]
    if not ratios or abs(median(ratios) - 1) <= DRIFT_LIMIT:
        return OK
    change = median(ratios) - 1
    return warning(
        f"A request took {abs(change) * 100:.1f} % {'longer' if change > 0 else 'less'} in the "
        "last boot than in the first (median over prompts), so the machine moved while it was "
        "measured. Let it cool down (`cooldown_s`), or measure more boots."
    )


def _walls(view: CellView, boot_id: str) -> Mapping[str, list[float]]:
    """Durations by prompt in one boot, in the order they were sent."""
    walls: dict[str, list[float]] = defaultdict(list)
    for request in view.ok:
        if request.where.boot_id == boot_id and request.wall_s is not None:
            walls[request.prompt_id].append(request.wall_s)
    return walls
