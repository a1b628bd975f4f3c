"""One request at a time, by kind of prompt: rates, speed-ups, waiting, and any variant over any."""

from collections.abc import Sequence
from dataclasses import replace

from harness import checks
from harness.analysis.outputs import first_tokens_are_a_lower_bound
from harness.analysis.summary import ALL, Summary
from harness.cell_view import CellView
from harness.report import format as fmt
from harness.report.tables.figures import (
    Figures,
    by_kind,
    figures_of,
    file_word,
    narrowed,
    sections,
)
from harness.report.tables.notes import interval_notes, verdict_notes
from harness.report.tables.table import Entry, Formatter, Table, figure, label, missing

STRICT_NOTE = (
    "tok/round: acceptance length. accepted: of the drafted tokens. strict tok/s: without the "
    "tokens of the first read; in brackets, by how much the headline exceeds it."
)


def single_stream(summary: Summary) -> list[Table]:
    """Variants down, kinds across: the study's first table."""
    return [
        Table(
            name=f"{file_word(section)}_decode_rate",
            title="Decode rate, tok/s",
            columns=("variant", "all kinds", *section.kinds),
            rows=tuple(
                (
                    label(view.cell.variant),
                    *(
                        Figures(summary).entry(view, "decode_rate", fmt.rate, kind)
                        for kind in (ALL, *section.kinds)
                    ),
                )
                for view in section.views
            ),
            notes=verdict_notes(summary, section.views),
        )
        for section in sections(summary, "generate")
    ]


def speedup_by_kind(summary: Summary) -> list[Table]:
    """Variant and kind down: what a drafter gains, how sure that is, and what it accepts."""
    figures = Figures(summary)
    tables: list[Table] = []
    for section in sections(summary, "generate"):
        rows = tuple(
            (
                label(view.cell.variant),
                label("all kinds" if kind == ALL else kind),
                figures.entry(view, "speedup", fmt.times, kind),
                figures.bounds(view, "speedup", kind),
                figures.entry(view, "acceptance_length", fmt.length, kind),
                figures.entry(view, "fraction_of_ceiling", fmt.percent, kind),
                figures.entry(view, "acceptance_rate", fmt.percent, kind),
                _strict(summary, view, kind),
            )
            for view in section.views
            if view.cell.drafter is not None
            for kind in (ALL, *section.kinds)
        )
        if rows:
            tables.append(
                Table(
                    name=f"{file_word(section)}_speedup",
                    title="Speed-up and acceptance",
                    columns=(
                        "variant",
                        "kind",
                        "speed-up",
                        "95 % interval",
                        "tok/round",
                        "of ceiling",
                        "accepted",
                        "strict tok/s",
                    ),
                    rows=rows,
                    notes=(STRICT_NOTE, *interval_notes(summary, section)),
                    num_labels=2,
                )
            )
    return tables


RATES_NOTE = (
    "TPOT is the time per token behind the first read, a step the time between two bursts of a "
    "stream, and token p50 and p99 a step's time shared out evenly over the tokens it brought: "
    "where a step brings several, a step is no time per token. strict: without the tokens of the "
    "first read (n_first; ≥ where only its events could be counted); excess: by how much the "
    "headline is above it. peak: over a second or more of one stream."
)


RATES: Sequence[tuple[str, str, Formatter]] = (
    ("tok/s", "decode_rate", fmt.rate),
    ("strict", "decode_rate_strict", fmt.rate),
    ("excess", "decode_rate_excess", fmt.percent),
    ("TPOT, ms", "tpot", fmt.milliseconds),
    ("step, ms", "step_time", fmt.milliseconds),
    ("token p50, ms", "token_time_p50", fmt.milliseconds),
    ("token p99, ms", "token_time_p99", fmt.milliseconds),
    ("tok/event", "tokens_per_event", fmt.length),
    ("peak tok/s", "peak_rate", fmt.rate),
)
WAITING: Sequence[tuple[str, str, Formatter]] = (
    ("prompt tokens", "prompt_tokens_median", fmt.tokens),
    ("cached", "cached_share", fmt.percent),
    ("first event, ms", "ttfr_p50", fmt.milliseconds),
    ("TTFT, ms", "ttft_p50", fmt.milliseconds),
    ("first answer, ms", "ttfa_p50", fmt.milliseconds),
    ("whole stream, ms", "wall_p50", fmt.milliseconds),
    ("prefill, tok/s", "prefill_rate", fmt.rate),
    ("sent late, ms (longest)", "send_lateness_max", fmt.milliseconds),
    ("connect, ms (longest)", "connect_time_max", fmt.milliseconds),
)


def rates(summary: Summary) -> list[Table]:
    """The headline beside the strict rate, and what a step and a token took."""
    return by_kind(
        summary,
        name="rates",
        title="One stream: rates, and times per step and per token",
        columns=(*(head for head, _, _ in RATES), "n_first"),
        entries=lambda view, kind: (
            *figures_of(summary, RATES, view, kind),
            _first_read(summary, view, kind),
        ),
        notes=(RATES_NOTE,),
    )


def waiting(summary: Summary) -> list[Table]:
    """From a request to its first event, output and answer, and the times that are in none."""
    return by_kind(
        summary,
        name="waiting",
        title="One stream: waiting (medians over requests)",
        columns=tuple(head for head, _, _ in WAITING),
        entries=lambda view, kind: figures_of(summary, WAITING, view, kind),
    )


def _first_read(summary: Summary, view: CellView, kind: str) -> Entry:
    entry = Figures(summary).entry(view, "first_tokens_median", fmt.tokens, kind)
    if entry.value is None or not first_tokens_are_a_lower_bound(narrowed(view, kind)):
        return entry
    return replace(entry, text=f"≥ {entry.text}")


def ratios(summary: Summary) -> list[Table]:
    """Any variant over any other, where there are enough of them to ask."""
    return [
        Table(
            name=f"{fmt.slug(section.word)}_ratios",
            title="Ratio of decode rates, row over column",
            columns=("variant", *section.variants),
            rows=tuple(
                (
                    label(own.cell.variant),
                    *(_ratio(summary, own, other) for other in section.views),
                )
                for own in section.views
            ),
        )
        for section in sections(summary, "generate")
        if len(section.variants) > 2
    ]


def _ratio(summary: Summary, own: CellView, other: CellView) -> Entry:
    for view in (own, other):
        if checks.worst(summary.verdicts_of(view)) == "invalid":
            return missing(f"{view.cell.variant} is invalid")
    rows = [summary.row(view, "decode_rate") for view in (own, other)]
    values = [row.estimate.value if row else None for row in rows]
    if values[0] is None or not values[1]:
        return missing("a decode rate is missing")
    return figure(values[0] / values[1], fmt.times)


def _strict(summary: Summary, view: CellView, kind: str) -> Entry:
    strict = summary.row(view, "decode_rate_strict", kind)
    headline = summary.row(view, "decode_rate", kind)
    if strict is None or headline is None or strict.estimate.value is None:
        return missing(strict.estimate.reason if strict else None)
    if headline.estimate.value is None:
        return missing(headline.estimate.reason)
    excess = headline.estimate.value / strict.estimate.value - 1
    text = f"{fmt.rate(strict.estimate.value)} ({fmt.percent(excess)})"
    return Entry(text=text, value=strict.estimate.value, mark=Figures(summary).mark(view))
