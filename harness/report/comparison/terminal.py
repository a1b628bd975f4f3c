"""A comparison on a terminal."""

from collections.abc import Iterable, Mapping

from rich.console import Console
from rich.text import Text

from harness.compare.compare import Comparison
from harness.compare.rules import Word
from harness.report.comparison import sentences
from harness.report.comparison.table import comparison_table
from harness.report.terminal import print_table

STYLES: Mapping[Word, str] = {
    "regressed": "red",
    "inconclusive": "yellow",
    "not comparable": "yellow",
    "improved": "green",
    "within noise": "green",
}


def print_comparison(comparison: Comparison, console: Console) -> None:
    table = comparison_table(comparison)
    if table.rows:
        print_table(table, console)
    _print_lines("What moved", sentences.findings(comparison), console)
    _print_lines("Not compared", sentences.not_compared(comparison), console)
    _print_lines("Notes", comparison.notes, console)
    console.print()
    console.print(Text(sentences.headline(comparison), style=STYLES[comparison.word]))


def _print_lines(title: str, lines: Iterable[str], console: Console) -> None:
    told = list(lines)
    if not told:
        return
    console.print()
    console.print(Text(title, style="bold"))
    for line in told:
        console.print(Text(f"* {line}"))
