"""What was written: whether speculation changed it, how long it is, and what is odd about it."""

from collections.abc import Mapping, Sequence

from harness.analysis.outputs import Losslessness, count_sources, finish_reasons, flags
from harness.analysis.summary import Summary
from harness.cell_view import CellView
from harness.report import format as fmt
from harness.report.tables.figures import by_kind, figures_of, narrowed
from harness.report.tables.table import Entry, Formatter, Table, count, label, missing


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
