"""What other tools read: each form as its tool documents it, with names out of a nightmare."""

import json
import re
from dataclasses import dataclass, replace
from pathlib import Path
from xml.etree import ElementTree

import msgspec
import pytest

from harness import cli
from harness.compare.compare import Comparison, compare
from harness.compare.night import Night
from harness.compare.rules import Rules
from harness.report.comparison import as_json, sentences
from harness.report.comparison.action_benchmark import action_benchmark_json
from harness.report.comparison.bencher import bencher_json
from harness.report.comparison.junit import junit_xml
from harness.report.comparison.markdown import comparison_page
from harness.report.comparison.table import change, loss
from tests.harness import synthetic
from tests.harness.compare import nights as made

STORED = [
    {"decode_rate": [100.0 + step, 100.0 - step], "ttft_p50": [0.1 + step / 1e4, 0.1]}
    for step in (0.1, 0.2, 0.3, 0.4, 0.5)
]
WORSE = {"decode_rate": [80.0, 80.2], "ttft_p50": [0.1, 0.1001]}


def a_comparison(name: str = "plain") -> Comparison:
    """A rate that fell by a fifth, a time that did not move, and a cell that is new."""
    plain, drafted = (replace(cell, variant=name) for cell in made.cells())
    stored = [
        made.night(number, made.subject(plain, figures), made.memory(name, [380e6, 380e6]))
        for number, figures in enumerate(STORED, start=1)
    ]
    run = made.night(
        30,
        made.subject(plain, WORSE),
        made.subject(drafted, WORSE, work="concurrency c=4"),
        made.memory(name, [380e6, 380e6]),
    )
    return compare(run, stored, baseline="main", rules=Rules())


def test_the_example_is_what_it_says() -> None:
    assert [(row.metric, row.word) for row in a_comparison().rows] == [
        ("decode_rate", "regressed"),
        ("ttft_p50", "within noise"),
        (None, "not comparable"),
        ("memory_peak", "within noise"),
    ]


def test_a_finding_says_what_fell_by_how_much_and_why() -> None:
    (told,) = sentences.findings(a_comparison())

    assert told.startswith("plain, generate, decode rate: 100.0 to 80.10 tok/s, -19.9 % (")
    assert told.endswith("): regressed. Cause: the step got slower.")


@pytest.mark.parametrize(
    ("share", "text"), [(0.0, "0.0 %"), (-0.0001, "0.0 %"), (0.0213, "+2.1 %"), (-0.149, "-14.9 %")]
)
def test_a_change_has_a_sign_unless_it_is_none(share: float, text: str) -> None:
    assert change(share) == text


@pytest.mark.parametrize(("share", "text"), [(0.037, "3.7 %"), (1.0, "100 %"), (6.55, "7.55x")])
def test_a_loss_of_many_times_is_a_factor(share: float, text: str) -> None:
    assert loss(share) == text


# --- JUnit ----------------------------------------------------------------------------------------


def test_junit_has_a_case_per_figure_and_counts_them() -> None:
    suites = ElementTree.fromstring(junit_xml(a_comparison()))
    (suite,) = suites

    assert (suites.tag, suite.tag) == ("testsuites", "testsuite")
    counts = {name: suite.get(name) for name in ("tests", "failures", "errors", "skipped")}
    assert counts == {"tests": "4", "failures": "1", "errors": "0", "skipped": "1"}
    failure = suite.find("testcase[@name='decode_rate']/failure")
    assert failure is not None
    assert "-19.9 %" in str(failure.get("message"))
    skipped = suite.find("testcase/skipped")
    assert skipped is not None
    assert skipped.get("message") == "not comparable: not in the baseline"


def test_junit_of_an_empty_comparison_is_an_error_and_no_green_suite() -> None:
    empty = compare(
        made.tonight([1.0, 1.0]),
        made.plain_nights([1.0, 1.0], metric="ttft_p50"),
        baseline="main",
        rules=Rules(),
    )
    (suite,) = ElementTree.fromstring(junit_xml(empty))

    assert (suite.get("errors"), suite.get("tests")) == ("1", "3")


def test_junit_holds_names_that_xml_cannot() -> None:
    text = junit_xml(a_comparison(name='a<b>&"c" \x00\x1b]]> \ud7ff'))

    (suite,) = ElementTree.fromstring(text)
    assert suite[0].get("classname") == 'a<b>&"c" \ufffd\ufffd]]> \ud7ff.generate'


JUNIT = """
<grammar xmlns="http://relaxng.org/ns/structure/1.0">
<start><element name="testsuites"><optional><attribute name="name"/></optional>
<zeroOrMore><ref name="suite"/></zeroOrMore></element></start>
<define name="suite"><element name="testsuite"><attribute name="name"/>
<attribute name="tests"><ref name="count"/></attribute>
<attribute name="failures"><ref name="count"/></attribute>
<attribute name="errors"><ref name="count"/></attribute>
<optional><attribute name="skipped"><ref name="count"/></attribute></optional>
<zeroOrMore><ref name="case"/></zeroOrMore></element></define>
<define name="case"><element name="testcase"><attribute name="classname"/><attribute name="name"/>
<optional><choice><ref name="failure"/><ref name="error"/><ref name="skipped"/></choice></optional>
</element></define>
<define name="failure"><element name="failure"><ref name="told"/></element></define>
<define name="error"><element name="error"><ref name="told"/></element></define>
<define name="skipped"><element name="skipped"><ref name="told"/></element></define>
<define name="told"><attribute name="message"/><text/></define>
<define name="count"><data type="nonNegativeInteger"
datatypeLibrary="http://www.w3.org/2001/XMLSchema-datatypes"/></define>
</grammar>
"""
"""The part of JUnit's form that Jenkins' schema (junit-10.xsd of its xunit plugin) allows and that
we use; what is written was also held against that schema itself.
"""


@pytest.mark.parametrize("name", ["plain", 'a<b>&"c" \x00]]>'], ids=["plain", "hostile"])
def test_junit_is_what_a_ci_server_can_read(name: str) -> None:
    etree = pytest.importorskip("lxml.etree", reason="lxml is not installed")
    schema = etree.RelaxNG(etree.fromstring(JUNIT))

    assert schema.validate(etree.fromstring(junit_xml(a_comparison(name=name)).encode())), (
        schema.error_log
    )


# --- Bencher, github-action-benchmark -------------------------------------------------------------


def test_bencher_has_measures_with_bounds_by_benchmark() -> None:
    told = json.loads(bencher_json(a_comparison()))

    assert list(told) == ["plain/generate", "plain/all cells"]
    rate = told["plain/generate"]["decode_rate"]
    assert set(rate) == {"value", "lower_value", "upper_value"}
    assert rate["lower_value"] < rate["value"] < rate["upper_value"]
    assert rate["value"] == pytest.approx((80.0 * 80.2) ** 0.5)


def test_github_action_benchmark_has_a_file_per_direction() -> None:
    bigger = json.loads(action_benchmark_json(a_comparison(), "higher"))
    smaller = json.loads(action_benchmark_json(a_comparison(), "lower"))

    assert [entry["name"] for entry in bigger] == ["plain, generate: decode rate"]
    assert [entry["unit"] for entry in bigger + smaller] == ["tok/s", "s", "byte"]
    for entry in bigger + smaller:
        assert set(entry) == {"name", "unit", "value", "range", "extra"}
        assert isinstance(entry["value"], float)
        assert isinstance(entry["range"], str)
    assert bigger[0]["extra"] == "regressed, -19.9 % to the baseline"


@dataclass(frozen=True)
class ActionEntry:
    """As that action's own parser demands it; one without an entry it calls an error."""

    name: str
    value: float
    unit: str
    range: str | None = None
    extra: str | None = None


@dataclass(frozen=True)
class BencherMetric:
    """As Bencher's metric format (v0) has it."""

    value: float
    lower_value: float | None = None
    upper_value: float | None = None


def test_what_is_written_is_what_the_other_sides_parsers_take() -> None:
    for direction in ("higher", "lower"):
        text = action_benchmark_json(a_comparison(), direction)
        assert msgspec.json.decode(text, type=list[ActionEntry])
    bencher = msgspec.json.decode(
        bencher_json(a_comparison()), type=dict[str, dict[str, BencherMetric]]
    )
    assert all(
        re.fullmatch(r"[a-z0-9_]+", measure) for told in bencher.values() for measure in told
    )


# --- Markdown and JSON ----------------------------------------------------------------------------


def test_markdown_begins_with_the_word_and_folds_the_table_away() -> None:
    page = comparison_page(a_comparison())

    assert page.startswith("### dflashbench: regressed: 1 of 3 figures, against main, 5 nights")
    assert page.index("* plain, generate, decode rate: 100.0 to 80.10") < page.index("<details>")
    assert "| plain | generate | decode rate, tok/s | 100.0 | 80.10 | -19.9 % |" in page
    assert "* plain, concurrency c=4: not in the baseline." in page


def test_a_hostile_name_stays_text_in_markdown() -> None:
    page = comparison_page(a_comparison(name="<img src=x onerror=alert(1)>|`*[x](y)"))

    assert "<img" not in page
    assert "\\|" in page


def test_json_tells_every_row_its_reason_and_its_causes() -> None:
    told = json.loads(as_json.comparison_json(a_comparison()))

    assert (told["word"], told["exit_code"]) == ("regressed", 1)
    first, _, third, _ = told["rows"]
    assert first["causes"][0]["part"] == "step"
    assert first["unit"] == "tok/s"
    assert third["reason"] == "not in the baseline"
    assert third["change"] is None
    assert told["rules"] == {"threshold": 0.02, "thresholds": {}}


# --- the command line -----------------------------------------------------------------------------


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("results")
    synthetic.write_run(folder, synthetic.matrix(boots=2, levels=(), drafters=()))
    return folder


def test_compare_writes_every_form_that_was_asked_for(
    results: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    summary = tmp_path / "summary.md"
    summary.write_text("what another step wrote\n")
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", str(summary))
    written = {
        "--markdown": tmp_path / "new folder" / "pull-request.md",
        "--junit": tmp_path / "gate.xml",
        "--bencher": tmp_path / "bencher.json",
        "--action-benchmark": tmp_path / "action",
    }
    arguments = [str(part) for item in written.items() for part in item]

    code = cli.main(
        ["compare", "latest", "latest", "--results", str(results), "--step-summary", *arguments]
    )

    assert code == 0
    page = written["--markdown"].read_text(encoding="utf-8")
    assert page.startswith("### dflashbench: within noise")
    assert summary.read_text(encoding="utf-8") == "what another step wrote\n" + page
    ElementTree.parse(written["--junit"])
    json.loads(written["--bencher"].read_text(encoding="utf-8"))
    assert sorted(path.name for path in written["--action-benchmark"].iterdir()) == [
        "bigger-is-better.json",
        "smaller-is-better.json",
    ]


def test_json_on_the_command_line_is_one_document(
    results: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["compare", "latest", "latest", "--json", "--results", str(results)]) == 0
    assert json.loads(capsys.readouterr().out)["word"] == "within noise"


def test_a_step_summary_outside_of_github_is_refused(
    results: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("GITHUB_STEP_SUMMARY", raising=False)
    arguments = ["compare", "latest", "latest", "--step-summary", "--results", str(results)]

    assert cli.main(arguments) == 4
    assert "$GITHUB_STEP_SUMMARY is not set" in capsys.readouterr().err


def test_a_file_that_cannot_be_written_is_named(
    results: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").write_text("")
    target = tmp_path / "file" / "gate.xml"
    arguments = ["compare", "latest", "latest", "--junit", str(target), "--results", str(results)]

    assert cli.main(arguments) == 3
    assert str(target) in capsys.readouterr().err


def test_nights_on_another_device_are_left_out_and_told() -> None:
    nights: list[Night] = list(made.plain_nights([100.0, 101.0], [50.0, 51.0]))
    nights[1] = replace(nights[1], device_key="e" * 12)
    found = compare(made.tonight([100.0, 101.0]), nights, baseline="main", rules=Rules())

    assert found.rows[0].num_nights == 1
    assert found.notes[0] == ("Measured on another device and left out: 20261102-020000-nightly.")
