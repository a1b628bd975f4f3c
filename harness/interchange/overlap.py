"""Where another tool and a run measured the same thing: their figures side by side, and why they
may differ.

Nothing is said of better or worse. Two protocols differ by definition before they differ by speed,
so both definitions stand beside the difference.
"""

from collections.abc import Iterator, Mapping

from harness.analysis.metrics import METRICS
from harness.analysis.summary import Section, Summary
from harness.cell_view import CellView
from harness.errors import UsageError
from harness.interchange.document import Imported, ImportedFigure, ImportedRow
from harness.measures import relative_change
from harness.report import format as fmt
from harness.report.tables import Entry, Table, label
from harness.report.tables.table import count, shown


def imported_table(document: Imported) -> Table:
    """What was read, each figure under the tool's own name."""
    return Table(
        name="imported",
        title=f"{document.tool}, {document.tool_version or 'of an unknown version'}",
        columns=("of", "work", "c", "figure", "value", "unit", "like", "protocol"),
        rows=tuple(
            (
                label(row.subject),
                label(row.work),
                shown(row.concurrency, str),
                label(figure.name),
                Entry(text=fmt.number(figure.value), value=figure.value),
                label(figure.unit),
                label(figure.like or fmt.DASH),
                label(row.protocol_id),
            )
            for row in document.rows
            for figure in row.figures
        ),
        num_labels=2,
    )


def overlap_table(summary: Summary, document: Imported, *, variant: str) -> Table:
    """`variant`: of the run, that the tool measured too."""
    variants = dict.fromkeys(view.cell.variant for view in summary.data.views)
    if variant not in variants:
        raise UsageError(f"the run has no variant {variant!r}; it has {', '.join(variants)}")
    return Table(
        name="overlap",
        title=f"{variant}: where {document.tool} and this run meet",
        columns=("c", "work", "figure", "here", "figure there", "there", "difference", "protocols"),
        rows=tuple(_rows(summary, document, variant)),
        notes=tuple(_notes(document)),
        num_labels=3,
    )


def _rows(summary: Summary, document: Imported, variant: str) -> Iterator[tuple[Entry, ...]]:
    for section in summary.sections:
        for view in section.of_variant(variant):
            for row in document.rows:
                if row.concurrency in (None, view.cell.concurrency):
                    yield from _of_cell(summary, section, view, row)


def _of_cell(
    summary: Summary, section: Section, view: CellView, row: ImportedRow
) -> Iterator[tuple[Entry, ...]]:
    for theirs in row.figures:
        ours = summary.row(view, theirs.like) if theirs.like else None
        if ours is None or ours.estimate.value is None:
            continue
        change = relative_change(theirs.value, ours.estimate.value)
        yield (
            count(view.cell.concurrency),
            label(f"{section.word} / {row.work}"),
            label(ours.metric),
            _figure(ours.estimate.value, ours.estimate.unit),
            label(theirs.name),
            _figure(theirs.value, theirs.unit),
            Entry(text=fmt.change(change), value=change),
            label(f"{view.cell.protocol_id} / {row.protocol_id}"),
        )


def _figure(value: float, unit: str) -> Entry:
    return Entry(text=f"{fmt.number(value)} {'' if unit == '1' else unit}".strip(), value=value)


def _notes(document: Imported) -> Iterator[str]:
    """What each figure of theirs means, and what ours like it does."""
    likes: dict[str, ImportedFigure] = {}
    for row in document.rows:
        for figure in row.figures:
            if figure.like is not None:
                likes.setdefault(figure.name, figure)
    for name, figure in likes.items():
        ours = METRICS[str(figure.like)].description
        yield f"{name} there: {_meaning(document.meanings, name)}. {figure.like} here: {ours}."


def _meaning(meanings: Mapping[str, str], name: str) -> str:
    """Of `ttft, p50` that of `ttft`."""
    return meanings.get(name) or meanings.get(name.split(", ")[0]) or "not told"
