"""Nights of the synthetic engine, and sites made of them."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from harness.compare.rules import Rules
from harness.nightly import nightly
from harness.publish.site import Published, publish
from harness.records import Matrix
from harness.store import RunFolder
from tests.harness import synthetic


class Machine:
    """Measures a small matrix in no time and publishes what it has."""

    def __init__(self, path: Path, asked: Matrix | None = None) -> None:
        self.path = path
        self.results = path / "results"
        self.reports = path / "reports"
        self.site = path / "site"
        self.asked = asked or synthetic.matrix(levels=(), repetitions=1)

    def night(self, number: int, *, slower_ms: float = 0.0) -> RunFolder:
        """The night of that day in November; `slower_ms`: of each verification."""
        drafted = replace(synthetic.DFLASH2, verify_ms=14.0 + slower_ms)
        folder = synthetic.write_run(
            self.results,
            self.asked,
            behaviours={"DFlash2": drafted},
            seed=number,
            run_id=f"202611{number:02}-020000-synthetic",
            created_at=f"2026-11-{number:02}T02:00:00Z",
        )
        self.judge(lambda: folder)
        return folder

    def judge(self, measure: Callable[[], RunFolder]) -> None:
        nightly(
            measure,
            self._report,
            baseline="main",
            results_dir=self.results,
            rules=Rules(),
            fill=True,
            by="nobody",
        )

    def _report(self, folder: RunFolder) -> Path:
        page = self.reports / folder.manifest.run_id / "RESULTS.md"
        page.parent.mkdir(parents=True)
        page.write_text("a page\n")
        return page

    def publish(self, *, again: bool = False) -> Published:
        return publish(self.site, results_dir=self.results, reports_dir=self.reports, again=again)
