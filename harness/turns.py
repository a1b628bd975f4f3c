"""What a plan asks of each of its places: a cell in a block, the unit of redo. Knows no order and
no time.
"""

from collections.abc import Mapping
from typing import TypeAlias

from harness.records import Block, Cell, Plan

Place: TypeAlias = tuple[str, str]
"""Block id and cell id."""


def repetitions_of(block: Block, cell: Cell) -> range:
    """Of one turn: all that the cell has, or its part of them."""
    return range(*(block.repetitions or {}).get(cell.cell_id, (0, cell.repetitions)))


def asked_of(plan: Plan) -> Mapping[Place, frozenset[int]]:
    """The repetitions of every place."""
    cells = {cell.cell_id: cell for cell in plan.cells}
    return {
        (block.block_id, cell_id): frozenset(repetitions_of(block, cells[cell_id]))
        for block in plan.blocks
        for cell_id in block.cell_ids
    }
