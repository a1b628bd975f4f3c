"""`dflashbench publish`: a static site of all runs and trends."""

import argparse
from pathlib import Path

from harness.cli.arguments import Parser, Subparsers, add_reports, add_results


def add(subparsers: "Subparsers[Parser]") -> None:
    parser = subparsers.add_parser(
        "publish",
        help="make a static site of all runs and trends",
        description="Write DIR/index.html, a page for each run and cell, and the trends of the "
        "nights. The pages need no server and no network. A run whose files did not change keeps "
        "its pages, also after its raw data were removed.",
        epilog="Example: dflashbench publish site && xdg-open site/index.html",
    )
    parser.add_argument("site", metavar="DIR", type=Path, help="where the site is written")
    parser.add_argument(
        "--again",
        action="store_true",
        help="make every page anew whose raw data are there, as after an update of dflashbench",
    )
    add_results(parser)
    add_reports(parser)
    parser.set_defaults(command=run)


def run(options: argparse.Namespace) -> int:
    from harness.publish.site import publish
    from harness.report import format as fmt

    done = publish(
        options.site,
        results_dir=options.results,
        reports_dir=options.reports,
        again=options.again,
    )
    print(f"{fmt.counted(len(done.rendered), 'run')} rendered, {len(done.kept)} kept")
    print(done.index)
    return 0
