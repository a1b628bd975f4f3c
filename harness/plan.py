"""From a matrix to blocks of cells in running order. Pure: no file, no clock, no engine.

A cell is one variant under one workload at one concurrency. A block is one variant's turn: one boot
of its engine and all its cells, always in the same order. Variants take turns A/B/B/A so that a
slow drift of the machine falls on all of them alike. A server that we attach to cannot be booted:
its variants take turns by repetition. Every cell knows the cell that its speed-up is taken over, or
why there is none.
"""

import math
import random
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from itertools import accumulate

from harness import keys
from harness.adapters import ADAPTERS
from harness.differences import compared_with
from harness.errors import ConfigError
from harness.price import Durations, estimated_s, num_starts
from harness.records import (
    Assignment,
    Block,
    Cell,
    Matrix,
    Plan,
    Prompt,
    PromptSet,
    Schedule,
    Variant,
    Workload,
)
from harness.turns import repetitions_of

WARMUP = -1
"""The repetition number of requests that are sent but never figure: of the first pass, -2 of the
second, and so on.
"""

IS_THE_REFERENCE = "is the reference"
IS_THE_CONTROL = "is the control"


def make_plan(
    matrix: Matrix,
    durations: Durations | None = None,
    identities: Mapping[str, str] | None = None,
) -> Plan:
    """The cells of `matrix`, and the blocks that run them.

    identities: model name -> hash of the model's files, so that a retrained model of the same name
    is another subject; a model that is not in it is known by its name.
    """
    by_variant = {
        variant.name: tuple(_cells(variant, matrix, identities or {}))
        for variant in matrix.variants
    }
    cells = tuple(cell for group in by_variant.values() for cell in group)
    _refuse_twins(cells, matrix)
    controls = tuple(map(control_cell, by_variant.get(matrix.schedule.control or "", ())))
    blocks = _numbered([*_around(controls, _blocks(by_variant, matrix), matrix)])
    return plan_of((*cells, *controls), blocks, matrix.schedule, durations)


def plan_of(
    cells: Sequence[Cell],
    blocks: Sequence[Block],
    schedule: Schedule,
    durations: Durations | None = None,
) -> Plan:
    return Plan(
        cells=tuple(cells),
        blocks=tuple(blocks),
        plan_hash=keys.short_hash([[asdict(cell) for cell in cells], [asdict(b) for b in blocks]]),
        estimated_s=estimated_s(cells, blocks, schedule, durations),
    )


# --- blocks ---------------------------------------------------------------------------------------


def _blocks(by_variant: Mapping[str, Sequence[Cell]], matrix: Matrix) -> Iterator[Block]:
    """Not numbered yet."""
    attached = attached_variants(matrix)
    rounds = matrix.schedule.boots
    if len(attached) == len(by_variant):  # nothing is booted: turns may be as short as they can be
        fewest = min(cell.repetitions for group in by_variant.values() for cell in group)
        rounds = fewest if len(by_variant) > 1 else 1
    taken: Counter[str] = Counter()
    for name in turns(tuple(by_variant), replace(matrix.schedule, boots=rounds)):
        cells = by_variant[name]
        part = _part(cells, taken[name], rounds) if name in attached else None
        taken[name] += 1
        yield _block(name, cells, part)


def _block(
    variant: str, cells: Sequence[Cell], repetitions: Mapping[str, tuple[int, int]] | None = None
) -> Block:
    cell_ids = tuple(cell.cell_id for cell in cells)
    return Block(block_id="", variant=variant, cell_ids=cell_ids, repetitions=repetitions)


def _part(cells: Sequence[Cell], turn: int, rounds: int) -> dict[str, tuple[int, int]]:
    """The repetitions of one of `rounds` turns; as many in each, or one more."""
    return {
        cell.cell_id: (
            cell.repetitions * turn // rounds,
            cell.repetitions * (turn + 1) // rounds,
        )
        for cell in cells
    }


def _around(controls: Sequence[Cell], blocks: Iterator[Block], matrix: Matrix) -> Iterator[Block]:
    """The control goes first and last."""
    if controls:
        yield control_block(controls, matrix)
    yield from blocks
    if controls:
        yield control_block(controls, matrix)


def control_block(controls: Sequence[Cell], matrix: Matrix) -> Block:
    """Not numbered yet."""
    variant = controls[0].variant
    whole = _part(controls, 0, 1) if variant in attached_variants(matrix) else None
    return _block(variant, controls, whole)


def _numbered(blocks: Sequence[Block]) -> tuple[Block, ...]:
    return tuple(replace(b, block_id=f"b{number}") for number, b in enumerate(blocks, start=1))


def control_cell(cell: Cell) -> Cell:
    """The same work of the same subject, in blocks of its own and never pooled with `cell`."""
    return replace(
        cell,
        cell_id=f"{cell.cell_id}-control",
        control_of=cell.cell_id,
        reference_cell_id=None,
        reference_reason=IS_THE_CONTROL,
    )


def attached_variants(matrix: Matrix) -> frozenset[str]:
    """Those whose server was there before and goes on."""
    return frozenset(each.name for each in matrix.variants if each.engine.kind == "attach")


def turns(variants: Sequence[str], schedule: Schedule) -> tuple[str, ...]:
    """Whose turn it is: A B B A for two boots of two variants, A B A B when `listed`."""
    order: list[str] = []
    for boot in range(schedule.boots):
        backwards = schedule.order == "abba" and boot % 2 == 1
        order.extend(reversed(variants) if backwards else variants)
    return tuple(order)


# --- cells ----------------------------------------------------------------------------------------


def _cells(variant: Variant, matrix: Matrix, identities: Mapping[str, str]) -> Iterator[Cell]:
    reference, reason = resolve_reference(variant, matrix.variants)
    for workload in matrix.workloads:
        for concurrency in workload.levels:
            yield _cell(variant, workload, concurrency, matrix, identities, reference, reason)


def _cell(
    variant: Variant,
    workload: Workload,
    concurrency: int,
    matrix: Matrix,
    identities: Mapping[str, str],
    reference: Variant | None,
    reason: str | None,
) -> Cell:
    count = num_requests(workload, concurrency)
    workload_key = keys.workload_key(
        workload, matrix.sampling, concurrency=concurrency, num_requests=count
    )

    def subject_key(of: Variant) -> str:
        return keys.subject_key(of, matrix.held_constant, identities)

    def cell_id(of: Variant) -> str:
        return _cell_id(of, workload, concurrency, workload_key, subject_key(of))

    return Cell(
        cell_id=cell_id(variant),
        variant=variant.name,
        workload=workload.kind,
        prompt_set=workload.prompts.name,
        concurrency=concurrency,
        load=workload.load,
        assignment=workload.assignment,
        length=workload.length,
        sampling=matrix.sampling,
        max_tokens=workload.max_tokens,
        repetitions=repetitions(workload, count) * _rounds_in_a_boot(variant, matrix.schedule),
        num_requests=count,
        engine=variant.engine.name,
        adapter=variant.engine.adapter,
        target=variant.target.name,
        drafter=variant.drafter.method if variant.drafter else None,
        k=variant.drafter.k if variant.drafter else None,
        workload_key=workload_key,
        subject_key=subject_key(variant),
        protocol_id=keys.protocol_id(workload, matrix.sampling, matrix.transport),
        reference_cell_id=cell_id(reference) if reference else None,
        reference_reason=reason,
        rate_per_s=workload.rate_per_s,
        cache=workload.cache,
        rate_ceiling_tok_per_s=matrix.rate_ceiling_tok_per_s,
        drafter_model=_drafter_model(variant),
        resources=resources_of(variant) or None,
        clients=min(workload.clients, concurrency) if workload.clients > 1 else None,
    )


def _rounds_in_a_boot(variant: Variant, schedule: Schedule) -> int:
    """More boots of an engine of ours are more repetitions of a server that only goes on."""
    return schedule.boots if variant.engine.kind == "attach" else 1


def _drafter_model(variant: Variant) -> str | None:
    drafter = variant.drafter
    return drafter.model.name if drafter is not None and drafter.model is not None else None


def _cell_id(
    variant: Variant, workload: Workload, concurrency: int, workload_key: str, subject_key: str
) -> str:
    shape = workload.kind if workload.load == "single" else f"{workload.kind}-{workload.load}"
    digest = keys.short_hash([workload_key, subject_key], length=6)
    return f"{keys.slug(variant.name)}-{shape}-c{concurrency}-{digest}"


def num_requests(workload: Workload, concurrency: int) -> int:
    """Requests per repetition: one per prompt, one wave of c, or for `closed` whole rounds."""
    num_prompts = len(workload.prompts.prompts)
    if workload.load == "single":
        return num_prompts
    if workload.load == "wave":
        return concurrency
    if workload.num_requests is not None:
        return workload.num_requests
    rounds = math.ceil(max(4 * concurrency, 4 * num_prompts) / num_prompts)
    return rounds * num_prompts


def repetitions(workload: Workload, count: int) -> int:
    """Repetitions per boot: as asked; `balanced` adds until every prompt has run equally often.

    With 10 prompts a wave of 4 needs 5 repetitions (20 requests, each prompt twice); `remarks` says
    so.
    """
    if workload.assignment != "balanced":
        return workload.repetitions
    num_prompts = len(workload.prompts.prompts)
    whole_rounds = num_prompts // math.gcd(count, num_prompts)
    return math.ceil(workload.repetitions / whole_rounds) * whole_rounds


def _refuse_twins(cells: Sequence[Cell], matrix: Matrix) -> None:
    seen: set[str] = set()
    for cell in cells:
        if cell.cell_id in seen:
            raise ConfigError(
                f"{matrix.path}: two workloads measure the same thing: {cell.workload}, prompts "
                f"{cell.prompt_set}, load {cell.load}, c = {cell.concurrency}; remove one, or "
                "raise `repetitions` of the other"
            )
        seen.add(cell.cell_id)


# --- references -----------------------------------------------------------------------------------


def resolve_reference(
    variant: Variant, variants: Sequence[Variant]
) -> tuple[Variant | None, str | None]:
    """The variant that speed-ups of `variant` are taken over, or None and why there is none."""
    if variant.reference is not None:
        named = next(other for other in variants if other.name == variant.reference)
        return _on_the_same_machines(variant, named)
    if variant.drafter is None:
        return None, IS_THE_REFERENCE
    candidates = [
        other
        for other in variants
        if other.drafter is None
        and other.target == variant.target
        and other.engine == variant.engine
        and resources_of(other) == resources_of(variant)
    ]
    if not candidates:
        needed = resources_of(variant)
        return None, (
            f"no variant without a drafter has target {variant.target.name} on engine "
            f"{variant.engine.name}{f' and resources {told_resources(needed)}' if needed else ''}"
        )
    if len(candidates) > 1:
        names = ", ".join(other.name for other in candidates)
        return None, f"more than one plain variant fits ({names}); name one with `reference:`"
    return candidates[0], None


def _on_the_same_machines(
    variant: Variant, reference: Variant
) -> tuple[Variant | None, str | None]:
    here, there = resources_of(variant), resources_of(reference)
    if here == there:
        return reference, None
    return None, (
        f"its reference {reference.name} runs on other machines "
        f"({told_resources(there)}, here {told_resources(here)})"
    )


def resources_of(variant: Variant) -> Mapping[str, float]:
    """What a node must have to run the variant."""
    return variant.engine.resources if variant.resources is None else variant.resources


def told_resources(resources: Mapping[str, float]) -> str:
    """`gb10: 1`, for a message."""
    return ", ".join(f"{name}: {amount:g}" for name, amount in resources.items()) or "none"


# --- which prompt each request uses ---------------------------------------------------------------


def requests_of(cell: Cell, prompt_set: PromptSet, repetition: int) -> tuple[Prompt, ...]:
    """The prompts of one repetition in sending order.

    `round-robin` begins every repetition at the first prompt; `rotate` and `balanced` go on where
    the last one stopped. For a warm-up (below 0) pass the warm-up set: every prompt once, or one
    wave of c where c are in flight later.
    """
    prompts = prompt_set.prompts
    if repetition < 0:
        count = cell.concurrency if cell.load in ("wave", "closed") else len(prompts)
        return _take(prompts, start=0, count=count)
    return _measured(prompts, cell.assignment, repetition, cell.num_requests)


def _measured(
    prompts: Sequence[Prompt], assignment: Assignment, repetition: int, count: int
) -> tuple[Prompt, ...]:
    goes_on = assignment in ("rotate", "balanced")
    return _take(prompts, start=repetition * count if goes_on else 0, count=count)


def _take(prompts: Sequence[Prompt], *, start: int, count: int) -> tuple[Prompt, ...]:
    return tuple(prompts[index % len(prompts)] for index in range(start, start + count))


# --- what keeps a prompt out of a prefix cache ----------------------------------------------------


def salts_of(
    workload: Workload, concurrency: int, repetition: int, again: str = ""
) -> tuple[str, ...]:
    """A word per request of a repetition, to stand before its prompt.

    A function of workload, prompt, and how often the workload has sent that prompt to the boot
    before: whatever variant and boot, so that like is compared with like, and never the same twice
    within a boot, so that no level and no repetition finds what another left in the cache.

    A server that we attach to has rounds of repetitions where an engine of ours has boots.
    again: what tells all of this from a time that one and the same server was sent it before.
    """
    in_a_round = repetitions(workload, num_requests(workload, concurrency))
    of_round, within = divmod(repetition, in_a_round)
    again = f"{again}.{of_round}" if of_round else again
    sent: Counter[str] = Counter()
    salts: list[str] = []
    for level, number, prompts in _sendings(workload):
        for prompt in prompts:
            if (level, number) == (concurrency, within):
                salts.append(_salt(workload, prompt, sent[prompt.prompt_id], again))
            sent[prompt.prompt_id] += 1
    return tuple(salts)


def _sendings(workload: Workload) -> Iterator[tuple[int, int, tuple[Prompt, ...]]]:
    """Level, repetition and prompts of all that a boot is sent of a workload, in order."""
    prompts = workload.prompts.prompts
    for concurrency in workload.levels:
        count = num_requests(workload, concurrency)
        for number in range(repetitions(workload, count)):
            yield concurrency, number, _measured(prompts, workload.assignment, number, count)


def _salt(workload: Workload, prompt: Prompt, times_sent: int, again: str) -> str:
    sent = [workload.kind, workload.load, workload.prompts.sha256, prompt.prompt_id, times_sent]
    return keys.short_hash([*sent, again] if again else sent)


# --- when each request arrives --------------------------------------------------------------------


def arrivals_s(workload: Workload, repetition: int, count: int) -> tuple[float, ...]:
    """Seconds after the begin of a repetition, one per request; empty for a load without a rate.

    A function of rate, seed and repetition alone: every variant meets the same arrivals. `poisson`:
    gaps -ln(1 - u) / rate with u uniform in [0, 1).
    """
    if workload.rate_per_s is None:
        return ()
    if workload.load == "constant":
        return tuple(index / workload.rate_per_s for index in range(count))
    draw = random.Random(f"{workload.seed}.{repetition}").random
    gaps = [-math.log(1 - draw()) / workload.rate_per_s for _ in range(count - 1)]
    return tuple(accumulate(gaps, initial=0.0))


# --- what the plan has to say ---------------------------------------------------------------------


def remarks(matrix: Matrix, plan: Plan) -> tuple[str, ...]:
    """What the reader of a plan should know before it runs, a sentence each."""
    said = [*_rounded_repetitions(matrix), *_unequal_counts(matrix), *_salted(matrix)]
    missing = {c.variant: c.reference_reason for c in plan.cells if c.reference_cell_id is None}
    said += [
        f"{variant}: no speed-up will be shown, {reason}"
        for variant, reason in missing.items()
        if reason not in (IS_THE_REFERENCE, IS_THE_CONTROL)
    ]
    said += [*_attached(matrix, plan), *_controlled(matrix), *_rescored(matrix, plan)]
    if matrix.schedule.boots == 1 and num_starts(plan.blocks):
        said.append("one boot per variant: intervals are within one boot; `boots: 4` makes a claim")
    if matrix.purpose == "smoke":
        said.append("purpose smoke: the report carries a banner and never becomes a baseline")
    return tuple(said)


def _attached(matrix: Matrix, plan: Plan) -> Iterator[str]:
    attached = [each.name for each in matrix.variants if each.name in attached_variants(matrix)]
    if not attached:
        return
    own = [block for block in plan.blocks if block.variant == attached[0]]
    num_turns = sum(block.repetitions is not None for block in own)
    order = ", A/B/B/A" if matrix.schedule.order == "abba" and len(matrix.variants) > 1 else ""
    yield (
        f"{', '.join(attached)}: attached, so they cannot be booted: their repetitions (as many as "
        f"{counted(matrix.schedule.boots, 'boot')} would have had) are spread over "
        f"{counted(num_turns, 'turn')}{order}, and their intervals are within one boot"
    )


def counted(count: int, noun: str) -> str:
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


def _controlled(matrix: Matrix) -> Iterator[str]:
    if matrix.schedule.control is not None:
        yield (
            f"control: {matrix.schedule.control} is measured first and last besides; how far the "
            "two lie apart is the machine's drift"
        )


def _rescored(matrix: Matrix, plan: Plan) -> Iterator[str]:
    """Who is asked where greedy outputs differ, and what that costs."""
    for variant in matrix.variants if matrix.losslessness.rescore else ():
        compared = compared_with(plan, variant.name)
        if not compared:
            continue
        if ADAPTERS[variant.engine.adapter].score is None:
            yield (
                f"losslessness: where an output differs from {variant.name}'s, a near-tie cannot "
                f"be told from a fault: adapter {variant.engine.adapter} has no words for the odds "
                "of a token"
            )
            continue
        most = counted(sum(_num_outputs(cell, plan) for cell in compared), "request")
        yield (
            f"losslessness: where an output differs from {variant.name}'s, its engine is asked how "
            f"likely both tokens are, {_asked_when(variant.name, compared, plan)}, by at most "
            f"{most} of one token"
        )


def _num_outputs(cell: Cell, plan: Plan) -> int:
    turns = [block for block in plan.blocks if cell.cell_id in block.cell_ids]
    return cell.num_requests * sum(len(repetitions_of(block, cell)) for block in turns)


def _asked_when(variant: str, compared: Sequence[Cell], plan: Plan) -> str:
    held = {cell.variant for cell in compared}
    last = [block for block in plan.blocks if block.variant in held][-1]
    if last.variant == variant:
        return f"at the end of its last block, {last.block_id}"
    return "in one more start of it, if any differs"


def _shapes(matrix: Matrix) -> Iterator[tuple[Workload, int, int]]:
    for workload in matrix.workloads:
        for concurrency in workload.levels:
            yield workload, concurrency, num_requests(workload, concurrency)


def _rounded_repetitions(matrix: Matrix) -> Iterator[str]:
    for workload, concurrency, count in _shapes(matrix):
        planned = repetitions(workload, count)
        if planned != workload.repetitions:
            yield (
                f"{workload.kind}, load {workload.load}, c = {concurrency}: {planned} repetitions "
                f"instead of {workload.repetitions}, so that all {len(workload.prompts.prompts)} "
                "prompts run equally often (assignment balanced)"
            )


def _unequal_counts(matrix: Matrix) -> Iterator[str]:
    for workload, concurrency, count in _shapes(matrix):
        num_prompts = len(workload.prompts.prompts)
        total = count if workload.assignment == "round-robin" else count * workload.repetitions
        if workload.assignment != "balanced" and total % num_prompts:
            yield (
                f"{workload.kind}, load {workload.load}, c = {concurrency}: {num_prompts} prompts "
                f"do not run equally often under {workload.assignment}; `balanced` makes it so"
            )


def _salted(matrix: Matrix) -> Iterator[str]:
    engines = {variant.engine.name: variant.engine for variant in matrix.variants}
    unknown = [
        name for name, engine in engines.items() if ADAPTERS[engine.adapter].uncached is None
    ]
    if unknown and any(workload.cache == "cold" for workload in matrix.workloads):
        yield (
            f"{', '.join(unknown)}: each prompt goes out behind a salt, twelve digits in brackets, "
            "so that no prefix cache answers it; `cache: warm` sends prompts as they are written"
        )
