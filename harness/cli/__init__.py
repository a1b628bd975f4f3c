"""The command line: what was typed is read, one function is called, its exit code returned.

COMMANDS is the one list of commands: a file each, which says what it takes (`add`) and does it
(`run`). A file imports what its `run` needs inside it, because scipy, pandas and matplotlib take
longer to import than `--help` or `status` take to answer. A `HarnessError` becomes one message on
stderr and its exit code; anything else that is raised is our mistake and keeps its traceback.

Exit codes: 0 done; 1 a regression; 2 an inconclusive comparison; 3 the run is invalid or
incomplete, or nothing could be compared; 4 usage or configuration; 130 stopped by the user.
"""

import argparse
import io
import os
import sys
from collections.abc import Callable, Sequence

from harness.cli import (
    baseline,
    compare,
    doctor,
    explain,
    export,
    import_,
    nightly,
    overlap,
    plan,
    preflight,
    prompts,
    publish,
    record,
    report,
    resume,
    run,
    show,
    status,
)
from harness.cli.arguments import Parser
from harness.errors import HarnessError

COMMANDS = (
    plan,
    preflight,
    run,
    resume,
    report,
    show,
    explain,
    compare,
    baseline,
    nightly,
    publish,
    import_,
    overlap,
    export,
    prompts,
    doctor,
    record,
    status,
)
STOPPED = 130


def main(arguments: Sequence[str] | None = None) -> int:
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(encoding="utf-8")  # names hold what a locale of C cannot print
    try:
        options = parser().parse_args(arguments)
        command: Callable[[argparse.Namespace], int] = options.command
        return command(options)
    except HarnessError as error:
        print(f"dflashbench: {error}", file=sys.stderr)
        return error.exit_code
    except KeyboardInterrupt:
        print(
            "dflashbench: stopped. What was measured is kept; `dflashbench resume latest` goes on.",
            file=sys.stderr,
        )
        return STOPPED
    except BrokenPipeError:
        # the reader (`| head`) has left; python would complain once more when it closes stdout
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0


def parser() -> Parser:
    made = Parser(
        prog="dflashbench",
        description="Benchmark LLM engines with speculative decoding and report what was measured.",
        epilog="Begin with: dflashbench run configs/matrices/quickstart.yaml",
    )
    subparsers = made.add_subparsers(metavar="COMMAND", required=True, parser_class=Parser)
    for command in COMMANDS:
        command.add(subparsers)
    return made
