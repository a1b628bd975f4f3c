"""A run beside another tool's figures, and a run in another tool's shape."""

import json
from pathlib import Path

import pytest

from harness import cli
from harness.analysis.summary import Summary, summarise
from harness.errors import UsageError
from harness.interchange import export, overlap, tools
from harness.interchange.document import Imported
from tests.harness import synthetic


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("results")
    synthetic.write_run(folder, synthetic.matrix(levels=(1, 4), repetitions=1), boot_spread=0.0)
    return folder


@pytest.fixture(scope="module")
def run(results: Path) -> Summary:
    from harness.store import RunFolder

    (folder,) = (path.parent for path in results.glob("*/manifest.json"))
    return summarise(RunFolder.open(folder))


@pytest.fixture(scope="module")
def exported(run: Summary, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("exported")
    export.write_vllm(run, folder)
    return folder


def reimported(exported: Path) -> Imported:
    return tools.read_files("vllm-bench-serve", [exported], column_map=None, imported_at="")


# --- export ---------------------------------------------------------------------------------------


def test_every_cell_is_a_file_that_vllms_reader_takes(run: Summary, exported: Path) -> None:
    found = reimported(exported)

    assert len(found.rows) == len(run.data.views)
    assert {row.concurrency for row in found.rows} == {1, 4}
    assert {row.num_failed for row in found.rows} == {0}


def test_an_exported_cell_is_counted_by_vllms_definitions(run: Summary, exported: Path) -> None:
    (view,) = (
        view
        for view in run.data.views
        if view.cell.variant == "plain" and view.cell.workload == "generate"
    )
    told = json.loads((exported / "plain_generate_c1_443e75.json").read_text())

    request = view.ok[0]
    assert request.wall_s is not None
    assert request.ttft_s is not None
    assert request.output_tokens is not None
    assert told["completed"] == len(told["ttfts"]) == len(told["itls"]) == 10
    assert told["ttfts"][0] == request.ttft_s
    assert told["total_output_tokens"] == sum(told["output_lens"])
    assert told["output_throughput"] == pytest.approx(
        told["total_output_tokens"] / told["duration"]
    )
    by_hand = [
        (wall - ttft) / (tokens - 1)
        for wall, ttft, tokens in zip(
            told["latencies"], told["ttfts"], told["output_lens"], strict=True
        )
    ]
    assert told["mean_tpot_ms"] == pytest.approx(sum(by_hand) / len(by_hand) * 1e3)
    assert "spec_decode_acceptance_length" not in told


def test_speculation_is_in_per_cent_and_positions_are_shares(exported: Path) -> None:
    (path,) = exported.glob("dflash2_generate_*.json")
    told = json.loads(path.read_text())

    share = told["spec_decode_accepted_tokens"] / told["spec_decode_draft_tokens"]
    assert told["spec_decode_acceptance_rate"] == pytest.approx(100 * share)
    assert told["spec_decode_acceptance_length"] == pytest.approx(
        1 + told["spec_decode_accepted_tokens"] / told["spec_decode_num_drafts"]
    )
    assert max(told["spec_decode_per_position_acceptance_rates"]) <= 1


# --- overlap --------------------------------------------------------------------------------------


def test_like_figures_of_one_concurrency_stand_side_by_side(run: Summary, exported: Path) -> None:
    table = overlap.overlap_table(run, reimported(exported), variant="plain")

    rows = {(row[0].value, str(row[1].value), row[2].value): row for row in table.rows}
    here, there = next(
        (row[3].value, row[5].value)
        for (c, work, figure), row in rows.items()
        if (c, figure) == (1, "ttft_p50") and work.startswith("generate /")
    )
    assert there == pytest.approx(here)  # both are medians over the same requests
    assert any(
        "median_ttft_ms there: median: first event with choices" in note for note in table.notes
    )


def test_the_two_protocols_are_never_one(run: Summary, exported: Path) -> None:
    for row in overlap.overlap_table(run, reimported(exported), variant="plain").rows:
        ours, theirs = str(row[-1].value).split(" / ")
        assert theirs.startswith("vllm-bench-serve-")
        assert ours != theirs


def test_a_variant_that_the_run_does_not_have_is_refused(run: Summary, exported: Path) -> None:
    with pytest.raises(UsageError, match="no variant 'Eagle'; it has plain, DFlash2"):
        overlap.overlap_table(run, reimported(exported), variant="Eagle")


def test_export_import_and_overlap_from_the_command_line(
    results: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    where = ("--results", str(results))

    assert cli.main(["export", "latest", str(tmp_path / "out"), *where]) == 0
    exported = sorted((tmp_path / "out").glob("dflash2_*closed_c4*.json"))
    assert cli.main(["import", "vllm-bench-serve", str(exported[0]), "--as", "own", *where]) == 0
    capsys.readouterr()
    assert cli.main(["overlap", "latest", "own", "--variant", "DFlash2", *where]) == 0

    out = capsys.readouterr().out
    assert "DFlash2: where vllm-bench-serve and this run meet" in out
    assert "concurrency-closed" in out
