"""A matrix that fits into a given time. Repetitions are cut first, then boots. Pure."""

import math
from collections.abc import Iterator, Mapping
from dataclasses import replace

from harness.errors import UsageError
from harness.plan import counted, make_plan
from harness.price import Durations
from harness.records import Budget, Matrix, Plan


def within(
    matrix: Matrix,
    budget_s: float,
    durations: Durations | None,
    identities: Mapping[str, str] | None = None,
) -> Budget:
    """What is left of repetitions and boots; raises UsageError where nothing fits, or none can
    tell.
    """
    fewer = matrix
    while (took_s := make_plan(fewer, durations, identities).estimated_s) is not None:
        if took_s <= budget_s:
            return _budget(matrix, fewer, budget_s)
        cut = _cut_repetitions(fewer) or _cut_boots(fewer)
        if cut is None:
            raise UsageError(
                f"--budget of {budget_s:.0f} s: one repetition and "
                f"{counted(fewer.schedule.boots, 'boot')} of {matrix.path} take "
                f"{math.ceil(took_s)} s; leave out variants, prompts or levels"
            )
        fewer = cut
    raise UsageError(
        f"--budget: no stored run tells how long all cells of {matrix.path} take; measure it once "
        "without a budget"
    )


def applied(matrix: Matrix, budget: Budget) -> Matrix:
    """`matrix` as it was cut, when it still has as many workloads."""
    if len(budget.repetitions) != len(matrix.workloads):
        return matrix
    return replace(
        matrix,
        workloads=tuple(
            replace(workload, repetitions=min(workload.repetitions, repetitions))
            for workload, repetitions in zip(matrix.workloads, budget.repetitions, strict=True)
        ),
        schedule=replace(matrix.schedule, boots=min(matrix.schedule.boots, budget.boots)),
    )


def _cut_repetitions(matrix: Matrix) -> Matrix | None:
    """One off the workload that has most of them."""
    most = max(matrix.workloads, key=lambda workload: workload.repetitions)
    if most.repetitions == 1:
        return None
    place = matrix.workloads.index(most)
    less = replace(most, repetitions=most.repetitions - 1)
    workloads = (*matrix.workloads[:place], less, *matrix.workloads[place + 1 :])
    return replace(matrix, workloads=workloads)


def _cut_boots(matrix: Matrix) -> Matrix | None:
    """A/B/B/A needs an even number."""
    step = 2 if matrix.schedule.order == "abba" else 1
    left = matrix.schedule.boots - step
    if left < step:
        return None
    return replace(matrix, schedule=replace(matrix.schedule, boots=left))


def _budget(matrix: Matrix, fewer: Matrix, budget_s: float) -> Budget:
    return Budget(
        budget_s=budget_s,
        repetitions=tuple(workload.repetitions for workload in fewer.workloads),
        boots=fewer.schedule.boots,
        cuts=tuple(_told(matrix, fewer, make_plan(matrix), make_plan(fewer))),
    )


def _told(matrix: Matrix, fewer: Matrix, before: Plan, after: Plan) -> Iterator[str]:
    """By the repetitions that are planned: `balanced` may need as many as before."""
    left = {cell.cell_id: cell.repetitions for cell in after.cells}
    said = dict.fromkeys(
        f"{cell.workload}, load {cell.load}, c = {cell.concurrency}: "
        f"{counted(left[cell.cell_id], 'repetition')} instead of {cell.repetitions}"
        for cell in before.cells
        if left[cell.cell_id] != cell.repetitions
    )
    yield from said
    if fewer.schedule.boots != matrix.schedule.boots:
        boots = counted(fewer.schedule.boots, "boot")
        yield f"{boots} per variant instead of {matrix.schedule.boots}"
