"""What moved while it was measured: drift between boots, where spread comes from, and what two
protocols make of one thing.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from harness.analysis import caveats, spread
from harness.analysis.spread import Parts
from harness.analysis.summary import ALL, Section, Summary
from harness.cell_view import CellView
from harness.measures import relative_change
from harness.report import format as fmt
from harness.report.tables.figures import Figures, variant_label
from harness.report.tables.sessions import controls_within
from harness.report.tables.table import Entry, Table, label, missing

DRIFT_NOTE = (
    "A/B/B/A gives a plain variant both ends of the run: what it changed by is the machine's. With "
    "a steady drift the turns cancel it in every ratio; it stays in the figures themselves."
)
SPREAD_NOTE = (
    "Standard deviations of logarithms. A rate is tokens per round over the time of a round: what "
    "spreads in the first is the text, in the second the machine. Within: repetitions of a prompt "
    "in one boot; across: boots."
)


@dataclass(frozen=True, kw_only=True)
class Change:
    """A cell's headline figure in its first boot and in its last, tokens per second."""

    section: Section
    view: CellView
    first: float
    last: float

    @property
    def change(self) -> float:
        return relative_change(self.last, self.first)

    @property
    def place(self) -> str:
        at = "" if self.section.is_single else f" at c = {self.view.cell.concurrency}"
        return f"{self.view.cell.variant}, {self.section.word}{at}"


def changes(summary: Summary) -> Iterator[Change]:
    """Of every cell that was measured in more than one boot."""
    order = [str(boot.where.boot_id) for boot in summary.data.boots]
    for section in summary.sections:
        for view in section.views:
            by_boot = summary.boot_figures[(view.cell.cell_id, ALL)].by_boot
            known = [by_boot[boot_id] for boot_id in order if boot_id in by_boot]
            if len(known) > 1:
                yield Change(section=section, view=view, first=known[0], last=known[-1])


def moved(summary: Summary) -> Iterator[str]:
    """How far the machine moved, in words: plain decoding has both ends of A/B/B/A."""
    yield from controls_within(summary)
    plain = [each for each in changes(summary) if each.view.cell.drafter is None]
    if plain:
        least, most = (f(plain, key=lambda each: each.change) for f in (min, max))
        yield (
            "From its first boot to its last, plain decoding changed by "
            f"{fmt.change(least.change)} ({least.place}) to {fmt.change(most.change)} "
            f"({most.place})."
        )


def drift(summary: Summary) -> list[Table]:
    """The headline figure of the first boot and of the last."""
    rows = tuple(
        (
            label(each.section.word),
            label(str(each.view.cell.concurrency)),
            variant_label(each.section, each.view.cell.variant),
            *(
                Entry(text=text, value=value, cell_id=each.view.cell.cell_id)
                for text, value in (
                    (fmt.rate(each.first), each.first),
                    (fmt.rate(each.last), each.last),
                    (fmt.change(each.change), each.change),
                )
            ),
        )
        for each in changes(summary)
    )
    if not rows:
        return []
    return [
        Table(
            name="drift",
            title="Headline figure of the first boot and of the last, tok/s",
            columns=("workload", "c", "variant", "first boot", "last boot", "change"),
            rows=rows,
            notes=(DRIFT_NOTE,),
            num_labels=3,
        )
    ]


def spreads(summary: Summary) -> list[Table]:
    """Variance of one stream's rate, split."""
    rows = tuple(
        (
            label(split.word),
            label(split.view.cell.variant),
            *_part_entries(split.within, "one repetition a boot"),
            *_part_entries(split.across, "one boot"),
        )
        for split in spread.splits(summary)
    )
    if not rows:
        return []
    columns = ("rate", "tok/round", "round time")
    return [
        Table(
            name="spread",
            title="Where the spread of a rate comes from",
            columns=(
                "workload",
                "variant",
                *(f"within: {column}" for column in columns),
                *(f"across: {column}" for column in columns),
            ),
            rows=rows,
            notes=(SPREAD_NOTE,),
            num_labels=2,
        )
    ]


def _part_entries(parts: Parts | None, reason: str) -> Iterator[Entry]:
    for name in ("rate", "tokens_per_round", "round_time"):
        if parts is None:
            yield missing(reason)
        else:
            value: float = getattr(parts, name)
            yield Entry(text=f"{value * 100:.2f} %", value=value)


def overlap(summary: Summary) -> list[Table]:
    """One variant under two protocols; their figures share no other table."""
    rows = tuple(
        row
        for one, two in caveats.protocols_meet(summary)
        for row in _overlap_rows(summary, one, two)
    )
    if not rows:
        return []
    return [
        Table(
            name="overlap",
            title="Where two protocols meet",
            columns=("variant", "one", "tok/s", "the other", "tok/s", "difference"),
            rows=rows,
            notes=(
                "Between a decode rate and an aggregate at c = 1 the time to first token makes a "
                "difference: the aggregate has it within, so it reads lower.",
            ),
        )
    ]


def _overlap_rows(summary: Summary, one: Section, two: Section) -> Iterator[tuple[Entry, ...]]:
    figures = Figures(summary)
    for variant in one.variants:
        views = (one.view(variant, 1), two.view(variant, 1))
        if views[0] is None or views[1] is None:
            continue
        own = figures.entry(views[0], one.headline, fmt.rate)
        other = figures.entry(views[1], two.headline, fmt.rate)
        difference = missing("a figure is missing")
        if isinstance(own.value, float) and isinstance(other.value, float):
            change = relative_change(other.value, own.value)
            difference = Entry(text=fmt.change(change), value=change)
        yield (
            variant_label(one, variant),
            label(one.word),
            own,
            label(f"{two.word}{'' if two.is_single else ', c = 1'}"),
            other,
            difference,
        )
