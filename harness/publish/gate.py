"""What a night left beside its report (`compare.history`), as a page shows it."""

from dataclasses import dataclass
from pathlib import Path

import msgspec

from harness.compare.compare import Row
from harness.compare.history import COMPARISON_FILE
from harness.compare.rules import Word
from harness.errors import ResultsError
from harness.report.comparison.table import rows_table
from harness.report.tables import Table
from harness.store import told


@dataclass(frozen=True, kw_only=True)
class Gate:
    """comparison.json, as far as it is shown."""

    word: Word
    headline: str
    baseline: str
    findings: tuple[str, ...]
    not_compared: tuple[str, ...]
    notes: tuple[str, ...]
    rows: tuple[Row, ...]

    @property
    def table(self) -> Table:
        compared = [row for row in self.rows if row.word != "not comparable"]
        return rows_table(compared, f"Every figure against {self.baseline}")


def read_gate(report: Path) -> Gate | None:
    """None: nothing was compared with this run when it was measured."""
    path = report / COMPARISON_FILE
    if not path.is_file():
        return None
    with told(path):
        data = path.read_bytes()
    try:
        return msgspec.json.decode(data, type=Gate)
    except msgspec.DecodeError as error:
        raise ResultsError(f"{path}: {error}; remove it, and the page goes without") from error
