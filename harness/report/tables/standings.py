"""Any variant over any other, who is first where, and where an order flips."""

from collections.abc import Iterator, Sequence
from itertools import combinations

from harness.analysis import standings
from harness.analysis.metrics import METRICS
from harness.analysis.standings import Place, Rank, Win
from harness.analysis.summary import Section, Summary
from harness.cell_view import CellView
from harness.records import Estimate
from harness.report import format as fmt
from harness.report.tables.figures import file_word, kind_word, variant_label
from harness.report.tables.table import Entry, Table, label, missing

FIGURES = {
    "decode_rate": "decode rates",
    "aggregate_throughput": "aggregates",
    "prefill_rate": "prefill rates",
}
"""The headline metrics, in words for titles."""

TIE_NOTE = (
    "= before a variant: it cannot be told from the one before it, its interval over boots holds 1 "
    "(or there is none, with one boot)."
)


def ratios(summary: Summary) -> list[Table]:
    """Row over column, where there are enough variants to ask."""
    return [
        Table(
            name=f"{file_word(section)}_ratios",
            title=f"Ratio of {FIGURES[section.headline]}, row over column (95 % interval)",
            columns=("variant", *section.variants),
            rows=tuple(
                (
                    variant_label(section, own.cell.variant),
                    *(
                        label(fmt.DASH)
                        if other is own
                        else ratio_entry(standings.ratio(summary, own, other), own)
                        for other in section.views
                    ),
                )
                for own in section.views
            ),
            section=section.word,
        )
        for section in summary.sections
        if section.is_single and len(section.variants) > 2
    ]


def ratios_by_place(summary: Summary) -> list[Table]:
    """Every pair that no speed-up tells of, by kind or by level."""
    found = []
    for section in summary.sections:
        places = standings.places(summary, section)
        rows = tuple(
            (label(own), label(other), *_pair_entries(summary, section, own, other, places))
            for own, other in _unrelated_pairs(section)
        )
        if rows:
            found.append(
                Table(
                    name=f"{file_word(section)}_ratios_by_{'kind' if section.is_single else 'c'}",
                    title=f"Ratio of {FIGURES[section.headline]} of two variants (95 % interval)",
                    columns=("variant", "over", *(place_word(section, place) for place in places)),
                    rows=rows,
                    num_labels=2,
                    section=section.word,
                )
            )
    return found


def _unrelated_pairs(section: Section) -> Iterator[tuple[str, str]]:
    related = {
        frozenset((view.cell.variant, view.reference.cell.variant))
        for view in section.views
        if view.reference is not None
    }
    for own, other in combinations(section.variants, 2):
        if frozenset((own, other)) not in related:
            yield own, other


def _pair_entries(
    summary: Summary, section: Section, own: str, other: str, places: Sequence[Place]
) -> Iterator[Entry]:
    for place in places:
        views = [section.view(variant, place.concurrency) for variant in (own, other)]
        if views[0] is None or views[1] is None:
            yield missing("not in the matrix")
        else:
            found = standings.ratio(summary, views[0], views[1], place.kind)
            yield ratio_entry(found, views[0])


def ratio_entry(estimate: Estimate, view: CellView) -> Entry:
    if estimate.value is None:
        return missing(estimate.reason)
    text = fmt.times(estimate.value)
    if estimate.low is not None and estimate.high is not None and estimate.low < estimate.high:
        text = f"{text} ({fmt.span(estimate.low, estimate.high)})"
    return Entry(text=text, value=estimate.value, cell_id=view.cell.cell_id)


def place_word(section: Section, place: Place) -> str:
    if section.is_single:
        return kind_word(place.kind)
    return f"c = {place.concurrency}"


# --- rankings -------------------------------------------------------------------------------------


def rankings(summary: Summary) -> list[Table]:
    """Kind or level down, first to last across."""
    return [
        Table(
            name=f"{file_word(section)}_ranking",
            title=f"Ranking by {FIGURES[section.headline]}",
            columns=(
                "kind" if section.is_single else "c",
                *(f"{number}." for number in range(1, len(section.variants) + 1)),
            ),
            rows=tuple(
                _ranking_row(summary, section, place)
                for place in standings.places(summary, section)
            ),
            notes=(TIE_NOTE,),
            section=section.word,
        )
        for section in summary.sections
        if len(section.variants) > 2
    ]


def _ranking_row(summary: Summary, section: Section, place: Place) -> tuple[Entry, ...]:
    word = place_word(section, place) + ("" if place.comparable else " (unbalanced mix)")
    ranks = standings.ranking(summary, section, place).ranks
    gaps = len(section.variants) - len(ranks)
    return (
        label(word),
        *(_rank_entry(section, place, rank) for rank in ranks),
        *(missing("no figure that may be ranked") for _ in range(gaps)),
    )


def _rank_entry(section: Section, place: Place, rank: Rank) -> Entry:
    tied = rank.lead is not None and not rank.clearly_behind
    text = f"{'= ' if tied else ''}{rank.variant} {fmt.rate(rank.value)}"
    view = section.view(rank.variant, place.concurrency)
    assert view is not None
    return Entry(text=text, value=rank.variant, cell_id=view.cell.cell_id)


# --- winners --------------------------------------------------------------------------------------


def winners(summary: Summary) -> list[Table]:
    """Regime by regime; what cannot be told apart is a tie and says so."""
    rows = tuple(_win_row(win) for win in standings.wins(summary))
    if not rows:
        return []
    return [
        Table(
            name="winners",
            title="Winners by regime",
            columns=("regime", "at", "first", "figure", "ahead of", "by", "95 % interval"),
            rows=rows,
            notes=(
                "A tie is of variants whose ratio has an interval over boots that holds 1, or none "
                "(one boot). Void cells take no part.",
            ),
            num_labels=3,
        )
    ]


def _win_row(win: Win) -> tuple[Entry, ...]:
    first = win.winners[0]
    text = first if len(win.winners) == 1 else f"tie: {fmt.listed(win.winners)}"
    view = win.section.view(first, win.place.concurrency)
    assert view is not None
    at = place_word(win.section, win.place)
    mixed = "" if win.place.comparable else " (unbalanced mix)"
    shown = f"{fmt.rate(win.value)} {METRICS[win.section.headline].unit}"
    return (
        label(win.section.word),
        label(f"{at}{mixed}"),
        Entry(text=text, value=" = ".join(win.winners)),
        Entry(text=shown, value=win.value, cell_id=view.cell.cell_id),
        *_lead_entries(win, view.cell.cell_id),
    )


def _lead_entries(win: Win, cell_id: str) -> tuple[Entry, Entry, Entry]:
    if win.next_variant is None or win.lead is None or win.lead.value is None:
        none = missing("nobody is clearly behind")
        return none, none, none
    lead = win.lead
    assert lead.value is not None
    by = Entry(text=fmt.change(lead.value - 1), value=lead.value - 1, cell_id=cell_id)
    if lead.low is None or lead.high is None:
        return label(win.next_variant), by, missing(lead.reason)
    span = f"{fmt.change(lead.low - 1)} to {fmt.change(lead.high - 1)}"
    return label(win.next_variant), by, Entry(text=span, value=span, cell_id=cell_id)
