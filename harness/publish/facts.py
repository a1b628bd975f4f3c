"""RunFacts: what the index knows of a run, kept beside its page as run.json.

The index is made of these alone, so that a page which is there already costs nothing.
"""

from dataclasses import dataclass
from pathlib import Path

import msgspec

from harness.compare.rules import Word
from harness.records import Level
from harness.store import told

FACTS_FILE = "run.json"
FORMAT = 1
"""Rises when a reader of the old form would misread the new one; such a page is made again."""


@dataclass(frozen=True, kw_only=True)
class RunFacts:
    """`folder`: of its page, and the name of its folder in results/. `source`: a hash of what the
    page was made of, empty where only its report's folder is left.
    """

    format: int
    source: str
    folder: str
    run_id: str
    name: str
    created_at: str
    purpose: str
    level: Level
    headline: str
    variants: tuple[str, ...]
    device: str
    commit: str | None
    num_cells: int
    num_requests: int | None
    word: Word | None = None  # of the gate; None: nothing was compared with it
    gate: str | None = None


def read(page_folder: Path) -> RunFacts | None:
    """None: there is no page, or one that has to be made again."""
    path = page_folder / FACTS_FILE
    if not path.is_file():
        return None
    with told(path):
        data = path.read_bytes()
    try:
        facts = msgspec.json.decode(data, type=RunFacts)
    except msgspec.DecodeError:
        return None  # of another version, or cut off: it is made again
    return facts if facts.format == FORMAT else None
