"""Rows of a summary as entries of a table, and the parts that tables of one section share."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace

from harness import checks
from harness.analysis.metrics import DECODING, HEADLINE
from harness.analysis.summary import ALL, Section, Summary
from harness.cell_view import CellView
from harness.report import format as fmt
from harness.report.tables.table import Accusation, Entry, Formatter, Table, label, missing

OF_THE_ANSWERED = (*HEADLINE.values(), "ttft_p50")
"""Figures beside which the share of failed requests is told."""


class Figures:
    """Looks rows up in a summary and turns them into entries."""

    def __init__(self, summary: Summary) -> None:
        self.summary = summary

    def entry(
        self,
        view: CellView | None,
        metric: str,
        show: Formatter,
        kind: str = ALL,
        *,
        interval: bool = False,
    ) -> Entry:
        """`interval` puts the bounds behind the figure."""
        if view is None:
            return missing("not in the matrix")
        row = self.summary.row(view, metric, kind)
        if row is None:
            return missing("does not apply here")
        estimate = row.estimate
        if estimate.value is None:
            return missing(estimate.reason)
        text = show(estimate.value)
        if interval and estimate.low is not None and estimate.high is not None:
            text = f"{text} ({fmt.span(estimate.low, estimate.high)})"
        if metric in OF_THE_ANSWERED:
            text += self._failed(view, kind)
        return Entry(
            text=text, value=estimate.value, mark=self.mark(view, metric), cell_id=view.cell.cell_id
        )

    def _failed(self, view: CellView, kind: str) -> str:
        """What the figure leaves out, beside it: survivors of many failures look fast."""
        row = self.summary.row(view, "failed_share", kind)
        share = row.estimate.value if row else None
        return f" ({fmt.percent(share)} failed)" if share else ""

    def bounds(self, view: CellView, metric: str, kind: str = ALL) -> Entry:
        row = self.summary.row(view, metric, kind)
        estimate = row.estimate if row else None
        if estimate is None or estimate.low is None or estimate.high is None:
            return missing(estimate.reason if estimate else None)
        text = fmt.span(estimate.low, estimate.high)
        return Entry(text=text, value=text, cell_id=view.cell.cell_id)

    def mark(self, view: CellView, metric: str) -> str:
        level = checks.worst(self.summary.verdicts_of(view, metric))
        return {"invalid": fmt.INVALID_MARK, "warning": fmt.WARNING_MARK, "ok": ""}[level]


def figures_of(
    summary: Summary, shown: Sequence[tuple[str, str, Formatter]], view: CellView, kind: str
) -> tuple[Entry, ...]:
    figures = Figures(summary)
    return tuple(figures.entry(view, metric, show, kind) for _, metric, show in shown)


def by_kind(
    summary: Summary,
    *,
    name: str,
    title: str,
    columns: tuple[str, ...],
    entries: Callable[[CellView, str], tuple[Entry, ...]],
    notes: Callable[[Section], tuple[str, ...]] = lambda section: (),
    warnings: Callable[[Section], tuple[Accusation, ...]] = lambda section: (),
    drafters_only: bool = False,
) -> list[Table]:
    """Variant and kind down; `entries` fills a row."""
    tables = [
        Table(
            name=f"{file_word(section)}_{name}",
            title=title,
            columns=("variant", "kind", *columns),
            rows=tuple(
                (variant_label(section, view.cell.variant), kind_label(kind), *entries(view, kind))
                for view in (section.drafted if drafters_only else section.views)
                for kind in all_and_kinds(section)
            ),
            notes=notes(section),
            warnings=warnings(section),
            num_labels=2,
            section=section.word,
        )
        for section in decoding_sections(summary)
    ]
    return [table for table in tables if table.rows]


def kinds_across(
    summary: Summary,
    section: Section,
    metric: str,
    show: Formatter,
    *,
    name: str,
    title: str,
    views: Sequence[CellView],
    kinds: Sequence[str],
    notes: tuple[str, ...] = (),
    warnings: tuple[Accusation, ...] = (),
    interval: bool = False,
) -> Table:
    """One metric: the section's `views` down, kinds of prompt across."""
    figures = Figures(summary)
    return Table(
        name=f"{file_word(section)}_{name}",
        title=title,
        columns=("variant", *map(kind_word, kinds)),
        rows=tuple(
            (
                variant_label(section, view.cell.variant),
                *(figures.entry(view, metric, show, kind, interval=interval) for kind in kinds),
            )
            for view in views
        ),
        notes=notes,
        warnings=warnings,
        section=section.word,
    )


def beside(entry: Entry, share: Entry) -> Entry:
    """A figure with another in brackets behind it, where there are both."""
    if entry.value is None or share.value is None:
        return entry
    return replace(entry, text=f"{entry.text} ({share.text})")


def all_and_kinds(section: Section) -> tuple[str, ...]:
    """Of a single kind all of them are that one."""
    return (ALL, *section.kinds) if len(section.kinds) > 1 else (ALL,)


def narrowed(view: CellView, kind: str) -> CellView:
    return view if kind == ALL else view.of_kind(kind)


def kind_word(kind: str) -> str:
    return "all kinds" if kind == ALL else kind


def kind_label(kind: str) -> Entry:
    return label(kind_word(kind))


def variant_label(section: Section, variant: str) -> Entry:
    """Its name, marked where its weights or its sessions are not those of the section's first
    row.
    """
    marks = [
        mark
        for mark, others in (
            (fmt.OTHER_WEIGHTS_MARK, with_other_weights(section)),
            (fmt.OTHER_SESSION_MARK, with_other_sessions(section)),
        )
        if variant in others
    ]
    return Entry(text=variant, value=variant, mark=" ".join(marks))


def with_other_weights(section: Section) -> Mapping[str, str]:
    """Variant -> its target, where that is another than the first variant's."""
    first = section.views[0].cell.target
    return {
        view.cell.variant: view.cell.target for view in section.views if view.cell.target != first
    }


def with_other_sessions(section: Section) -> Mapping[str, Sequence[str]]:
    """Variant -> the sessions that measured it, where they are others than the first variant's."""
    told = sessions_of(section)
    first = told[section.views[0].cell.variant]
    return {variant: own for variant, own in told.items() if own and own != first}


def sessions_of(section: Section) -> Mapping[str, Sequence[str]]:
    """By variant, in the order of their boots; none where nothing was measured."""
    found: dict[str, dict[str, None]] = {}
    for view in section.views:
        own = found.setdefault(view.cell.variant, {})
        own.update(dict.fromkeys(boot.where.session_id for boot in view.boots))
    return {variant: list(own) for variant, own in found.items()}


def decoding_sections(summary: Summary) -> Iterable[Section]:
    """One request at a time, many tokens each."""
    return (section for section in summary.sections if section.workload in DECODING)


def sections(summary: Summary, workload: str) -> Iterable[Section]:
    return (section for section in summary.sections if section.workload == workload)


def file_word(section: Section) -> str:
    return fmt.slug(section.word)
