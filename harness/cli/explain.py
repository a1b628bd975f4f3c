"""`dflashbench explain`: how the figures of one cell were made."""

import argparse
import difflib

from harness.cli.arguments import Parser, Subparsers, add_results, add_stored_run
from harness.cli.common import find_run
from harness.errors import UsageError


def add(subparsers: "Subparsers[Parser]") -> None:
    parser = subparsers.add_parser(
        "explain",
        help="tell how the figures of one cell were made",
        description="Tell what was asked in CELL, every repetition and boot behind its figure, the "
        "counters behind its acceptance, what checks say of it, and where its records are.",
        epilog="Example: dflashbench explain latest dflash2-generate-c1-4e853a",
    )
    add_stored_run(parser)
    parser.add_argument(
        "cell", metavar="CELL", help="a cell's id, as RESULTS.md links to it; a part will do"
    )
    add_results(parser)
    parser.set_defaults(command=run)


def run(options: argparse.Namespace) -> int:
    from harness.analysis.summary import summarise
    from harness.report.cells import explanation
    from harness.store import RunFolder

    summary = summarise(RunFolder.open(find_run(options.run, options.results)))
    found = {
        view.cell.cell_id: (section, view) for section in summary.sections for view in section.views
    }
    section, view = found[_cell_id(options.cell, list(found))]
    print(f"{view.cell.cell_id}\n")
    for line in explanation(summary, section, view):
        print(line)
    return 0


def _cell_id(written: str, known: list[str]) -> str:
    """The one that is written, or the only one that holds it."""
    if written in known:
        return written
    holding = [cell_id for cell_id in known if written in cell_id]
    if len(holding) == 1:
        return holding[0]
    if holding:
        raise UsageError(f"{written!r} is a part of several cells: {', '.join(holding)}")
    close = difflib.get_close_matches(written, known, n=1, cutoff=0.4)
    hint = f"; did you mean {close[0]}?" if close else "; CELLS.md of its report lists them"
    raise UsageError(f"the run has no cell {written!r}{hint}")
