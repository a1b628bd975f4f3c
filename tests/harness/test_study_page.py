"""The page in its published shape, and that each number hangs on its own cells."""

import csv
import json
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pandas as pd
import pytest

from harness.analysis import caveats, spread
from harness.analysis.metrics import COMPARISONS, METRICS
from harness.analysis.summary import Summary, summarise
from harness.cli import main
from harness.config.figures import GOALS
from harness.errors import UsageError
from harness.records import Drafter, Model, Request, Snapshot, Workload
from harness.report import format as fmt
from harness.report import parts, plots
from harness.report.build import write_report
from harness.report.page import results_page
from harness.report.tables import TABLES, Table

from . import synthetic
from .cases.from_records import prompts


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Summary:
    folder = tmp_path_factory.mktemp("results")
    return summarise(synthetic.write_run(folder, synthetic.matrix(levels=(1, 5), boots=2)))


def tables_of(summary: Summary) -> dict[str, Table]:
    return {table.name: table for make in TABLES.values() for table in make(summary)}


# --- links and explanations -----------------------------------------------------------------------


def test_every_link_of_the_page_leads_to_a_heading_of_the_cells_page(
    run: Summary, tmp_path: Path
) -> None:
    page = write_report(run, tmp_path)
    text = page.read_text(encoding="utf-8")
    addresses = dict(re.findall(r"^\[(\d+)\]: CELLS\.md#(.*)$", text, re.MULTILINE))
    links = {addresses[number] for number in re.findall(r"\]\[(\d+)\]", text)}
    cells = (page.parent / "CELLS.md").read_text(encoding="utf-8")

    assert links == {view.cell.cell_id for view in run.data.views}
    assert links == set(re.findall(r"^## (.*)$", cells, re.MULTILINE))


def test_the_cells_page_shows_the_arithmetic_of_a_figure(run: Summary, tmp_path: Path) -> None:
    cells = (write_report(run, tmp_path).parent / "CELLS.md").read_text(encoding="utf-8")
    (section, *_) = run.sections
    drafted = section.view("DFlash2", 1)
    assert drafted is not None
    delta = drafted.total.delta
    assert delta is not None
    assert delta.drafts
    assert delta.accepted_tokens is not None
    length = 1 + delta.accepted_tokens / delta.drafts

    assert f"1 + {delta.accepted_tokens}/{delta.drafts} = {length:.3f}" in cells
    assert "| mean of the medians |" in cells


def test_explain_tells_of_one_cell_and_takes_a_part_of_its_id(
    run: Summary, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    synthetic.write_run(tmp_path, synthetic.matrix(levels=(), boots=2))

    assert main(["explain", "latest", "dflash2-generate", "--results", str(tmp_path)]) == 0
    told = capsys.readouterr().out
    assert told.startswith("dflash2-generate-c1-")
    assert "acceptance length 1 + " in told
    assert main(["explain", "latest", "generate", "--results", str(tmp_path)]) == 4
    assert "a part of several cells" in capsys.readouterr().err


def test_one_part_of_the_page_can_be_pasted(run: Summary) -> None:
    text = parts.part(run, "single-stream")

    assert text.startswith("Run `20261129-120000-synthetic`")
    assert "**Decode rate, tok/s**" in text
    assert "CELLS.md" not in text
    assert "**Aggregate" not in text
    with pytest.raises(UsageError, match="nothing for prefill"):
        parts.part(run, "prefill")


def test_the_parts_that_can_be_asked_for_are_those_that_there_are() -> None:
    from harness.cli.report import PARTS

    assert tuple(parts.PARTS) == PARTS


def test_figures_and_requests_are_there_as_parquet_with_their_gaps(
    run: Summary, tmp_path: Path
) -> None:
    folder = write_report(run, tmp_path).parent / "tables"

    assert len(pd.read_parquet(folder / "figures.parquet")) == len(run.rows)
    requests = pd.read_parquet(folder / "requests.parquet")
    assert requests["connect_s"].isna().all()
    assert requests["output_tokens"].dtype == "Int64"


# --- goals ----------------------------------------------------------------------------------------


def test_goals_may_be_set_for_every_figure_and_no_other() -> None:
    assert (*METRICS, *COMPARISONS) == GOALS


# --- rows that need a word ------------------------------------------------------------------------


def test_rows_with_other_weights_are_marked_and_their_target_is_named(tmp_path: Path) -> None:
    asked = synthetic.matrix(levels=(), boots=2)
    other = Model(name="demo-4bit", path="models/4bit")
    plain, drafted = asked.variants
    third = replace(drafted, name="4-bit", target=other)
    summary = summarise(
        synthetic.write_run(
            tmp_path,
            replace(asked, variants=(plain, drafted, third)),
            behaviours={"DFlash2": synthetic.DFLASH2, "4-bit": synthetic.DFLASH2},
        )
    )
    table = tables_of(summary)["generate_decode_rate"]
    marks = {row[0].text: row[0].mark for row in table.rows}

    assert marks == {"plain": "", "DFlash2": "", "4-bit": fmt.OTHER_WEIGHTS_MARK}
    assert "(demo-dense): demo-4bit (4-bit)." in table.notes[0]
    rules = {caveat.rule for caveat in caveats.caveats(summary)}
    assert "no_reference" in rules


def test_drafters_of_unequal_depth_are_a_caveat_that_names_their_cells(tmp_path: Path) -> None:
    asked = synthetic.matrix(levels=(5,), boots=2, drafters=("DFlash2", "MTP"))
    plain, drafted, mtp = asked.variants
    mtp = replace(mtp, drafter=Drafter(method="mtp", k=3), flags={})
    summary = summarise(
        synthetic.write_run(
            tmp_path,
            replace(asked, variants=(plain, drafted, mtp)),
            behaviours={"DFlash2": synthetic.DFLASH2, "MTP": synthetic.DFLASH2},
        )
    )
    (found,) = [each for each in caveats.caveats(summary) if each.rule == "unequal_depth"]

    assert found.text.startswith(
        "Drafters of generate, concurrency, concurrency-closed draft to different depths "
        "(DFlash2 k = 7, MTP k = 3): "
    )
    assert len(found.cell_ids) == 6


def test_prefill_stands_by_length_and_never_among_decode_rates(tmp_path: Path) -> None:
    """And in the headline neither: a prefill is no decoding."""
    asked = synthetic.matrix(levels=(), boots=2, prompts=prompts(a="256", b="1024"))
    prefill = Workload(
        kind="prefill",
        prompts=asked.workloads[0].prompts,
        warmup=asked.workloads[0].warmup,
        repetitions=2,
        max_tokens=1,
    )

    def edit(request: Request) -> Request:
        """256 tokens in 0.1 s, 1024 in 0.5 s."""
        length = int(request.kind)
        ttft_s = 0.1 if length == 256 else 0.5
        return replace(
            request,
            output_tokens=1,
            prompt_tokens=length,
            ttfr_s=ttft_s,
            ttft_s=ttft_s,
            ttfa_s=ttft_s,
            t_last_s=ttft_s,
            wall_s=ttft_s + 0.001,
            finish_reason="length",
        )

    def uncounted(snapshot: Snapshot) -> Snapshot:
        return replace(snapshot, counters=None)

    folder = synthetic.write_run(
        tmp_path, replace(asked, workloads=(prefill,)), edit=edit, edit_snapshot=uncounted
    )
    summary = summarise(folder)
    tables = tables_of(summary)
    rows = tables["prefill_prefill_rate"].rows

    assert tables["prefill_prefill_rate"].columns == ("variant", "256", "1024")
    for row in rows:
        assert [entry.value for entry in row[1:]] == pytest.approx([2560, 2048])
    assert not [name for name in tables if "decode_rate" in name]
    assert {v.check for v in summary.verdicts if v.level == "invalid"} == set()
    page = results_page(summary, plots.pictures(summary))
    assert "## Prefill" in page
    assert "Nothing in this run compares a variant with a reference." in page


# --- spread and drift -----------------------------------------------------------------------------


def test_a_slow_boot_spreads_the_time_of_a_round_and_not_what_was_accepted(
    tmp_path: Path,
) -> None:
    """The model engine accepts the same tokens every time, and its boots are 3 % apart."""
    folder = synthetic.write_run(tmp_path, synthetic.matrix(levels=(), boots=4), boot_spread=0.03)
    (split,) = spread.splits(summarise(folder))

    assert split.across is not None
    assert split.within is not None
    assert split.across.tokens_per_round == pytest.approx(0, abs=1e-9)
    assert split.across.round_time == pytest.approx(split.across.rate, rel=0.01)
    assert split.across.round_time > 3 * split.within.round_time


def slowing_down(share: float) -> Callable[[Request], Request]:
    """By block: the last of four is slower by `share` than the first."""

    def edit(request: Request) -> Request:
        block = int(str(request.where.block_id).removeprefix("b"))
        factor = 1 / (1 - share * (block - 1) / 3)

        def later(value: float | None) -> float | None:
            return None if value is None else value * factor

        return replace(
            request,
            ttfr_s=later(request.ttfr_s),
            ttft_s=later(request.ttft_s),
            ttfa_s=later(request.ttfa_s),
            t_last_s=later(request.t_last_s),
            wall_s=later(request.wall_s),
        )

    return edit


def test_a_drift_of_5_percent_over_the_run_is_flagged_and_its_ratio_stays(tmp_path: Path) -> None:
    asked = synthetic.matrix(levels=(), boots=2)
    still = summarise(synthetic.write_run(tmp_path / "still", asked, boot_spread=0))
    edit = slowing_down(0.05)
    moved = summarise(synthetic.write_run(tmp_path / "moved", asked, boot_spread=0, edit=edit))

    def speedup(summary: Summary) -> float:
        (row,) = [r for r in summary.rows if (r.metric, r.kind, r.variant) == SPEEDUP]
        assert row.estimate.value is not None
        return row.estimate.value

    assert "drift" not in {v.check for v in still.verdicts if v.level != "ok"}
    assert "drift" in {v.check for v in moved.verdicts if v.level != "ok"}
    assert speedup(moved) == pytest.approx(speedup(still), rel=0.005)


SPEEDUP = ("speedup", "all", "DFlash2")


def test_the_cold_request_of_a_boot_stands_apart(run: Summary) -> None:
    (table,) = TABLES["cold"](run)

    assert [row[0].text for row in table.rows] == ["b1-s1", "b2-s1", "b3-s1", "b4-s1"]
    assert all(isinstance(row[4].value, float) for row in table.rows)
    # the model run has one pass of warm-up, so there is no warm one to hold it against
    assert {row[5].reason for row in table.rows} == {"one pass of warm-up"}


# --- mutation: one raw value changed --------------------------------------------------------------


def test_one_raw_value_moves_exactly_the_numbers_that_rest_on_it(tmp_path: Path) -> None:
    """The first token of one request of one cell comes later: figures of waiting and decoding of
    that cell, that kind and their ratios move, and no other number of the report.
    """
    asked = synthetic.matrix(levels=(1, 5), boots=2)

    def late(request: Request) -> Request:
        where = request.where
        is_it = (where.cell_id or "").startswith("dflash2-generate")
        if not is_it or request.prompt_id != "code-1" or where.boot_id != "b2-s1":
            return request
        assert request.ttft_s is not None
        return replace(request, ttft_s=request.ttft_s * 1.5)

    before = figures(summarise(synthetic.write_run(tmp_path / "before", asked)))
    after = figures(summarise(synthetic.write_run(tmp_path / "after", asked, edit=late)))
    moved = {key for key, value in before.items() if after[key] != value}

    assert moved
    assert {variant for variant, _, _, _, _ in moved} == {"DFlash2", "plain"}
    assert {workload for _, workload, _, _, _ in moved} == {"generate"}
    assert {kind for _, _, kind, _, _ in moved} == {"all", "code"}
    values = {key for key in moved if before[key][0] != after[key][0]}
    assert {variant for variant, _, _, _, _ in values} == {"DFlash2"}
    assert {metric for _, _, _, _, metric in values} == {
        "decode_rate",
        "decode_rate_strict",
        "decode_rate_excess",
        "tpot",
        "ttft_p50",
        "ttft_p90",
        "speedup",
    } & {metric for _, _, _, _, metric in values} | {"decode_rate", "speedup"}
    # plain decoding keeps its figures; the spread of a table's variants is pooled in its intervals
    pooled = {metric for variant, _, _, _, metric in moved if variant == "plain"}
    assert pooled <= {"decode_rate", "decode_rate_strict", "tpot"}


def figures(
    summary: Summary,
) -> dict[tuple[str, str, str, int, str], tuple[float | None, float | None, float | None]]:
    return {
        (row.variant, row.workload, row.kind, row.concurrency, row.metric): (
            row.estimate.value,
            row.estimate.low,
            row.estimate.high,
        )
        for row in summary.rows
    }


def test_what_moves_in_the_summary_moves_in_the_files_of_the_report(tmp_path: Path) -> None:
    folder = synthetic.write_run(tmp_path / "results", synthetic.matrix(levels=(), boots=2))
    summary = summarise(folder)
    report = write_report(summary, tmp_path / "reports").parent
    told = json.loads((report / "summary.json").read_text(encoding="utf-8"))
    with (report / "tables" / "figures.csv").open(encoding="utf-8") as file:
        lines = list(csv.DictReader(file))

    assert [row["value"] for row in told["rows"]] == [row.estimate.value for row in summary.rows]
    assert len(lines) == len(summary.rows)
