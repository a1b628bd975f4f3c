"""Which checkpoint can run which drafter on which engine, where some cannot."""

from collections.abc import Iterator

from harness import eligibility as rules
from harness.analysis.summary import Summary
from harness.report.tables.table import Entry, Table, label


def eligibility(summary: Summary) -> list[Table]:
    """None where all that the run names can be paired with all, or nothing is known of it."""
    variants = {cell.variant: cell.engine for cell in summary.manifest.plan.cells}
    boots = {variants[b.variant]: b for b in summary.data.boots if b.variant in variants}
    rows = rules.eligible(summary.manifest.plan.cells, summary.manifest.models, boots)
    if not any(answer.able is False for row in rows for answer in row.answers.values()):
        return []
    known = rules.reasons(rows)
    return [
        Table(
            name="eligibility",
            title="Which checkpoint can run which drafter",
            columns=("target", "drafter", *rows[0].answers),
            rows=tuple((label(row.target), label(row.name), *_answers(row, known)) for row in rows),
            notes=(
                "By configs, headers and the engines' versions, whether it was measured or not.",
                *(f"[{number}] {reason}" for number, reason in enumerate(known, start=1)),
            ),
            num_labels=2,
        )
    ]


def _answers(row: rules.Row, known: tuple[str, ...]) -> Iterator[Entry]:
    for answer in row.answers.values():
        yield label(rules.shown(answer, known))
