"""A table as Markdown. Whatever comes from a name or a message is escaped here."""

from collections.abc import Mapping, Sequence

from harness.report import format as fmt
from harness.report.tables import Entry, Table

CELLS_PAGE = "CELLS.md"
"""Where a figure's link leads, beside RESULTS.md."""


def markdown_table(table: Table, *, links: bool = False) -> str:
    """The table, its n/a reasons by letter, and its notes; `links` lead from figures to cells."""
    reasons = _reasons(table)
    lines = [
        _line([fmt.escape(column) for column in table.columns]),
        _line(
            [*([":--"] * table.num_labels), *(["--:"] * (len(table.columns) - table.num_labels))]
        ),
    ]
    lines += [_line([_shown(entry, reasons, links=links) for entry in row]) for row in table.rows]
    under = [f"<sup>{letter}</sup> {fmt.escape(reason)}" for reason, letter in reasons.items()]
    if under:
        lines += ["", f"n/a: {'; '.join(under)}."]
    for note in table.notes:
        lines += ["", f"> {fmt.prose(note)}"]
    return "\n".join(lines)


def _reasons(table: Table) -> Mapping[str, str]:
    """Reason -> letter, in order of appearance."""
    missing = [entry.reason for row in table.rows for entry in row if entry.reason is not None]
    return {reason: _letter(number) for number, reason in enumerate(dict.fromkeys(missing))}


def _letter(number: int) -> str:
    letters = "abcdefghijklmnopqrstuvwxyz"
    return letters[number] if number < len(letters) else str(number)


def _shown(entry: Entry, reasons: Mapping[str, str], *, links: bool) -> str:
    text = fmt.escape(entry.text)
    if links and entry.cell_id is not None:
        text = f"[{text}]({CELLS_PAGE}#{entry.cell_id})"
    if entry.reason is not None:
        return f"{text} <sup>{reasons[entry.reason]}</sup>"
    return f"{text} {entry.mark}".rstrip()


def _line(texts: Sequence[str]) -> str:
    return f"| {' | '.join(texts)} |"


def quoted(text: str) -> str:
    """A sentence as a Markdown quotation."""
    return f"> {fmt.escape(text)}"
