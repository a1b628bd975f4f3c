"""Which documents train, and which only evaluate or warm up: the one place that decides.

Generated documents are split by seed text, natural ones by the sha256 of their package or file
name; a held-out prompt that equals a training prompt letter by letter is passed over.
"""

import hashlib
from collections.abc import Container, Iterator
from dataclasses import dataclass
from itertools import count
from random import Random
from typing import Literal

from engines.demo.train.corpus import arithmetic, code, edit, packages, prose, refactor, stdlib
from engines.demo.train.corpus.document import Document

Split = Literal["train", "validation", "evaluation", "warmup"]
KINDS = ("code", "prose", "arithmetic", "refactor", "edit")
GENERATORS = {
    "code": code.document,
    "prose": prose.document,
    "arithmetic": arithmetic.document,
    "refactor": refactor.document,
    "edit": edit.document,
}
LONG_GENERATORS = {"refactor": refactor.document, "edit": edit.document}
SEED = "dflashbench-demo-1"
HELD_OUT_OF_256 = 16


@dataclass(frozen=True, kw_only=True)
class Counts:
    """How many documents train: generated ones of each kind, and package descriptions at most."""

    code: int = 7500
    prose: int = 9500
    arithmetic: int = 9500
    refactor: int = 6500
    edit: int = 9000
    packages: int = 4500
    long_refactor: int = 2000  # these two at the end of the training, with the long windows
    long_edit: int = 2500


def generated(kind: str, split: Split, number: int) -> Document:
    """The kind's document of this number. Held-out files to change are all long ones."""
    if split != "train" and kind in LONG_GENERATORS:
        return generated_long(kind, split, number)
    return GENERATORS[kind](Random(f"{SEED}:{split}:{kind}:{number}"))


def generated_long(kind: str, split: Split, number: int) -> Document:
    return LONG_GENERATORS[kind](Random(f"{SEED}:{split}:long {kind}:{number}"), long=True)


def held_out(document: Document) -> bool:
    """True for natural documents whose package or file never trains."""
    origin = ":".join(document.source.split(":")[:2])
    return hashlib.sha256(origin.encode()).digest()[0] < HELD_OUT_OF_256


def package_documents(split: Split) -> list[Document]:
    """Package descriptions of one side of the split, in an order that only the name decides."""
    wanted = [d for d in packages.documents() if held_out(d) == (split != "train")]
    return sorted(wanted, key=lambda d: hashlib.sha256(d.source.encode()).digest()[1:])


def late_training(counts: Counts) -> Iterator[Document]:
    """The documents that only the last part of the training sees."""
    for kind, count_of_kind in (("refactor", counts.long_refactor), ("edit", counts.long_edit)):
        for number in range(count_of_kind):
            yield generated_long(kind, "train", number)


def training(counts: Counts) -> Iterator[Document]:
    """Every other training document, kind after kind; packing shuffles them."""
    for kind in KINDS:
        for number in range(getattr(counts, kind)):
            yield generated(kind, "train", number)
    yield from (document for document in stdlib.documents() if not held_out(document))
    if counts.packages:
        yield from package_documents("train")[: counts.packages]


def generated_with_numbers(
    kind: str, split: Split, seen: Container[str]
) -> Iterator[tuple[int, Document]]:
    """Endless held-out documents whose question no training document asks, with seed numbers."""
    asked: set[str] = set()
    for number in count():
        document = generated(kind, split, number)
        if document.user not in seen and document.user not in asked:
            asked.add(document.user)
            yield number, document


def unseen(kind: str, split: Split, seen: Container[str]) -> Iterator[Document]:
    return (document for _, document in generated_with_numbers(kind, split, seen))
