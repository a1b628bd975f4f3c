"""The benchmark of analysis and report: its runs are sound, its table says what was measured."""

from dataclasses import replace
from pathlib import Path

from benchmarks.report.measure import Round, Told, table
from benchmarks.scale import synthetic_run
from harness.analysis.summary import summarise
from harness.records import Request


def test_a_made_up_run_has_the_requests_that_are_told_and_no_invalid_figure(tmp_path: Path) -> None:
    folder = synthetic_run.write_run(tmp_path, repetitions=1, num_drafters=1)

    measured = [item for item in folder.usable(Request) if (item.where.repetition or 0) >= 0]
    # two variants in two boots: 12 prompts in `generate` and `edit`, 48 requests at nine levels
    # under two token limits
    assert len(measured) == 2 * 2 * (2 * 12 + 9 * 2 * 48)
    assert summarise(folder).level != "invalid"


TOLD = Told(
    num_requests=100_000,
    num_cells=60,
    imported_s=1.0,
    summarised_s=3.0,
    written_s=9.5,
    pictures_s=5.0,
)
ROUND = Round(
    told=TOLD,
    total_s=10.0,
    peak_bytes=400_000_000,
    requests_jsonl_bytes=120_000_000,
    report_bytes=30_000_000,
)


def test_a_row_has_medians_over_rounds_and_the_largest_peak() -> None:
    slower = replace(ROUND, total_s=12.0, peak_bytes=500_000_000)

    head, _, row = table([ROUND, slower, replace(ROUND, total_s=11.0)])

    assert head.count("|") == row.count("|")
    # 11 s in the middle: 5 of them pictures, 3 until the summary was there, 3 for all the rest
    assert row == ("| 100,000 | 60 | 120 | 1.0 | 2.0 | 3.0 | **6.0** | 60 | 5.0 | **500** | 30 |")


def test_sizes_are_rows_in_rising_order() -> None:
    large = replace(ROUND, told=replace(TOLD, num_requests=5_000_000))

    _, _, first, second = table([large, ROUND])

    assert first.startswith("| 100,000 |")
    assert second.startswith("| 5,000,000 |")
