"""What belongs to a boot: the headline figure of each, its cost, and the engine's own clock."""

from statistics import median

from harness.analysis.summary import ALL, Summary
from harness.report import format as fmt
from harness.report.tables.figures import Figures, sections
from harness.report.tables.table import Entry, Table, figure, label, missing


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
        for section in sections(summary, "generate")
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
