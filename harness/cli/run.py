"""`dflashbench run`: measure a matrix and write its report."""

import argparse
import json
import sys
from typing import TYPE_CHECKING

from harness.cli.arguments import (
    Parser,
    Subparsers,
    add_budget,
    add_matrix,
    add_reports,
    add_results,
    add_where,
)
from harness.cli.common import INVALID, cluster, find_run
from harness.errors import UsageError

if TYPE_CHECKING:
    from harness.store import RunFolder


def add(subparsers: "Subparsers[Parser]") -> None:
    parser = subparsers.add_parser(
        "run",
        help="measure a matrix and write its report",
        description="Start the engines of a matrix, measure every cell, write results/<run_id> and "
        "reports/<run_id>/RESULTS.md. Ctrl-C stops in good order; `resume` goes on.",
        epilog="Example: dflashbench run configs/matrices/quickstart.yaml",
    )
    parser.add_argument(
        "--into",
        metavar="RUN",
        help="measure in a stored run what the matrix wants and the run has not: cells whose keys "
        "changed, boots and repetitions that are missing. Where new figures will stand beside kept "
        "ones, a control goes first",
    )
    parser.add_argument(
        "--only",
        metavar="VARIANT",
        help="with --into: add this variant, or measure it anew; all others stay as they are",
    )
    add_matrix(parser)
    add_budget(parser)
    add_results(parser)
    add_reports(parser)
    add_where(parser)
    parser.add_argument(
        "--json",
        action="store_true",
        help="end with one line of JSON: run_id, results, report, verdict",
    )
    parser.set_defaults(command=run)


def run(options: argparse.Namespace) -> int:
    from harness.run import commands
    from harness.run.progress import reporter

    if options.into is None and options.only is not None:
        raise UsageError("--only adds to a stored run: say which with --into RUN")
    if options.into is not None and options.on == "ray":
        raise UsageError("--into adds on one machine, that of the stored run: leave --on ray out")
    if options.budget is not None and (options.into is not None or options.on == "ray"):
        raise UsageError("--budget is for a new run on one machine: leave --into and --on ray out")
    if options.on == "ray":
        folder = cluster().run_matrix(
            options.matrix,
            results_dir=options.results,
            progress=reporter(),
            address=options.address,
        )
    elif options.into is None:
        folder = commands.run_matrix(
            options.matrix,
            results_dir=options.results,
            progress=reporter(),
            budget_s=options.budget,
        )
    else:
        stored = find_run(options.into, options.results)
        folder = commands.run_into(options.matrix, stored, only=options.only, progress=reporter())
    return finish(folder, options)


def finish(folder: "RunFolder", options: argparse.Namespace) -> int:
    """Report a measured run and say where it lies."""
    from harness.analysis.summary import summarise
    from harness.report.build import write_report
    from harness.run import commands

    summary = summarise(folder)
    page = write_report(summary, options.reports)
    for line in commands.told_unavailable(folder):
        print(f"not measured: {line}", file=sys.stderr)
    if options.json:
        told = {
            "run_id": folder.manifest.run_id,
            "results": str(folder.path),
            "report": str(page),
            "verdict": summary.level,
        }
        print(json.dumps(told))
    else:
        print(f"results: {folder.path}\nreport:  {page}\nverdict: {summary.level}")
    return INVALID if summary.level == "invalid" else commands.exit_code(folder)
