"""`dflashbench prompts`: make a prompt set from what others have, or of true lengths."""

import argparse
from collections.abc import Sequence
from pathlib import Path

from harness.cli.arguments import Parser, Subparsers
from harness.records import Prompt

SHAPES = ("spec-bench", "mt-bench", "speed-bench", "sharegpt")


def add(subparsers: "Subparsers[Parser]") -> None:
    parser = subparsers.add_parser(
        "prompts",
        help="make a prompt set",
        description="Write prompts/<name>.jsonl, a set that a matrix can name.",
    )
    ways = parser.add_subparsers(title="ways", metavar="WAY", required=True)
    _add_import(ways)
    _add_cut(ways)


def _add_import(ways: "Subparsers[Parser]") -> None:
    parser = ways.add_parser(
        "import",
        help="from a file of another benchmark",
        description="Read FILE, which you have, and write its first turns as a prompt set. Nothing "
        "is fetched.",
        epilog="Example: dflashbench prompts import question.jsonl prompts/mt.jsonl --shape "
        "mt-bench --source MT-bench --licence CC-BY-4.0 --unpublished",
    )
    parser.add_argument("file", metavar="FILE", type=Path, help="JSON lines or a JSON array")
    parser.add_argument("out", metavar="OUT", type=Path, help="such as prompts/<name>.jsonl")
    parser.add_argument("--shape", choices=SHAPES, required=True, help="how FILE is built")
    _add_provenance(parser)
    parser.add_argument(
        "--unpublished",
        action="store_true",
        help="keep the prompts, and what is answered to them, out of reports",
    )
    parser.set_defaults(command=run_import)


def _add_cut(ways: "Subparsers[Parser]") -> None:
    parser = ways.add_parser(
        "cut",
        help="of true lengths, by an engine's own count",
        description="Cut TEXT into prompts whose length is exact by the count of the server at "
        "URL, chat template included: a set for `kind: prefill`.",
        epilog="Example: dflashbench prompts cut docs/terms.md prompts/prefill.jsonl --url "
        "http://127.0.0.1:8000 --model demo --lengths 256,1024 --source docs/terms.md --licence "
        "Apache-2.0",
    )
    parser.add_argument("text", metavar="TEXT", type=Path, help="a file of plain text")
    parser.add_argument("out", metavar="OUT", type=Path, help="such as prompts/<name>.jsonl")
    parser.add_argument("--url", required=True, help="of a running server")
    parser.add_argument("--model", required=True, help="as the server calls it")
    parser.add_argument(
        "--lengths", type=_lengths, required=True, help="in tokens, rising: 2048,8192,32768"
    )
    parser.add_argument("--per-length", metavar="N", type=_count, default=1, help="default: 1")
    _add_provenance(parser)
    parser.set_defaults(command=run_cut)


def _lengths(written: str) -> list[int]:
    found = [_count(length) for length in written.split(",")]
    if found != sorted(set(found)):
        raise argparse.ArgumentTypeError(f"{written!r} does not rise; write 2048,8192,32768")
    return found


def _count(written: str) -> int:
    if not written.isdecimal() or int(written) == 0:
        raise argparse.ArgumentTypeError(f"{written!r} is no whole number above 0")
    return int(written)


def _add_provenance(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--source", required=True, help="where the texts are from")
    parser.add_argument("--licence", required=True, help="under which they may be used")


def run_import(options: argparse.Namespace) -> int:
    from harness import foreign_prompts

    prompts = foreign_prompts.read(
        options.file,
        options.shape,
        source=options.source,
        licence=options.licence,
        publish=not options.unpublished,
    )
    return _write(options.out, prompts)


def run_cut(options: argparse.Namespace) -> int:
    import asyncio

    import httpx

    from harness.run.cut import counter, cut_prompts

    words = _words(options.text)

    async def cut() -> int:
        async with httpx.AsyncClient(base_url=options.url, timeout=600, trust_env=False) as client:
            prompts = await cut_prompts(
                counter(client, options.model),
                words,
                options.lengths,
                per_length=options.per_length,
                source=options.source,
                licence=options.licence,
            )
        return _write(options.out, prompts)

    return asyncio.run(cut())


def _words(path: Path) -> list[str]:
    from harness.errors import UsageError

    try:
        return path.read_text(encoding="utf-8").split()
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"{path} cannot be read as UTF-8 text: {error}") from error


def _write(path: Path, prompts: Sequence[Prompt]) -> int:
    """Nothing is written, least of all over another set, before it is known to be one."""
    from harness.errors import UsageError
    from harness.prompts import prompt_lines, prompt_set
    from harness.store import told, write_whole

    if not prompts:
        raise UsageError(f"there is no prompt to write; {path} is as it was")
    lines = prompt_lines(prompts)
    written = prompt_set(path, lines)
    with told(path):
        write_whole(path, lines)
    print(f"{path}: {len(written.prompts)} prompts, sha256 {written.sha256[:12]}")
    return 0
