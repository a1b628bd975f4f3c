"""Whether what was measured began warm."""

import math
from collections import defaultdict
from collections.abc import Iterable, Sequence

from harness.cell_view import CellView
from harness.checks.finding import OK, Finding, warning
from harness.records import Request

AGREEMENT = 0.10


def warmed_up(view: CellView) -> Finding:
    """In every boot a pass succeeded, and the last two of several took as long."""
    passes = {boot_id: _passes(view, boot_id) for boot_id in view.boot_ids}
    cold = [boot_id for boot_id, sent in passes.items() if not any(map(_some_succeeded, sent))]
    if cold:
        return warning(
            f"No warm-up request succeeded in boot {', '.join(cold)}, so what ran first there paid "
            "for compilation and caches. Name a `warmup` prompt set in the workload."
        )
    moving = [
        boot_id
        for boot_id, sent in passes.items()
        if len(sent) > 1 and not passes_agree(sent[-2], sent[-1])
    ]
    if not moving:
        return OK
    return warning(
        f"In boot {', '.join(moving)} the warm-up ended after {len(passes[moving[0]])} passes of "
        f"which no two in a row took as long within {AGREEMENT * 100:.0f} %, so the engine may not "
        "have been warm yet. Raise `warmup_passes`, or keep the machine quiet."
    )


def passes_agree(before: Sequence[Request], after: Sequence[Request]) -> bool:
    """Two passes over the same prompts that succeeded and took as long, all requests together."""
    earlier_s, later_s = _walls_s(before), _walls_s(after)
    if earlier_s is None or later_s is None:
        return False
    return abs(later_s - earlier_s) <= AGREEMENT * earlier_s


def _walls_s(requests: Sequence[Request]) -> float | None:
    walls = [request.wall_s for request in requests if request.status == "ok"]
    known = [wall for wall in walls if wall is not None]
    return math.fsum(known) if known and len(known) == len(requests) else None


def _some_succeeded(requests: Iterable[Request]) -> bool:
    return any(request.status == "ok" for request in requests)


def _passes(view: CellView, boot_id: str) -> list[list[Request]]:
    """Of the cell itself where it had some: cells of a workload without a warm-up run behind those
    of others.
    """
    sent = [request for request in view.warmups if request.where.boot_id == boot_id]
    own = [request for request in sent if request.where.cell_id == view.cell.cell_id]
    if not own:
        return [sent]
    by_pass: dict[int, list[Request]] = defaultdict(list)
    for request in own:
        by_pass[request.where.repetition or 0].append(request)
    return [by_pass[number] for number in sorted(by_pass, reverse=True)]  # -1 came first
