"""How long a plan will take, from what stored runs took. Knows no figure but time.

What cannot be known is None: a part of a time would be read as the whole.
"""

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from harness.records import Block, Boot, Cell, Matrix, RepetitionEnd, Schedule
from harness.turns import repetitions_of


@dataclass(frozen=True, kw_only=True)
class Durations:
    """How long things took in a stored run, by cell id."""

    boot_s: float
    warmup_s: Mapping[str, float]
    repetition_s: Mapping[str, float]


def durations_of(boots: Iterable[Boot], ends: Iterable[RepetitionEnd]) -> Durations | None:
    """What a stored run tells of times to come; None if no engine of it was ever ready."""
    ready_s = [boot.ready_s for boot in boots if boot.ready_s is not None]
    if not ready_s:
        return None
    warmup_s: dict[str, dict[str | None, float]] = defaultdict(lambda: defaultdict(float))
    repetition_s: dict[str, list[float]] = defaultdict(list)
    for end in ends:
        cell_id, repetition = end.where.cell_id, end.where.repetition
        assert cell_id is not None
        assert repetition is not None
        if repetition < 0:  # a boot warms up in passes
            warmup_s[cell_id][end.where.boot_id] += end.window_s
        else:
            repetition_s[cell_id].append(end.window_s)
    return Durations(
        boot_s=_mean(ready_s),
        warmup_s={cell_id: _mean([*by_boot.values()]) for cell_id, by_boot in warmup_s.items()},
        repetition_s={cell_id: _mean(values) for cell_id, values in repetition_s.items()},
    )


def _mean(values: Sequence[float]) -> float:
    return math.fsum(values) / len(values)


def estimated_s(
    cells: Sequence[Cell],
    blocks: Sequence[Block],
    schedule: Schedule,
    durations: Durations | None,
) -> float | None:
    """None as soon as one cell has no stored time."""
    repeated = {cell.cell_id: cell.control_of or cell.cell_id for cell in cells}
    if durations is None or not set(repeated.values()) <= durations.repetition_s.keys():
        return None
    by_id = {cell.cell_id: cell for cell in cells}
    return math.fsum(_block_s(block, by_id, durations) + schedule.cooldown_s for block in blocks)


def _block_s(block: Block, cells: Mapping[str, Cell], durations: Durations) -> float:
    took_s = 0.0 if block.repetitions is not None else durations.boot_s
    for cell_id in block.cell_ids:
        cell = cells[cell_id]
        timed = cell.control_of or cell_id
        asked = repetitions_of(block, cell)
        took_s += len(asked) * durations.repetition_s[timed]
        if asked.start == 0:  # the server of a later turn is warm
            took_s += durations.warmup_s.get(timed, 0.0)
    return took_s


def num_starts(blocks: Iterable[Block]) -> int:
    """Engines that a plan starts; an attached one takes its turns without."""
    return sum(block.repetitions is None for block in blocks)


def starts_s(matrix: Matrix, blocks: Iterable[Block], durations: Durations | None) -> float | None:
    """What starting engines alone will take: as they took, else as the matrix expects."""
    started = [block for block in blocks if block.repetitions is None]
    if durations is not None:
        return len(started) * durations.boot_s
    expected = {variant.name: variant.engine.expected_boot_s for variant in matrix.variants}
    known = [each for block in started if (each := expected[block.variant]) is not None]
    return math.fsum(known) if len(known) == len(started) else None
