"""A table as Markdown. Whatever comes from a name or a message is escaped here."""

from collections.abc import Mapping, Sequence
from dataclasses import replace

from harness.report import format as fmt
from harness.report.tables import Accusation, Entry, Table

CELLS_PAGE = "CELLS.md"
"""Where a figure's link leads, beside RESULTS.md."""


class Links:
    """Cell -> the number that a page's links call it by: a table stays readable as text, and the
    addresses stand once, at the end of the page.
    """

    def __init__(self, cell_ids: Sequence[str]) -> None:
        self.numbers = {cell_id: number for number, cell_id in enumerate(cell_ids, start=1)}

    def to(self, text: str, cell_id: str | None) -> str:
        return text if cell_id is None else f"[{text}][{self.numbers[cell_id]}]"

    @property
    def addresses(self) -> str:
        return "\n".join(
            f"[{number}]: {CELLS_PAGE}#{cell_id}" for cell_id, number in self.numbers.items()
        )


def markdown_table(table: Table, links: Links | None = None) -> str:
    """The table, its n/a reasons by letter, its notes, and its warnings folded away where there are
    `links`: on a page, that is; what is pasted elsewhere stands whole.
    """
    reasons = _reasons(table)
    lines = [
        _line([fmt.escape(column) for column in table.columns]),
        _line(
            [*([":--"] * table.num_labels), *(["--:"] * (len(table.columns) - table.num_labels))]
        ),
    ]
    of_variants = table.columns[0] == "variant"
    for row in map(_marked_once, table.rows) if of_variants else table.rows:
        lines.append(_line([_shown(entry, reasons, links) for entry in row]))
    under = [f"<sup>{letter}</sup> {fmt.escape(reason)}" for reason, letter in reasons.items()]
    if under:
        lines += ["", f"n/a: {'; '.join(under)}."]
    for note in table.notes:
        lines += ["", f"> {fmt.prose(note)}"]
    lines += _warnings(table.warnings, folded=links is not None)
    return "\n".join(lines)


def _warnings(warnings: Sequence[Accusation], *, folded: bool) -> list[str]:
    told = [line for each in warnings for line in ("", f"> {fmt.prose(each.sentence)}")]
    if not folded or not warnings:
        return told
    checks = fmt.listed(list(dict.fromkeys(each.check for each in warnings)))
    summary = f"{fmt.WARNING_MARK} {fmt.counted(len(warnings), 'warning')}: {fmt.escape(checks)}"
    return ["", f"<details><summary>{summary}</summary>", *told, "", "</details>"]


def _marked_once(row: tuple[Entry, ...]) -> tuple[Entry, ...]:
    """A variant whose figures are all warned of has the mark at its name instead."""
    figures = [entry for entry in row[1:] if entry.cell_id is not None]
    if not figures or any(entry.mark != fmt.WARNING_MARK for entry in figures):
        return row
    named = replace(row[0], mark=f"{row[0].mark} {fmt.WARNING_MARK}".strip())
    return (named, *(replace(entry, mark="") for entry in row[1:]))


def _reasons(table: Table) -> Mapping[str, str]:
    """Reason -> letter, in order of appearance."""
    missing = [entry.reason for row in table.rows for entry in row if entry.reason is not None]
    return {reason: _letter(number) for number, reason in enumerate(dict.fromkeys(missing))}


def _letter(number: int) -> str:
    letters = "abcdefghijklmnopqrstuvwxyz"
    return letters[number] if number < len(letters) else str(number)


def _shown(entry: Entry, reasons: Mapping[str, str], links: Links | None) -> str:
    text = fmt.escape(entry.text)
    if links is not None:
        text = links.to(text, entry.cell_id)
    if entry.reason is not None:
        return f"{text} <sup>{reasons[entry.reason]}</sup>"
    return f"{text} {entry.mark}".rstrip()


def _line(texts: Sequence[str]) -> str:
    return f"| {' | '.join(texts)} |"


def quoted(text: str) -> str:
    """A sentence as a Markdown quotation."""
    return f"> {fmt.escape(text)}"
