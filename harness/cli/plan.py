"""`dflashbench plan`: show what a matrix would run; runs nothing."""

import argparse
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

from harness.cli.arguments import Parser, Subparsers, add_budget, add_matrix, add_results
from harness.cli.common import console

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

    from harness.price import Durations
    from harness.records import Block, Cell, Matrix, Plan

SUPPOSED_SPREAD = 0.01  # between boots, where no run has shown one yet


def add(subparsers: "Subparsers[Parser]") -> None:
    parser = subparsers.add_parser(
        "plan",
        help="show what a matrix would run, in which order and for how long; runs nothing",
        description="Read a matrix, check it and print its blocks, cells and references. Starts "
        "nothing.",
        epilog="Example: dflashbench plan configs/matrices/quickstart.yaml",
    )
    add_matrix(parser)
    add_budget(parser)
    add_results(parser)
    parser.set_defaults(command=run)


def run(options: argparse.Namespace) -> int:
    from harness.budget import applied, within
    from harness.config import load_matrix
    from harness.plan import make_plan
    from harness.report import format as fmt
    from harness.run import files
    from harness.run.history import known_durations

    matrix = load_matrix(options.matrix)
    identities = files.hashes(
        {name: files.identity(model) for name, model in files.models_of(matrix).items()}
    )
    durations = known_durations(matrix, identities, options.results, _tell)
    if options.budget is not None:
        budget = within(matrix, options.budget, durations, identities)
        matrix = applied(matrix, budget)
        for cut in budget.cuts or ("nothing has to be cut",):
            print(f"to fit into {fmt.duration(options.budget)}: {cut}")
    _print_plan(matrix, make_plan(matrix, durations, identities), durations, console())
    return 0


def _tell(message: str) -> None:
    print(message, file=sys.stderr)


def _print_plan(
    matrix: "Matrix", made: "Plan", durations: "Durations | None", console: "Console"
) -> None:
    from rich.text import Text

    from harness.analysis import stats
    from harness.plan import remarks
    from harness.price import num_starts, starts_s
    from harness.report import format as fmt
    from harness.report import sentences

    console.print(Text("Blocks, in running order", style="bold"))
    console.print(_blocks_table(made.blocks))
    console.print(Text("\nCells", style="bold"))
    console.print(_cells_table(made.cells))
    console.print()
    for remark in remarks(matrix, made):
        console.print(Text(f"note: {remark}"))
    boots = matrix.schedule.boots
    if boots > 1 and num_starts(made.blocks):
        effect = stats.smallest_visible_effect(SUPPOSED_SPREAD, 2 * boots - 2, boots)
        said = sentences.smallest_effect_of_plan(effect, SUPPOSED_SPREAD, boots)
        console.print(Text(f"note: {said}"))
    if num_starts(made.blocks):
        price_s = starts_s(matrix, made.blocks, durations)
        told = "time not known" if price_s is None else f"about {fmt.duration(price_s)}"
        console.print(Text(f"starts of engines: {num_starts(made.blocks)}, {told}"))
    known = made.estimated_s is not None
    took = fmt.duration(made.estimated_s or 0.0) if known else "not known before a first run"
    console.print(Text(f"estimated time: {took}"))


def _blocks_table(blocks: "Sequence[Block]") -> "Table":
    from rich.table import Table
    from rich.text import Text

    table = Table("block", "variant", "cells", box=None, pad_edge=False)
    for block in blocks:
        table.add_row(block.block_id, Text(block.variant), str(len(block.cell_ids)))
    return table


def _cells_table(cells: "Sequence[Cell]") -> "Table":
    from rich.table import Table
    from rich.text import Text

    columns = ("cell", "workload", "c", "requests x repetitions", "reference")
    table = Table(*columns, box=None, pad_edge=False)
    variants = {cell.cell_id: cell.variant for cell in cells}
    for cell in cells:
        named = f"none: {cell.reference_reason}"
        if cell.reference_cell_id is not None:
            named = variants[cell.reference_cell_id]
        table.add_row(
            Text(cell.cell_id, overflow="fold"),
            cell.workload if cell.load == "single" else f"{cell.workload}, {cell.load}",
            str(cell.concurrency),
            f"{cell.num_requests} x {cell.repetitions}",
            Text(named),
        )
    return table
