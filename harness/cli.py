"""The command line: plan, run, resume, report, show, doctor, status.

It reads arguments, calls one function per command and prints. A `HarnessError` becomes one message
on stderr and its exit code; anything else that is raised is our mistake and keeps its traceback.

Exit codes: 0 done; 3 the run is invalid or incomplete; 4 usage or configuration; 130 stopped by the
user.
"""

import argparse
import difflib
import io
import json
import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NoReturn

from rich.console import Console
from rich.table import Table
from rich.text import Text

from harness.config import load_matrix
from harness.errors import HarnessError, ResultsError, UsageError
from harness.plan import Durations, durations_of, make_plan, remarks
from harness.records import Block, Cell, Matrix, Plan, RepetitionEnd
from harness.run import commands, files
from harness.run.progress import reporter
from harness.store import RunFolder, latest_run

INVALID = 3
STOPPED = 130
WIDTH_IN_FILES = 160
SUPPOSED_SPREAD = 0.01  # between boots, where no run has shown one yet


def main(arguments: Sequence[str] | None = None) -> int:
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(encoding="utf-8")  # names hold what a locale of C cannot print
    try:
        options = _parser().parse_args(arguments)
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


# --- arguments ------------------------------------------------------------------------------------


class _Parser(argparse.ArgumentParser):
    """argparse ends with 2 on a wrong argument; here that is 4, and 2 means an inconclusive
    comparison.
    """

    def error(self, message: str) -> NoReturn:
        raise UsageError(f"{message}\n{self.format_usage().rstrip()}")


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(
        prog="dflashbench",
        description="Benchmark LLM engines with speculative decoding and report what was measured.",
        epilog="Begin with: dflashbench run configs/matrices/quickstart.yaml",
    )
    subparsers = parser.add_subparsers(metavar="COMMAND", required=True, parser_class=_Parser)
    _add_plan(subparsers)
    _add_run(subparsers)
    _add_resume(subparsers)
    _add_report(subparsers)
    _add_show(subparsers)
    _add_doctor(subparsers)
    _add_status(subparsers)
    return parser


Subparsers = argparse._SubParsersAction  # argparse has no public name for it


def _add_plan(subparsers: "Subparsers[_Parser]") -> None:
    parser = subparsers.add_parser(
        "plan",
        help="show what a matrix would run, in which order and for how long; runs nothing",
        description="Read a matrix, check it and print its blocks, cells and references. Starts "
        "nothing.",
    )
    _add_matrix(parser)
    _add_results(parser)
    parser.set_defaults(command=plan)


def _add_run(subparsers: "Subparsers[_Parser]") -> None:
    parser = subparsers.add_parser(
        "run",
        help="measure a matrix and write its report",
        description="Start the engines of a matrix, measure every cell, write results/<run_id> and "
        "reports/<run_id>/RESULTS.md. Ctrl-C stops in good order; `resume` goes on.",
    )
    _add_matrix(parser)
    _add_results(parser)
    _add_reports(parser)
    parser.add_argument(
        "--json",
        action="store_true",
        help="end with one line of JSON: run_id, results, report, verdict",
    )
    parser.set_defaults(command=run)


def _add_resume(subparsers: "Subparsers[_Parser]") -> None:
    parser = subparsers.add_parser(
        "resume",
        help="go on with a run that was stopped, or repeat what failed in it",
        description="Measure the cells that a stored run has not finished, in new boots, and write "
        "its report again.",
    )
    _add_stored_run(parser)
    _add_results(parser)
    _add_reports(parser)
    parser.add_argument("--json", action="store_true", help="end with one line of JSON, as `run`")
    parser.set_defaults(command=resume)


def _add_report(subparsers: "Subparsers[_Parser]") -> None:
    parser = subparsers.add_parser(
        "report",
        help="build the report of a stored run again",
        description="Write reports/<run_id> (RESULTS.md, summary.json, tables, plots) from files "
        "alone.",
    )
    _add_stored_run(parser)
    _add_results(parser)
    _add_reports(parser)
    parser.set_defaults(command=report)


def _add_show(subparsers: "Subparsers[_Parser]") -> None:
    parser = subparsers.add_parser(
        "show",
        help="print the figures of a stored run",
        description="Print the tables of a stored run, or all its figures as JSON lines.",
    )
    _add_stored_run(parser)
    _add_results(parser)
    parser.add_argument("--json", action="store_true", help="one JSON object per figure and line")
    parser.set_defaults(command=show)


def _add_doctor(subparsers: "Subparsers[_Parser]") -> None:
    parser = subparsers.add_parser(
        "doctor",
        help="check this machine and how late the client is on it",
        description="Measure what the client itself adds to the times it takes, and name what is "
        "missing on this machine.",
    )
    parser.set_defaults(command=doctor)


def _add_status(subparsers: "Subparsers[_Parser]") -> None:
    parser = subparsers.add_parser(
        "status",
        help="say where a run is",
        description="Say whether a run is going on, what it does and what is left.",
    )
    _add_stored_run(parser)
    _add_results(parser)
    parser.set_defaults(command=status)


def _add_matrix(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "matrix", metavar="MATRIX", type=Path, help="a YAML file, such as one of configs/matrices/"
    )


def _add_stored_run(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("run", metavar="RUN", help="a run id, the path of its folder, or `latest`")


def _add_results(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--results",
        metavar="DIR",
        type=Path,
        default=Path("results"),
        help="where runs are stored (default: results)",
    )


def _add_reports(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--reports",
        metavar="DIR",
        type=Path,
        default=Path("reports"),
        help="where reports are written (default: reports)",
    )


# --- commands -------------------------------------------------------------------------------------
# analysis and report are imported where they are used: with scipy, pandas and matplotlib they take
# longer to import than `--help` or `status` take to answer.


def run(options: argparse.Namespace) -> int:
    folder = commands.run_matrix(options.matrix, results_dir=options.results, progress=reporter())
    return _finish(folder, options)


def resume(options: argparse.Namespace) -> int:
    folder = commands.resume(find_run(options.run, options.results), progress=reporter())
    return _finish(folder, options)


def _finish(folder: RunFolder, options: argparse.Namespace) -> int:
    from harness.analysis.summary import summarise
    from harness.report.build import write_report

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


def report(options: argparse.Namespace) -> int:
    from harness.report.build import build

    folder = RunFolder.open(find_run(options.run, options.results))
    print(build(folder, options.reports))
    return 0


def show(options: argparse.Namespace) -> int:
    from harness.analysis.summary import summarise
    from harness.report import export, terminal

    summary = summarise(RunFolder.open(find_run(options.run, options.results)))
    if options.json:
        for line in export.json_lines(summary):
            print(line)
    else:
        terminal.print_summary(summary, _console())
    return 0


def doctor(options: argparse.Namespace) -> int:
    found = commands.doctor()
    for line in found.lines():
        print(line)
    return INVALID if found.missing else 0


def status(options: argparse.Namespace) -> int:
    found = commands.status(find_run(options.run, options.results))
    print(f"{found.run_id}: {found.state}")
    print(f"cells finished: {found.cells_finished} of {found.cells_planned}")
    if found.doing is not None:
        share = "" if found.share_done is None else f" ({found.share_done:.0%} of the work done)"
        print(f"now: {found.doing}{share}")
    if found.left_s is not None:
        from harness.report import format as fmt

        print(f"left: about {fmt.duration(found.left_s)}")
    for line in found.unavailable:
        print(f"not measured: {line}")
    return 0


def _console() -> Console:
    """As wide as the terminal; in a file or a pipe as wide as the tables want to be."""
    console = Console()
    if not console.is_terminal and "COLUMNS" not in os.environ:
        console.width = WIDTH_IN_FILES
    return console


def find_run(written: str, results_dir: Path) -> Path:
    """A run's folder from its id, its path or `latest`."""
    if written == "latest":
        return latest_run(results_dir)
    for folder in (results_dir / written, Path(written)):
        if (folder / "manifest.json").is_file():
            return folder
    known = sorted(path.parent.name for path in results_dir.glob("*/manifest.json"))
    close = difflib.get_close_matches(written, known, n=1, cutoff=0.4)
    hint = f"; did you mean {close[0]}?" if close else ""
    raise UsageError(f"there is no run {written!r} in {results_dir}{hint}")


# --- plan -----------------------------------------------------------------------------------------


def plan(options: argparse.Namespace) -> int:
    matrix = load_matrix(options.matrix)
    identities = files.hashes(
        {name: files.identity(model) for name, model in files.models_of(matrix).items()}
    )
    made = make_plan(matrix, identities=identities)
    for durations in _stored_durations(matrix, options.results):
        made = make_plan(matrix, durations, identities)
        if made.estimated_s is not None:
            break
    _print_plan(matrix, made, _console())
    return 0


def _stored_durations(matrix: Matrix, results_dir: Path) -> Sequence[Durations]:
    """Of earlier runs of a matrix of this name, newest first."""
    runs = sorted(results_dir.glob(f"*-{matrix.name}/manifest.json"), reverse=True)
    found = []
    for manifest in runs:
        try:
            folder = RunFolder.open(manifest.parent)
            durations = durations_of(folder.boots(), folder.read(RepetitionEnd))
        except ResultsError as error:
            print(f"left out of the estimate: {error}", file=sys.stderr)
            continue
        if durations is not None:
            found.append(durations)
    return found


def _print_plan(matrix: Matrix, made: Plan, console: Console) -> None:
    from harness.analysis import stats
    from harness.report import format as fmt
    from harness.report import sentences

    console.print(Text("Blocks, in running order", style="bold"))
    console.print(_blocks_table(made.blocks))
    console.print(Text("\nCells", style="bold"))
    console.print(_cells_table(made.cells))
    console.print()
    for remark in remarks(matrix, made):
        console.print(Text(f"note: {remark}"))
    boots = matrix.schedule.boots
    if boots > 1:
        effect = stats.smallest_visible_effect(SUPPOSED_SPREAD, 2 * boots - 2, boots)
        said = sentences.smallest_effect_of_plan(effect, SUPPOSED_SPREAD, boots)
        console.print(Text(f"note: {said}"))
    known = made.estimated_s is not None
    took = fmt.duration(made.estimated_s or 0.0) if known else "not known before a first run"
    console.print(Text(f"estimated time: {took}"))


def _blocks_table(blocks: Sequence[Block]) -> Table:
    table = Table("block", "variant", "cells", box=None, pad_edge=False)
    for block in blocks:
        table.add_row(block.block_id, Text(block.variant), str(len(block.cell_ids)))
    return table


def _cells_table(cells: Sequence[Cell]) -> Table:
    columns = ("cell", "workload", "c", "requests x repetitions", "reference")
    table = Table(*columns, box=None, pad_edge=False)
    variants = {cell.cell_id: cell.variant for cell in cells}
    for cell in cells:
        named = f"none: {cell.reference_reason}"
        if cell.reference_cell_id is not None:
            named = variants[cell.reference_cell_id]
        table.add_row(
            Text(cell.cell_id, overflow="fold"),
            cell.workload if cell.load == "single" else f"{cell.workload}, {cell.load}",
            str(cell.concurrency),
            f"{cell.num_requests} x {cell.repetitions}",
            Text(named),
        )
    return table


if __name__ == "__main__":
    sys.exit(main())
