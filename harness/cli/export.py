"""`dflashbench export`: a run's cells in the shape of vLLM's `bench serve`."""

import argparse
from pathlib import Path

from harness.cli.arguments import Parser, Subparsers, add_results, add_stored_run
from harness.cli.common import find_run


def add(subparsers: "Subparsers[Parser]") -> None:
    parser = subparsers.add_parser(
        "export",
        help="write a run's cells as `vllm bench serve --save-result` would",
        description="Write a JSON file for each cell of RUN into DIR, with vLLM's keys and by "
        "vLLM's definitions, for tools that read those.",
        epilog="Example: dflashbench export latest exported",
    )
    add_stored_run(parser)
    parser.add_argument("folder", metavar="DIR", type=Path, help="where the files are written")
    add_results(parser)
    parser.set_defaults(command=run)


def run(options: argparse.Namespace) -> int:
    from harness.analysis.summary import summarise
    from harness.interchange.export import write_vllm
    from harness.store import RunFolder

    summary = summarise(RunFolder.open(find_run(options.run, options.results)))
    for path in write_vllm(summary, options.folder):
        print(path)
    return 0
