"""How analysis and report grow with a run: `python -m benchmarks.scale.analysis --raw FILE`.

Runs of 50,000, 500,000 and 5,000,000 requests in the same 200 cells (synthetic_run.py), each
reported in a fresh process; sizes alternate and a report is one line of FILE. The largest run takes
6 GB and minutes to write: `--folder DIR` keeps the runs. `--table FILE` prints the table.
"""

import argparse
from pathlib import Path
from tempfile import TemporaryDirectory

from benchmarks.report.measure import measure, read, table

NUM_DRAFTERS = 9
REPETITIONS = (3, 28, 282)  # 53,280, 497,280 and 5,008,320 requests


def main() -> None:
    options = _options()
    if options.table:
        print("\n".join(table(read(options.table))))
        return
    with TemporaryDirectory() as folder:
        sizes = [(repetitions, NUM_DRAFTERS) for repetitions in REPETITIONS]
        measure(options.folder or Path(folder), options.raw, options.rounds, sizes)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--raw", type=Path)
    parser.add_argument("--folder", type=Path, help="where the runs lie, to be kept")
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--table", type=Path)
    return parser.parse_args()


if __name__ == "__main__":
    main()
