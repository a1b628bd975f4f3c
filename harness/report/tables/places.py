"""Cells in words: by variant and by where in the run, as a reader looks for them."""

from collections.abc import Collection, Iterator, Sequence

from harness.analysis.summary import Section, Summary
from harness.cell_view import CellView
from harness.report import format as fmt
from harness.report.tables.table import Entry


def cells_entry(summary: Summary, cell_ids: Sequence[str]) -> Entry:
    """In words for a reader, by their ids for a program."""
    return Entry(text=named(summary, cell_ids), value=" ".join(cell_ids))


def named(summary: Summary, cell_ids: Collection[str]) -> str:
    """plain: generate, concurrency at c = 1 and 4; DFlash2: every cell."""
    views = summary.data.views
    if len(views) > 1 and {view.cell.cell_id for view in views} <= {*cell_ids}:
        return "every cell"
    variants = dict.fromkeys(view.cell.variant for view in views)
    told = ((variant, _of_variant(summary, variant, cell_ids)) for variant in variants)
    return "; ".join(f"{variant}: {where}" for variant, where in told if where)


def _of_variant(summary: Summary, variant: str, cell_ids: Collection[str]) -> str:
    own = [view for view in summary.data.views if view.cell.variant == variant]
    touched = [view for view in own if view.cell.cell_id in cell_ids]
    if len(touched) == len(own) > 1:
        return "every cell"
    return ", ".join(_places(summary, variant, cell_ids))


def _places(summary: Summary, variant: str, cell_ids: Collection[str]) -> Iterator[str]:
    for section in summary.sections:
        inside = [v for v in section.of_variant(variant) if v.cell.cell_id in cell_ids]
        if inside:
            yield _place(section, inside)


def _place(section: Section, inside: Sequence[CellView]) -> str:
    if section.is_single:
        return section.word
    levels = fmt.listed([str(view.cell.concurrency) for view in inside])
    return f"{section.word} at c = {levels}"
