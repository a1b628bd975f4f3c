"""The same tables on a terminal. Names are printed as they are: no markup is read in them."""

from rich.console import Console
from rich.table import Table as RichTable
from rich.text import Text

from harness.analysis.summary import Summary
from harness.report import sentences, tables
from harness.report.tables import Entry, Table

STYLES = {"ok": "green", "warning": "yellow", "invalid": "red"}


def print_summary(summary: Summary, console: Console) -> None:
    """Headline, every table with its notes, verdict."""
    console.print(Text(summary.manifest.run_id, style="bold"))
    console.print(Text(sentences.headline(summary)))
    for line in sentences.one_at_a_time(summary):
        console.print(Text(line))
    for table in (table for make in tables.TABLES.values() for table in make(summary)):
        console.print()
        print_table(table, console)
    console.print()
    console.print(Text(f"verdict: {summary.level}", style=STYLES[summary.level]))


def print_table(table: Table, console: Console) -> None:
    """With its title above, reasons and notes below."""
    title = f"{table.section}: {table.title}" if table.section else table.title
    console.print(Text(title, style="bold"))
    console.print(_rich_table(table))
    warned = [each.sentence for each in table.warnings]
    for note in (*_reasons(table), *table.notes, *warned):
        console.print(Text(note, style="dim"))


def _rich_table(table: Table) -> RichTable:
    shown = RichTable(box=None, pad_edge=False)
    for number, column in enumerate(table.columns):
        is_label = number < table.num_labels
        shown.add_column(Text(column), justify="left" if is_label else "right", overflow="fold")
    for row in table.rows:
        shown.add_row(*(_text(entry) for entry in row))
    return shown


def _text(entry: Entry) -> Text:
    if entry.reason is not None:
        return Text(entry.text, style="dim")
    return Text(f"{entry.text} {entry.mark}".rstrip())


def _reasons(table: Table) -> tuple[str, ...]:
    reasons = dict.fromkeys(
        entry.reason for row in table.rows for entry in row if entry.reason is not None
    )
    return (f"n/a: {'; '.join(reasons)}",) if reasons else ()
