"""`dflashbench compare`: hold a run against a baseline or another run."""

import argparse

from harness.cli.arguments import (
    Parser,
    Subparsers,
    add_forms,
    add_results,
    add_stored_run,
    add_threshold,
)
from harness.cli.common import console, find_other, find_run, write_forms


def add(subparsers: "Subparsers[Parser]") -> None:
    parser = subparsers.add_parser(
        "compare",
        help="hold a run against a baseline or another run: improved, within noise, regressed",
        description="Compare every figure of RUN with the same figure of a baseline (or of another "
        "run): decode rate, aggregate, TTFT, acceptance, memory. Only what did the same work with "
        "the same engine, models and flags on the same device is compared; the build may differ. "
        "A figure regressed when its whole 95 % interval is worse than the threshold allows and "
        "the change exceeds the noise of all figures together.",
        epilog="Exit code: 0 no regression, 1 regression, 2 inconclusive, 3 nothing comparable or "
        "the run is invalid, 4 usage. Example: dflashbench compare latest main --junit gate.xml",
    )
    add_stored_run(parser)
    parser.add_argument(
        "baseline", metavar="BASELINE", help="a baseline's name, or a run as RUN takes it"
    )
    add_threshold(parser)
    parser.add_argument("--json", action="store_true", help="print JSON instead of tables")
    add_forms(parser)
    add_results(parser)
    parser.set_defaults(command=run)


def run(options: argparse.Namespace) -> int:
    from harness.compare import baselines
    from harness.compare import commands as comparing
    from harness.compare.rules import read_rules
    from harness.report.comparison import as_json, terminal

    rules = read_rules(options.threshold)
    compared = find_run(options.run, options.results)
    if options.baseline in baselines.names(options.results):
        found = comparing.compare_with_baseline(compared, options.baseline, options.results, rules)
    else:
        other = find_other(options.baseline, options.results)
        found = comparing.compare_with_run(compared, other, rules)
    write_forms(found, options)
    if options.json:
        print(as_json.comparison_json(found), end="")
    else:
        terminal.print_comparison(found, console())
    return found.exit_code
