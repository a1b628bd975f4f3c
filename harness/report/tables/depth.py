"""k swept: one drafter at several depths."""

from collections.abc import Iterator, Sequence

from harness.analysis.summary import Section, Summary
from harness.cell_view import CellView
from harness.measures import relative_change
from harness.report import format as fmt
from harness.report.tables.figures import Figures, decoding_sections, file_word, variant_label
from harness.report.tables.table import Entry, Table, count, missing


def depth(summary: Summary) -> list[Table]:
    """A table for each drafter that has rows of several k, shallowest first."""
    return [
        Table(
            name=f"{file_word(section)}_depth_{fmt.slug(views[0].cell.drafter or '')}",
            title=f"{views[0].cell.drafter} on {views[0].cell.target} by k, {section.word}",
            columns=(
                "variant",
                "k",
                "tok/s",
                "against the fastest k",
                "tok/round",
                "of ceiling",
                "accepted",
            ),
            rows=tuple(_row(summary, section, view, views) for view in views),
            num_labels=2,
            section=section.word,
        )
        for section in decoding_sections(summary)
        for views in sweeps(section)
    ]


def sweeps(section: Section) -> Iterator[Sequence[CellView]]:
    """Rows that differ in k alone, as engine, target and drafter go."""
    groups: dict[tuple[str | None, ...], list[CellView]] = {}
    for view in section.views:
        cell = view.cell
        if cell.k is not None:
            key = (cell.engine, cell.target, cell.drafter, cell.drafter_model)
            groups.setdefault(key, []).append(view)
    for views in groups.values():
        if len({view.cell.k for view in views}) > 1:
            yield sorted(views, key=lambda view: view.cell.k or 0)


def _row(
    summary: Summary, section: Section, view: CellView, group: Sequence[CellView]
) -> tuple[Entry, ...]:
    figures = Figures(summary)
    return (
        variant_label(section, view.cell.variant),
        count(view.cell.k or 0),
        figures.entry(view, "decode_rate", fmt.rate),
        _against_the_fastest(summary, view, group),
        figures.entry(view, "acceptance_length", fmt.length),
        figures.entry(view, "fraction_of_ceiling", fmt.percent),
        figures.entry(view, "acceptance_rate", fmt.percent),
    )


def _against_the_fastest(summary: Summary, view: CellView, group: Sequence[CellView]) -> Entry:
    figures = Figures(summary)
    rates = {
        other.cell.cell_id: entry.value
        for other in group
        if isinstance((entry := figures.entry(other, "decode_rate", fmt.rate)).value, float)
        and entry.mark != fmt.INVALID_MARK
    }
    own = rates.get(view.cell.cell_id)
    if not isinstance(own, float):
        return missing("no figure that may be compared")
    change = relative_change(own, max(rate for rate in rates.values() if isinstance(rate, float)))
    return Entry(text=fmt.change(change), value=change, cell_id=view.cell.cell_id)
