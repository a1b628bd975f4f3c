"""`dflashbench status`: say where a run is."""

import argparse

from harness.cli.arguments import Parser, Subparsers, add_results, add_stored_run
from harness.cli.common import find_run


def add(subparsers: "Subparsers[Parser]") -> None:
    parser = subparsers.add_parser(
        "status",
        help="say where a run is",
        description="Say whether a run is going on, what it does and what is left.",
        epilog="Example: dflashbench status latest",
    )
    add_stored_run(parser)
    add_results(parser)
    parser.set_defaults(command=run)


def run(options: argparse.Namespace) -> int:
    from harness.report import format as fmt
    from harness.run import commands

    found = commands.status(find_run(options.run, options.results))
    print(f"{found.run_id}: {found.state}")
    print(f"cells finished: {found.cells_finished} of {found.cells_planned}")
    if found.doing is not None:
        share = "" if found.share_done is None else f" ({found.share_done:.0%} of the work done)"
        print(f"now: {found.doing}{share}")
    if found.left_s is not None:
        print(f"left: about {fmt.duration(found.left_s)}")
    for line in found.unavailable:
        print(f"not measured: {line}")
    return 0
