"""Writes the demo prompt sets: held-out questions of the five kinds, and warm-up questions.

The first held-out documents are taken as they come; nobody looked at answers when choosing.

    python -m engines.demo.train.prompts
"""

import json
from collections.abc import Iterator
from itertools import chain, islice
from pathlib import Path

from engines.demo.train.corpus.document import Document
from engines.demo.train.corpus.split import (
    KINDS,
    SEED,
    Counts,
    Split,
    generated_with_numbers,
    late_training,
    package_documents,
    training,
)

PROMPTS = Path("prompts")
NUM_QUICKSTART, NUM_EVALUATION, NUM_PACKAGES = 2, 20, 4  # packages: of the evaluation's prose
GENERATED_LICENCE = "Apache-2.0 (this project)"
DEBIAN_LICENCE = "name and synopsis from Debian's package descriptions, under the package's licence"


def line(kind: str, number: int, text: str, source: str, licence: str) -> dict[str, object]:
    return {
        "id": f"{kind}-{number}",
        "kind": kind,
        "messages": [{"role": "user", "content": text}],
        "source": source,
        "licence": licence,
    }


def generated_lines(split: Split, kind: str, seen: set[str], first: int) -> Iterator[dict]:
    """Lines for the held-out documents of a kind, from the first-th on."""
    documents = islice(generated_with_numbers(kind, split, seen), first, None)
    for at, (seed_number, document) in enumerate(documents, start=1):
        source = f"generated: {SEED}:{split}:{kind}:{seed_number}"
        yield line(kind, at, document.user, source, GENERATED_LICENCE)


def package_line(number: int, document: Document) -> dict[str, object]:
    return line("prose", number, document.user, document.source, DEBIAN_LICENCE)


def quickstart(seen: set[str]) -> list[dict]:
    """The kinds in turn, so that five neighbours, a wave of c = 5, are one of each."""
    by_kind = (
        islice(generated_lines("evaluation", kind, seen, 0), NUM_QUICKSTART) for kind in KINDS
    )
    return [each for round_ in zip(*by_kind, strict=True) for each in round_]


def evaluation(seen: set[str]) -> list[dict]:
    """Other documents than the quickstart's; the last prose ones ask about held-out packages."""
    lines = []
    for kind in KINDS:
        number = NUM_EVALUATION - (NUM_PACKAGES if kind == "prose" else 0)
        lines += islice(generated_lines("evaluation", kind, seen, NUM_QUICKSTART), number)
        if kind == "prose":
            packages = package_documents("evaluation")[:NUM_PACKAGES]
            lines += [package_line(number + at, d) for at, d in enumerate(packages, start=1)]
    return lines


def warmup(seen: set[str]) -> list[dict]:
    return [next(generated_lines("warmup", kind, seen, 0)) for kind in KINDS]


def write(name: str, lines: list[dict]) -> None:
    text = "".join(json.dumps(each, ensure_ascii=False) + "\n" for each in lines)
    (PROMPTS / f"{name}.jsonl").write_text(text, encoding="utf-8")


def main() -> None:
    PROMPTS.mkdir(exist_ok=True)
    seen = {d.user for d in chain(training(Counts()), late_training(Counts()))}
    write("demo5", quickstart(seen))
    write("demo5_eval", evaluation(seen))
    write("demo5_warmup", warmup(seen))


if __name__ == "__main__":
    main()
