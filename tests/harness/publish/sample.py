"""A sample site: nine nights of a synthetic engine, the last two of them red.

    python -m tests.harness.publish.sample FOLDER

FOLDER gets results/, reports/ and site/. docs/howto/nightly.md walks through the eighth night.
"""

import sys
from pathlib import Path

from harness.report.build import build
from harness.store import RunFolder
from tests.harness import synthetic
from tests.harness.publish.sites import Machine

NIGHTS = 9
RED_FROM = 8
SLOWER_MS = 1.5  # of the 14 ms that a verification took before


def write_sample(folder: Path) -> Path:
    """Returns the site's first page."""
    machine = Machine(folder, synthetic.matrix(levels=(1, 4)))
    for number in range(1, NIGHTS + 1):
        run = machine.night(number, slower_ms=SLOWER_MS if number >= RED_FROM else 0.0)
    build(RunFolder.open(run.path), machine.reports)
    return machine.publish().index


if __name__ == "__main__":
    print(write_sample(Path(sys.argv[1])))
