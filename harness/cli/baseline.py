"""`dflashbench baseline`: set, extend, list, show, diff or remove what runs are compared with."""

import argparse
from typing import TYPE_CHECKING

from harness.cli.arguments import Parser, Subparsers, add_results
from harness.cli.common import INVALID, console, find_other, find_run, user
from harness.errors import ResultsError

if TYPE_CHECKING:
    from harness.compare.baselines import Promoted


def add(subparsers: "Subparsers[Parser]") -> None:
    parser = subparsers.add_parser(
        "baseline",
        help="set, extend, list, show, diff or remove what runs are compared with",
        description="A baseline is a name and the runs that stand for it, a night each, stored as "
        "small files in results/baselines/NAME. Five nights let the gate know its own noise.",
        epilog="Begin with: dflashbench baseline set main latest --why 'first quiet night'",
    )
    actions = parser.add_subparsers(metavar="ACTION", required=True, parser_class=Parser)
    for name, told, command in (
        ("set", "let these runs, and no other, be the baseline", _set),
        ("add", "add nights to a baseline", _extend),
    ):
        action = actions.add_parser(name, help=told, description=told)
        _add_name(action)
        action.add_argument("runs", metavar="RUN", nargs="+", help="run ids, paths, or `latest`")
        action.add_argument("--why", metavar="TEXT", required=True, help="kept with each night")
        action.add_argument("--by", metavar="NAME", help="who says so (default: the user's name)")
        add_results(action)
        action.set_defaults(command=command)
    action = actions.add_parser("list", help="which baselines there are")
    add_results(action)
    action.set_defaults(command=_list)
    action = actions.add_parser("show", help="a baseline's nights, figures and their spread")
    _add_name(action)
    add_results(action)
    action.set_defaults(command=_show)
    action = actions.add_parser("diff", help="a baseline's figures beside another's, or a run's")
    _add_name(action)
    action.add_argument("other", metavar="OTHER", help="a baseline's name, or a run")
    add_results(action)
    action.set_defaults(command=_diff)
    action = actions.add_parser("rm", help="remove a baseline, or one night of it")
    _add_name(action)
    action.add_argument("run", metavar="RUN", nargs="?", help="the id of the night to remove")
    add_results(action)
    action.set_defaults(command=_remove)


def _add_name(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("name", metavar="NAME", help="the baseline's name")


def _set(options: argparse.Namespace) -> int:
    from harness.compare import baselines

    print(baselines.replace(options.results, options.name, _promoted(options)))
    return 0


def _extend(options: argparse.Namespace) -> int:
    from harness.compare import baselines

    print(baselines.add(options.results, options.name, _promoted(options)))
    return 0


def _promoted(options: argparse.Namespace) -> "tuple[Promoted, ...]":
    from harness.compare import baselines
    from harness.compare import commands as comparing
    from harness.run.clock import utc_now

    baselines.checked_name(options.name)
    runs = [find_run(written, options.results) for written in options.runs]
    return comparing.promote(runs, by=options.by or user(), at=utc_now(), why=options.why)


def _list(options: argparse.Namespace) -> int:
    from harness.compare import baselines
    from harness.report.comparison import baseline as shown
    from harness.report.terminal import print_table

    names = baselines.names(options.results)
    if not names:
        print(f"no baseline in {options.results}; `dflashbench baseline set NAME RUN` makes one")
        return 0
    held, unreadable = [], []
    for name in names:
        try:
            held.append(baselines.load(options.results, name))
        except ResultsError as error:
            unreadable.append(f"baseline {name} is unreadable: {error}")
    print_table(shown.list_table(held), console())
    for sentence in unreadable:
        print(sentence)
    return INVALID if unreadable else 0


def _show(options: argparse.Namespace) -> int:
    from harness.compare import baselines
    from harness.compare.contents import contents
    from harness.report.comparison import baseline as shown
    from harness.report.terminal import print_table

    held = baselines.load(options.results, options.name)
    printed = console()
    print_table(shown.members_table(held), printed)
    printed.print()
    print_table(shown.contents_table(contents(held.nights)), printed)
    return 0


def _diff(options: argparse.Namespace) -> int:
    from harness.compare import baselines
    from harness.compare import commands as comparing
    from harness.compare.contents import changes
    from harness.report.comparison import baseline as shown
    from harness.report.terminal import print_table

    old = baselines.load(options.results, options.name).nights
    if options.other in baselines.names(options.results):
        new = baselines.load(options.results, options.other).nights
    else:
        new = (comparing.read_night(find_other(options.other, options.results)),)
    found = changes(old, new)
    print_table(shown.changes_table(found, options.name, options.other), console())
    return 0


def _remove(options: argparse.Namespace) -> int:
    from harness.compare import baselines

    baselines.remove(options.results, options.name, options.run)
    return 0
