"""A comparison as Markdown, for a pull request or a job's summary on GitHub."""

from collections.abc import Iterable

from harness.compare.compare import Comparison
from harness.report import format as fmt
from harness.report.comparison import sentences
from harness.report.comparison.table import comparison_table
from harness.report.markdown import markdown_table


def comparison_page(comparison: Comparison) -> str:
    """Headline and findings first; the whole table is folded away behind them."""
    table = comparison_table(comparison)
    parts = [f"### dflashbench: {fmt.prose(sentences.headline(comparison))}", _about(comparison)]
    parts += _list(sentences.findings(comparison))
    parts += _titled("Not compared", sentences.not_compared(comparison))
    parts += _titled("Notes", comparison.notes)
    if table.rows:
        parts.append(
            f"<details><summary>All figures</summary>\n\n{markdown_table(table)}\n\n</details>"
        )
    return "\n\n".join(parts) + "\n"


def _about(comparison: Comparison) -> str:
    nights = ", ".join(fmt.code(night.run_id) for night in comparison.nights)
    baseline = fmt.escape(comparison.baseline)
    return f"Run {fmt.code(comparison.run.run_id)} against {baseline} ({nights})."


def _titled(title: str, lines: Iterable[str]) -> list[str]:
    told = _list(lines)
    return [f"**{title}**", *told] if told else []


def _list(lines: Iterable[str]) -> list[str]:
    told = [f"* {fmt.prose(line)}" for line in lines]
    return ["\n".join(told)] if told else []
