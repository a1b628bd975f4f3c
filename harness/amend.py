"""A stored run's plan and what a matrix wants now: what is kept, what is measured, in which blocks.

Pure: no file, no clock, no engine. A cell is known again by its keys and its protocol, whatever its
variant is called; a block by its variant and its turn. What was measured of a kept cell in a kept
block stays. Where new figures will stand beside kept ones a control goes first: a kept variant once
more, in a boot of its own, for whoever judges whether the machine is still the same.
"""

from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import count
from typing import TypeAlias

from harness.errors import ConfigError
from harness.plan import control_block, control_cell, plan_of
from harness.records import Block, Cell, Matrix, Plan
from harness.turns import Place, asked_of

Measured: TypeAlias = Mapping[Place, Collection[int]]
"""The repetitions that a finished place has, whatever matrix it was finished for."""


@dataclass(frozen=True, kw_only=True)
class Amended:
    """`todo`: places that are to be measured, those of the control among them."""

    plan: Plan
    todo: frozenset[Place]
    control: Block | None

    @property
    def started(self) -> frozenset[str]:
        """The variants that have something to measure."""
        waiting = {block_id for block_id, _ in self.todo}
        return frozenset(b.variant for b in self.plan.blocks if b.block_id in waiting)


def amended(
    stored: Plan,
    matrix: Matrix,
    wanted: Plan,
    measured: Measured,
    only: str | None = None,
    earlier: Sequence[Cell] = (),
) -> Amended:
    """`stored` as `matrix` wants it.

    wanted: the matrix's plan, without a control. only: the one variant that is measured, anew if it
    was before; all others stay as stored. earlier: cells that the run was once begun with, whether
    `stored` has them still or not.
    """
    renamed = _under_known_ids((*stored.cells, *earlier), wanted)
    if only is not None:
        _refuse_changes_elsewhere(stored, renamed, only, matrix.path)
        renamed = _with_stored(stored, renamed, only)
    controls = _kept_controls(stored, renamed, only)
    cells = [*renamed.cells, *controls.cells]
    blocks = [*_blocks(stored, renamed, measured, only), *controls.blocks]
    todo = missing(plan_of(cells, blocks, matrix.schedule), measured)
    control = _control(cells, blocks, todo, matrix, only)
    if control:
        number = _next_number([*stored.blocks, *blocks], measured)
        block = replace(control_block(control, matrix), block_id=f"b{number}")
        known = {cell.cell_id for cell in cells}
        cells += [cell for cell in control if cell.cell_id not in known]
        blocks.insert(_first_of(blocks, todo), block)
        todo |= {(block.block_id, cell_id) for cell_id in block.cell_ids}
        return Amended(plan=plan_of(cells, blocks, matrix.schedule), todo=todo, control=block)
    return Amended(plan=plan_of(cells, blocks, matrix.schedule), todo=todo, control=None)


def missing(plan: Plan, measured: Measured) -> frozenset[Place]:
    """Places that are not finished, or have fewer repetitions than they should."""
    return frozenset(
        place
        for place, asked in asked_of(plan).items()
        if not asked <= frozenset(measured.get(place, ()))
    )


# --- cells ----------------------------------------------------------------------------------------


def identity(cell: Cell) -> tuple[str, str, str]:
    return cell.workload_key, cell.subject_key, cell.protocol_id


def _under_known_ids(cells: Iterable[Cell], wanted: Plan) -> Plan:
    """The wanted plan, with the ids that its cells have in the run, or new ones that it has not."""
    known: dict[tuple[str, str, str], list[Cell]] = defaultdict(list)
    taken: set[str] = set()
    for cell in cells:
        if cell.control_of is None and cell.cell_id not in taken:
            known[identity(cell)].append(cell)
        taken.add(cell.cell_id)
    ids: dict[str, str] = {}
    # the same name goes first, for two variants may be the same subject; then one was renamed
    for may_be_renamed in (False, True):
        for cell in wanted.cells:
            same = [
                other
                for other in known[identity(cell)]
                if may_be_renamed or other.variant == cell.variant
            ]
            if same and cell.cell_id not in ids:
                known[identity(cell)].remove(same[0])
                ids[cell.cell_id] = same[0].cell_id
    for cell in wanted.cells:
        new = f"{cell.cell_id}-{cell.protocol_id}" if cell.cell_id in taken else cell.cell_id
        ids.setdefault(cell.cell_id, new)
    return replace(
        wanted,
        cells=tuple(_renamed_cell(cell, ids) for cell in wanted.cells),
        blocks=tuple(_renamed_block(block, ids) for block in wanted.blocks),
    )


def _renamed_cell(cell: Cell, ids: Mapping[str, str]) -> Cell:
    reference = cell.reference_cell_id
    return replace(
        cell,
        cell_id=ids[cell.cell_id],
        reference_cell_id=None if reference is None else ids[reference],
    )


def _renamed_block(block: Block, ids: Mapping[str, str]) -> Block:
    parts = block.repetitions
    return replace(
        block,
        cell_ids=tuple(ids[cell_id] for cell_id in block.cell_ids),
        repetitions=None if parts is None else {ids[cell]: part for cell, part in parts.items()},
    )


# --- one variant alone ----------------------------------------------------------------------------


def _refuse_changes_elsewhere(stored: Plan, wanted: Plan, only: str, path: str) -> None:
    """What is kept must be what the matrix still says, or the new figures would measure something
    else.
    """
    moved = [
        variant
        for variant in _variants(wanted.cells)
        if variant != only
        and (before := _identities(stored.cells, variant))
        and before != _identities(wanted.cells, variant)
    ]
    if moved:
        raise ConfigError(
            f"{path} changed for {', '.join(moved)} too since the run was measured, so {only} "
            "would be held against other work: leave `--only` out to measure all that changed, or "
            "restore the rest"
        )


def _with_stored(stored: Plan, wanted: Plan, only: str) -> Plan:
    """The stored plan with `only` as it is wanted, in its place or behind the others."""
    own = [cell for cell in wanted.cells if cell.variant == only]
    kept = [cell for cell in stored.cells if cell.control_of is None and cell.variant != only]
    there = {cell.cell_id for cell in kept}
    own = [cell if cell.reference_cell_id in (None, *there) else _alone(cell) for cell in own]
    place = next((n for n, cell in enumerate(stored.cells) if cell.variant == only), len(kept))
    controls = {cell.cell_id for cell in stored.cells if cell.control_of is not None}
    blocks = [b for b in stored.blocks if b.variant != only and not controls & {*b.cell_ids}]
    return replace(
        wanted,
        cells=(*kept[:place], *own, *kept[place:]),
        blocks=(*blocks, *(block for block in wanted.blocks if block.variant == only)),
    )


def _alone(cell: Cell) -> Cell:
    reason = "its reference was not measured in this run"
    return replace(cell, reference_cell_id=None, reference_reason=reason)


def _variants(cells: Sequence[Cell]) -> list[str]:
    return list(dict.fromkeys(cell.variant for cell in cells if cell.control_of is None))


def _identities(cells: Sequence[Cell], variant: str) -> set[tuple[str, str, str]]:
    return {identity(cell) for cell in cells if cell.variant == variant and cell.control_of is None}


# --- blocks ---------------------------------------------------------------------------------------


def _blocks(stored: Plan, wanted: Plan, measured: Measured, only: str | None) -> Iterator[Block]:
    """Stored ones in their order, then those that an earlier matrix had, then new ones."""
    before = {
        variant: _stored_turns(stored, wanted, variant) for variant in _variants(wanted.cells)
    }
    earlier = {variant: _earlier_turns(stored, wanted, variant, measured) for variant in before}
    if only is not None:
        before[only], earlier[only] = [], []
    taken: Counter[str] = Counter()
    kept: dict[str, Block] = {}
    again: list[Block] = []
    fresh: list[Block] = []
    for block in wanted.blocks:
        turns, own = before[block.variant], earlier[block.variant]
        if taken[block.variant] < len(turns):
            block_id = turns[taken[block.variant]].block_id
            kept[block_id] = replace(block, block_id=block_id)
        elif own:
            again.append(replace(block, block_id=own.pop(0)))
        else:
            fresh.append(block)
        taken[block.variant] += 1
    for variant, turns in before.items():
        for surplus in turns[taken[variant] :]:
            kept[surplus.block_id] = _what_was_measured(surplus, variant, wanted, measured)
    yield from (kept[b.block_id] for b in stored.blocks if b.block_id in kept)
    yield from again
    numbers = count(_next_number(stored.blocks, measured))
    yield from (replace(block, block_id=f"b{next(numbers)}") for block in fresh)


def _stored_turns(stored: Plan, wanted: Plan, variant: str) -> list[Block]:
    """Of the variant, by the name that it had."""
    own = {cell.cell_id for cell in wanted.cells if cell.variant == variant}
    names = {c.variant for c in stored.cells if c.cell_id in own and c.control_of is None}
    controls = {cell.cell_id for cell in stored.cells if cell.control_of is not None}
    return [
        block
        for block in stored.blocks
        if block.variant in (names or {variant}) and not controls & {*block.cell_ids}
    ]


def _earlier_turns(stored: Plan, wanted: Plan, variant: str, measured: Measured) -> list[str]:
    """Ids of blocks that were dropped, with figures of what is wanted of the variant again."""
    own = {cell.cell_id for cell in wanted.cells if cell.variant == variant}
    kept = {block.block_id for block in stored.blocks}
    found = {block_id for block_id, cell_id in measured if cell_id in own and block_id not in kept}
    return sorted(found, key=_number)


def _what_was_measured(block: Block, variant: str, wanted: Plan, measured: Measured) -> Block:
    """A turn that is wanted no more keeps what is finished of it."""
    alone = replace(block, variant=variant)
    cells = [cell for cell in wanted.cells if cell.cell_id in block.cell_ids]
    own = Plan(
        cells=tuple(cells),
        blocks=(replace(alone, cell_ids=tuple(cell.cell_id for cell in cells)),),
        plan_hash="",
        estimated_s=None,
    )
    left = {cell_id for _, cell_id in missing(own, measured)}
    return replace(alone, cell_ids=tuple(c.cell_id for c in cells if c.cell_id not in left))


def _next_number(blocks: Sequence[Block], measured: Measured) -> int:
    """No block's name is given twice, or what the first one left would count for the second."""
    known = (*(block.block_id for block in blocks), *(block_id for block_id, _ in measured))
    return max(map(_number, known), default=0) + 1


def _number(block_id: str) -> int:
    return int(block_id.removeprefix("b"))


def _first_of(blocks: Sequence[Block], todo: Collection[Place]) -> int:
    waiting = {block_id for block_id, _ in todo}
    return next(n for n, block in enumerate(blocks) if block.block_id in waiting)


# --- the control ----------------------------------------------------------------------------------


def _kept_controls(stored: Plan, wanted: Plan, only: str | None) -> Plan:
    """Controls of before, of cells that are kept."""
    there = {cell.cell_id: cell for cell in wanted.cells if cell.variant != only}
    cells = {
        cell.cell_id: control_cell(there[cell.control_of])
        for cell in stored.cells
        if cell.control_of in there
    }
    blocks = [
        replace(block, variant=cells[own[0]].variant, cell_ids=own)
        for block in stored.blocks
        if (own := tuple(cell_id for cell_id in block.cell_ids if cell_id in cells))
    ]
    return replace(stored, cells=tuple(cells.values()), blocks=tuple(blocks))


def _control(
    cells: Sequence[Cell],
    blocks: Sequence[Block],
    todo: Collection[Place],
    matrix: Matrix,
    only: str | None,
) -> list[Cell]:
    """Cells of one kept variant, wherever kept and new figures of one piece of work will meet."""
    new = {cell_id for _, cell_id in todo}
    kept = {c for b in blocks for c in b.cell_ids if (b.block_id, c) not in todo}
    mixed = {_work(c) for c in cells if c.cell_id in new} & {
        _work(c) for c in cells if c.cell_id in kept and c.control_of is None
    }
    for variant in _preferred(cells, matrix, only):
        own = [
            control_cell(cell)
            for cell in cells
            if cell.variant == variant
            and cell.control_of is None
            and cell.cell_id in kept
            and _work(cell) in mixed
        ]
        if own:
            return own
    return []


def _work(cell: Cell) -> tuple[str, str]:
    return cell.workload_key, cell.protocol_id


def _preferred(cells: Sequence[Cell], matrix: Matrix, only: str | None) -> Sequence[str]:
    """The matrix's control, the reference of the one variant, plain variants, then any; each can
    still be started.
    """
    references = {cell.reference_cell_id for cell in cells if cell.variant == only}
    names = [
        *filter(None, [matrix.schedule.control]),
        *(cell.variant for cell in cells if cell.cell_id in references),
        *(variant.name for variant in matrix.variants if variant.drafter is None),
        *(variant.name for variant in matrix.variants),
    ]
    return [name for name in dict.fromkeys(names) if name != only]
