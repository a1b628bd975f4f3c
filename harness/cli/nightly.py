"""`dflashbench nightly`: measure, report and compare, unattended."""

import argparse
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from harness.cli.arguments import (
    Parser,
    Subparsers,
    add_forms,
    add_matrix,
    add_reports,
    add_results,
    add_threshold,
)
from harness.cli.common import console, step_summary, user, write_forms
from harness.errors import HarnessError

if TYPE_CHECKING:
    from harness.nightly import Outcome


def add(subparsers: "Subparsers[Parser]") -> None:
    parser = subparsers.add_parser(
        "nightly",
        help="measure a matrix, report it and compare it with a baseline, unattended",
        description="`run`, `report`, `compare` and `publish` in one, for cron, systemd and CI. "
        "Waits where somebody else measures on the device. Ends with the exit code of `compare`.",
        epilog="Example: dflashbench nightly configs/matrices/quickstart.yaml --baseline nightly "
        "--fill-baseline --notify 'mail -s \"$DFLASHBENCH_HEADLINE\" me@example.org'",
    )
    add_matrix(parser)
    parser.add_argument(
        "--baseline", metavar="NAME", required=True, help="what the night is held against"
    )
    parser.add_argument(
        "--fill-baseline",
        action="store_true",
        help="let valid nights without a regression become the baseline until it has five",
    )
    parser.add_argument(
        "--notify",
        metavar="COMMAND",
        help="a shell command for nights that do not end with 0 or found a step in the trend: the "
        "comparison as JSON on its stdin, $DFLASHBENCH_HEADLINE, _RUN, _REPORT and _EXIT_CODE",
    )
    parser.add_argument(
        "--publish", metavar="DIR", type=Path, help="bring the site in DIR up to date"
    )
    parser.add_argument(
        "--keep-raw",
        metavar="NIGHTS",
        type=_nights,
        help="remove the raw data of all but the newest nights of this matrix, after publishing; "
        "reports and pages stay, and so do baselines' nights and runs that another report names "
        "(default: remove nothing)",
    )
    add_threshold(parser)
    add_forms(parser)
    add_results(parser)
    add_reports(parser)
    parser.set_defaults(command=run)


def _nights(written: str) -> int:
    if not written.isdecimal() or int(written) < 1:
        raise argparse.ArgumentTypeError(f"{written!r}: write how many nights, 1 or more")
    return int(written)


def run(options: argparse.Namespace) -> int:
    from harness import nightly as nights
    from harness.publish.site import refuse_unfit

    if options.step_summary:
        step_summary()  # better refused now than after hours
    if options.publish is not None:
        refuse_unfit(options.publish)
    try:
        outcome = _follow(_night(options), options)
    except HarnessError as error:
        if options.notify:
            _tell_of_hook(options.notify, nights.call_hook_without_a_night(options.notify, error))
        raise
    print(f"report:  {outcome.report}\nverdict: {outcome.headline}")
    if options.notify and outcome.is_news:
        _tell_of_hook(options.notify, nights.call_hook(options.notify, outcome))
    return outcome.exit_code


def _night(options: argparse.Namespace) -> "Outcome":
    from harness import nightly as nights
    from harness.compare.rules import read_rules
    from harness.report.build import build
    from harness.report.comparison import sentences, terminal
    from harness.run import commands
    from harness.run.progress import reporter

    outcome = nights.nightly(
        lambda: commands.run_matrix(
            options.matrix, results_dir=options.results, progress=reporter()
        ),
        lambda folder: build(folder, options.reports),
        baseline=options.baseline,
        results_dir=options.results,
        rules=read_rules(options.threshold),
        fill=options.fill_baseline,
        by=user(),
    )
    if outcome.comparison is not None:
        write_forms(outcome.comparison, options)
        terminal.print_comparison(outcome.comparison, console())
    for step in outcome.steps:
        print(f"step in the last {nights.NIGHTS_REMEMBERED} nights: {sentences.step(step)}")
    if outcome.kept_as is not None:
        print(f"the night is part of baseline {outcome.kept_as} now")
    return outcome


def _follow(outcome: "Outcome", options: argparse.Namespace) -> "Outcome":
    from harness import nightly as nights
    from harness.publish.site import publish

    folders = {"results_dir": options.results, "reports_dir": options.reports}
    steps: list[tuple[str, Callable[[Outcome], object]]] = []
    if options.publish is not None:
        steps.append(("publishing", lambda _: publish(options.publish, **folders)))
    if options.keep_raw is not None:
        keep = options.keep_raw
        steps.append(("retention", lambda done: nights.make_room(done, **folders, keep=keep)))
    return nights.follow(outcome, *steps)


def _tell_of_hook(command: str, failed: str | None) -> None:
    if failed is not None:
        print(f"dflashbench: --notify {command!r} {failed}", file=sys.stderr)
