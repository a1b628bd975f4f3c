"""`dflashbench report`: build the report of a stored run again."""

import argparse

from harness.cli.arguments import Parser, Subparsers, add_reports, add_results, add_stored_run
from harness.cli.common import find_run


def add(subparsers: "Subparsers[Parser]") -> None:
    parser = subparsers.add_parser(
        "report",
        help="build the report of a stored run again",
        description="Write reports/<run_id> (RESULTS.md, summary.json, tables, plots) from files "
        "alone.",
        epilog="Example: dflashbench report latest",
    )
    add_stored_run(parser)
    add_results(parser)
    add_reports(parser)
    parser.set_defaults(command=run)


def run(options: argparse.Namespace) -> int:
    from harness.report.build import build
    from harness.store import RunFolder

    folder = RunFolder.open(find_run(options.run, options.results))
    print(build(folder, options.reports))
    return 0
