"""Arguments that several commands take. Knows nothing of what is done with them."""

import argparse
import re
from pathlib import Path
from typing import NoReturn

from harness.errors import UsageError

Subparsers = argparse._SubParsersAction  # argparse has no public name for it


class Parser(argparse.ArgumentParser):
    """argparse ends with 2 on a wrong argument; here that is 4, and 2 means an inconclusive
    comparison.
    """

    def error(self, message: str) -> NoReturn:
        raise UsageError(f"{message}\n{self.format_usage().rstrip()}")


def add_matrix(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "matrix", metavar="MATRIX", type=Path, help="a YAML file, such as one of configs/matrices/"
    )


def add_budget(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--budget",
        metavar="TIME",
        type=_seconds,
        help="how long it may take, such as 2h, 90min or 300s, by what a stored run of the matrix "
        "took: repetitions are cut first, then boots, and plan and report say so",
    )


_UNITS_S = {"s": 1.0, "min": 60.0, "m": 60.0, "h": 3600.0}


def _seconds(written: str) -> float:
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*(s|min|m|h)", written)
    if match is None or float(match[1]) == 0:
        raise argparse.ArgumentTypeError(f"{written!r} is no time; write 2h, 90min or 300s")
    return float(match[1]) * _UNITS_S[match[2]]


def add_stored_run(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("run", metavar="RUN", help="a run id, the path of its folder, or `latest`")


def add_results(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--results",
        metavar="DIR",
        type=Path,
        default=Path("results"),
        help="where runs are stored (default: results)",
    )


def add_reports(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--reports",
        metavar="DIR",
        type=Path,
        default=Path("reports"),
        help="where reports are written (default: reports)",
    )


def add_where(parser: argparse.ArgumentParser) -> None:
    """On which machines it is measured."""
    parser.add_argument(
        "--on",
        choices=("here", "ray"),
        default="here",
        help="`ray`: on the nodes of a Ray cluster that have the `resources` of each engine, and "
        "with the `clients` of each load (default: here)",
    )
    parser.add_argument(
        "--address",
        metavar="HOST:PORT",
        help="of the Ray cluster (default: the one that this machine is part of)",
    )


def add_threshold(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--threshold",
        metavar="[FIGURE=]PERCENT",
        action="append",
        default=[],
        help="the change for the worse that is allowed (default: 2%%): 90 of 100 tok/s and 110 of "
        "100 ms pass at 10%%, 89.9 and 110.1 do not. `ttft_p50=10%%` sets it for one figure; may "
        "be repeated",
    )


def add_forms(parser: argparse.ArgumentParser) -> None:
    """In which forms a comparison is written besides."""
    parser.add_argument("--markdown", metavar="FILE", type=Path, help="for a pull request")
    parser.add_argument("--junit", metavar="FILE", type=Path, help="JUnit XML, for a CI server")
    parser.add_argument("--bencher", metavar="FILE", type=Path, help="Bencher's metric format")
    parser.add_argument(
        "--action-benchmark",
        metavar="DIR",
        type=Path,
        help="what github-action-benchmark reads: bigger-is-better.json, smaller-is-better.json",
    )
    parser.add_argument(
        "--step-summary",
        action="store_true",
        help="append the Markdown to the file that $GITHUB_STEP_SUMMARY names",
    )
