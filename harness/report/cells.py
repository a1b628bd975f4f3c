"""How the figures of one cell were made: what was asked, what came back, and where it is written.

The words of `dflashbench explain` and of CELLS.md, which every figure of RESULTS.md links to.
"""

from collections.abc import Iterator, Sequence
from statistics import fmean, median

from harness.analysis.metrics import COMPARISONS, METRICS, POSITION_METRICS
from harness.analysis.summary import ALL, Section, Summary
from harness.cell_view import CellView
from harness.measures import CountersDelta
from harness.records import Estimate, MetricRow
from harness.report import format as fmt
from harness.report.markdown import markdown_table
from harness.report.tables.acceptance import position_depth
from harness.report.tables.figures import all_and_kinds, kind_word
from harness.report.tables.sessions import told_machine
from harness.report.tables.table import Entry, Table, count, figure, label, missing


def cells_page(summary: Summary) -> str:
    """CELLS.md: a heading for each cell, by its id."""
    lines = [
        f"# {fmt.escape(summary.manifest.name)}: how each figure was made",
        "",
        f"Cells of run `{summary.manifest.run_id}`; [RESULTS.md](RESULTS.md) is the page. "
        f"`dflashbench explain {summary.manifest.run_id} CELL` tells the same.",
    ]
    for section in summary.sections:
        for view in section.views:
            lines += ["", f"## {view.cell.cell_id}", "", *_how(summary, section, view)]
            lines += ["", "<details><summary>Every figure of the cell</summary>", ""]
            lines += [markdown_table(_figures(summary, section, view)), "", "</details>"]
    return "\n".join(lines) + "\n"


def explanation(summary: Summary, section: Section, view: CellView) -> Iterator[str]:
    """Markdown, a paragraph or a table at a time: how the headline was made, then every figure."""
    yield from _how(summary, section, view)
    yield ""
    yield markdown_table(_figures(summary, section, view))


def _how(summary: Summary, section: Section, view: CellView) -> Iterator[str]:
    yield fmt.escape(_what(section, view))
    yield ""
    yield from _headline(summary, section, view)
    yield from _ratio(summary, view)
    yield from _acceptance(summary, view)
    yield f"* {fmt.prose(_measured(view))}"
    for verdict in summary.verdicts_of(view):
        yield f"* {verdict.level}, {verdict.check}: {fmt.prose(verdict.message)}"
    yield f"* {fmt.prose(_records(summary, view))}"


def _what(section: Section, view: CellView) -> str:
    cell = view.cell
    drafter = "no drafter" if cell.drafter is None else f"drafter {cell.drafter}"
    depth = "" if cell.k is None else f", k = {cell.k}"
    return (
        f"{cell.variant}: target {cell.target} on engine {cell.engine}, {drafter}{depth}. "
        f"{section.word}: prompts {cell.prompt_set}, c = {cell.concurrency}, load {cell.load}, "
        f"assignment {cell.assignment}, {fmt.counted(cell.repetitions, 'repetition')} of "
        f"{fmt.counted(cell.num_requests, 'request')} per boot, at most {cell.max_tokens} tokens, "
        f"length {cell.length}, temperature {cell.sampling.temperature:g}; protocol "
        f"{cell.protocol_id}."
    )


def _headline(summary: Summary, section: Section, view: CellView) -> Iterator[str]:
    """The figure, its parts by prompt or by boot, and the mean or median that makes it."""
    metric = section.headline
    row = summary.row(view, metric)
    if row is None or row.estimate.value is None:
        reason = row.estimate.reason if row else "it does not apply"
        yield f"* {metric}: n/a, {fmt.prose(reason or 'not measured')}"
        return
    unit, value = METRICS[metric].unit, row.estimate.value
    yield f"* **{metric} = {fmt.rate(value)} {unit}**: {fmt.prose(METRICS[metric].description)}"
    yield ""
    yield markdown_table(_parts(section, view))
    yield ""
    boots = summary.boot_figures[(view.cell.cell_id, ALL)].by_boot
    yield f"* by boot: {', '.join(f'{name} {fmt.rate(each)}' for name, each in boots.items())}"
    if row.estimate.low is not None and row.estimate.high is not None:
        bounds = fmt.span(row.estimate.low, row.estimate.high, 4)
        yield f"* 95 % interval {bounds} ({row.estimate.method})"


def _parts(section: Section, view: CellView) -> Table:
    """Repetitions of a prompt and their median; of a load all waves together."""
    groups = METRICS[section.headline].groups
    assert groups is not None
    values = groups(view)
    names = _asked(view) if section.is_single else ["all waves or repetitions"]
    rows: list[tuple[Entry, ...]] = [
        (
            label(name),
            label(", ".join(fmt.rate(value) for value in group) or fmt.DASH),
            figure(
                float(median(group)) if len(group) else None,
                fmt.rate,
                "no request of it gave a figure",
            ),
        )
        for name, group in zip(names, values, strict=True)
    ]
    if len(rows) > 1:
        mean = fmean(median(group) for group in values if len(group))
        rows.append((label("mean of the medians"), label(""), figure(mean, fmt.rate)))
    return Table(
        name="parts",
        title="",
        columns=("prompt" if section.is_single else "", "repetitions, boot after boot", "median"),
        rows=tuple(rows),
        num_labels=2,
    )


def _asked(view: CellView) -> Sequence[str]:
    return list(map(str, view.sent.labels("prompt_id")))


def _ratio(summary: Summary, view: CellView) -> Iterator[str]:
    row = summary.row(view, "speedup")
    if row is None or view.reference is None:
        return
    if row.estimate.value is None:
        yield f"* speed-up: n/a, {fmt.prose(row.estimate.reason or 'not measured')}"
        return
    reference = view.reference.cell
    said = f"* speed-up {fmt.times(row.estimate.value)}{_interval(row.estimate)}: the figure above "
    yield said + f"over that of [{fmt.escape(reference.variant)}](#{reference.cell_id})"


def _interval(estimate: Estimate) -> str:
    if estimate.low is None or estimate.high is None:
        return ""
    bounds = fmt.span(estimate.low, estimate.high)
    return f" (95 % interval {bounds}, {estimate.method}, n = {estimate.n} a side)"


def _acceptance(summary: Summary, view: CellView) -> Iterator[str]:
    if view.cell.drafter is None:
        return
    entry = summary.counted[view.cell.cell_id]
    if entry.delta is None:
        yield f"* acceptance: n/a, {fmt.prose(entry.reason or 'no counters were read')}"
    elif entry.delta.drafts and entry.delta.accepted_tokens is not None:
        yield f"* {_arithmetic(entry.delta, entry.delta.accepted_tokens, view.cell.k)}"


def _arithmetic(delta: CountersDelta, accepted: int, k: int | None) -> str:
    """1 + 30/10 = 4.00 tokens a round."""
    assert delta.drafts
    length = 1 + accepted / delta.drafts
    said = (
        f"acceptance length 1 + {accepted}/{delta.drafts} = {length:.3f}, by the engine's counters"
    )
    if k is not None:
        said += f"; {length:.3f}/{k + 1} = {fmt.percent(length / (k + 1))} of the ceiling"
    if delta.draft_tokens:
        said += f"; {accepted}/{delta.draft_tokens} = "
        said += f"{fmt.percent(accepted / delta.draft_tokens)} of the drafted tokens accepted"
    return said


def _measured(view: CellView) -> str:
    """When and on what."""
    told = [
        f"session {each.where.session_id} of {each.started_at} on {told_machine(each.machine)}"
        for each in view.sessions
    ]
    return f"measured in {fmt.listed(told)}" if told else "it was not measured"


FIGURE_SIGNS = 5
"""Significant digits: one more than a table of the page shows."""


def _figures(summary: Summary, section: Section, view: CellView) -> Table:
    """Every figure of the cell: kinds across where it has them, one that cannot be had with its
    reason.
    """
    kinds = all_and_kinds(section) if section.is_single else (ALL,)
    positions = range(1, position_depth(summary, view) + 1)
    names = [
        *METRICS,
        *(f"{name}_{n}" for name in POSITION_METRICS for n in positions),
        *COMPARISONS,
    ]
    rows = [row for name in names if (row := summary.row(view, name)) is not None]
    return Table(
        name="figures",
        title="",
        columns=("figure", "unit", "n", *map(kind_word, kinds)),
        rows=tuple(
            (
                label(row.metric),
                label(row.estimate.unit),
                count(row.estimate.n),
                *(_figure(summary.row(view, row.metric, kind)) for kind in kinds),
            )
            for row in rows
        ),
        num_labels=2,
    )


def _figure(row: MetricRow | None) -> Entry:
    if row is None:
        return missing("not told by kind")
    return figure(
        row.estimate.value, lambda value: fmt.number(value, FIGURE_SIGNS), row.estimate.reason
    )


def _records(summary: Summary, view: CellView) -> str:
    run_id = summary.manifest.run_id
    logs = fmt.listed([f"`{boot.log_path}`" for boot in view.boots])
    failed = len(view.requests) - len(view.ok)
    return (
        f"{fmt.counted(len(view.requests), 'request')}, {failed} failed: the lines of "
        f"`results/{run_id}/requests.jsonl` with cell_id `{view.cell.cell_id}`, their events in "
        f"`events/{view.cell.cell_id}.*`, counters in `counters.jsonl`"
        + (f"; server logs {logs}" if logs else "")
    )
