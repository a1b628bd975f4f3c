"""The files that `compare` was asked to write, each by the module of its format."""

from pathlib import Path

from harness.compare.compare import Comparison
from harness.report.comparison import action_benchmark as action
from harness.report.comparison.bencher import bencher_json
from harness.report.comparison.junit import junit_xml
from harness.report.comparison.markdown import comparison_page
from harness.store import told, write_whole


def write_files(
    comparison: Comparison,
    *,
    markdown: Path | None = None,
    junit: Path | None = None,
    bencher: Path | None = None,
    action_benchmark: Path | None = None,
    step_summary: Path | None = None,
) -> None:
    """None: not asked for. `action_benchmark` is a folder, the others are files."""
    for path, write in ((markdown, comparison_page), (junit, junit_xml), (bencher, bencher_json)):
        if path is not None:
            _write(path, write(comparison))
    if action_benchmark is not None:
        for direction, name in action.FILES.items():
            text = action.action_benchmark_json(comparison, direction)
            _write(action_benchmark / name, text)
    if step_summary is not None:
        with told(step_summary), open(step_summary, "a", encoding="utf-8") as file:
            file.write(comparison_page(comparison))


def _write(path: Path, text: str) -> None:
    with told(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        write_whole(path, text.encode())
