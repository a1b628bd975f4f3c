"""`dflashbench resume`: go on with a stored run."""

import argparse

from harness.cli.arguments import (
    Parser,
    Subparsers,
    add_reports,
    add_results,
    add_stored_run,
    add_where,
)
from harness.cli.common import cluster, find_run
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
    add_where(parser)
    parser.add_argument("--json", action="store_true", help="end with one line of JSON, as `run`")
    parser.set_defaults(command=run)


def run(options: argparse.Namespace) -> int:
    from harness.run import commands
    from harness.run.progress import reporter

    stored = find_run(options.run, options.results)
    if options.on == "ray":
        folder = cluster().resume(stored, progress=reporter(), address=options.address)
    else:
        folder = commands.resume(stored, progress=reporter())
    return finish(folder, options)
