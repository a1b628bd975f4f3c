"""The command line: plan, run, resume, report, show, compare, baseline, nightly, doctor,
status.

It reads arguments, calls one function per command and prints. A `HarnessError` becomes one message
on stderr and its exit code; anything else that is raised is our mistake and keeps its traceback.

Exit codes: 0 done; 1 a regression; 2 an inconclusive comparison; 3 the run is invalid or
incomplete, or nothing could be compared; 4 usage or configuration; 130 stopped by the user.
"""

import argparse
import difflib
import getpass
import io
import json
import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

from rich.console import Console
from rich.table import Table
from rich.text import Text

from harness.config import load_matrix
from harness.errors import HarnessError, ResultsError, UsageError
from harness.plan import Durations, durations_of, make_plan, remarks
from harness.records import Block, Cell, Matrix, Plan, RepetitionEnd
from harness.run import commands, files
from harness.run.clock import utc_now
from harness.run.progress import reporter
from harness.store import RunFolder, latest_run

if TYPE_CHECKING:
    from harness.compare.baselines import Promoted
    from harness.compare.compare import Comparison
    from harness.nightly import Outcome

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
    _add_compare(subparsers)
    _add_baseline(subparsers)
    _add_nightly(subparsers)
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


def _add_compare(subparsers: "Subparsers[_Parser]") -> None:
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
    _add_stored_run(parser)
    parser.add_argument(
        "baseline", metavar="BASELINE", help="a baseline's name, or a run as RUN takes it"
    )
    _add_threshold(parser)
    parser.add_argument("--json", action="store_true", help="print JSON instead of tables")
    _add_forms(parser)
    _add_results(parser)
    parser.set_defaults(command=compare)


def _add_threshold(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--threshold",
        metavar="[FIGURE=]PERCENT",
        action="append",
        default=[],
        help="the change for the worse that is allowed (default: 2%%): 90 of 100 tok/s and 110 of "
        "100 ms pass at 10%%, 89.9 and 110.1 do not. `ttft_p50=10%%` sets it for one figure; may "
        "be repeated",
    )


def _add_forms(parser: argparse.ArgumentParser) -> None:
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


def _add_nightly(subparsers: "Subparsers[_Parser]") -> None:
    parser = subparsers.add_parser(
        "nightly",
        help="measure a matrix, report it and compare it with a baseline, unattended",
        description="`run`, `report` and `compare` in one, for cron, systemd and CI. Waits where "
        "somebody else measures on the device. Ends with the exit code of `compare`.",
        epilog="Example: dflashbench nightly configs/matrices/quickstart.yaml --baseline nightly "
        "--fill-baseline --notify 'mail -s \"$DFLASHBENCH_HEADLINE\" me@example.org'",
    )
    _add_matrix(parser)
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
    _add_threshold(parser)
    _add_forms(parser)
    _add_results(parser)
    _add_reports(parser)
    parser.set_defaults(command=nightly)


def _add_baseline(subparsers: "Subparsers[_Parser]") -> None:
    parser = subparsers.add_parser(
        "baseline",
        help="set, extend, list, show, diff or remove what runs are compared with",
        description="A baseline is a name and the runs that stand for it, a night each, stored as "
        "small files in results/baselines/NAME. Five nights let the gate know its own noise.",
        epilog="Begin with: dflashbench baseline set main latest --why 'first quiet night'",
    )
    actions = parser.add_subparsers(metavar="ACTION", required=True, parser_class=_Parser)
    for name, told, command in (
        ("set", "let these runs, and no other, be the baseline", baseline_set),
        ("add", "add nights to a baseline", baseline_add),
    ):
        action = actions.add_parser(name, help=told, description=told)
        _add_baseline_name(action)
        action.add_argument("runs", metavar="RUN", nargs="+", help="run ids, paths, or `latest`")
        action.add_argument("--why", metavar="TEXT", required=True, help="kept with each night")
        action.add_argument("--by", metavar="NAME", help="who says so (default: the user's name)")
        _add_results(action)
        action.set_defaults(command=command)
    action = actions.add_parser("list", help="which baselines there are")
    _add_results(action)
    action.set_defaults(command=baseline_list)
    action = actions.add_parser("show", help="a baseline's nights, figures and their spread")
    _add_baseline_name(action)
    _add_results(action)
    action.set_defaults(command=baseline_show)
    action = actions.add_parser("diff", help="a baseline's figures beside another's, or a run's")
    _add_baseline_name(action)
    action.add_argument("other", metavar="OTHER", help="a baseline's name, or a run")
    _add_results(action)
    action.set_defaults(command=baseline_diff)
    action = actions.add_parser("rm", help="remove a baseline, or one night of it")
    _add_baseline_name(action)
    action.add_argument("run", metavar="RUN", nargs="?", help="the id of the night to remove")
    _add_results(action)
    action.set_defaults(command=baseline_rm)


def _add_baseline_name(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("name", metavar="NAME", help="the baseline's name")


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


# --- compare and baseline -------------------------------------------------------------------------


def compare(options: argparse.Namespace) -> int:
    from harness.compare import baselines
    from harness.compare import commands as comparing
    from harness.compare.rules import read_rules
    from harness.report.comparison import as_json, terminal

    rules = read_rules(options.threshold)
    run = find_run(options.run, options.results)
    if options.baseline in baselines.names(options.results):
        found = comparing.compare_with_baseline(run, options.baseline, options.results, rules)
    else:
        other = _find_other(options.baseline, options.results)
        found = comparing.compare_with_run(run, other, rules)
    _write_forms(found, options)
    if options.json:
        print(as_json.comparison_json(found), end="")
    else:
        terminal.print_comparison(found, _console())
    return found.exit_code


def _write_forms(found: "Comparison", options: argparse.Namespace) -> None:
    from harness.report.comparison import build

    build.write_files(
        found,
        markdown=options.markdown,
        junit=options.junit,
        bencher=options.bencher,
        action_benchmark=options.action_benchmark,
        step_summary=_step_summary() if options.step_summary else None,
    )


def nightly(options: argparse.Namespace) -> int:
    from harness import nightly as nights

    if options.step_summary:
        _step_summary()  # better refused now than after hours
    try:
        outcome = _night(options)
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

    outcome = nights.nightly(
        lambda: commands.run_matrix(
            options.matrix, results_dir=options.results, progress=reporter()
        ),
        lambda folder: build(folder, options.reports),
        baseline=options.baseline,
        results_dir=options.results,
        rules=read_rules(options.threshold),
        fill=options.fill_baseline,
        by=_user(),
    )
    if outcome.comparison is not None:
        _write_forms(outcome.comparison, options)
        terminal.print_comparison(outcome.comparison, _console())
    for step in outcome.steps:
        print(f"step in the last {nights.NIGHTS_REMEMBERED} nights: {sentences.step(step)}")
    if outcome.kept_as is not None:
        print(f"the night is part of baseline {outcome.kept_as} now")
    return outcome


def _tell_of_hook(command: str, failed: str | None) -> None:
    if failed is not None:
        print(f"dflashbench: --notify {command!r} {failed}", file=sys.stderr)


def _find_other(written: str, results_dir: Path) -> Path:
    """A run that stands for a baseline."""
    from harness.compare import baselines

    try:
        return find_run(written, results_dir)
    except UsageError as error:
        known = ", ".join(baselines.names(results_dir)) or "there is none"
        raise UsageError(
            f"no baseline is called {written!r} (known: {known}), and {error}"
        ) from None


def _step_summary() -> Path:
    path = os.environ.get("GITHUB_STEP_SUMMARY")
    if not path:
        raise UsageError(
            "--step-summary: $GITHUB_STEP_SUMMARY is not set, so this is no job of GitHub Actions; "
            "--markdown FILE writes the same"
        )
    return Path(path)


def baseline_set(options: argparse.Namespace) -> int:
    from harness.compare import baselines

    print(baselines.replace(options.results, options.name, _promoted(options)))
    return 0


def baseline_add(options: argparse.Namespace) -> int:
    from harness.compare import baselines

    print(baselines.add(options.results, options.name, _promoted(options)))
    return 0


def _promoted(options: argparse.Namespace) -> "tuple[Promoted, ...]":
    from harness.compare import baselines
    from harness.compare import commands as comparing

    baselines.checked_name(options.name)
    runs = [find_run(written, options.results) for written in options.runs]
    return comparing.promote(runs, by=options.by or _user(), at=utc_now(), why=options.why)


def _user() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        raise UsageError("this system does not tell who you are: add --by NAME") from None


def baseline_list(options: argparse.Namespace) -> int:
    from harness.compare import baselines
    from harness.report.comparison import baseline as shown
    from harness.report.terminal import print_table

    names = baselines.names(options.results)
    if not names:
        print(f"no baseline in {options.results}; `dflashbench baseline set NAME RUN` makes one")
        return 0
    held = [baselines.load(options.results, name) for name in names]
    print_table(shown.list_table(held), _console())
    return 0


def baseline_show(options: argparse.Namespace) -> int:
    from harness.compare import baselines
    from harness.compare.contents import contents
    from harness.report.comparison import baseline as shown
    from harness.report.terminal import print_table

    held = baselines.load(options.results, options.name)
    console = _console()
    print_table(shown.members_table(held), console)
    console.print()
    print_table(shown.contents_table(contents(held.nights)), console)
    return 0


def baseline_diff(options: argparse.Namespace) -> int:
    from harness.compare import baselines
    from harness.compare import commands as comparing
    from harness.compare.contents import changes
    from harness.report.comparison import baseline as shown
    from harness.report.terminal import print_table

    old = baselines.load(options.results, options.name).nights
    if options.other in baselines.names(options.results):
        new = baselines.load(options.results, options.other).nights
    else:
        new = (comparing.read_night(_find_other(options.other, options.results)),)
    found = changes(old, new)
    print_table(shown.changes_table(found, options.name, options.other), _console())
    return 0


def baseline_rm(options: argparse.Namespace) -> int:
    from harness.compare import baselines

    baselines.remove(options.results, options.name, options.run)
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
