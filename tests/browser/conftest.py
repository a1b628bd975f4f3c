"""Debian's Chromium without a window, for pages from files. Without it the tests here are skipped.

`apt-get install chromium` and the extra `dev` bring what is needed.
"""

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.harness.publish.sites import Machine

PROGRAMS = ("chromium", "chromium-browser", "google-chrome")


@pytest.fixture(scope="module")
def browser() -> Iterator[object]:
    """Closed before another module's tests: playwright keeps an event loop running, beside which
    asyncio starts none.
    """
    sync_api = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    program = next((found for name in PROGRAMS if (found := shutil.which(name))), None)
    if program is None:
        pytest.skip("there is no Chromium: apt-get install chromium")
    with sync_api.sync_playwright() as playwright:
        # a sandbox needs a user namespace, which root in a container does not get
        launched = playwright.chromium.launch(executable_path=program, args=["--no-sandbox"])
        yield launched
        launched.close()


class Visit:
    """A page in the browser, and everything it said or asked for."""

    def __init__(self, page: object) -> None:
        self.page = page
        self.complaints: list[str] = []
        self.requests: list[str] = []
        page.on("console", lambda said: self.complaints.append(f"console: {said.text}"))
        page.on("pageerror", lambda error: self.complaints.append(f"error: {error}"))
        page.on("dialog", self._dialog)
        page.on("request", lambda request: self.requests.append(request.url))

    def _dialog(self, dialog: object) -> None:
        self.complaints.append(f"dialog: {dialog.message}")
        dialog.dismiss()

    def open(self, path: Path) -> None:
        self.page.goto(path.as_uri())

    def assert_silent(self, site: Path) -> None:
        """Nothing was complained of, nothing ran that is not ours, nothing left the page."""
        assert self.complaints == []
        own = (site.as_uri(), "data:")
        assert [url for url in self.requests if not url.startswith(own)] == []


@pytest.fixture
def visit(browser: object) -> Iterator[Visit]:
    context = browser.new_context(viewport={"width": 1280, "height": 900})
    yield Visit(context.new_page())
    context.close()


@pytest.fixture(scope="module")
def machine(tmp_path_factory: pytest.TempPathFactory) -> Machine:
    """Nine nights; from the eighth on each verification takes 3 ms longer. The first and the eighth
    still have their raw data.
    """
    made = Machine(tmp_path_factory.mktemp("machine"))
    for number in range(1, 10):
        run = made.night(number, slower_ms=3.0 if number >= 8 else 0.0)
        if number not in (1, 8):
            shutil.rmtree(run.path)
    made.publish()
    return made
