"""What belongs to a boot: the headline figure of each, its cost, and the engine's own clock."""

from dataclasses import replace

from harness.analysis.summary import ALL, Summary
from harness.records import Boot, Request
from harness.report import format as fmt
from harness.report.tables.figures import Figures, all_and_kinds, decoding_sections, kind_label
from harness.report.tables.table import Table, count, figure, label, missing


def engine_timings(summary: Summary) -> list[Table]:
    """The engine's clock, apart from the client's: no figure here enters another table."""
    figures = Figures(summary)
    rows = tuple(
        (
            label(view.cell.variant),
            kind_label(kind),
            figures.entry(view, "engine_draft_ms", lambda value: fmt.number(value, 3), kind),
            figures.entry(view, "engine_verify_ms", lambda value: fmt.number(value, 3), kind),
        )
        for section in decoding_sections(summary)
        for view in section.drafted
        for kind in all_and_kinds(section)
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
                count(view.cell.concurrency),
                label(view.cell.variant),
                *(replace(figure(value, fmt.rate), cell_id=view.cell.cell_id) for value in values),
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


COLD_NOTE = (
    "The first request that an engine answered after its start, kept apart: it pays for kernels "
    "and caches, and no other figure holds it. Warm: the same prompt in the last warm-up pass."
)


def cold(summary: Summary) -> list[Table]:
    """A row per boot that was warmed up."""
    found = [(boot, *_first_and_warm(summary, boot)) for boot in summary.data.boots]
    rows = tuple(
        (
            label(str(boot.where.boot_id)),
            label(boot.variant),
            figure(boot.ready_s, lambda value: fmt.number(value, 3), "it did not become ready"),
            figure(first.ttft_s, fmt.milliseconds, "it got no output"),
            figure(first.wall_s, fmt.milliseconds, "it got no answer"),
            figure(warm.wall_s if warm else None, fmt.milliseconds, "one pass of warm-up"),
        )
        for boot, first, warm in found
        if first is not None
    )
    if not rows:
        return []
    return [
        Table(
            name="cold",
            title="The cold request of each boot",
            columns=("boot", "variant", "start, s", "cold TTFT, ms", "cold, ms", "warm, ms"),
            rows=rows,
            notes=(COLD_NOTE,),
            num_labels=2,
        )
    ]


def _first_and_warm(summary: Summary, boot: Boot) -> tuple[Request | None, Request | None]:
    """Warm-up passes are numbered -1, -2, ...: the first is the highest, the last the lowest."""
    own = {
        request.where: request
        for view in summary.data.views
        for request in view.warmups
        if request.where.boot_id == boot.where.boot_id
    }
    if not own:
        return None, None
    first = min(own.values(), key=lambda request: request.t0_ns)
    later = [
        request
        for request in own.values()
        if request.where.cell_id == first.where.cell_id and request.index == first.index
    ]
    last = min(later, key=lambda request: request.where.repetition or 0)
    return first, None if last is first else last
