"""`dflashbench show`: print the figures of a stored run."""

import argparse

from harness.cli.arguments import Parser, Subparsers, add_results, add_stored_run
from harness.cli.common import console, find_run


def add(subparsers: "Subparsers[Parser]") -> None:
    parser = subparsers.add_parser(
        "show",
        help="print the figures of a stored run",
        description="Print the tables of a stored run, or all its figures as JSON lines.",
        epilog="Example: dflashbench show latest --json",
    )
    add_stored_run(parser)
    add_results(parser)
    parser.add_argument("--json", action="store_true", help="one JSON object per figure and line")
    parser.set_defaults(command=run)


def run(options: argparse.Namespace) -> int:
    from harness.analysis.summary import summarise
    from harness.report import export, terminal
    from harness.store import RunFolder

    summary = summarise(RunFolder.open(find_run(options.run, options.results)))
    if options.json:
        for line in export.json_lines(summary):
            print(line)
    else:
        terminal.print_summary(summary, console())
    return 0
