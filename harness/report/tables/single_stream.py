"""One request at a time, by kind of prompt: rates, speed-ups, and what requests waited for."""

from collections.abc import Sequence
from dataclasses import replace

from harness.analysis.outputs import first_tokens_are_a_lower_bound
from harness.analysis.summary import Section, Summary
from harness.cell_view import CellView
from harness.report import format as fmt
from harness.report.tables.figures import (
    Figures,
    all_and_kinds,
    beside,
    by_kind,
    decoding_sections,
    figures_of,
    file_word,
    kind_label,
    kind_word,
    kinds_across,
    narrowed,
    variant_label,
)
from harness.report.tables.notes import first_notes, interval_notes, later_warnings, warnings
from harness.report.tables.table import Entry, Formatter, Table, missing

STRICT_NOTE = (
    "tok/round: acceptance length. accepted: of the drafted tokens. strict tok/s: without the "
    "tokens of the first read; in brackets, by how much the headline exceeds it."
)


def single_stream(summary: Summary) -> list[Table]:
    """Variants down, kinds across: the study's first table."""
    return [
        kinds_across(
            summary,
            section,
            "decode_rate",
            fmt.rate,
            name="decode_rate",
            title="Decode rate, tok/s",
            views=section.views,
            kinds=all_and_kinds(section),
            notes=first_notes(summary, section),
            warnings=warnings(summary, section.views, section.headline),
        )
        for section in decoding_sections(summary)
    ]


def drafters_by_kind(summary: Summary) -> list[Table]:
    """What a drafter gains and what it accepts: variants down, kinds across."""
    return [
        table
        for section in decoding_sections(summary)
        if section.drafted
        for table in (_gains(summary, section), _acceptance(summary, section))
    ]


def _gains(summary: Summary, section: Section) -> Table:
    return kinds_across(
        summary,
        section,
        "speedup",
        fmt.times,
        name="speedup_by_kind",
        title="Speed-up over the reference (95 % interval)",
        views=section.drafted,
        kinds=all_and_kinds(section),
        notes=interval_notes(summary, section),
        interval=True,
    )


def _acceptance(summary: Summary, section: Section) -> Table:
    """Two shares that look alike near saturation, each under its own name."""
    figures = Figures(summary)
    kinds = all_and_kinds(section)

    def of(view: CellView, kind: str) -> Entry:
        length = figures.entry(view, "acceptance_length", fmt.length, kind)
        return beside(length, figures.entry(view, "fraction_of_ceiling", fmt.percent, kind))

    voided, warned = later_warnings(summary, section, "acceptance_length")
    return Table(
        name=f"{file_word(section)}_acceptance_length_by_kind",
        title="Acceptance length, tokens per round (share of its ceiling, k + 1)",
        columns=("variant", *map(kind_word, kinds), "accepted of the drafted"),
        rows=tuple(
            (
                variant_label(section, view.cell.variant),
                *(of(view, kind) for kind in kinds),
                figures.entry(view, "acceptance_rate", fmt.percent),
            )
            for view in section.drafted
        ),
        notes=voided,
        warnings=warned,
        section=section.word,
    )


def speedup_by_kind(summary: Summary) -> list[Table]:
    """Variant and kind down: what a drafter gains, how sure that is, and what it accepts."""
    figures = Figures(summary)
    tables: list[Table] = []
    for section in decoding_sections(summary):
        rows = tuple(
            (
                variant_label(section, view.cell.variant),
                kind_label(kind),
                figures.entry(view, "speedup", fmt.times, kind),
                figures.bounds(view, "speedup", kind),
                figures.entry(view, "acceptance_length", fmt.length, kind),
                figures.entry(view, "fraction_of_ceiling", fmt.percent, kind),
                figures.entry(view, "acceptance_rate", fmt.percent, kind),
                _strict(summary, view, kind),
            )
            for view in section.drafted
            for kind in all_and_kinds(section)
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
                    notes=(STRICT_NOTE,),
                    num_labels=2,
                    section=section.word,
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
        notes=lambda section: (RATES_NOTE,),
    )


def waiting(summary: Summary) -> list[Table]:
    """From a request to its first event, output and answer, and the times that are in none."""
    return by_kind(
        summary,
        name="waiting",
        title="One stream: waiting (medians over requests)",
        columns=tuple(head for head, _, _ in WAITING),
        entries=lambda view, kind: figures_of(summary, WAITING, view, kind),
        notes=lambda section: later_warnings(summary, section, "ttft_p50")[0],
        warnings=lambda section: later_warnings(summary, section, "ttft_p50")[1],
    )


def _first_read(summary: Summary, view: CellView, kind: str) -> Entry:
    entry = Figures(summary).entry(view, "first_tokens_median", fmt.tokens, kind)
    if entry.value is None or not first_tokens_are_a_lower_bound(narrowed(view, kind)):
        return entry
    return replace(entry, text=f"≥ {entry.text}")


def _strict(summary: Summary, view: CellView, kind: str) -> Entry:
    strict = summary.row(view, "decode_rate_strict", kind)
    headline = summary.row(view, "decode_rate", kind)
    if strict is None or headline is None or strict.estimate.value is None:
        return missing(strict.estimate.reason if strict else None)
    if headline.estimate.value is None:
        return missing(headline.estimate.reason)
    excess = headline.estimate.value / strict.estimate.value - 1
    text = f"{fmt.rate(strict.estimate.value)} ({fmt.percent(excess)})"
    return Entry(
        text=text,
        value=strict.estimate.value,
        mark=Figures(summary).mark(view, "decode_rate_strict"),
        cell_id=view.cell.cell_id,
    )
