"""What stored runs tell of the time that a matrix takes."""

from collections.abc import Callable, Mapping
from pathlib import Path

from harness.errors import ResultsError
from harness.plan import make_plan
from harness.price import Durations, durations_of
from harness.records import Matrix, RepetitionEnd
from harness.store import RunFolder


def known_durations(
    matrix: Matrix,
    identities: Mapping[str, str],
    results_dir: Path,
    tell: Callable[[str], None],
) -> Durations | None:
    """Of the newest run of a matrix of this name that timed every cell, else of the oldest that
    timed any; None without one.
    """
    found = None
    for manifest in sorted(results_dir.glob(f"*-{matrix.name}/manifest.json"), reverse=True):
        try:
            folder = RunFolder.open(manifest.parent)
            durations = durations_of(folder.boots(), folder.read(RepetitionEnd))
        except ResultsError as error:
            tell(f"left out of the estimate: {error}")
            continue
        if durations is None:
            continue
        found = durations
        if make_plan(matrix, durations, identities).estimated_s is not None:
            break
    return found
