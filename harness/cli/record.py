"""`dflashbench record`: keep what an engine really says, to test its adapter against."""

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, Any

from harness.cli.arguments import Parser, Subparsers
from harness.errors import UsageError

if TYPE_CHECKING:
    from harness.records import Variant

MATRIX = Path("configs/matrices/three-engines.yaml")


def add(subparsers: "Subparsers[Parser]") -> None:
    parser = subparsers.add_parser(
        "record",
        help="keep an engine's pages and streams, to test its adapter against",
        description="Start an engine of a matrix, or ask one that runs, a few fixed requests, and "
        "write its pages, streams and log as files, without secrets.",
        epilog="Example: dflashbench record vllm --out tests/harness/recorded/vllm_ngram",
    )
    parser.add_argument(
        "engine",
        metavar="ENGINE",
        help="an engine of the matrix, or the address of a server that runs",
    )
    parser.add_argument(
        "--matrix", metavar="FILE", type=Path, default=MATRIX, help=f"default: {MATRIX}"
    )
    parser.add_argument(
        "--variant", metavar="NAME", help="which of its variants (default: the first that drafts)"
    )
    parser.add_argument("--adapter", metavar="NAME", help="of a server that runs")
    parser.add_argument("--model", metavar="NAME", help="that a server which runs answers to")
    parser.add_argument("--api-key-env", metavar="NAME", help="the variable that holds its API key")
    parser.add_argument(
        "--out", metavar="DIR", type=Path, help="a new folder (default: recorded/ENGINE)"
    )
    parser.set_defaults(command=run)


def run(options: argparse.Namespace) -> int:
    from harness.run import commands, recording

    variant, settings = _asked(options)
    out = options.out or Path("recorded") / variant.engine.name
    commands.run_until_stopped(recording.record(variant, settings, out))
    for path in sorted(out.iterdir()):
        print(path)
    return 0


def _asked(options: argparse.Namespace) -> "tuple[Variant, dict[str, Any]]":
    from harness.config import load_matrix
    from harness.run import recording

    if options.engine.startswith(("http://", "https://")):
        return _attached(options), {}
    matrix = load_matrix(options.matrix)
    variant = recording.variant_of(matrix, options.engine, options.variant)
    return variant, {**matrix.held_constant, **variant.flags}


def _attached(options: argparse.Namespace) -> "Variant":
    from harness.adapters import ADAPTERS
    from harness.records import Engine, Model, Variant

    if options.adapter not in ADAPTERS or options.model is None:
        raise UsageError(
            f"record {options.engine}: a server that runs needs --model and --adapter, one of "
            f"{', '.join(ADAPTERS)}"
        )
    engine = Engine(
        name=options.adapter,
        adapter=options.adapter,
        kind="attach",
        url=options.engine,
        api_key_env=options.api_key_env,
    )
    return Variant(
        name="recorded", engine=engine, target=Model(name=options.model, path=options.model)
    )
