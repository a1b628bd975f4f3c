"""What the target accepted: by drafted position, and under the definitions of other tools."""

from collections.abc import Sequence

from harness.analysis.summary import Summary
from harness.cell_view import CellView
from harness.report import format as fmt
from harness.report.tables.figures import (
    Figures,
    all_and_kinds,
    by_kind,
    decoding_sections,
    figures_of,
    file_word,
    kind_label,
)
from harness.report.tables.table import Formatter, Table, label

ELSEWHERE: Sequence[tuple[str, str, Formatter]] = (
    ("1 + accepted / drafts (vLLM, llama.cpp, here)", "acceptance_length", fmt.length),
    ("tokens / rounds (SGLang)", "tokens_per_round", fmt.length),
    ("tokens / (steps + prefills) (specdec_bench)", "tokens_per_step_and_prefill", fmt.length),
    ("accepted / tested", "accepted_of_tested", fmt.percent),
    ("accepted / drafted", "acceptance_rate", fmt.percent),
)


def lengths_elsewhere(summary: Summary) -> list[Table]:
    """The same rounds under the definitions that others publish."""
    return by_kind(
        summary,
        name="lengths_elsewhere",
        title="Acceptance under the definitions of other tools",
        columns=tuple(head for head, _, _ in ELSEWHERE),
        entries=lambda view, kind: figures_of(summary, ELSEWHERE, view, kind),
        drafters_only=True,
    )


def acceptance_by_position(summary: Summary) -> list[Table]:
    """Which drafted tokens survive: position across, kind down."""
    tables: list[Table] = []
    for section in decoding_sections(summary):
        for view in section.views:
            depth = position_depth(summary, view)
            if not depth:
                continue
            figures = Figures(summary)
            metrics = ("acceptance_at_position", "conditional_acceptance_at_position")
            rows = [
                (
                    kind_label(kind),
                    *(
                        figures.entry(view, f"{metrics[0]}_{position}", fmt.percent, kind)
                        for position in range(1, depth + 1)
                    ),
                )
                for kind in all_and_kinds(section)
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
                    name=f"{file_word(section)}_positions_{fmt.slug(view.cell.variant)}",
                    title=f"Acceptance per drafted position, {view.cell.variant}",
                    columns=("kind", *(str(position) for position in range(1, depth + 1))),
                    rows=(*rows, conditional),
                    section=section.word,
                )
            )
    return tables


def position_depth(summary: Summary, view: CellView) -> int:
    """How many positions have a figure."""
    depth = 0
    while summary.row(view, f"acceptance_at_position_{depth + 1}") is not None:
        depth += 1
    return depth
