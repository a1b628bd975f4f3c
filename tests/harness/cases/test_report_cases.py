"""REP cases: names, gaps, numbers and rows on their way into Markdown, JSON, CSV and pictures."""

import csv
import html
import json
import re
import xml.etree.ElementTree as ElementTree
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from matplotlib.figure import Figure
from matplotlib.text import Text

from harness import checks
from harness.analysis.metrics import METRICS
from harness.analysis.summary import Summary, summarise
from harness.errors import ResultsError
from harness.records import Request, Session
from harness.report import export, plots, tables
from harness.report import format as fmt
from harness.report.build import write_report
from harness.scripted_server import DONE
from harness.store import RunFolder
from tests.harness import synthetic
from tests.harness.cases.end_to_end import FIN, ROLE, C, Outcome, measure, us
from tests.harness.cases.from_records import at_rate, estimate, prompts, view_of, written

DRAFTERS = (
    "org/a|b",
    "Qwen<3>-a",
    "Qwen<4>-a",
    "<img src=x onerror=alert(1)>",
    "a & b",
    "cost$x_1$run",
    "model_name",
    "100%",
)
KINDS = {"p|1": "pipe|d", "p2": "<b>old", "p3": "$$", "p4": "two\nlines"}


@pytest.fixture(scope="module")
def awkward(tmp_path_factory: pytest.TempPathFactory) -> Summary:
    behaviours = {
        name: replace(synthetic.DFLASH2, acceptance=dict.fromkeys(KINDS.values(), 0.7))
        for name in DRAFTERS
    }
    asked = synthetic.matrix(levels=(1, 2), drafters=DRAFTERS, prompts=prompts(**KINDS))
    return summarise(
        synthetic.write_run(tmp_path_factory.mktemp("results"), asked, behaviours=behaviours)
    )


@pytest.fixture(scope="module")
def awkward_report(awkward: Summary, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_report(awkward, tmp_path_factory.mktemp("reports")).parent


def markdown_tables(text: str) -> Iterator[list[str]]:
    for block in re.split(r"\n(?!\|)", text):
        lines = [line for line in block.splitlines() if line.startswith("|")]
        if lines:
            yield lines


def cells_of(line: str) -> list[str]:
    return [cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]]


def as_read(cell: str) -> str:
    """What a renderer shows of a table cell that holds a name."""
    return html.unescape(re.sub(r"\\([\\`*\[\]|$~#_])", r"\1", cell))


def strict_json(text: str) -> Any:
    def refuse(word: str) -> None:
        raise AssertionError(f"{word} is no JSON")

    return json.loads(text, parse_constant=refuse)


# --- names ----------------------------------------------------------------------------------------


def test_b107_every_row_of_every_table_has_as_many_cells_as_its_head(awkward_report: Path) -> None:
    text = (awkward_report / "RESULTS.md").read_text(encoding="utf-8")
    found = list(markdown_tables(text))

    assert len(found) > 10
    for lines in found:
        assert len({len(cells_of(line)) for line in lines}) == 1, lines[0]
    assert r"| org/a\|b |" in text
    assert "| org/a|b |" not in text
    assert "two lines" in text


def test_b107_and_b109_names_come_out_of_a_page_as_they_went_in(awkward_report: Path) -> None:
    text = (awkward_report / "RESULTS.md").read_text(encoding="utf-8")
    rates = next(lines for lines in markdown_tables(text) if "all kinds" in lines[0])

    assert [as_read(cells_of(line)[0]) for line in rates[2:]] == ["plain", *DRAFTERS]
    shown = [" ".join(kind.split()) for kind in KINDS.values()]
    assert [as_read(cell) for cell in cells_of(rates[0])[2:]] == shown


def test_b109_no_name_becomes_a_tag(awkward_report: Path) -> None:
    text = (awkward_report / "RESULTS.md").read_text(encoding="utf-8")

    ours = {"details", "summary", "sup"}
    assert set(re.findall(r"</?(\w+)", text)) <= ours
    assert "Qwen&lt;3&gt;-a" in text
    assert "Qwen&lt;4&gt;-a" in text
    assert "&lt;img src=x onerror=alert(1)&gt;" in text
    assert "a &amp; b" in text


def test_b107_and_b109_programs_get_the_names_themselves(awkward_report: Path) -> None:
    summary = strict_json((awkward_report / "summary.json").read_text(encoding="utf-8"))
    assert list(dict.fromkeys(row["variant"] for row in summary["rows"])) == ["plain", *DRAFTERS]

    for path in sorted((awkward_report / "tables").glob("*.csv")):
        with path.open(encoding="utf-8", newline="") as file:
            rows = list(csv.reader(file))
        assert len({len(row) for row in rows}) == 1, path.name
    with (awkward_report / "tables" / "requests.csv").open(encoding="utf-8", newline="") as file:
        requests = list(csv.DictReader(file))
    assert {row["kind"] for row in requests} == set(KINDS.values())
    assert {row["variant"] for row in requests} == {"plain", *DRAFTERS}


def test_b107_to_b114_names_go_through_a_whole_run(tmp_path: Path) -> None:
    names = ["a|b <i>", "$$ cost$x_1$run"]
    answer = [(0.02, ROLE + C("a ")), (0.1, C("b ") + FIN("stop", usage=us(3, 70)) + DONE)]
    found: Outcome = measure(
        tmp_path,
        {"p|1": answer, "p$$2": answer},
        variants=[f'{{name: "{name}", engine: scripted, target: model}}' for name in names],
        kinds={"p|1": "<code>", "p$$2": "pr|ose"},
    )

    for lines in found.tables():
        assert len({len(cells_of(line)) for line in lines}) == 1
    assert r"| a\|b &lt;i&gt; |" in found.page
    assert r"| \$\$ cost\$x_1\$run |" in found.page
    assert "<code>" not in found.page
    assert {row["variant"] for row in found.summary["rows"]} == set(names)
    assert {row["kind"] for row in found.summary["rows"]} == {"all", "<code>", "pr|ose"}
    assert "pr|ose" in found.csv("figures")
    assert (found.report / "plots" / "generate_by_kind.png").stat().st_size > 10_000


# --- pictures -------------------------------------------------------------------------------------


def texts_of(summary: Summary, folder: Path) -> list[Text]:
    """Every text of every picture, after it was saved as a report saves it."""
    drawn: list[Figure] = []

    def kept(picture: plots.Picture) -> plots.Picture:
        def draw() -> Figure:
            drawn.append(picture.draw())
            return drawn[-1]

        return replace(picture, draw=draw)

    for picture in plots.pictures(summary):
        plots.save(kept(picture), folder)
    return [text for figure in drawn for text in figure.findobj(Text)]


def test_b114_dollars_are_drawn_and_not_set_as_mathematics(
    awkward: Summary, tmp_path: Path
) -> None:
    texts = texts_of(awkward, tmp_path)
    said = {text.get_text() for text in texts}

    assert {"$$", "cost$x_1$run", "model_name", "100%"} <= said
    assert not any(text.get_parse_math() for text in texts if "$" in text.get_text())


def test_b109_pictures_are_well_formed_and_hold_no_script(awkward_report: Path) -> None:
    pictures = sorted((awkward_report / "plots").glob("*.svg"))

    assert len(pictures) == 10 + len(DRAFTERS)  # ten of all drafters, one of each one's positions
    for path in pictures:
        names = {element.tag.rpartition("}")[2] for element in ElementTree.parse(path).iter()}
        assert "script" not in names
        assert "img" not in names
        assert path.with_suffix(".png").read_bytes().startswith(b"\x89PNG")


def test_b114_a_picture_that_fails_costs_neither_page_nor_numbers(
    awkward: Summary, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise ValueError("Expected end of text, found '$'")

    monkeypatch.setattr(plots, "save", fail)
    with pytest.raises(ValueError, match="Expected end of text"):
        write_report(awkward, tmp_path)

    report = tmp_path / awkward.manifest.run_id
    assert "## Verdicts" in (report / "RESULTS.md").read_text(encoding="utf-8")
    assert strict_json((report / "summary.json").read_text(encoding="utf-8"))["rows"]


# --- numbers --------------------------------------------------------------------------------------


@pytest.mark.parametrize("value", [float("nan"), float("inf"), np.float64("nan")])
def test_b111_no_file_takes_a_number_that_json_does_not_know(
    awkward: Summary, tmp_path: Path, value: float
) -> None:
    first = awkward.rows[0]
    spoiled = replace(
        awkward, rows=(replace(first, estimate=replace(first.estimate, value=value)),)
    )
    with pytest.raises(ValueError, match="not JSON compliant"):
        export.write_summary(spoiled, tmp_path / "summary.json")
    with pytest.raises(ValueError, match="not JSON compliant"):
        list(export.json_lines(spoiled))
    assert not (tmp_path / "summary.json").exists()


@pytest.mark.parametrize("word", ["NaN", "Infinity", "-Infinity"])
def test_b111_a_record_that_holds_nan_is_refused_with_its_line(tmp_path: Path, word: str) -> None:
    folder = synthetic.write_run(tmp_path, synthetic.matrix(levels=(), drafters=(), boots=1))
    path = folder.path / "sessions.jsonl"
    text = path.read_text(encoding="utf-8")
    path.write_text(text.replace('"client_lateness_s":0.0001', f'"client_lateness_s":{word}'))

    with pytest.raises(ResultsError, match=r"sessions\.jsonl:1: .*restore it"):
        RunFolder.open(folder.path).read(Session)


def test_b111_a_gap_is_null_beside_its_reason(awkward_report: Path) -> None:
    summary = strict_json((awkward_report / "summary.json").read_text(encoding="utf-8"))
    gaps = [row for row in summary["rows"] if row["value"] is None]

    assert gaps
    assert all(row["reason"] for row in gaps)


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (256000000.0, "256000000"),
        (37.58, "37.58"),
        (0.0004, "0.0004000"),
        (1234567.891, "1234568"),
        (1e-06, "0.000001000"),
    ],
)
def test_b112_numbers_have_neither_exponent_nor_separator(value: float, text: str) -> None:
    assert fmt.rate(value) == text
    assert float(text) == pytest.approx(value, rel=5e-4)


def drafted_with(view: Any, **after: int) -> Any:
    """All counters from 0 to `after`, in the first scope alone."""
    first = view.snapshots[0].where
    zero = dict.fromkeys(after, 0)

    def edit(snapshot: Any) -> Any:
        new = after if snapshot.moment == "after" else zero
        return replace(snapshot, counters=replace(snapshot.counters, **new))

    return replace(view, snapshots=tuple(edit(s) for s in view.snapshots if s.where == first))


def test_b112_an_acceptance_that_cannot_be_is_no_figure(tmp_path: Path) -> None:
    """accepted / drafted of 1.2 and of 1.0000001, a length of 8.5 with k = 7. Wrong: shown."""
    folder = synthetic.write_run(tmp_path, synthetic.matrix(levels=(), boots=1))
    view = view_of(summarise(folder), "DFlash2")
    over = drafted_with(view, drafts=100, draft_tokens=300, accepted_tokens=360)
    barely = drafted_with(
        view, drafts=10_000_000, draft_tokens=10_000_000, accepted_tokens=10_000_001
    )
    deep = drafted_with(view, drafts=100, draft_tokens=1000, accepted_tokens=750)
    possible = drafted_with(view, drafts=100, draft_tokens=700, accepted_tokens=700)

    def told(metric: str, seen: Any) -> tuple[float | None, str | None]:
        found = METRICS[metric].compute(seen)
        return found.value, found.reason

    assert told("acceptance_rate", over) == (None, "impossible: 1.2, where 1 is the most")
    assert told("acceptance_rate", barely) == (None, "impossible: 1, where 1 is the most")
    assert told("acceptance_length", deep) == (None, "impossible: 8.5, where 8 is the most")
    assert told("fraction_of_ceiling", deep)[0] is None
    assert told("acceptance_rate", possible) == (1.0, None)
    assert told("acceptance_length", possible) == (8.0, None)


RATES = (256_000_000.0, 37.58, 0.0004, 1_234_567.891)


def test_b112_a_rate_above_the_ceiling_is_null_and_flagged_and_the_others_stay(
    tmp_path: Path,
) -> None:
    """Wrong: 2.56e+08 in the headline table."""
    names = dict(zip("ABCD", RATES, strict=True))

    def edit(request: Request) -> Request:
        rate = names.get(request.prompt_id)
        # as many tokens as make a stream of 10 s; 0.0004 tok/s take their time
        return request if rate is None else at_rate(request, rate, tokens=max(2, round(rate * 10)))

    asked = replace(
        synthetic.matrix(
            boots=1, levels=(), drafters=(), prompts=prompts(A="A", B="B", C="C", D="D")
        ),
        rate_ceiling_tok_per_s=100_000.0,
    )
    summary = summarise(synthetic.write_run(tmp_path, asked, edit=edit))
    text, told = written(summary, tmp_path / "reports")

    for kind in "AD":
        for metric in ("decode_rate", "decode_rate_strict", "tpot"):
            found = estimate(summary, metric, kind)
            assert (found.value, found.reason) == (None, "impossible: a stream above 100000 tok/s")
    assert estimate(summary, "decode_rate").value is None
    assert estimate(summary, "decode_rate", "B").value == pytest.approx(37.58, rel=1e-3)
    assert estimate(summary, "decode_rate", "C").value == pytest.approx(0.0004)
    (verdict,) = [v for v in summary.verdicts if v.check == "impossible_rate"]
    assert verdict.level == "invalid"
    assert told["verdict"] == "invalid"
    (rates,) = [lines for lines in markdown_tables(text) if "all kinds" in lines[0]][:1]
    assert [cell.split()[0] for cell in cells_of(rates[2])[1:]] == [
        "n/a",
        "n/a",
        "37.58",
        "0.0004000",
        "n/a",
    ]


def test_b112_the_ceiling_is_the_matrixs_and_an_aggregate_has_one_too(tmp_path: Path) -> None:
    """Four streams of ten tokens per second: 10 each, 40 together."""
    used = prompts(A="A", B="B", C="C", D="D")
    asked = synthetic.matrix(boots=1, levels=(4,), drafters=(), prompts=used)
    closed = replace(asked.workloads[2], repetitions=1, num_requests=4)
    view = view_of(summarise(synthetic.write_run(tmp_path, replace(asked, workloads=(closed,)))))
    seen = replace(
        view,
        requests=tuple(at_rate(each, 10.0, tokens=100, ttft_s=0.0) for each in view.requests),
        ends=tuple(replace(end, window_s=10.0) for end in view.ends),
    )

    def under(ceiling: float | None) -> list[float | None]:
        judged = replace(seen, cell=replace(seen.cell, rate_ceiling_tok_per_s=ceiling))
        names = ("decode_rate", "aggregate_throughput")
        return [METRICS[name].compute(judged).value for name in names]

    assert under(None) == under(10.5) == pytest.approx([10.0, 40.0])
    assert under(9.0) == [None, None]


def test_b112_a_ceiling_goes_through_a_whole_run(tmp_path: Path) -> None:
    """70 tokens in 0.1 s are 700 tok/s, where the matrix believes 300."""
    end = FIN("stop", usage=us(3, 70)) + DONE
    outcome = measure(
        tmp_path,
        {"fast": [(0.02, ROLE + C("a ")), (0.12, C("b ") + end)]},
        more="client: {rate_ceiling_tok_per_s: 300}",
    )

    row = outcome.row("decode_rate", kind="fast")
    assert (row["value"], row["reason"]) == (None, "impossible: a stream above 300 tok/s")
    assert outcome.verdicts("impossible_rate", level="invalid")
    assert outcome.exit_code == 3


def test_b112_a_matrix_that_names_no_ceiling_believes_100000(tmp_path: Path) -> None:
    outcome = measure(tmp_path, {"p": [(0.02, C("a ")), (0.1, C("b ") + FIN("stop") + DONE)]})
    (cell,) = outcome.folder.manifest.plan.cells

    assert cell.rate_ceiling_tok_per_s == 100_000


def test_b112_more_accepted_than_drafted_is_void(tmp_path: Path) -> None:
    """accepted / drafted of 1.2, with a k that leaves room for it."""
    folder = synthetic.write_run(tmp_path, synthetic.matrix(levels=(), boots=1))
    view = view_of(summarise(folder), "DFlash2")
    over = drafted_with(view, drafts=100, draft_tokens=300, accepted_tokens=360)
    even = drafted_with(view, drafts=100, draft_tokens=360, accepted_tokens=360)

    assert checks.speculation.al_within_k_plus_1(over).level == "invalid"
    assert "360 of 300 drafted tokens" in checks.speculation.al_within_k_plus_1(over).message
    assert checks.speculation.al_within_k_plus_1(even).level == "ok"


# --- rows -----------------------------------------------------------------------------------------


def test_b113_levels_stand_by_number_and_the_reference_is_found_by_its_key(tmp_path: Path) -> None:
    """Five levels up to 16, and a plain variant that the matrix lists last."""
    asked = synthetic.matrix(boots=1, levels=(1, 2, 4, 8, 16), drafters=("k=7",))
    plain, drafted = asked.variants
    folder = synthetic.write_run(
        tmp_path,
        replace(asked, variants=(drafted, plain)),
        behaviours={"k=7": synthetic.DFLASH2},
    )
    summary = summarise(folder)
    grids = [
        table
        for table in tables.TABLES["concurrency"](summary)
        if table.name.endswith("throughput")
    ]
    (curves,) = plots.PLOTS["throughput_by_concurrency"](summary)
    axes = curves.draw().axes

    assert grids[0].columns == ("variant", "c = 1", "c = 2", "c = 4", "c = 8", "c = 16")
    assert [row[0].text for row in grids[0].rows] == ["k=7", "plain"]  # as the matrix has them
    for line in [line for panel in axes for line in panel.lines]:
        assert list(line.get_xdata()) == sorted(line.get_xdata())
    speedup = estimate_of(summary, "speedup", "k=7")
    assert speedup == pytest.approx(
        estimate_of(summary, "decode_rate", "k=7") / estimate_of(summary, "decode_rate", "plain")
    )


def estimate_of(summary: Summary, metric: str, variant: str) -> float:
    (value,) = [
        row.estimate.value
        for row in summary.rows
        if (row.metric, row.variant, row.kind, row.workload) == (metric, variant, "all", "generate")
    ]
    assert value is not None
    return value


def test_b115_the_row_without_speculation_is_there_and_speedups_are_over_it(tmp_path: Path) -> None:
    rates = {"plain": 7.94, "DFlash2": 34.68}

    def edit(request: Request) -> Request:
        variant = "plain" if str(request.where.cell_id).startswith("plain") else "DFlash2"
        return at_rate(request, rates[variant])

    asked = synthetic.matrix(boots=2, levels=(), prompts=prompts(A="A"))
    behaviours = {"DFlash2": replace(synthetic.DFLASH2, acceptance={"A": 0.7})}
    summary = summarise(synthetic.write_run(tmp_path, asked, behaviours=behaviours, edit=edit))
    text, told = written(summary, tmp_path / "reports")

    assert estimate(summary, "speedup", variant="DFlash2").value == pytest.approx(34.68 / 7.94)
    assert "| plain | 7.940 | 7.940 |" in text
    assert "4.37x" in text
    assert estimate(summary, "speedup").reason == "is the reference"
    frame = export.figures_frame(summary)
    assert set(frame["variant"]) == {"plain", "DFlash2"}
    for path in (tmp_path / "reports").rglob("*.csv"):
        assert not re.search(r"\b(nan|NaN)\b", path.read_text(encoding="utf-8")), path.name
    assert not re.search(r"\bnan\b", text)
    assert told["verdict"] == "ok"


def test_b112_a_stream_that_came_in_one_burst_has_no_rate(tmp_path: Path) -> None:
    """256 tokens in one write and the end 3 ms later: 85,000 tok/s to who divides."""
    burst = ROLE + b"".join(C(f"t{number} ") for number in range(8))
    end = FIN("stop", usage=us(3, 256)) + DONE
    found = measure(tmp_path, {"held back": [(0.2, burst), (0.203, end)]})

    (request,) = found.requests
    rate = found.row("decode_rate", kind="held back")
    strict = found.row("decode_rate_strict", kind="held back")
    assert "buffered_stream" in request.flags
    assert (request.status, request.output_tokens) == ("ok", 256)
    assert (rate["value"], strict["value"]) == (None, None)
    assert rate["reason"]
