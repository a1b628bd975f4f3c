"""`dflashbench resume`: go on with a stored run."""

import argparse

from harness.cli.arguments import Parser, Subparsers, add_reports, add_results, add_stored_run
from harness.cli.common import find_run
from harness.cli.run import finish


def add(subparsers: "Subparsers[Parser]") -> None:
    parser = subparsers.add_parser(
        "resume",
        help="go on with a run that was stopped, or repeat what failed in it",
        description="Measure the cells that a stored run has not finished, in new boots, and write "
        "its report again.",
        epilog="Example: dflashbench resume latest",
    )
    add_stored_run(parser)
    add_results(parser)
    add_reports(parser)
    parser.add_argument("--json", action="store_true", help="end with one line of JSON, as `run`")
    parser.set_defaults(command=run)


def run(options: argparse.Namespace) -> int:
    from harness.run import commands
    from harness.run.progress import reporter

    folder = commands.resume(find_run(options.run, options.results), progress=reporter())
    return finish(folder, options)
