"""The published site as a reader meets it: by mouse, by keyboard, and among hostile texts."""

from pathlib import Path

import pytest

from tests.browser.conftest import Visit
from tests.harness.publish.hostile import NO_ROOM_FOR_NAMES, poison
from tests.harness.publish.sites import Machine

pytestmark = pytest.mark.browser


def column(visit: Visit, table: str, number: int) -> list[str]:
    cells = visit.page.locator(f"{table} tbody tr:visible > *:nth-child({number})")
    return [text.strip() for text in cells.all_inner_texts()]


# --- sort, filter, follow -------------------------------------------------------------------------


def test_a_table_sorts_by_any_column_up_and_down(visit: Visit, machine: Machine) -> None:
    visit.open(machine.site / "index.html")
    newest_first = column(visit, "table", 1)
    header = visit.page.get_by_role("columnheader", name="run", exact=True)

    header.get_by_role("button").click()
    assert column(visit, "table", 1) == newest_first[::-1]
    assert header.get_attribute("aria-sort") == "ascending"
    header.get_by_role("button").click()
    assert column(visit, "table", 1) == newest_first
    assert header.get_attribute("aria-sort") == "descending"
    visit.assert_silent(machine.site)


def test_figures_sort_by_value_and_gaps_stand_last(visit: Visit, machine: Machine) -> None:
    """By text 9.9 would stand behind 10.1; a plain variant has no speed-up."""
    (run,) = (machine.site / "runs").glob("20261101*")
    visit.open(run / "index.html")
    cells = visit.page.get_by_role("table", name="Each cell leads to")

    for _ in range(2):
        cells.get_by_role("button", name="speed-up").click()
        assert cells.locator("tbody tr").last.locator("th").inner_text() == "plain"
    visit.assert_silent(machine.site)


def test_a_filter_keeps_the_rows_that_hold_every_word(visit: Visit, machine: Machine) -> None:
    visit.open(machine.site / "index.html")

    visit.page.get_by_label("Filter runs").fill("20261102 within")

    assert [text[:8] for text in column(visit, "table", 1)] == ["20261102"]
    assert visit.page.locator(".tools output").inner_text() == "1 of 9 runs"
    visit.page.get_by_label("Filter runs").fill("")
    assert len(column(visit, "table", 1)) == 9
    visit.assert_silent(machine.site)


def test_from_the_index_to_the_raw_requests_of_a_cell_and_to_an_output(
    visit: Visit, machine: Machine
) -> None:
    visit.open(machine.site / "index.html")

    visit.page.get_by_role("link", name="20261101-020000-synthetic").click()
    cells = visit.page.get_by_role("table", name="Each cell leads to")
    cells.get_by_role("link", name="DFlash2").first.click()
    requests = visit.page.get_by_role("table", name="Raw requests")
    assert requests.locator("tbody tr").count() == 10
    requests.get_by_role("link").first.click()

    assert visit.page.get_by_label("output 1", exact=True).is_visible()
    assert "the answer to code-1" in visit.page.get_by_label("output 1", exact=True).inner_text()
    visit.assert_silent(machine.site)


def test_a_step_of_the_trend_leads_to_the_night_it_began_in(visit: Visit, machine: Machine) -> None:
    visit.open(machine.site / "index.html")

    visit.page.get_by_role("link", name="synthetic", exact=True).click()
    chart = visit.page.locator(".chart", has_text="generate, decode rate").filter(has_text="since")
    chart.locator(".steps a").click()

    assert visit.page.locator("h2", has_text="Against baseline main").is_visible()
    assert "the step got slower" in visit.page.locator("main").inner_text()
    visit.assert_silent(machine.site)


# --- without a mouse, without a script, without light, on a phone ---------------------------------


def test_a_chart_tells_its_nights_to_the_keyboard(visit: Visit, machine: Machine) -> None:
    visit.open(machine.site / "trends" / "synthetic.html")
    chart = visit.page.locator(".chart").first
    picture = chart.get_by_role("img")

    picture.focus()
    picture.press("Home")
    assert "20261101-020000-synthetic" in chart.locator(".readout").inner_text()
    picture.press("ArrowRight")
    assert "20261102-020000-synthetic" in chart.locator(".readout").inner_text()
    picture.press("Enter")
    visit.page.wait_for_url("**/runs/20261102-020000-synthetic/index.html")
    visit.assert_silent(machine.site)


def test_a_chart_is_a_table_for_who_cannot_see_it(visit: Visit, machine: Machine) -> None:
    visit.open(machine.site / "trends" / "synthetic.html")
    chart = visit.page.locator(".chart").first

    assert "over 9 nights" in str(chart.get_by_role("img").get_attribute("aria-label"))
    chart.locator("summary").click()
    assert chart.locator("table tbody tr").count() == 9
    visit.assert_silent(machine.site)


def test_headers_sort_by_the_keyboard_alone(visit: Visit, machine: Machine) -> None:
    visit.open(machine.site / "index.html")
    visit.page.get_by_role("button", name="run", exact=True).focus()
    visit.page.keyboard.press("Enter")

    assert column(visit, "table", 1)[0].startswith("20261101")
    visit.page.keyboard.press("Home")
    visit.assert_silent(machine.site)


def test_the_first_tab_leads_past_the_header(visit: Visit, machine: Machine) -> None:
    visit.open(machine.site / "index.html")
    visit.page.keyboard.press("Tab")

    assert visit.page.evaluate("document.activeElement.textContent") == "Skip to the content"


@pytest.mark.parametrize(
    "page", ["index.html", "trends/synthetic.html", "runs/20261101-*/index.html"]
)
def test_a_phone_scrolls_tables_and_not_the_page(visit: Visit, machine: Machine, page: str) -> None:
    visit.page.set_viewport_size({"width": 360, "height": 740})
    (path,) = machine.site.glob(page)
    visit.open(path)

    assert visit.page.evaluate("document.documentElement.scrollWidth") <= 360
    visit.assert_silent(machine.site)


def test_light_and_dark_follow_the_reader(visit: Visit, machine: Machine) -> None:
    visit.open(machine.site / "index.html")
    background = "getComputedStyle(document.body).backgroundColor"

    visit.page.emulate_media(color_scheme="light")
    assert visit.page.evaluate(background) == "rgb(255, 255, 255)"
    visit.page.emulate_media(color_scheme="dark")
    assert visit.page.evaluate(background) == "rgb(16, 20, 25)"


def test_without_a_script_everything_can_be_read(browser: object, machine: Machine) -> None:
    context = browser.new_context(java_script_enabled=False)
    page = context.new_page()
    page.goto((machine.site / "index.html").as_uri())

    assert page.locator("table tbody tr").count() == 9
    page.get_by_role("link", name="20261101-020000-synthetic").click()
    assert page.locator("h1").inner_text() == "synthetic"
    context.close()


# --- hostile texts --------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def hostile(tmp_path_factory: pytest.TempPathFactory) -> Machine:
    made = Machine(tmp_path_factory.mktemp("hostile"))
    for number in (1, 2):
        poison(made.night(number))
        (made.path / "reports" / f"2026110{number}-020000-synthetic" / "night.json").unlink()
    for run in sorted(made.results.glob("2026*")):
        made.reports.joinpath(run.name, "night.json").write_bytes(_night_of(run))
    made.publish()
    return made


def _night_of(run: Path) -> bytes:
    from harness.compare.baselines import encoded
    from harness.compare.commands import read_night

    return encoded(read_night(run))


@pytest.mark.filterwarnings(NO_ROOM_FOR_NAMES)
def test_hostile_names_prompts_and_outputs_execute_nothing(visit: Visit, hostile: Machine) -> None:
    """On each page every fold is unfolded and every header clicked; nothing runs or leaves."""
    paths = sorted(hostile.site.rglob("*.html"))
    assert len(paths) == 1 + 1 + 2 * 3
    for path in paths:
        visit.open(path)
        visit.page.evaluate(
            "for (const fold of document.querySelectorAll('details')) fold.open = true"
        )
        visit.page.evaluate(
            "for (const sort of document.querySelectorAll('th button')) sort.click()"
        )
        assert visit.page.evaluate("window.ran") is None, path
        assert visit.page.locator("img[onerror], svg[onload], iframe").count() == 0
        assert "onerror" in visit.page.locator("main").inner_text(), path
    visit.assert_silent(hostile.site)
