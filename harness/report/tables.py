"""TABLES: which figures stand side by side. Each is a function of a summary and a row of the table.

An entry keeps the raw value beside its text: Markdown and the terminal show the text, CSV takes the
value. Verdicts that touch a table stand under it, and so do the reasons of every n/a.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import median
from typing import TypeAlias

from harness import checks
from harness.analysis.metrics import HEADLINE, METRICS
from harness.analysis.outputs import (
    Losslessness,
    count_sources,
    finish_reasons,
    first_tokens_are_a_lower_bound,
    flags,
)
from harness.analysis.summary import ALL, Section, Summary
from harness.cell_view import CellView
from harness.report import format as fmt

Formatter: TypeAlias = Callable[[float], str]


@dataclass(frozen=True, kw_only=True)
class Entry:
    """One cell of a table. `reason` explains a missing value; `mark` is set by a verdict."""

    text: str
    value: float | str | None
    reason: str | None = None
    mark: str = ""


@dataclass(frozen=True, kw_only=True)
class Table:
    """`notes` are sentences under it; the first `num_labels` columns are names, not figures."""

    name: str
    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[Entry, ...], ...]
    notes: tuple[str, ...] = ()
    num_labels: int = 1
    section: str | None = None  # the workload it belongs to, where several have such a table


OF_THE_ANSWERED = (*HEADLINE.values(), "ttft_p50")
"""Figures beside which the share of failed requests is told."""

STRICT_NOTE = (
    "tok/round: acceptance length. accepted: of the drafted tokens. strict tok/s: without the "
    "tokens of the first read; in brackets, by how much the headline exceeds it."
)


def label(text: str) -> Entry:
    return Entry(text=text, value=text)


def missing(reason: str | None) -> Entry:
    return Entry(text=fmt.NOT_AVAILABLE, value=None, reason=reason or "not measured")


def figure(value: float | None, show: Formatter, reason: str | None = None) -> Entry:
    return missing(reason) if value is None else Entry(text=show(value), value=value)


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
        return Entry(text=text, value=estimate.value, mark=self.mark(view))

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
        return Entry(text=text, value=text)

    def mark(self, view: CellView) -> str:
        level = checks.worst(self.summary.verdicts_of(view))
        return {"invalid": fmt.INVALID_MARK, "warning": fmt.WARNING_MARK, "ok": ""}[level]


# --- single stream --------------------------------------------------------------------------------


def single_stream(summary: Summary) -> list[Table]:
    """Variants down, kinds across: the study's first table."""
    return [
        Table(
            name=f"{_file(section)}_decode_rate",
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
            notes=_verdict_notes(summary, section.views),
        )
        for section in _sections(summary, "generate")
    ]


def speedup_by_kind(summary: Summary) -> list[Table]:
    """Variant and kind down: what a drafter gains, how sure that is, and what it accepts."""
    figures = Figures(summary)
    tables: list[Table] = []
    for section in _sections(summary, "generate"):
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
                    name=f"{_file(section)}_speedup",
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
                    notes=(STRICT_NOTE, *_interval_notes(summary, section)),
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
    return _by_kind(
        summary,
        name="rates",
        title="One stream: rates, and times per step and per token",
        columns=(*(head for head, _, _ in RATES), "n_first"),
        entries=lambda view, kind: (
            *_figures(summary, RATES, view, kind),
            _first_read(summary, view, kind),
        ),
        notes=(RATES_NOTE,),
    )


def waiting(summary: Summary) -> list[Table]:
    """From a request to its first event, output and answer, and the times that are in none."""
    return _by_kind(
        summary,
        name="waiting",
        title="One stream: waiting (medians over requests)",
        columns=tuple(head for head, _, _ in WAITING),
        entries=lambda view, kind: _figures(summary, WAITING, view, kind),
    )


ELSEWHERE: Sequence[tuple[str, str, Formatter]] = (
    ("1 + accepted / drafts (vLLM, llama.cpp, here)", "acceptance_length", fmt.length),
    ("tokens / rounds (SGLang)", "tokens_per_round", fmt.length),
    ("tokens / (steps + prefills) (specdec_bench)", "tokens_per_step_and_prefill", fmt.length),
    ("accepted / tested", "accepted_of_tested", fmt.percent),
    ("accepted / drafted", "acceptance_rate", fmt.percent),
)


def lengths_elsewhere(summary: Summary) -> list[Table]:
    """The same rounds under the definitions that others publish."""
    return _by_kind(
        summary,
        name="lengths_elsewhere",
        title="Acceptance under the definitions of other tools",
        columns=tuple(head for head, _, _ in ELSEWHERE),
        entries=lambda view, kind: _figures(summary, ELSEWHERE, view, kind),
        drafters_only=True,
    )


def _by_kind(
    summary: Summary,
    *,
    name: str,
    title: str,
    columns: tuple[str, ...],
    entries: Callable[[CellView, str], tuple[Entry, ...]],
    notes: tuple[str, ...] = (),
    drafters_only: bool = False,
) -> list[Table]:
    """Variant and kind down; `entries` fills a row."""
    tables = [
        Table(
            name=f"{_file(section)}_{name}",
            title=title,
            columns=("variant", "kind", *columns),
            rows=tuple(
                (
                    label(view.cell.variant),
                    label("all kinds" if kind == ALL else kind),
                    *entries(view, kind),
                )
                for view in section.views
                if view.cell.drafter is not None or not drafters_only
                for kind in (ALL, *section.kinds)
            ),
            notes=notes,
            num_labels=2,
        )
        for section in _sections(summary, "generate")
    ]
    return [table for table in tables if table.rows]


def _figures(
    summary: Summary, shown: Sequence[tuple[str, str, Formatter]], view: CellView, kind: str
) -> tuple[Entry, ...]:
    figures = Figures(summary)
    return tuple(figures.entry(view, metric, show, kind) for _, metric, show in shown)


def _first_read(summary: Summary, view: CellView, kind: str) -> Entry:
    entry = Figures(summary).entry(view, "first_tokens_median", fmt.tokens, kind)
    if entry.value is None or not first_tokens_are_a_lower_bound(_narrowed(view, kind)):
        return entry
    return replace(entry, text=f"≥ {entry.text}")


def _narrowed(view: CellView, kind: str) -> CellView:
    return view if kind == ALL else view.of_kind(kind)


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
        for section in _sections(summary, "generate")
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


def acceptance_by_position(summary: Summary) -> list[Table]:
    """Which drafted tokens survive: position across, kind down."""
    tables: list[Table] = []
    for section in _sections(summary, "generate"):
        for view in section.views:
            depth = position_depth(summary, view)
            if not depth:
                continue
            figures = Figures(summary)
            metrics = ("acceptance_at_position", "conditional_acceptance_at_position")
            rows = [
                (
                    label("all kinds" if kind == ALL else kind),
                    *(
                        figures.entry(view, f"{metrics[0]}_{position}", fmt.percent, kind)
                        for position in range(1, depth + 1)
                    ),
                )
                for kind in (ALL, *section.kinds)
            ]
            conditional = (
                label("all kinds, given the position before"),
                *(
                    figures.entry(view, f"{metrics[1]}_{position}", fmt.percent)
                    for position in range(1, depth + 1)
                ),
            )
            tables.append(
                Table(
                    name=f"{_file(section)}_positions_{fmt.slug(view.cell.variant)}",
                    title=f"Acceptance per drafted position, {view.cell.variant}",
                    columns=("kind", *(str(position) for position in range(1, depth + 1))),
                    rows=(*rows, conditional),
                )
            )
    return tables


def position_depth(summary: Summary, view: CellView) -> int:
    """How many positions have a figure."""
    depth = 0
    while summary.row(view, f"acceptance_at_position_{depth + 1}") is not None:
        depth += 1
    return depth


# --- concurrency ----------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Grid:
    """A table of one metric: variants down, concurrency across."""

    metric: str
    title: str
    show: Formatter
    interval: bool = False
    drafters_only: bool = False
    beside: str | None = None  # a share to show in brackets


GRIDS: Sequence[Grid] = (
    Grid(metric="aggregate_throughput", title="Aggregate, tok/s", show=fmt.rate),
    Grid(metric="aggregate_steady", title="Aggregate while c are in flight, tok/s", show=fmt.rate),
    Grid(
        metric="speedup",
        title="Speed-up over the reference at the same c (95 % interval)",
        show=fmt.times,
        interval=True,
        drafters_only=True,
    ),
    Grid(metric="ttft_p50", title="TTFT p50, ms", show=fmt.milliseconds),
    Grid(metric="ttft_p90", title="TTFT p90, ms", show=fmt.milliseconds),
    Grid(
        metric="ttft_from_schedule_p50",
        title="TTFT after the due moment p50, ms",
        show=fmt.milliseconds,
    ),
    Grid(
        metric="ttft_from_schedule_p99",
        title="TTFT after the due moment p99, ms",
        show=fmt.milliseconds,
    ),
    Grid(
        metric="acceptance_length",
        title="Acceptance length, tokens per round",
        show=fmt.length,
        drafters_only=True,
    ),
    Grid(metric="occupancy", title="Occupancy: share of stream-seconds in use", show=fmt.percent),
    Grid(
        metric="scaling",
        title="Scaling over c = 1 (efficiency: scaling / c)",
        show=fmt.times,
        beside="efficiency",
    ),
)


def concurrency(summary: Summary) -> list[Table]:
    return [
        table
        for section in _sections(summary, "concurrency")
        for table in section_grids(summary, section)
    ]


def section_grids(summary: Summary, section: Section) -> list[Table]:
    """One table per metric; verdicts stand under the first, which is the one they void."""
    tables: list[Table] = []
    for grid in GRIDS:
        variants = [
            variant
            for variant in section.variants
            if not grid.drafters_only or section.of_variant(variant)[0].cell.drafter is not None
        ]
        applies = any(summary.row(view, grid.metric) is not None for view in section.views)
        if not applies or not variants:
            continue
        first = not tables
        tables.append(
            Table(
                name=f"{_file(section)}_{grid.metric}",
                title=grid.title,
                columns=("variant", *(f"c = {level}" for level in section.levels)),
                rows=tuple(_grid_row(summary, section, grid, variant) for variant in variants),
                notes=_first_notes(summary, section) if first else (),
                section=section.word,
            )
        )
    return tables


def _first_notes(summary: Summary, section: Section) -> tuple[str, ...]:
    notes = _verdict_notes(summary, section.views)
    num_prompts = len(section.views[0].prompt_kinds)
    mixed = [level for level in section.levels if level % num_prompts]
    if section.load != "wave" or not mixed:
        return notes
    levels = fmt.listed([str(level) for level in mixed])
    return (
        *notes,
        f"At c = {levels} a wave holds no whole round of the {num_prompts} prompts, so waves "
        "differ in prompts and the figure is that of the median wave. The closed loop has no such "
        "step.",
    )


def _grid_row(summary: Summary, section: Section, grid: Grid, variant: str) -> tuple[Entry, ...]:
    views = [section.view(variant, level) for level in section.levels]
    return (label(variant), *(_grid_entry(summary, grid, view) for view in views))


def _grid_entry(summary: Summary, grid: Grid, view: CellView | None) -> Entry:
    figures = Figures(summary)
    entry = figures.entry(view, grid.metric, grid.show, interval=grid.interval)
    if grid.beside is None or entry.value is None:
        return entry
    share = figures.entry(view, grid.beside, fmt.percent)
    return replace(entry, text=f"{entry.text} ({share.text})")


# --- what was written, and by which clock ---------------------------------------------------------


def losslessness(summary: Summary) -> list[Table]:
    rows = []
    for result in summary.losslessness:
        if result.reason is not None:
            same = missing(result.reason)
        else:
            same = Entry(
                text=f"{result.num_identical} of {result.num_compared}",
                value=result.num_identical / result.num_compared,
            )
        where = _first_difference(result)
        rows.append((label(result.variant), label(result.against), same, where))
    if not rows:
        return []
    return [
        Table(
            name="losslessness",
            title="Identical outputs at temperature 0",
            columns=("variant", "against", "identical outputs", "first difference"),
            rows=tuple(rows),
            num_labels=2,
        )
    ]


def _first_difference(result: Losslessness) -> Entry:
    if result.reason is not None:
        return missing(result.reason)
    first = result.first_difference
    if first is not None:
        return label(f"{first.prompt_id}, {first.unit} {first.index}")
    none = result.num_identical == result.num_compared
    return label("none") if none else missing("the outputs themselves were not stored")


OUTPUTS: Sequence[tuple[str, str, Formatter]] = (
    ("tokens, shortest", "output_tokens_min", fmt.tokens),
    ("median", "output_tokens_median", fmt.tokens),
    ("longest", "output_tokens_max", fmt.tokens),
    ("ended by itself", "ended_by_itself", fmt.percent),
    ("loops", "loops", fmt.percent),
)


def outputs(summary: Summary) -> list[Table]:
    """How long they were and by whose count, what ended them, and what is odd about them."""

    def entries(whole: CellView, kind: str) -> tuple[Entry, ...]:
        view = _narrowed(whole, kind)
        return (
            _count(len(view.ok)),
            _count(len(view.requests) - len(view.ok)),
            *_figures(summary, OUTPUTS, whole, kind),
            _histogram(count_sources(view)),
            _histogram(finish_reasons(view)),
            _histogram(flags(view)),
        )

    return _by_kind(
        summary,
        name="outputs",
        title="Outputs",
        columns=(
            "requests",
            "failed",
            *(head for head, _, _ in OUTPUTS),
            "tokens counted by",
            "finish reasons",
            "flags",
        ),
        entries=entries,
    )


def _count(value: int) -> Entry:
    return Entry(text=str(value), value=value)


def _histogram(counts: Mapping[str, int]) -> Entry:
    """stop 3, length 1."""
    text = ", ".join(f"{word} {count}" for word, count in counts.items())
    return Entry(text=text or fmt.DASH, value=text or None)


def engine_timings(summary: Summary) -> list[Table]:
    """The engine's clock, apart from the client's: no figure here enters another table."""
    figures = Figures(summary)
    rows = tuple(
        (
            label(view.cell.variant),
            label("all kinds" if kind == ALL else kind),
            figures.entry(view, "engine_draft_ms", lambda value: fmt.number(value, 3), kind),
            figures.entry(view, "engine_verify_ms", lambda value: fmt.number(value, 3), kind),
        )
        for section in _sections(summary, "generate")
        for view in section.views
        if view.cell.drafter is not None
        for kind in (ALL, *section.kinds)
    )
    if not rows:
        return []
    return [
        Table(
            name="engine_timings",
            title="Milliseconds per round, by the engine's own clock",
            columns=("variant", "kind", "draft", "verify"),
            rows=rows,
            num_labels=2,
        )
    ]


# --- boots and cost -------------------------------------------------------------------------------


def boots(summary: Summary) -> list[Table]:
    """The headline figure of every boot, in running order: drift shows here first."""
    order = [str(boot.where.boot_id) for boot in summary.data.boots]
    by_cell = [
        (section, view, summary.boot_figures[(view.cell.cell_id, ALL)].by_boot)
        for section in summary.sections
        for view in section.views
    ]
    most = max((len(figures) for _, _, figures in by_cell), default=0)
    rows = []
    for section, view, figures in by_cell:
        values = [figures[boot_id] for boot_id in order if boot_id in figures]
        rows.append(
            (
                label(section.word),
                Entry(text=str(view.cell.concurrency), value=view.cell.concurrency),
                label(view.cell.variant),
                *(figure(value, fmt.rate) for value in values),
                *(missing("no such boot finished it") for _ in range(most - len(values))),
            )
        )
    return [
        Table(
            name="boots",
            title="Headline figure per boot, tok/s",
            columns=("workload", "c", "variant", *(f"boot {n + 1}" for n in range(most))),
            rows=tuple(rows),
            num_labels=3,
        )
    ]


def goals(summary: Summary) -> list[Table]:
    """The figures that the matrix wants reached, beside what each variant reached."""
    wanted = summary.manifest.goals
    rows = [row for metric, goal in wanted.items() for row in _goal_rows(summary, metric, goal)]
    if not rows:
        return []
    return [
        Table(
            name="goals",
            title="Goals",
            columns=("goal", "to reach", "variant", "workload", "c", "figure", "of the goal", ""),
            rows=tuple(rows),
            notes=("Goals are the matrix's own; no verdict and no exit code depends on them.",),
        )
    ]


def _goal_rows(summary: Summary, metric: str, goal: float) -> list[tuple[Entry, ...]]:
    asked = (label(metric), figure(goal, _plain))
    if metric not in METRICS:
        names = missing("no figure of this name; docs/figures.md has them all")
        return [(*asked, label(""), label(""), label(""), names, names, names)]
    return [
        (
            *asked,
            label(view.cell.variant),
            label(section.word),
            label(str(view.cell.concurrency)),
            *_towards(Figures(summary).entry(view, metric, _plain), metric, goal),
        )
        for section in summary.sections
        for view in section.views
        if summary.row(view, metric) is not None
    ]


def _towards(entry: Entry, metric: str, goal: float) -> tuple[Entry, Entry, Entry]:
    """The figure, its share of the goal, and whether it got there. A void one gets nowhere."""
    if not isinstance(entry.value, float) or entry.mark == fmt.INVALID_MARK:
        reason = entry.reason or "the cell is invalid"
        return entry, missing(reason), missing(reason)
    share = figure(entry.value / goal if goal else None, fmt.percent, "the goal is 0")
    lower_is_better = METRICS[metric].direction == "lower"
    reached = entry.value <= goal if lower_is_better else entry.value >= goal
    return entry, share, label("reached" if reached else "not reached")


def _plain(value: float) -> str:
    return fmt.number(value, 4)


def cost(summary: Summary) -> list[Table]:
    """What a variant costs beside time per token."""
    variants = dict.fromkeys(boot.variant for boot in summary.data.boots)
    rows = []
    for variant in variants:
        own = [boot for boot in summary.data.boots if boot.variant == variant]
        ready = [boot.ready_s for boot in own if boot.ready_s is not None]
        peaks = [boot.memory_peak_bytes for boot in own if boot.memory_peak_bytes is not None]
        rows.append(
            (
                label(variant),
                Entry(text=str(len(own)), value=len(own)),
                figure(
                    median(ready) if ready else None,
                    lambda value: fmt.number(value, 3),
                    "no boot became ready",
                ),
                figure(
                    float(max(peaks)) if peaks else None,
                    lambda value: fmt.mebibytes(int(value)),
                    "not measured",
                ),
            )
        )
    return [
        Table(
            name="cost",
            title="Cost",
            columns=("variant", "boots", "boot time, s (median)", "peak memory of a boot, MiB"),
            rows=tuple(rows),
        )
    ]


TABLES: Mapping[str, Callable[[Summary], list[Table]]] = {
    "single_stream": single_stream,
    "speedup_by_kind": speedup_by_kind,
    "rates": rates,
    "waiting": waiting,
    "ratios": ratios,
    "acceptance_by_position": acceptance_by_position,
    "lengths_elsewhere": lengths_elsewhere,
    "concurrency": concurrency,
    "losslessness": losslessness,
    "outputs": outputs,
    "engine_timings": engine_timings,
    "boots": boots,
    "cost": cost,
    "goals": goals,
}


# --- notes ----------------------------------------------------------------------------------------


def _sections(summary: Summary, workload: str) -> Iterable[Section]:
    return (section for section in summary.sections if section.workload == workload)


def _verdict_notes(summary: Summary, views: Sequence[CellView]) -> tuple[str, ...]:
    """One sentence per check and message, with the cells it speaks of."""
    accused: dict[tuple[str, str, str], list[CellView]] = {}
    for view in views:
        for verdict in summary.verdicts_of(view):
            key = (verdict.level, verdict.check, verdict.message)
            accused.setdefault(key, []).append(view)
    ordered = sorted(accused.items(), key=lambda item: item[0][0] != "invalid")
    return tuple(
        f"{_mark(level)} {check} ({_whose(guilty)}): {message}"
        for (level, check, message), guilty in ordered
    )


def _mark(level: str) -> str:
    return fmt.INVALID_MARK if level == "invalid" else fmt.WARNING_MARK


def _whose(views: Sequence[CellView]) -> str:
    """plain at c = 1 and 2; DFlash2 at c = 1."""
    levels: dict[str, list[str]] = {}
    for view in views:
        levels.setdefault(view.cell.variant, []).append(str(view.cell.concurrency))
    if all(view.cell.workload == "generate" for view in views):
        return fmt.listed(list(levels))
    return "; ".join(f"{variant} at c = {fmt.listed(cs)}" for variant, cs in levels.items())


def _interval_notes(summary: Summary, section: Section) -> tuple[str, ...]:
    rows = [summary.row(view, "speedup") for view in section.views]
    methods = {row.estimate.method for row in rows if row and row.estimate.method}
    boots = min((len(view.boots) for view in section.views if view.boots), default=0)
    if "bootstrap within one boot" in methods:
        return ("The intervals are within one boot: they decide nothing.",)
    pooled = (
        "A factor is of figures that pool a prompt's repetitions over boots, its interval of the "
        "boots' own figures: it need not lie in the middle."
    )
    if boots == 2:
        return (
            pooled,
            "Two boots a side: the intervals are wide (2 degrees of freedom). A claim wants four.",
        )
    return (pooled,) if boots > 2 else ()


def _file(section: Section) -> str:
    return fmt.slug(section.word)
