"""CMP cases: only the same work is compared, an empty comparison is no success, and a threshold is
a change in the direction that hurts.
"""

from dataclasses import replace
from pathlib import Path

import pytest

from harness import cli
from harness.analysis import dataset
from harness.analysis.summary import summarise
from harness.compare.compare import Comparison, compare
from harness.compare.night import Night, night_of
from harness.compare.rules import Rules, read_rules
from harness.errors import UsageError
from harness.plan import make_plan
from harness.records import Cell
from harness.report.comparison import sentences
from harness.run import commands
from tests.harness import synthetic
from tests.harness.cases.from_records import prompts, repetitions_of
from tests.harness.compare import nights as made

TEN_PER_CENT = Rules(threshold=0.10)


def against(run: Night, *nights: Night, rules: Rules = TEN_PER_CENT) -> Comparison:
    return compare(run, nights, baseline="base", rules=rules)


# --- B94: another prompt set or output length -----------------------------------------------------


def cell_of(**changes: object) -> Cell:
    """The plain cell of one request at a time, under a workload with these fields changed."""
    asked = synthetic.matrix(levels=(), drafters=())
    (workload,) = asked.workloads
    changed = replace(asked, workloads=(replace(workload, **changes),))  # type: ignore[arg-type]
    return make_plan(changed).cells[0]


@pytest.mark.parametrize(
    "changes",
    [
        {"prompts": replace(synthetic.prompt_set(), sha256="b" * 64)},
        {"max_tokens": 16},
        {"length": "forced"},
    ],
    ids=["other prompts", "another limit", "forced length"],
)
def test_b94_other_prompts_or_another_length_are_other_work_under_the_same_name(
    changes: dict[str, object],
) -> None:
    base, new = cell_of(), cell_of(**changes)

    assert base.variant == new.variant
    assert base.workload_key != new.workload_key
    assert base.cell_id != new.cell_id


def test_b94_the_same_work_has_the_same_key_however_often_it_is_repeated() -> None:
    assert cell_of().workload_key == cell_of(repetitions=7).workload_key
    assert cell_of().cell_id == cell_of(repetitions=7).cell_id


def measured(path: Path, rate: float, sha256: str, max_tokens: int) -> Night:
    """One prompt, two boots, every request at `rate`."""
    asked = synthetic.matrix(
        levels=(),
        drafters=(),
        prompts=replace(prompts(A="A"), sha256=sha256),
        max_tokens=max_tokens,
    )
    folder = synthetic.write_run(path, asked, edit=repetitions_of({"A": [rate]}))
    return night_of(dataset.load(folder))


def test_b94_a_change_of_the_work_is_refused_and_listed_instead_of_minus_43_per_cent(
    tmp_path: Path,
) -> None:
    base = measured(tmp_path / "base", 25.86, "aa" * 32, 32)
    new = replace(measured(tmp_path / "new", 14.62, "bb" * 32, 16), run_id="20261130-new")

    found = against(new, base)

    assert found.word == "not comparable"
    assert found.exit_code == 3
    row = found.rows[0]
    assert row.new is None
    assert row.change is None
    assert row.reason == (
        "not the same: prompts cases bbbbbbbb (baseline: cases aaaaaaaa), "
        "max_tokens 16 (baseline: 32)"
    )


# --- B96: nothing was compared --------------------------------------------------------------------


def at_levels(number: int, *levels: int) -> Night:
    """A night with waves of these sizes, plain alone, 100 tok/s in both boots."""
    subjects = [
        made.subject(cell, {"aggregate_throughput": [100, 100]}, work=f"c={cell.concurrency}")
        for cell in made.cells(levels)
        if cell.variant == "plain" and cell.load == "wave"
    ]
    return made.night(number, *subjects)


def test_b96_no_common_cell_is_exit_three_and_lists_what_is_missing_and_what_is_extra() -> None:
    found = against(at_levels(30, 4, 8, 16), at_levels(1, 1, 2))

    assert found.exit_code == 3
    assert found.compared == ()
    assert list(sentences.not_compared(found)) == [
        "plain, c=4; plain, c=8; plain, c=16: not in the baseline.",
        "plain, c=1; plain, c=2: not in the run.",
    ]
    assert sentences.headline(found).startswith("not comparable: nothing was compared")


def test_b96_a_common_cell_is_compared_and_the_others_are_listed_all_the_same() -> None:
    found = against(at_levels(30, 2, 4), at_levels(1, 1, 2))

    assert found.exit_code == 0
    assert [(row.work, row.word) for row in found.rows] == [
        ("c=2", "within noise"),
        ("c=4", "not comparable"),
        ("c=1", "not comparable"),
    ]


def test_b96_a_figure_that_the_baseline_does_not_have_is_none_and_not_zero() -> None:
    cell = made.cells()[0]
    empty = made.night(1, replace(made.subject(cell, {}), reasons={"decode_rate": "all failed"}))
    found = against(made.tonight([100, 100]), empty)

    assert found.exit_code == 3
    (row,) = found.rows
    assert (row.word, row.baseline, row.change) == ("not comparable", None, None)
    assert row.reason == "n/a in the baseline: all failed"


def test_b96_a_baseline_that_is_not_there_is_no_success(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    synthetic.write_run(tmp_path, synthetic.matrix(levels=(), drafters=()))

    assert cli.main(["compare", "latest", "main", "--results", str(tmp_path)]) == 4
    assert "no baseline is called 'main' (known: there is none)" in capsys.readouterr().err


def test_b96_a_baseline_without_a_run_is_no_success() -> None:
    with pytest.raises(UsageError, match="holds no run"):
        against(made.tonight([100, 100]))


def test_b96_a_cell_without_its_reference_is_no_comparison_and_no_success(tmp_path: Path) -> None:
    """Nothing could be held against anything: no speed-up of 1 or 0, and not exit code 0."""
    folder = synthetic.write_run(
        tmp_path, synthetic.matrix(boots=2, levels=()), broken_variant="plain"
    )
    summary = summarise(folder)
    speedups = [row for row in summary.rows if row.metric == "speedup" and row.variant == "DFlash2"]

    assert speedups
    assert {row.estimate.value for row in speedups} == {None}
    assert all("reference" in str(row.estimate.reason) for row in speedups)
    assert summary.level == "invalid"
    assert commands.exit_code(folder) == 3


# --- B98: direction and meaning of the threshold --------------------------------------------------


def word_of(metric: str, base: float, new: float) -> str:
    """Figures that no boot and no night ever moved: only the threshold decides."""
    stored = made.plain_nights(*[[base, base]] * 5, metric=metric)
    (row,) = against(made.tonight([new, new], metric=metric), *stored).rows
    return row.word


@pytest.mark.parametrize(
    ("new", "word"),
    [(110.0, "within noise"), (110.1, "regressed"), (90.0, "improved"), (50.0, "improved")],
)
def test_b98_a_latency_regresses_upwards_and_stands_at_the_limit_unharmed(
    new: float, word: str
) -> None:
    assert word_of("ttft_p50", 100.0, new) == word


@pytest.mark.parametrize(
    ("new", "word"),
    [(90.0, "within noise"), (89.9, "regressed"), (110.0, "improved"), (200.0, "improved")],
)
@pytest.mark.parametrize("metric", ["decode_rate", "acceptance_length"])
def test_b98_a_rate_regresses_downwards_and_stands_at_the_limit_unharmed(
    metric: str, new: float, word: str
) -> None:
    assert word_of(metric, 100.0, new) == word


def test_b98_a_threshold_says_per_cent_and_is_a_change() -> None:
    assert read_rules([]).threshold_of("decode_rate") == 0.02
    assert read_rules(["10%"]).threshold_of("ttft_p50") == pytest.approx(0.10)
    by_metric = read_rules(["5 %", "ttft_p50=20%"])
    assert by_metric.threshold_of("decode_rate") == pytest.approx(0.05)
    assert by_metric.threshold_of("ttft_p50") == pytest.approx(0.20)


@pytest.mark.parametrize(
    ("written", "told"),
    [
        ("110%", "it is a change and no ratio; to allow a tenth, write 10%"),
        ("1.1", "write a change in per cent, such as 2%"),
        ("-5%", "write a change in per cent"),
        ("tokens=5%", "'tokens' is none of decode_rate, "),
    ],
)
def test_b98_what_could_be_read_in_two_ways_is_refused(written: str, told: str) -> None:
    with pytest.raises(UsageError, match=told):
        read_rules([written])


def test_b98_the_numbers_stand_in_the_help(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        cli.main(["compare", "--help"])

    told = " ".join(capsys.readouterr().out.split())
    assert "90 of 100 tok/s and 110 of 100 ms pass at 10%, 89.9 and 110.1 do not" in told


# --- B91: what the unit of analysis is ------------------------------------------------------------


def test_b91_eight_per_cent_more_where_runs_differ_by_eight_is_inconclusive() -> None:
    """Three runs of the same code: 96, 104, 112. How steady each was inside is no matter."""
    found = against(
        made.tonight([112.0], metric="ttft_p50"),
        *made.plain_nights([96.0], [104.0], [112.0], metric="ttft_p50"),
        rules=Rules(),
    )

    assert found.exit_code == 2
    assert found.rows[0].word == "inconclusive"


def test_b91_with_five_such_runs_it_is_within_noise() -> None:
    found = against(
        made.tonight([108.0], metric="ttft_p50"),
        *made.plain_nights([96.0], [104.0], [112.0], [98.0], [106.0], metric="ttft_p50"),
        rules=Rules(),
    )

    assert found.exit_code == 0


# --- the words and exit codes of measurement.md, section 6 ----------------------------------------


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("results")
    synthetic.write_run(folder, synthetic.matrix(boots=2, levels=(2,)))
    return folder


def test_a_run_against_itself_is_within_noise(
    results: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["compare", "latest", "latest", "--results", str(results)]) == 0

    told = capsys.readouterr().out
    assert "within noise: " in told
    assert "regressed" not in told


def test_one_boot_against_itself_is_within_noise_too() -> None:
    found = against(made.tonight([100.0]), made.tonight([100.0]))

    assert (found.word, found.exit_code) == ("within noise", 0)


def test_one_boot_on_both_sides_and_no_history_is_inconclusive() -> None:
    found = against(made.tonight([50.0]), *made.plain_nights([100.0]))

    assert (found.word, found.exit_code) == ("inconclusive", 2)
    assert "fewer than two boots on a side and fewer than 5 nights" in str(found.rows[0].reason)


def test_one_boot_with_five_nights_behind_it_may_be_a_regression() -> None:
    stored = made.plain_nights([100.0], [101.0], [99.0], [100.5], [99.5])
    found = against(made.tonight([80.0]), *stored, rules=Rules())

    assert (found.word, found.exit_code) == ("regressed", 1)


def test_an_invalid_cell_is_compared_with_nothing_and_the_run_does_not_pass() -> None:
    plain, drafted = made.cells()
    stored = made.night(
        1,
        made.subject(plain, {"decode_rate": [100.0, 101.0]}),
        made.subject(drafted, {"decode_rate": [300.0, 301.0]}),
    )
    run = made.night(
        30,
        made.subject(plain, {"decode_rate": [100.0, 101.0]}),
        made.subject(drafted, {"decode_rate": [30.0, 30.1]}, level="invalid"),
        level="invalid",
    )
    found = against(run, stored)

    assert [row.word for row in found.rows] == ["within noise", "not comparable"]
    assert found.rows[1].reason == "invalid: foreign_traffic"
    assert found.exit_code == 3


def test_another_device_is_not_compared() -> None:
    stored = made.plain_nights([100.0, 101.0])
    run = replace(made.tonight([50.0, 51.0]), device_key="e" * 12, device="device e")

    found = against(run, *stored)

    assert found.exit_code == 3
    assert found.rows[0].reason == "another device: device e (baseline: device d)"


def test_another_build_is_compared_for_that_is_the_point() -> None:
    def built(night: Night, build: str) -> Night:
        return replace(night, subjects=tuple(replace(s, builds=(build,)) for s in night.subjects))

    (stored,) = made.plain_nights([100.0, 101.0])
    found = against(built(made.tonight([100.5, 100.6]), "new"), built(stored, "old"))

    assert found.word == "within noise"
