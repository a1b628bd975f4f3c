"""reports/<run_id>/ from results/<run_id>/: numbers first, the page next, pictures last."""

from pathlib import Path

from harness.analysis.summary import Summary, summarise
from harness.errors import ResultsError
from harness.report import export, page, plots
from harness.report.cells import cells_page
from harness.report.markdown import CELLS_PAGE
from harness.store import RunFolder, write_whole


def build(folder: RunFolder, reports_dir: Path) -> Path:
    """Writes the report and returns its RESULTS.md. A report that exists is written over."""
    return write_report(summarise(folder), reports_dir)


def write_report(summary: Summary, reports_dir: Path) -> Path:
    run_id = summary.manifest.run_id
    report = reports_dir / run_id
    try:
        return _write(summary, report)
    except OSError as error:
        raise ResultsError(
            f"{error.filename or report}: {error.strerror}, so there is no report; the run is "
            f"kept, `dflashbench report {run_id} --reports DIR` writes it elsewhere"
        ) from error


def _write(summary: Summary, report: Path) -> Path:
    for part in ("tables", "plots"):
        (report / part).mkdir(parents=True, exist_ok=True)
    export.write_summary(summary, report / "summary.json")
    export.write_tables(summary, report / "tables")
    pictures = plots.pictures(summary)
    results = report / "RESULTS.md"
    write_whole(results, page.results_page(summary, pictures).encode())
    write_whole(report / CELLS_PAGE, cells_page(summary).encode())
    for picture in pictures:
        plots.save(picture, report / "plots")
    return results
