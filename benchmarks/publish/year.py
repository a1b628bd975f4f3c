"""How long a year of nights takes to be published, when all but the last are rendered already.

    python -m benchmarks.publish.year FOLDER

One synthetic night (two variants, one stream and c = 1 to 16, two boots) is measured; 364 others
are made of its figures with a spread of 1 % between boots, and have no raw data left. Printed are
the seconds of a first publishing, of a second, and of one with a night more.
"""

import random
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from datetime import datetime, timedelta
from pathlib import Path

from harness.compare import history
from harness.compare.night import Figure, Night
from tests.harness import synthetic
from tests.harness.publish.sites import Machine

NIGHTS = 365
SPREAD = 0.01
LEVELS = (1, 2, 4, 8, 16)


def main(folder: Path) -> None:
    machine = Machine(folder, synthetic.matrix(levels=LEVELS, repetitions=1))
    run = machine.night(29)
    tonight = history.read(machine.reports / run.manifest.run_id / history.NIGHT_FILE)
    for night in before(tonight):
        report = machine.reports / night.run_id
        report.mkdir()
        history.remember(report, night, None)
    figures = sum(len(subject.figures) for subject in tonight.subjects)
    print(f"{NIGHTS} nights of {figures} figures")
    for told in ("first", "second"):
        print(f"{told}: {timed(machine):.1f} s")
    machine.night(30)
    print(f"one night more: {timed(machine):.1f} s")


def before(tonight: Night) -> Iterator[Night]:
    draw = random.Random(7)
    last = datetime.fromisoformat(tonight.created_at)
    for days in range(1, NIGHTS):
        at = last - timedelta(days=days)
        subjects = tuple(
            replace(
                subject,
                figures={name: varied(figure, draw) for name, figure in subject.figures.items()},
            )
            for subject in tonight.subjects
        )
        yield replace(
            tonight,
            run_id=f"{at:%Y%m%d-%H%M%S}-synthetic",
            created_at=f"{at:%Y-%m-%dT%H:%M:%SZ}",
            subjects=subjects,
        )


def varied(figure: Figure, draw: random.Random) -> Figure:
    return replace(
        figure,
        by_boot={
            boot: value * draw.lognormvariate(0, SPREAD) for boot, value in figure.by_boot.items()
        },
    )


def timed(machine: Machine) -> float:
    begun = time.perf_counter()
    machine.publish()
    return time.perf_counter() - begun


if __name__ == "__main__":
    main(Path(sys.argv[1]))
