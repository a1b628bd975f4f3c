"""Prefill by length of prompt: tokens that no cache held, over the time to the first token."""

from collections.abc import Sequence
from typing import TypeAlias

from harness.analysis.summary import Section, Summary
from harness.cell_view import CellView
from harness.report import format as fmt
from harness.report.tables.figures import kinds_across, sections
from harness.report.tables.notes import first_notes, warnings
from harness.report.tables.table import Formatter, Table

Shown: TypeAlias = Sequence[tuple[str, str, Formatter]]
SHOWN: Shown = (
    ("prefill_rate", "Prefill, computed prompt tokens per second", fmt.rate),
    ("speedup", "Prefill over the reference's (95 % interval)", fmt.times),
)
FURTHER: Shown = (
    ("ttft_p50", "TTFT p50, ms", fmt.milliseconds),
    ("prompt_tokens_median", "Prompt tokens, by the engine's count", fmt.tokens),
    ("cached_share", "Share of them that a cache held", fmt.percent),
)


def prefill(summary: Summary) -> list[Table]:
    """Variants down, lengths across; a table for each figure."""
    return _tables(summary, SHOWN)


def further_prefill(summary: Summary) -> list[Table]:
    """What the rates are made of."""
    return _tables(summary, FURTHER)


def _tables(summary: Summary, shown: Shown) -> list[Table]:
    return [
        kinds_across(
            summary,
            section,
            metric,
            show,
            name=metric,
            title=title,
            views=views,
            kinds=section.kinds,
            notes=first_notes(summary, section) if metric == "prefill_rate" else (),
            warnings=warnings(summary, views, metric) if metric == "prefill_rate" else (),
            interval=metric == "speedup",
        )
        for section in sections(summary, "prefill")
        for metric, title, show in shown
        if (views := _views(section, metric))
    ]


def _views(section: Section, metric: str) -> list[CellView]:
    """A speed-up is of those that have a reference."""
    return [view for view in section.views if metric != "speedup" or view.reference is not None]
