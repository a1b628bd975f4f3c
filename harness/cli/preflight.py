"""`dflashbench preflight`: what can be found out before an engine is started."""

import argparse
from typing import TYPE_CHECKING

from harness.cli.arguments import Parser, Subparsers, add_matrix
from harness.cli.common import INVALID, console

if TYPE_CHECKING:
    from rich.table import Table

    from harness.eligibility import Row
    from harness.preflight import Concern, Preflight


def add(subparsers: "Subparsers[Parser]") -> None:
    parser = subparsers.add_parser(
        "preflight",
        help="ask of a matrix what can be known before an engine is started; runs nothing",
        description="Ask the checks that need no server of every variant: whether its files are "
        "whole and fit each other, the depth, the engine and the memory; whether settings differ "
        "but for the drafter's; who else uses this machine. Then say which checkpoint can run "
        "which drafter on which engine. Ends with 3 where a variant would be refused; `run` asks "
        "the same before it starts anything.",
        epilog="Example: dflashbench preflight configs/matrices/study-vllm-fp8.yaml",
    )
    add_matrix(parser)
    parser.set_defaults(command=run)


def run(options: argparse.Namespace) -> int:
    from harness.config import load_matrix
    from harness.plan import make_plan
    from harness.run import before, files

    matrix = load_matrix(options.matrix)
    models = {name: files.identity(model) for name, model in files.models_of(matrix).items()}
    found = before.check(matrix, make_plan(matrix, identities=files.hashes(models)), models)
    _print(found)
    return INVALID if found.refused else 0


def _print(found: "Preflight") -> None:
    from rich.text import Text

    from harness import eligibility
    from harness.report import format as fmt

    out = console()
    for concern in found.concerns:
        out.print(Text(_sentence(concern, found)))
    for occupant in found.occupants:
        out.print(Text(f"warning: not alone on this machine: {occupant}"))
    if found.concerns or found.occupants:
        out.print()
    out.print(Text("Who can run what, by configs and headers", style="bold"))
    out.print(_eligibility_table(found.rows))
    for number, reason in enumerate(eligibility.reasons(found.rows), start=1):
        out.print(Text(f"[{number}] {reason}"))
    refused = {variant for concern in found.refused for variant in concern.variants}
    warnings = len(found.concerns) - len(found.refused) + len(found.occupants)
    out.print(
        Text(
            f"\n{found.num_checks} checks that need no server: "
            f"{fmt.counted(len(refused), 'variant')} refused, {fmt.counted(warnings, 'warning')}"
        )
    )


def _sentence(concern: "Concern", found: "Preflight") -> str:
    word = "refused" if concern in found.refused else "warning"
    return f"{word}: {', '.join(concern.variants)}: {concern.check}: {concern.message}"


def _eligibility_table(rows: "tuple[Row, ...]") -> "Table":
    from rich.table import Table
    from rich.text import Text

    from harness import eligibility

    known = eligibility.reasons(rows)
    engines = tuple(rows[0].answers) if rows else ()
    table = Table("target", "drafter", *engines, box=None, pad_edge=False)
    for row in rows:
        answers = (Text(eligibility.shown(row.answers[engine], known)) for engine in engines)
        table.add_row(Text(row.target), Text(row.name), *answers)
    return table
