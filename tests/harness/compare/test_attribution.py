"""Why a figure moved: split by hand, and found in whole runs of engines that were made worse."""

import math
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path

import pytest

from harness.analysis import dataset
from harness.compare.attribution import Moved, causes
from harness.compare.compare import Comparison, Row, compare
from harness.compare.night import Night, night_of
from harness.compare.rules import Rules
from harness.records import Request
from harness.report.comparison import sentences
from tests.harness import synthetic
from tests.harness.synthetic import DFLASH2, PLAIN, Behaviour


def moved(**figures: tuple[float, float]) -> Mapping[str, Moved]:
    """metric: (baseline, new)."""
    return {name: Moved(baseline=old, new=new) for name, (old, new) in figures.items()}


def shares(metric: str, figures: Mapping[str, Moved]) -> dict[str, float]:
    return {cause.part: cause.change for cause in causes(metric, figures)}


# --- by hand --------------------------------------------------------------------------------------


def test_a_tenth_fewer_tokens_a_step_at_the_same_step_is_acceptance() -> None:
    # 4.0 tokens at 200 tok/s are 20 ms a step; 3.6 at 180 as well
    found = shares("decode_rate", moved(decode_rate=(200.0, 180.0), tokens_per_step=(4.0, 3.6)))

    assert found["acceptance"] == pytest.approx(-0.10)
    assert found["step"] == pytest.approx(0.0)


def test_the_same_tokens_in_a_longer_step_is_the_step() -> None:
    found = causes("decode_rate", moved(decode_rate=(200.0, 160.0), tokens_per_step=(4.0, 4.0)))

    assert [cause.part for cause in found] == ["step", "acceptance"]
    assert found[0].change == pytest.approx(-0.20)


def test_a_better_drafter_can_hide_a_slower_step() -> None:
    # tokens 4.0 to 5.0, a step 20 to 25 ms: 200 tok/s before and after
    found = shares("decode_rate", moved(decode_rate=(200.0, 200.0), tokens_per_step=(4.0, 5.0)))

    assert found["acceptance"] == pytest.approx(0.25)
    assert found["step"] == pytest.approx(-0.20)


def test_without_a_drafter_all_is_the_step() -> None:
    assert shares("decode_rate", moved(decode_rate=(10.0, 9.0))) == {"step": pytest.approx(-0.10)}


def test_steps_without_a_draft_count_where_the_engine_counts_them() -> None:
    """A drafter that drafts less often: the rounds are as good as ever, the steps are not."""
    figures = moved(
        decode_rate=(200.0, 100.0), acceptance_length=(4.0, 4.0), tokens_per_step=(4.0, 2.0)
    )

    assert shares("decode_rate", figures)["acceptance"] == pytest.approx(-0.50)


def test_of_an_aggregate_prefill_weighs_what_it_takes_of_a_request() -> None:
    # 1.0 s a request of which 0.1 s is prefill; prefill doubles: 1.1 s, so 1/1.1 of the tokens
    figures = moved(
        aggregate_throughput=(110.0, 100.0),
        decode_rate=(50.0, 50.0),
        ttft_p50=(0.1, 0.2),
        wall_p50=(1.0, 1.1),
    )
    first, *others = causes("aggregate_throughput", figures)

    assert first.part == "prefill"
    assert first.change == pytest.approx(1 / 1.1 - 1)
    assert all(abs(cause.change) < 1e-9 for cause in others)


def test_what_no_part_explains_is_the_rest() -> None:
    figures = moved(
        aggregate_throughput=(110.0, 55.0),
        decode_rate=(50.0, 50.0),
        ttft_p50=(0.1, 0.1),
        wall_p50=(1.0, 1.0),
    )

    assert causes("aggregate_throughput", figures)[0].part == "rest"


@pytest.mark.parametrize("metric", ["decode_rate", "aggregate_throughput"])
def test_parts_multiply_to_the_whole(metric: str) -> None:
    figures = moved(
        aggregate_throughput=(110.0, 87.0),
        decode_rate=(50.0, 41.0),
        ttft_p50=(0.3, 0.4),
        wall_p50=(1.0, 1.3),
        tokens_per_step=(4.0, 3.5),
    )
    product = math.prod(1 + share for share in shares(metric, figures).values())

    assert product == pytest.approx(figures[metric].new / figures[metric].baseline)


def test_a_figure_without_its_parts_has_no_cause() -> None:
    assert causes("aggregate_throughput", moved(aggregate_throughput=(110.0, 100.0))) == ()
    assert causes("memory_peak", moved(memory_peak=(1e9, 2e9))) == ()


# --- whole runs -----------------------------------------------------------------------------------

WORSE_DRAFTER = replace(
    DFLASH2, acceptance={kind: 0.8 * chance for kind, chance in DFLASH2.acceptance.items()}
)
SLEEPS_PER_STEP = replace(DFLASH2, verify_ms=DFLASH2.verify_ms + 4.0)


def a_night(
    path: Path,
    number: int,
    drafter: Behaviour = DFLASH2,
    edit: Callable[[Request], Request] = lambda request: request,
) -> Night:
    folder = synthetic.write_run(
        path / str(number),
        synthetic.matrix(boots=2, levels=(2,), repetitions=2),
        behaviours={"plain": PLAIN, "DFlash2": drafter},
        edit=edit,
        seed=number,
    )
    return replace(night_of(dataset.load(folder)), run_id=f"202611{number:02}-020000-synthetic")


@pytest.fixture(scope="module")
def history(tmp_path_factory: pytest.TempPathFactory) -> tuple[Night, ...]:
    path = tmp_path_factory.mktemp("nights")
    return tuple(a_night(path, number) for number in range(1, 6))


def against(night: Night, history: tuple[Night, ...]) -> Comparison:
    return compare(night, history, baseline="main", rules=Rules())


def regressed(found: Comparison, metric: str) -> tuple[Row, ...]:
    return tuple(row for row in found.having("regressed") if row.metric == metric)


def test_an_unchanged_engine_passes(tmp_path: Path, history: tuple[Night, ...]) -> None:
    found = against(a_night(tmp_path, 20), history)

    assert found.word == "within noise"
    assert found.exit_code == 0


def test_a_drafter_that_is_accepted_less_is_named_as_such(
    tmp_path: Path, history: tuple[Night, ...]
) -> None:
    found = against(a_night(tmp_path, 20, WORSE_DRAFTER), history)

    assert found.exit_code == 1
    assert {row.variant for row in found.having("regressed")} == {"DFlash2"}
    # generate, waves and the closed load each lose acceptance, rate and, under load, the aggregate
    assert len(regressed(found, "acceptance_length")) == 3
    for metric, count in (("decode_rate", 3), ("aggregate_throughput", 2)):
        rows = regressed(found, metric)
        assert len(rows) == count
        assert {row.causes[0].part for row in rows} == {"acceptance"}
    assert "Cause: acceptance fell (" in sentences.finding(regressed(found, "decode_rate")[0])


def test_an_engine_that_sleeps_in_every_step_is_named_as_such(
    tmp_path: Path, history: tuple[Night, ...]
) -> None:
    found = against(a_night(tmp_path, 20, SLEEPS_PER_STEP), history)

    assert found.exit_code == 1
    assert regressed(found, "acceptance_length") == ()
    for metric, count in (("decode_rate", 3), ("aggregate_throughput", 2)):
        rows = regressed(found, metric)
        assert len(rows) == count
        assert {row.causes[0].part for row in rows} == {"step"}
    generate = regressed(found, "decode_rate")[0]
    # 18.5 ms a round became 22.5 ms
    assert generate.causes[0].change == pytest.approx(18.5 / 22.5 - 1, abs=0.02)
    assert "Cause: the step got slower (" in sentences.finding(generate)


def test_a_slower_prefill_is_named_as_such(tmp_path: Path, history: tuple[Night, ...]) -> None:
    def later(request: Request) -> Request:
        """Everything of the request comes 30 ms later, but for the first byte sent."""
        times = ("ttfr_s", "ttft_s", "ttfa_s", "t_last_s", "wall_s")
        return replace(request, **{name: getattr(request, name) + 0.030 for name in times})

    found = against(a_night(tmp_path, 20, edit=later), history)

    rows = regressed(found, "ttft_p50")
    assert {row.variant for row in rows} == {"plain", "DFlash2"}
    assert regressed(found, "decode_rate") == ()
    assert sentences.cause(rows[0]) == "Cause: prefill got slower."
