"""A site from files: what is on it, what is made again, and what is never lost."""

import json
import re
import shutil
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote

import pytest

from harness import cli
from harness.compare.history import NIGHT_FILE
from harness.errors import ResultsError, UsageError
from tests.harness.publish.hostile import NO_ROOM_FOR_NAMES, PAYLOAD, poison
from tests.harness.publish.sites import Machine

NIGHTS = 3


@pytest.fixture(scope="module")
def machine(tmp_path_factory: pytest.TempPathFactory) -> Machine:
    made = Machine(tmp_path_factory.mktemp("machine"))
    for number in range(1, NIGHTS + 1):
        made.night(number)
    made.publish()
    return made


class Page(HTMLParser):
    """The addresses and elements of a page, and its text."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.text = ""
        self.feed(path.read_text(encoding="utf-8"))

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_data(self, data: str) -> None:
        self.text += data

    def addresses(self) -> list[str]:
        return [
            str(given[name])
            for tag, given in self.tags
            for name in ("href", "src")
            if given.get(name) is not None
        ]


def pages(site: Path) -> list[Path]:
    return sorted(site.rglob("*.html"))


# --- what is there --------------------------------------------------------------------------------


def test_every_link_leads_to_a_page_of_the_site(machine: Machine) -> None:
    assert len(pages(machine.site)) == 1 + 1 + NIGHTS * 3  # index, trend; a run has two cells
    for path in pages(machine.site):
        ids = {given["id"] for _, given in Page(path).tags if "id" in given}
        for address in Page(path).addresses():
            if address.startswith("data:image/svg+xml;base64,"):
                continue
            file, _, anchor = address.partition("#")
            assert not file or (path.parent / unquote(file)).is_file(), (path, address)
            assert file or anchor in ids, (path, address)


def test_nothing_on_a_page_stands_elsewhere(machine: Machine) -> None:
    """No style sheet, script, font or picture is fetched, and the policy would not let it be."""
    for path in pages(machine.site):
        page = Page(path)
        assert not [tag for tag, _ in page.tags if tag in ("link", "iframe", "object", "base")]
        assert not [given for tag, given in page.tags if tag == "script" and given]
        (policy,) = (given for _, given in page.tags if given.get("http-equiv"))
        assert str(policy["content"]).startswith("default-src 'none'; script-src 'sha256-")
        assert "unsafe" not in str(policy["content"])


def test_the_index_lists_every_run_with_its_verdict_and_the_gates_word(machine: Machine) -> None:
    page = Page(machine.site / "index.html")

    assert [f"202611{number:02}-020000-synthetic" in page.text for number in (1, 2, 3)] == [
        True
    ] * 3
    assert "within noise" in page.text


def test_a_run_shows_its_outputs_side_by_side(machine: Machine) -> None:
    page = Page(machine.site / "runs" / "20261101-020000-synthetic" / "index.html")

    assert page.text.count("the answer to code-1") == 2  # plain's and DFlash2's
    assert "identical to the reference" in page.text


def test_a_cell_lists_its_raw_requests_and_what_they_wrote(machine: Machine) -> None:
    (path,) = (machine.site / "runs" / "20261101-020000-synthetic").glob("2-dflash2*.html")
    page = Page(path)

    rows = [given for tag, given in page.tags if tag == "tr" and "id" in given]
    assert len(rows) == 10  # five prompts in two boots
    assert "of 2 requests" in page.text  # both boots wrote the same


def test_a_prompt_that_is_not_to_be_published_is_not(tmp_path: Path) -> None:
    machine = Machine(tmp_path)
    folder = machine.night(1)
    manifest = json.loads((folder.path / "manifest.json").read_text(encoding="utf-8"))
    manifest["unpublished"] = {"demo5": ["code-1"]}
    (folder.path / "manifest.json").write_text(json.dumps(manifest))
    machine.publish()

    run = machine.site / "runs" / folder.path.name
    texts = [Page(path).text for path in run.glob("*.html")]
    assert not any("the answer to code-1" in text for text in texts)
    assert any("the answer to prose-1" in text for text in texts)
    assert Page(run / "index.html").text.count("not published") == 2


# --- what is made again ---------------------------------------------------------------------------


def test_a_second_time_nothing_is_rendered_and_every_page_is_the_same(machine: Machine) -> None:
    before = {path: path.read_bytes() for path in pages(machine.site)}

    done = machine.publish()

    assert (done.rendered, len(done.kept)) == ((), NIGHTS)
    assert {path: path.read_bytes() for path in pages(machine.site)} == before


def test_a_run_that_went_on_is_rendered_again(tmp_path: Path) -> None:
    machine = Machine(tmp_path)
    folder = machine.night(1)
    machine.publish()
    text = (folder.path / "requests.jsonl").read_text(encoding="utf-8")
    (folder.path / "requests.jsonl").write_text(text.replace('"stop"', '"length"'))

    assert machine.publish().rendered == ("20261101-020000-synthetic",)
    (path, _) = sorted((machine.site / "runs" / folder.path.name).glob("*_generate_*.html"))
    assert "length" in Page(path).text


def test_pages_outlive_their_raw_data_and_their_report(tmp_path: Path) -> None:
    machine = Machine(tmp_path)
    folder = machine.night(1)
    machine.publish()
    before = {path: path.read_bytes() for path in pages(machine.site)}

    shutil.rmtree(folder.path)
    assert machine.publish(again=True).kept == (folder.path.name,)
    shutil.rmtree(machine.reports)
    assert machine.publish().kept == (folder.path.name,)

    assert {path: path.read_bytes() for path in pages(machine.site) if "runs" in path.parts} == {
        path: data for path, data in before.items() if "runs" in path.parts
    }


def test_a_night_without_raw_data_still_has_a_page(tmp_path: Path) -> None:
    machine = Machine(tmp_path)
    folder = machine.night(1)
    shutil.rmtree(folder.path)

    machine.publish()

    page = Page(machine.site / "runs" / folder.path.name / "index.html")
    assert "The raw data of this night were removed" in page.text
    assert "decode rate, tok/s" in page.text


def test_pages_that_were_cut_off_are_made_again(tmp_path: Path) -> None:
    machine = Machine(tmp_path)
    folder = machine.night(1)
    machine.publish()
    (machine.site / "runs" / folder.path.name / "run.json").write_text('{"format": 1, ')

    assert machine.publish().rendered == (folder.path.name,)


def test_a_file_that_is_no_comparison_is_named(tmp_path: Path) -> None:
    machine = Machine(tmp_path)
    machine.night(1)
    folder = machine.night(2)
    (machine.reports / folder.path.name / "comparison.json").write_text("{}")

    with pytest.raises(ResultsError, match=r"comparison\.json.*remove it"):
        machine.publish()


def test_a_torn_run_keeps_no_other_from_the_site(tmp_path: Path) -> None:
    machine = Machine(tmp_path)
    machine.night(1)
    torn = machine.night(2)
    machine.night(3)
    manifest = torn.path / "manifest.json"
    manifest.write_bytes(manifest.read_bytes()[:200])

    with pytest.raises(ResultsError, match=r"without 1 run that cannot be read.*20261102"):
        machine.publish()

    index = Page(machine.site / "index.html")
    assert {link for link in index.addresses() if link.startswith("runs/")} == {
        f"runs/202611{night}-020000-synthetic/index.html" for night in ("01", "03")
    }


def test_a_run_that_was_torn_after_it_was_published_keeps_its_pages_and_its_row(
    tmp_path: Path,
) -> None:
    machine = Machine(tmp_path)
    torn = machine.night(1)
    machine.publish()
    manifest = torn.path / "manifest.json"
    manifest.write_bytes(manifest.read_bytes()[:200])

    with pytest.raises(ResultsError, match="cannot be read"):
        machine.publish()

    assert f"runs/{torn.path.name}/index.html" in Page(machine.site / "index.html").addresses()


def test_a_page_that_somebody_else_wrote_is_not_replaced(tmp_path: Path) -> None:
    machine = Machine(tmp_path)
    machine.site.mkdir()
    (machine.site / "index.html").write_text("<h1>My holidays</h1>")

    with pytest.raises(UsageError, match="was not made by `dflashbench publish`"):
        machine.publish()

    assert [path.name for path in machine.site.iterdir()] == ["index.html"]
    assert (machine.site / "index.html").read_text() == "<h1>My holidays</h1>"


def test_a_site_in_a_file_is_refused(tmp_path: Path) -> None:
    machine = Machine(tmp_path)
    machine.site.write_text("precious")

    with pytest.raises(UsageError, match="is a file, and a site is a folder"):
        machine.publish()


def test_nothing_to_show_is_a_page_too(tmp_path: Path) -> None:
    machine = Machine(tmp_path)

    assert "There is no run yet" in Page(machine.publish().index).text


def test_publish_from_the_command_line(
    machine: Machine, capsys: pytest.CaptureFixture[str]
) -> None:
    code = cli.main(
        [
            *("publish", str(machine.site), "--results", str(machine.results)),
            *("--reports", str(machine.reports)),
        ]
    )

    assert code == 0
    assert capsys.readouterr().out == f"0 runs rendered, 3 kept\n{machine.site / 'index.html'}\n"


# --- texts of others ------------------------------------------------------------------------------


@pytest.mark.filterwarnings(NO_ROOM_FOR_NAMES)
def test_no_text_of_a_run_becomes_an_element_or_an_attribute(tmp_path: Path) -> None:
    """A name, prompt, message, flag and output each of which tries to be a page."""
    machine = Machine(tmp_path)
    poison(machine.night(1))
    for path in machine.reports.glob(f"*/{NIGHT_FILE}"):
        text = path.read_text(encoding="utf-8")
        path.write_text(text.replace('"DFlash2"', json.dumps(f"DFlash2{PAYLOAD}")))
    machine.publish()

    for path in pages(machine.site):
        page = Page(path)
        tags = {tag for tag, _ in page.tags}
        assert tags.isdisjoint({"iframe", "object"})
        assert [tag for tag, _ in page.tags].count("script") == 1
        assert not [given for _, given in page.tags for name in given if name.startswith("on")]
        assert not [a for a in page.addresses() if re.match(r"\s*(javascript|https?):", a)]
        assert "{{ 7 * 7 }}" in page.text or path.parent.name == "trends"
        assert "49" not in re.findall(r"href=.>(\d+)", page.text)
