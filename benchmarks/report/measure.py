"""What the report of a stored run costs: time by stage, and the memory of all its processes.

`python -m benchmarks.report.measure --raw FILE [--folder DIR] [--rounds 3]` makes a run of 100,000
requests (see benchmarks/scale/synthetic_run.py) and reports it in a fresh process each round; a
round is one line of FILE. `--table FILE` prints the table of those lines.
"""

import argparse
import json
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any

import psutil

from benchmarks.scale.synthetic_run import RUN_ID, write_run

REPETITIONS, NUM_DRAFTERS = 19, 2  # 101,232 requests in 60 cells
SAMPLE_EVERY_S = 0.02


@dataclass(frozen=True, kw_only=True)
class Told:
    """What the process says of itself; seconds since it was started."""

    num_requests: int
    num_cells: int
    imported_s: float
    summarised_s: float
    written_s: float  # all of the report, pictures among it
    pictures_s: float  # of that, for drawing and saving them


@dataclass(frozen=True, kw_only=True)
class Round:
    """`total_s`: from the start of the process to its end. `peak_bytes`: the largest sum of
    resident sets over it and its children, so that pages they share count twice.
    """

    told: Told
    total_s: float
    peak_bytes: int
    requests_jsonl_bytes: int
    report_bytes: int


def main() -> None:
    options = _options()
    if options.table:
        print("\n".join(table(read(options.table))))
    elif options.child:
        print(json.dumps(asdict(report(*options.child))))
    else:
        with TemporaryDirectory() as folder:
            measure(
                options.folder or Path(folder),
                options.raw,
                options.rounds,
                [(REPETITIONS, NUM_DRAFTERS)],
            )


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--raw", type=Path)
    parser.add_argument("--folder", type=Path, help="where the run lies, to be kept")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--table", type=Path)
    parser.add_argument("--child", type=Path, nargs=2, help=argparse.SUPPRESS)
    return parser.parse_args()


def measure(folder: Path, raw: Path, rounds: int, sizes: Sequence[tuple[int, int]]) -> None:
    """Runs that lie in the folder already are taken as they are."""
    runs = [
        _run(folder / f"{repetitions}x{drafters}", repetitions, drafters)
        for repetitions, drafters in sizes
    ]
    for _ in range(rounds):
        for run in runs:
            found = measured(run)
            print(found, file=sys.stderr)
            with open(raw, "a", encoding="utf-8") as lines:
                lines.write(json.dumps(asdict(found)) + "\n")


def _run(results: Path, repetitions: int, num_drafters: int) -> Path:
    if not (results / RUN_ID).exists():
        write_run(results, repetitions, num_drafters)
    return results / RUN_ID


# --- one report -----------------------------------------------------------------------------------


def measured(run: Path) -> Round:
    with TemporaryDirectory(dir=run.parent) as reports:
        command = [sys.executable, "-m", "benchmarks.report.measure", "--child", str(run), reports]
        began = time.perf_counter()
        process = subprocess.Popen(command, stdout=subprocess.PIPE)
        peak_bytes = _peak_bytes(process)
        total_s = time.perf_counter() - began
        assert process.stdout is not None
        told = Told(**json.loads(process.stdout.read()))
        written = [path.stat().st_size for path in Path(reports).rglob("*") if path.is_file()]
    return Round(
        told=told,
        total_s=total_s,
        peak_bytes=peak_bytes,
        requests_jsonl_bytes=(run / "requests.jsonl").stat().st_size,
        report_bytes=sum(written),
    )


def _peak_bytes(process: subprocess.Popen[bytes]) -> int:
    """Until it ends. What ends between two looks is not seen."""
    root, peak = psutil.Process(process.pid), 0
    while process.poll() is None:
        peak = max(peak, sum(_resident_bytes([root, *root.children(recursive=True)])))
        time.sleep(SAMPLE_EVERY_S)
    return peak


def _resident_bytes(processes: Sequence[psutil.Process]) -> Iterator[int]:
    for process in processes:
        try:
            yield process.memory_info().rss
        except psutil.NoSuchProcess:  # it ended since it was named
            continue


def report(run: Path, reports: Path) -> Told:
    """What `dflashbench report` does, with a watch beside it."""
    began = psutil.Process().create_time()
    from harness.analysis.summary import summarise
    from harness.report import plots
    from harness.report.build import write_report
    from harness.store import RunFolder

    imported_s = time.time() - began
    summary = summarise(RunFolder.open(run))
    summarised_s = time.time() - began
    save, pictures_s = plots.save, 0.0

    def timed(picture: plots.Picture, folder: Path) -> None:
        nonlocal pictures_s
        before = time.perf_counter()
        save(picture, folder)
        pictures_s += time.perf_counter() - before

    plots.save = timed
    write_report(summary, reports)
    return Told(
        num_requests=sum(len(view.requests) for view in summary.data.views),
        num_cells=len(summary.data.views),
        imported_s=imported_s,
        summarised_s=summarised_s,
        written_s=time.time() - began,
        pictures_s=pictures_s,
    )


# --- the table ------------------------------------------------------------------------------------

COLUMNS = (
    "requests",
    "cells",
    "requests.jsonl, MB",
    "start and imports, s",
    "analysis, s",
    "tables and pages, s",
    "**without pictures, s**",
    "µs per request",
    "pictures, s",
    "**peak memory, MB**",
    "report, MB",
)


def read(path: Path) -> list[Round]:
    lines = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    return [Round(**{**line, "told": Told(**line["told"])}) for line in lines]


def table(rounds: Sequence[Round]) -> Iterator[str]:
    """Markdown lines: medians over rounds of the times, the largest peak."""
    yield "| " + " | ".join(COLUMNS) + " |"
    yield "|" + " --: |" * len(COLUMNS)
    sizes = dict.fromkeys((each.told.num_requests, each.told.num_cells) for each in rounds)
    for size in sorted(sizes):
        same = [each for each in rounds if (each.told.num_requests, each.told.num_cells) == size]
        yield "| " + " | ".join(_figures(same)) + " |"


def _figures(same: Sequence[Round]) -> Iterator[str]:
    first = same[0]
    without_pictures_s = median(each.total_s - each.told.pictures_s for each in same)
    yield f"{first.told.num_requests:,}"
    yield str(first.told.num_cells)
    yield f"{first.requests_jsonl_bytes / 1e6:,.0f}"
    yield _seconds(each.told.imported_s for each in same)
    yield _seconds(each.told.summarised_s - each.told.imported_s for each in same)
    yield _seconds(each.total_s - each.told.summarised_s - each.told.pictures_s for each in same)
    yield f"**{without_pictures_s:.1f}**"
    yield f"{without_pictures_s / first.told.num_requests * 1e6:.0f}"
    yield _seconds(each.told.pictures_s for each in same)
    yield f"**{max(each.peak_bytes for each in same) / 1e6:,.0f}**"
    yield f"{first.report_bytes / 1e6:,.0f}"


def _seconds(times_s: Any) -> str:
    return f"{median(times_s):.1f}"


if __name__ == "__main__":
    main()
