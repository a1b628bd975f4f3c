"""The table of a comparison, and how its figures look: one for the terminal and for Markdown."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from harness.compare.compare import Comparison, Row
from harness.compare.night import MEMORY
from harness.report import format as fmt
from harness.report.tables import Entry, Table, figure, label, missing

SEEN_NOTE = (
    "seen from: the smallest change for the worse that would have been called a regression here, "
    "by its threshold, its interval and the noise floor of all figures together."
)


@dataclass(frozen=True, kw_only=True)
class Metric:
    """How a metric is called and shown."""

    name: str
    unit: str
    show: Callable[[float], str]


METRICS: Mapping[str, Metric] = {
    "decode_rate": Metric(name="decode rate", unit="tok/s", show=fmt.rate),
    "aggregate_throughput": Metric(name="aggregate", unit="tok/s", show=fmt.rate),
    "ttft_p50": Metric(name="TTFT p50", unit="ms", show=fmt.milliseconds),
    "acceptance_length": Metric(name="acceptance", unit="tok/round", show=fmt.length),
    MEMORY: Metric(name="memory", unit="MiB", show=lambda value: fmt.mebibytes(round(value))),
}


def change(share: float) -> str:
    """+2.1 %, -14.9 %; a change that rounds to nothing has no sign."""
    text = f"{share * 100:+.1f} %"
    return "0.0 %" if text in ("+0.0 %", "-0.0 %") else text


def loss(share: float) -> str:
    """A change for the worse; beyond twice as long it is a factor that can be imagined."""
    return fmt.percent(share) if share <= 1 else fmt.times(1 + share)


def comparison_table(comparison: Comparison) -> Table:
    """Every figure that was compared, in the run's order."""
    return rows_table(comparison.compared, f"{comparison.run.run_id} against {comparison.baseline}")


def rows_table(compared: Sequence[Row], title: str) -> Table:
    return Table(
        name="comparison",
        title=title,
        columns=(
            "variant",
            "work",
            "figure",
            "baseline",
            "run",
            "change",
            "95 % interval",
            "seen from",
            "word",
        ),
        rows=tuple(_entries(row) for row in compared),
        notes=(SEEN_NOTE,) if compared else (),
        num_labels=3,
    )


def _entries(row: Row) -> tuple[Entry, ...]:
    assert row.metric is not None
    assert row.change is not None
    assert row.change.value is not None
    metric = METRICS[row.metric]
    return (
        label(row.variant),
        label(row.work),
        label(f"{metric.name}, {metric.unit}"),
        figure(row.baseline, metric.show),
        figure(row.new, metric.show),
        Entry(text=change(row.change.value), value=row.change.value),
        _interval(row),
        figure(row.least_visible, loss, row.reason),
        label(row.word),
    )


def _interval(row: Row) -> Entry:
    found = row.change
    assert found is not None
    if found.low is None or found.high is None:
        return missing(found.reason)
    text = f"{change(found.low)} to {change(found.high)}"
    return Entry(text=text, value=text)
