"""Natural prose: long descriptions of Debian packages that are plain paragraphs.

Needs apt's English translation lists; on a machine without them it says which commands fetch them.
"""

import re
import subprocess
from collections.abc import Iterator
from pathlib import Path
from random import Random

from engines.demo.train.corpus.document import Document

LISTS = Path("/var/lib/apt/lists")
HOW_TO_GET = (
    "no English package descriptions in {lists}: on Debian or Ubuntu run "
    "`apt-get update -o Acquire::Languages=en` as root, or pass --without-packages"
)
ASK = (
    "Describe the Debian package {name}: {synopsis}.",
    "What is {name}? ({synopsis})",
    "Write a description of the package {name} ({synopsis}).",
    "{name}: {synopsis}. Tell me more about it.",
)
SIZE_CHARACTERS = range(350, 1000)
PLAIN = re.compile(r"^[\x20-\x7e\n]+$")


class PackagesMissingError(Exception):
    """The machine has no package descriptions to learn from."""


def documents(lists: Path = LISTS) -> list[Document]:
    """One document per distinct description, in order of package name."""
    seen: set[str] = set()
    found: dict[str, Document] = {}
    for name, synopsis, text in sorted(descriptions(lists)):
        opening = text[:60]
        if opening in seen:
            continue
        seen.add(opening)
        ask = Random(name).choice(ASK)
        found[name] = Document(
            kind="prose",
            user=ask.format(name=name, synopsis=synopsis),
            answer=text,
            source=f"debian:{name}",
        )
    return list(found.values())


def descriptions(lists: Path) -> Iterator[tuple[str, str, str]]:
    """(package, synopsis, plain long description) of every suitable entry."""
    files = sorted(lists.glob("*_main_i18n_Translation-en*"))
    if not files:
        raise PackagesMissingError(HOW_TO_GET.format(lists=lists))
    for path in files:
        command = ["/usr/lib/apt/apt-helper", "cat-file", str(path)]
        text = subprocess.run(command, check=True, capture_output=True).stdout.decode()
        for entry in text.split("\n\n"):
            found = parse(entry)
            if found is not None:
                yield found


def parse(entry: str) -> tuple[str, str, str] | None:
    """None for an entry with lists, headings or unusual characters, or of the wrong length."""
    name = re.search(r"^Package: (.+)$", entry, re.M)
    body = re.search(r"^Description-en: (.+)\n((?: .*\n?)+)", entry, re.M)
    if not name or not body:
        return None
    lines = [line[1:] for line in body.group(2).splitlines()]
    if any(line.startswith((" ", "*", "-", "+", "o ")) or "://" in line for line in lines):
        return None
    text = "\n".join(lines).replace("\n.\n", "\n\n").strip()
    paragraphs = [part.replace("\n", " ") for part in text.split("\n\n")]
    text = "\n\n".join(part for part in paragraphs if not part.startswith("This package"))
    if len(text) not in SIZE_CHARACTERS or not PLAIN.match(text) or not text.endswith("."):
        return None
    return name.group(1), body.group(1).rstrip("."), text
