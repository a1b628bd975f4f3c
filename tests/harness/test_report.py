"""The page, its tables and pictures, and what a program reads from a report."""

import csv
import json
import re
from dataclasses import replace
from pathlib import Path

import pytest

from harness.analysis.summary import Summary, summarise
from harness.errors import ResultsError
from harness.records import MetricRow, Request
from harness.report import export, page, plots, tables
from harness.report import format as fmt
from harness.report.build import write_report
from harness.report.plots import style
from harness.report.tables import Entry, Table

from . import synthetic
from .cases.from_records import at_rate
from .cases.from_records import prompts as cases_prompts

STRANGE = "MTP | k=3 <b> $$x_1$ `q`"


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Summary:
    asked = synthetic.matrix(levels=(1, 8))
    return summarise(synthetic.write_run(tmp_path_factory.mktemp("results"), asked))


@pytest.fixture(scope="module")
def strange(tmp_path_factory: pytest.TempPathFactory) -> Summary:
    """A drafter with an awkward name, void because its outputs loop."""

    def loop(request: Request) -> Request:
        is_drafted = not str(request.where.cell_id).startswith("plain")
        return replace(request, distinct_4gram_share=0.1) if is_drafted else request

    folder = synthetic.write_run(
        tmp_path_factory.mktemp("results"),
        synthetic.matrix(levels=(), drafters=(STRANGE,)),
        behaviours={STRANGE: synthetic.DFLASH2},
        edit=loop,
    )
    return summarise(folder)


@pytest.fixture(scope="module")
def built(run: Summary, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_report(run, tmp_path_factory.mktemp("reports"))


# --- numbers and names ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0.0004, "0.0004000"),
        (37.58, "37.58"),
        (243.584, "243.6"),
        (1234567.891, "1234568"),
        (99.996, "100.0"),
        (9.9999, "10.00"),
        (0.0, "0"),
        (-1.5, "-1.500"),
    ],
)
def test_numbers_have_four_digits_and_neither_exponent_nor_separator(
    value: float, text: str
) -> None:
    assert fmt.number(value) == text


def test_shares_are_percent_and_only_none_and_all_are_whole() -> None:
    assert [fmt.percent(share) for share in (0.0, 0.46, 0.9957, 1.0)] == [
        "0 %",
        "46.0 %",
        "99.6 %",
        "100 %",
    ]


def test_long_times_are_told_in_hours() -> None:
    assert [fmt.duration(seconds) for seconds in (45, 700, 12000)] == [
        "45 s",
        "12 min",
        "3 h 20 min",
    ]


def test_a_name_is_itself_in_markdown() -> None:
    assert fmt.escape("org/a|b") == r"org/a\|b"
    assert fmt.escape("Qwen<3>-a & b") == "Qwen&lt;3&gt;-a &amp; b"
    assert fmt.escape("two\nlines") == "two lines"
    assert fmt.escape("_kv_len_ $x$ `y`") == r"\_kv_len\_ \$x\$ \`y\`"


def test_code_may_hold_backticks_and_pipes() -> None:
    assert fmt.code("a") == "`a`"
    assert fmt.code("a`b|c") == r"`` a`b\|c ``"


def test_a_sentence_keeps_its_code_unless_a_name_brings_a_backtick() -> None:
    assert fmt.prose("Set `length: forced` for a|b.") == r"Set `length: forced` for a\|b."
    assert fmt.prose("'a`b' differs") == r"'a\`b' differs"
    assert fmt.prose("its log:\n  | no") == r"its log: \| no"


# --- tables ---------------------------------------------------------------------------------------


def unescaped_pipes(line: str) -> int:
    return len(re.findall(r"(?<!\\)\|", line))


def test_every_row_of_every_table_has_the_same_number_of_cells(strange: Summary) -> None:
    for make in tables.TABLES.values():
        for table in make(strange):
            lines = [ln for ln in page.markdown_table(table).splitlines() if ln.startswith("|")]
            assert {unescaped_pipes(line) for line in lines} == {len(table.columns) + 1}


def test_a_gap_is_marked_with_a_letter_and_the_reason_stands_below() -> None:
    gap = Entry(text="n/a", value=None, reason="no round count")
    table = Table(
        name="t",
        title="T",
        columns=("variant", "rate"),
        rows=((tables.label("plain"), gap),),
        notes=("A note.",),
    )

    assert page.markdown_table(table).splitlines() == [
        "| variant | rate |",
        "| :-- | --: |",
        "| plain | n/a <sup>a</sup> |",
        "",
        "n/a: <sup>a</sup> no round count.",
        "",
        "> A note.",
    ]


def test_an_invalid_figure_is_marked_and_its_verdict_stands_under_the_table(
    strange: Summary,
) -> None:
    (table,) = tables.TABLES["single_stream"](strange)

    assert [entry.mark for entry in table.rows[1][1:]] == ["✗"] * 6
    assert table.notes[0].startswith(f"✗ loops ({STRANGE}): 30 of 30 outputs repeat themselves")


def test_csv_holds_raw_values_and_leaves_gaps_empty(run: Summary, tmp_path: Path) -> None:
    export.write_tables(run, tmp_path)
    with (tmp_path / "figures.csv").open(encoding="utf-8") as file:
        rows = {
            (row["variant"], row["workload"], row["kind"], row["concurrency"], row["metric"]): row
            for row in csv.DictReader(file)
        }
    rate = rows[("plain", "generate", "all", "1", "decode_rate")]
    speedup = rows[("plain", "generate", "all", "1", "speedup")]

    assert float(rate["value"]) == pytest.approx(
        next(row.estimate.value for row in run.rows if row.metric == "decode_rate")
    )
    assert speedup["value"] == ""
    assert (tmp_path / "requests.csv").read_text(encoding="utf-8").count("\n") == 1 + sum(
        len(view.requests) for view in run.data.views
    )


# --- JSON -----------------------------------------------------------------------------------------


def test_show_json_has_exactly_the_promised_keys(run: Summary) -> None:
    for line in export.json_lines(run):
        assert list(json.loads(line)) == [
            "variant",
            "workload",
            "kind",
            "concurrency",
            "metric",
            "value",
            "low",
            "high",
            "unit",
            "n",
            "verdicts",
        ]


def test_loops_and_ended_by_itself_are_there_per_kind(run: Summary) -> None:
    lines = [json.loads(line) for line in export.json_lines(run)]
    found = {
        (line["metric"], line["kind"])
        for line in lines
        if line["variant"] == "DFlash2" and line["workload"] == "generate"
    }

    for kind in ("all", *synthetic.KINDS):
        assert {("loops", kind), ("ended_by_itself", kind)} <= found


def test_nan_is_refused(run: Summary) -> None:
    row = replace(run.rows[0], estimate=replace(run.rows[0].estimate, value=float("nan")))

    with pytest.raises(ValueError, match="not JSON compliant"):
        list(export.json_lines(replace(run, rows=(row,))))


# --- the page and its pictures --------------------------------------------------------------------


def test_a_report_is_numbers_page_and_pictures(run: Summary, built: Path) -> None:

    text = built.read_text(encoding="utf-8")
    linked = re.findall(r"\]\((plots/[^)]+)\)", text)
    summary = json.loads((built.parent / "summary.json").read_text(encoding="utf-8"))

    assert built.parent.name == run.manifest.run_id
    assert len(linked) == len(plots.pictures(run)) == 11
    assert all((built.parent / path).stat().st_size > 10_000 for path in linked)
    assert all((built.parent / path).with_suffix(".svg").exists() for path in linked)
    assert summary["verdict"] == "ok"
    assert summary["headline"] in text
    assert "## How to reproduce" in text


def test_the_headline_is_computed_from_rows(run: Summary, strange: Summary) -> None:
    speedup = next(
        row
        for row in run.rows
        if row.metric == "speedup" and row.variant == "DFlash2" and row.kind == "all"
    )
    assert speedup.estimate.value is not None

    told = page.sentences.headline(run)

    assert told.startswith("DFlash2 decodes ")
    assert fmt.times(speedup.estimate.value) in told
    assert "There is no speed-up to report" in page.sentences.headline(strange)


def test_a_report_built_twice_is_the_same(run: Summary, built: Path, tmp_path: Path) -> None:
    first, second = built, write_report(run, tmp_path)

    for path in sorted(first.parent.rglob("*")):
        if path.is_file():
            twin = second.parent / path.relative_to(first.parent)
            assert path.read_bytes() == twin.read_bytes(), path.name


def test_awkward_names_are_drawn_and_written_literally(strange: Summary, tmp_path: Path) -> None:
    text = write_report(strange, tmp_path).read_text(encoding="utf-8")

    assert "<b>" not in text
    assert r"MTP \| k=3 &lt;b&gt; \$\$x_1\$ \`q\`" in text


def test_what_an_unmeasured_variant_lacks_is_told_briefly_and_for_every_kind(
    tmp_path: Path,
) -> None:
    run = summarise(
        synthetic.write_run(tmp_path, synthetic.matrix(levels=()), broken_variant="DFlash2")
    )

    (table,) = tables.TABLES["single_stream"](run)

    assert {entry.reason for entry in table.rows[1][1:]} == {
        "block b2: the server ended with code 1 before it was ready"
    }
    assert "pale" not in " ".join(plots.PLOTS["decode_rate_by_kind"](run)[0].notes)
    assert ".." not in page.sentences.headline(run)


def test_the_headline_names_no_best_kind_where_the_kinds_cannot_be_told_apart(
    run: Summary,
) -> None:
    def widened(row: MetricRow) -> MetricRow:
        return replace(row, estimate=replace(row.estimate, low=0.1, high=99.0))

    wide = replace(
        run, rows=tuple(widened(row) if row.metric == "speedup" else row for row in run.rows)
    )

    assert "It gains most on " in page.sentences.headline(run)
    assert "It gains most on " not in page.sentences.headline(wide)


def test_a_report_that_cannot_be_written_says_that_the_run_is_kept(
    run: Summary, tmp_path: Path
) -> None:
    (tmp_path / "taken").write_text("a file")

    with pytest.raises(ResultsError, match=r"taken.*the run is kept.*--reports DIR"):
        write_report(run, tmp_path / "taken")


def test_a_point_that_cannot_be_plotted_is_named_under_the_plot(tmp_path: Path) -> None:
    folder = synthetic.write_run(tmp_path, synthetic.matrix(levels=()), broken_variant="DFlash2")

    (bars,) = plots.PLOTS["decode_rate_by_kind"](summarise(folder))

    assert bars.notes[0].startswith("DFlash2, all kinds: block b2: the server ended with code 1")


def test_plain_decoding_is_grey_and_each_drafter_has_a_colour_of_its_own(
    tmp_path: Path,
) -> None:
    asked = synthetic.matrix(levels=(), drafters=("A", "B"), boots=2)
    behaviours = {"A": synthetic.DFLASH2, "B": synthetic.DFLASH2}

    looks = style.looks(summarise(synthetic.write_run(tmp_path, asked, behaviours=behaviours)))

    assert looks["plain"].colour == style.PLAIN_COLOURS[0]
    assert len({look.colour for look in looks.values()}) == 3


def test_an_engine_that_serves_one_at_a_time_is_named(tmp_path: Path) -> None:
    asked = synthetic.matrix(levels=(1, 2))
    run = summarise(synthetic.write_run(tmp_path, asked, one_at_a_time=True))

    (sentence,) = page.sentences.one_at_a_time(run)

    assert sentence.startswith("Engine dflash2 serves one request at a time")


@pytest.mark.parametrize(
    ("wanted", "heights"),
    [
        ([], []),
        ([1.0, 5.0], [1.0, 5.0]),
        ([3.0, 3.0], [2.0, 4.0]),
        ([1.0, 2.0, 9.0], [0.5, 2.5, 9.0]),
        # 4 and 4 would become 3 and 5, which touches 2: a stack of three around 10 / 3
        ([2.0, 4.0, 4.0], [10 / 3 - 2, 10 / 3, 10 / 3 + 2]),
    ],
)
def test_labels_that_would_touch_are_stacked_around_where_they_belong(
    wanted: list[float], heights: list[float]
) -> None:
    assert style.spread(wanted, 2.0) == pytest.approx(heights)


# --- goals ----------------------------------------------------------------------------------------


def test_goals_stand_beside_what_each_variant_reached(tmp_path: Path) -> None:
    """Higher is better of a rate, lower of a time; the ratio is the figure over the goal."""
    asked = synthetic.matrix(boots=2, levels=(1,), prompts=cases_prompts(A="A"))
    asked = replace(asked, goals={"decode_rate": 20.0, "ttft_p50": 0.05, "no_such_figure": 1.0})
    rates = {"plain": 10.0, "DFlash2": 40.0}

    def edit(request: Request) -> Request:
        variant = "plain" if str(request.where.cell_id).startswith("plain") else "DFlash2"
        return at_rate(request, rates[variant], ttft_s=0.1)

    behaviours = {"DFlash2": replace(synthetic.DFLASH2, acceptance={"A": 0.7})}
    summary = summarise(synthetic.write_run(tmp_path, asked, behaviours=behaviours, edit=edit))
    (table,) = tables.TABLES["goals_by_cell"](summary)
    rows = [tuple(entry.text for entry in row) for row in table.rows]

    assert (
        "decode_rate",
        "20.00",
        "plain",
        "generate",
        "1",
        "10.00",
        "50.0 %",
        "not reached",
    ) in rows
    assert (
        "decode_rate",
        "20.00",
        "DFlash2",
        "generate",
        "1",
        "40.00",
        "200.0 %",
        "reached",
    ) in rows
    of_times = [row for row in rows if row[:4] == ("ttft_p50", "0.05000", "plain", "generate")]
    assert [row[-2:] for row in of_times] == [("200.0 %", "not reached")]
    (short,) = tables.TABLES["goals"](summary)
    (unknown,) = [row for row in short.rows if row[0].text == "no_such_figure"]
    assert unknown[-1].reason == "no figure of this name; docs/figures.md has them all"
    page = write_report(summary, tmp_path / "reports").read_text(encoding="utf-8")
    assert "## Goals" in page


def test_a_run_without_goals_has_no_such_section(tmp_path: Path) -> None:
    folder = synthetic.write_run(tmp_path, synthetic.matrix(boots=1, levels=(), drafters=()))

    page = write_report(summarise(folder), tmp_path / "reports").read_text(encoding="utf-8")
    assert "## Goals" not in page
