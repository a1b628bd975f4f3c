"""Baselines as tables: which there are, what one holds, where two differ."""

from collections.abc import Sequence

from harness.compare.baselines import Baseline
from harness.compare.contents import Changed, Held
from harness.report import format as fmt
from harness.report.comparison.table import METRICS, change
from harness.report.tables import Entry, Table, figure, label, missing


def list_table(held: Sequence[Baseline]) -> Table:
    return Table(
        name="baselines",
        title="Baselines",
        columns=("baseline", "nights", "first", "last"),
        rows=tuple(
            (
                label(baseline.name),
                label(str(len(baseline.members))),
                label(baseline.nights[0].run_id),
                label(baseline.nights[-1].run_id),
            )
            for baseline in held
        ),
    )


def members_table(baseline: Baseline) -> Table:
    return Table(
        name="members",
        title=f"Nights of {baseline.name}",
        columns=("run", "verdict", "commit", "by", "at", "why"),
        rows=tuple(
            (
                label(member.night.run_id),
                label(member.night.level),
                label((member.night.commit or "unknown")[:12]),
                label(member.by),
                label(member.at),
                label(member.why),
            )
            for member in baseline.members
        ),
        num_labels=6,
    )


def contents_table(held: Sequence[Held]) -> Table:
    return Table(
        name="contents",
        title="Figures (geometric means over nights)",
        columns=("variant", "work", "figure", "mean", "nights", "boots", "spread of nights"),
        rows=tuple(
            (
                *_labels(item),
                figure(item.mean, METRICS[item.metric].show),
                label(str(item.num_nights)),
                label(str(item.num_boots)),
                figure(item.spread, fmt.percent, "one night"),
            )
            for item in held
        ),
        num_labels=3,
    )


def changes_table(found: Sequence[Changed], old: str, new: str) -> Table:
    return Table(
        name="changes",
        title=f"{old} and {new}",
        columns=("variant", "work", "figure", old, new, "change"),
        rows=tuple(
            (
                *_labels(item.shown),
                _mean(item.old),
                _mean(item.new),
                _change(item),
            )
            for item in found
        ),
        num_labels=3,
    )


def _labels(held: Held) -> tuple[Entry, ...]:
    metric = METRICS[held.metric]
    return label(held.variant), label(held.work), label(f"{metric.name}, {metric.unit}")


def _mean(held: Held | None) -> Entry:
    if held is None:
        return missing("this side did not measure it")
    return figure(held.mean, METRICS[held.metric].show)


def _change(item: Changed) -> Entry:
    share = item.change
    if share is None:
        return missing("this side did not measure it")
    return Entry(text=change(share), value=share)
