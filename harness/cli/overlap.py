"""`dflashbench overlap`: a run and an import side by side, where both measured the same."""

import argparse

from harness.cli.arguments import Parser, Subparsers, add_results, add_stored_run
from harness.cli.common import console, find_run

NOTHING_MEETS = 3


def add(subparsers: "Subparsers[Parser]") -> None:
    parser = subparsers.add_parser(
        "overlap",
        help="put an import beside a run: figures, definitions and protocol ids of both",
        description="Where an imported measurement and a cell of RUN have the same concurrency and "
        "a like figure, show both with what each means. It is no comparison: nothing is said of "
        "better or worse.",
        epilog="Exit code 3 where nothing meets. Example: dflashbench overlap latest vllm-night "
        "--variant plain",
    )
    add_stored_run(parser)
    parser.add_argument("name", metavar="NAME", help="what `dflashbench import --as` called it")
    parser.add_argument(
        "--variant", metavar="VARIANT", required=True, help="of the run, that the tool measured too"
    )
    add_results(parser)
    parser.set_defaults(command=run)


def run(options: argparse.Namespace) -> int:
    from harness.analysis.summary import summarise
    from harness.interchange import document, overlap
    from harness.report.terminal import print_table
    from harness.store import RunFolder

    found = document.load(options.results, options.name)
    summary = summarise(RunFolder.open(find_run(options.run, options.results)))
    table = overlap.overlap_table(summary, found, variant=options.variant)
    print_table(table, console())
    return 0 if table.rows else NOTHING_MEETS
