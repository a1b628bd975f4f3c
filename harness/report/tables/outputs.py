"""What was written: whether speculation changed it, how long it is, and what is odd about it."""

from collections.abc import Iterator, Mapping, Sequence

from harness.analysis.outputs import Losslessness, count_sources, finish_reasons, flags
from harness.analysis.summary import Summary
from harness.cell_view import CellView
from harness.report import format as fmt
from harness.report.tables.figures import by_kind, figures_of, narrowed
from harness.report.tables.table import Entry, Formatter, Table, count, label, missing, shown


def losslessness(summary: Summary) -> list[Table]:
    rows = []
    workloads = {view.cell.cell_id: view.cell.workload for view in summary.data.views}
    for result in summary.losslessness:
        if result.reason is not None:
            same = missing(result.reason)
        else:
            same = Entry(
                text=f"{result.num_identical} of {result.num_compared}",
                value=result.num_identical / result.num_compared,
            )
        what = (result.variant, result.against, workloads[result.cell_id])
        where = _first_difference(result)
        rows.append((*map(label, what), same, where, *_judged(result)))
    if not rows:
        return []
    return [
        Table(
            name="losslessness",
            title="Identical outputs at temperature 0",
            columns=(
                "variant",
                "against",
                "workload",
                "identical outputs",
                "first difference",
                "near-ties",
                "real",
                "unknown",
                "largest gap, nats",
                "tolerance, nats",
            ),
            rows=tuple(rows),
            notes=tuple(_notes(summary)),
            num_labels=3,
        )
    ]


def _judged(result: Losslessness) -> tuple[Entry, ...]:
    """How many differences are what, and how large a gap there is among them."""
    if result.reason is not None:
        return (missing(result.reason),) * 5
    bound = "≥ " if result.largest_gap_is_bound else ""
    gap = shown(result.largest_gap_nats, lambda nats: f"{bound}{fmt.number(nats, 2)}")
    tolerance = shown(result.tolerance_nats, "{:g}".format)
    if result.num_unknown and not result.num_near_ties + result.num_real:
        nothing = missing(result.unknown_reason)
        return (nothing, nothing, count(result.num_unknown), gap, tolerance)
    return (
        count(result.num_near_ties),
        count(result.num_real),
        count(result.num_unknown),
        gap,
        tolerance,
    )


def _notes(summary: Summary) -> Iterator[str]:
    if any(each.largest_gap_nats is not None for each in summary.losslessness):
        yield (
            "The gap is how much less likely than its likeliest token the reference's engine finds "
            "the output's where the two part, in natural logarithms. Up to the tolerance rounding "
            "explains it: a near-tie. A larger one is a real difference."
        )
    if any(each.num_unknown for each in summary.losslessness):
        yield (
            "Of an unknown one the outputs alone cannot tell whether it is a near-tie of the "
            "target or a fault."
        )


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
        view = narrowed(whole, kind)
        return (
            count(len(view.ok)),
            count(len(view.requests) - len(view.ok)),
            *figures_of(summary, OUTPUTS, whole, kind),
            _histogram(count_sources(view)),
            _histogram(finish_reasons(view)),
            _histogram(flags(view)),
        )

    return by_kind(
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


def _histogram(counts: Mapping[str, int]) -> Entry:
    """stop 3, length 1."""
    text = ", ".join(f"{word} {count}" for word, count in counts.items())
    return Entry(text=text or fmt.DASH, value=text or None)
