"""`dflashbench report`: build the report of a stored run again."""

import argparse

from harness.cli.arguments import Parser, Subparsers, add_reports, add_results, add_stored_run
from harness.cli.common import console, find_run

PARTS = (
    "winners",
    "single-stream",
    "edit",
    "concurrency",
    "prefill",
    "depth",
    "cost",
    "losslessness",
    "caveats",
    "goals",
)


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
    parser.add_argument(
        "--only",
        choices=PARTS,
        metavar="PART",
        help=f"print one part and write nothing: {', '.join(PARTS)}",
    )
    parser.add_argument(
        "--markdown", action="store_true", help="with --only: as Markdown, to paste elsewhere"
    )
    parser.set_defaults(command=run)


def run(options: argparse.Namespace) -> int:
    from harness.analysis.summary import summarise
    from harness.report.build import write_report
    from harness.report.parts import part, print_part
    from harness.store import RunFolder

    summary = summarise(RunFolder.open(find_run(options.run, options.results)))
    if options.only is None:
        print(write_report(summary, options.reports))
    elif options.markdown:
        print(part(summary, options.only))
    else:
        print_part(summary, options.only, console())
    return 0
