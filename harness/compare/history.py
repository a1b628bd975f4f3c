"""What each night leaves beside its report, and how the nights are found again.

Small files that outlive the raw data: `night.json` has the figures, `comparison.json` what the gate
said of them. It knows where they lie, not what they say.
"""

from pathlib import Path

import msgspec

from harness.compare import baselines
from harness.compare.night import Night
from harness.errors import ResultsError
from harness.store import told, write_whole

NIGHT_FILE = "night.json"
COMPARISON_FILE = "comparison.json"


def matrix_of(run_id: str) -> str:
    """A run's id is its date, its time and the name of its matrix."""
    return run_id.split("-", 2)[-1]


def remember(report: Path, night: Night, comparison: str | None) -> None:
    """`report`: the folder of the night's report. `comparison`: as JSON; None: with nothing."""
    with told(report):
        write_whole(report / NIGHT_FILE, baselines.encoded(night))
        if comparison is not None:
            write_whole(report / COMPARISON_FILE, comparison.encode())


def nights(reports_dir: Path, last: int | None = None) -> list[Night]:
    """By the time of their runs; `last`: no more than so many of the newest."""
    paths = sorted(reports_dir.glob(f"*/{NIGHT_FILE}"))
    return [read(path) for path in (paths if last is None else paths[-last:])]


def read(path: Path) -> Night:
    with told(path):
        data = path.read_bytes()
    try:
        return msgspec.json.decode(data, type=Night)
    except msgspec.DecodeError as error:
        raise ResultsError(f"{path}: {error}; remove it, and the night is forgotten") from error
