"""`dflashbench doctor`: check this machine and how late the client is on it."""

import argparse

from harness.cli.arguments import Parser, Subparsers
from harness.cli.common import INVALID


def add(subparsers: "Subparsers[Parser]") -> None:
    parser = subparsers.add_parser(
        "doctor",
        help="check this machine and how late the client is on it",
        description="Measure what the client itself adds to the times it takes, and name what is "
        "missing on this machine.",
    )
    parser.set_defaults(command=run)


def run(options: argparse.Namespace) -> int:
    from harness.run import commands

    found = commands.doctor()
    for line in found.lines():
        print(line)
    return INVALID if found.missing else 0
