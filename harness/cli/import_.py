"""`dflashbench import`: read another tool's results, under a protocol of their own."""

import argparse
from pathlib import Path

from harness.cli.arguments import Parser, Subparsers, add_results
from harness.cli.common import console
from harness.errors import ResultsError, UsageError

NAMES = (
    *("vllm-bench-serve", "vllm-bench-sweep", "llama-bench", "llama-benchy", "guidellm", "aiperf"),
    *("sglang-bench-serving", "csv"),
)
"""Those of `interchange.tools.TOOLS`, whose imports `--help` cannot wait for; a test compares."""


def add(subparsers: "Subparsers[Parser]") -> None:
    parser = subparsers.add_parser(
        "import",
        help="read results of vLLM, llama.cpp, SGLang, guidellm, aiperf, llama-benchy or CSV",
        description="Keep what another tool measured in results/imported/NAME.json: each figure "
        "under the tool's own name, with what the tool means by it and a protocol id of its own. "
        "No table of ours takes it; `dflashbench overlap` puts it beside a run.",
        epilog="Example: dflashbench import vllm-bench-serve result.json --as vllm-night",
    )
    parser.add_argument("tool", metavar="TOOL", choices=NAMES, help=", ".join(NAMES))
    parser.add_argument("files", metavar="FILE", nargs="+", type=Path, help="files or folders")
    parser.add_argument("--as", dest="name", metavar="NAME", required=True, help="its name here")
    parser.add_argument(
        "--map",
        metavar="FILE",
        type=Path,
        help="for csv: a YAML file that says which column is what, with units",
    )
    add_results(parser)
    parser.set_defaults(command=run)


def run(options: argparse.Namespace) -> int:
    from harness.interchange import document, overlap, tools
    from harness.report.terminal import print_table
    from harness.run.clock import utc_now

    document.checked_name(options.name)
    if (options.tool == tools.CSV) != (options.map is not None):
        raise UsageError("--map FILE goes with csv, and csv needs it: it says what a column is")
    found = tools.read_files(
        options.tool, options.files, column_map=options.map, imported_at=utc_now()
    )
    if not any(row.figures for row in found.rows):
        raise ResultsError(
            f"{', '.join(map(str, options.files))}: no figure of {options.tool} stands there, so "
            "nothing was imported; write another tool's name, or files that hold its results"
        )
    print_table(overlap.imported_table(found), console())
    print(document.save(options.results, options.name, found))
    return 0
