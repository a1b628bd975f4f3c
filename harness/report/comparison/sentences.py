"""A comparison in words: what it comes to, each figure that moved with its cause, what was left."""

from collections import defaultdict
from collections.abc import Iterator, Mapping
from statistics import median

from harness.compare.attribution import Cause, Part
from harness.compare.compare import Comparison, Row
from harness.compare.trend import Step
from harness.report import format as fmt
from harness.report.comparison.table import METRICS, change, loss

CAUSES: Mapping[Part, tuple[str, str]] = {
    "acceptance": ("acceptance fell", "acceptance rose"),
    "step": ("the step got slower", "the step got faster"),
    "prefill": ("prefill got slower", "prefill got faster"),
    "rest": ("requests waited longer", "requests waited less"),
}
"""How a part that made the figure worse is called, and one that made it better."""


def headline(comparison: Comparison) -> str:
    """The word, how many figures it rests on, and what the comparison could see."""
    compared, word = comparison.compared, comparison.word
    against = f"against {comparison.baseline}, {fmt.counted(len(comparison.nights), 'night')}"
    if not compared:
        return f"not comparable: nothing was compared, {against}"
    count = len(comparison.having(word))
    what = "" if word == "within noise" else f"{count} of "
    text = f"{word}: {what}{fmt.counted(len(compared), 'figure')}, {against}"
    seen = [row.least_visible for row in compared if row.least_visible is not None]
    if not seen:
        return text
    return f"{text}; a loss is seen from {loss(median(seen))} on (median over figures)"


def findings(comparison: Comparison) -> Iterator[str]:
    """What moved, the worst word first."""
    for word in ("regressed", "inconclusive", "improved"):
        for row in comparison.rows:
            if row.word == word:
                yield finding(row)


def finding(row: Row) -> str:
    assert row.metric is not None
    assert row.baseline is not None
    assert row.new is not None
    metric = METRICS[row.metric]
    moved = f"{metric.show(row.baseline)} to {metric.show(row.new)} {metric.unit}"
    parts = [f"{_of(row)}, {metric.name}: {moved}, {_changed(row)}: {row.word}."]
    if row.reason:
        parts.append(f"{row.reason[0].upper()}{row.reason[1:]}.")
    if row.causes:
        parts.append(cause(row))
    if row.prompts:
        told = (f"{prompt.prompt_id} {change(prompt.change)}" for prompt in row.prompts)
        parts.append(f"Most: {', '.join(told)}.")
    return " ".join(parts)


def _of(row: Row) -> str:
    return f"{row.variant}, {row.work}"


def _changed(row: Row) -> str:
    found = row.change
    assert found is not None
    assert found.value is not None
    if found.low is None or found.high is None:
        return change(found.value)
    return f"{change(found.value)} ({change(found.low)} to {change(found.high)})"


def cause(row: Row) -> str:
    """The part that weighs most, and what each would have made of the figure alone."""
    largest = row.causes[0]
    worse, better = CAUSES[largest.part]
    said = worse if _is_worse(row, largest) else better
    if len(row.causes) == 1:
        return f"Cause: {said}."
    others = "".join(f", {part.part} for {change(part.change)}" for part in row.causes[1:])
    return f"Cause: {said} (it accounts for {change(largest.change)}{others})."


def _is_worse(row: Row, part: Cause) -> bool:
    """A longer time to first token is worse, a higher rate is not."""
    return part.change > 0 if row.metric == "ttft_p50" else part.change < 0


def step(found: Step) -> str:
    name = METRICS[found.metric].name
    return f"{found.variant}, {found.work}, {name}: {change(found.change)} since {found.run_id}"


def not_compared(comparison: Comparison) -> Iterator[str]:
    """A line per reason, with all that it kept from being compared."""
    kept: dict[str, list[str]] = defaultdict(list)
    for row in comparison.having("not comparable"):
        metric = f", {METRICS[row.metric].name}" if row.metric else ""
        kept[row.reason or "no reason was recorded"].append(f"{_of(row)}{metric}")
    for reason, subjects in kept.items():
        yield f"{'; '.join(subjects)}: {reason}."
