"""Prefill by length of prompt: tokens that no cache held, over the time to the first token."""

from harness.analysis.summary import Section, Summary
from harness.cell_view import CellView
from harness.report import format as fmt
from harness.report.tables.figures import Figures, file_word, sections, variant_label
from harness.report.tables.notes import first_notes
from harness.report.tables.table import Entry, Formatter, Table

SHOWN: tuple[tuple[str, str, Formatter], ...] = (
    ("prefill_rate", "Prefill, computed prompt tokens per second", fmt.rate),
    ("speedup", "Prefill over the reference's (95 % interval)", fmt.times),
    ("ttft_p50", "TTFT p50, ms", fmt.milliseconds),
    ("prompt_tokens_median", "Prompt tokens, by the engine's count", fmt.tokens),
    ("cached_share", "Share of them that a cache held", fmt.percent),
)


def prefill(summary: Summary) -> list[Table]:
    """Variants down, lengths across; a table for each figure."""
    return [
        Table(
            name=f"{file_word(section)}_{metric}",
            title=title,
            columns=("variant", *section.kinds),
            rows=tuple(
                _row(summary, section, view, metric, show)
                for view in section.views
                if metric != "speedup" or view.reference is not None
            ),
            notes=first_notes(summary, section) if metric == "prefill_rate" else (),
            section=section.word,
        )
        for section in sections(summary, "prefill")
        for metric, title, show in SHOWN
        if metric != "speedup" or any(view.reference is not None for view in section.views)
    ]


def _row(
    summary: Summary, section: Section, view: CellView, metric: str, show: Formatter
) -> tuple[Entry, ...]:
    figures = Figures(summary)
    return (
        variant_label(section, view.cell.variant),
        *(
            figures.entry(view, metric, show, kind, interval=metric == "speedup")
            for kind in section.kinds
        ),
    )
