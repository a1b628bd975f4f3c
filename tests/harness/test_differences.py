"""Near-tie, real or unknown: what the odds at a first difference say, from logits made by hand."""

from dataclasses import replace
from math import log
from pathlib import Path

import pytest

from harness import checks, differences
from harness.analysis import dataset
from harness.analysis.summary import summarise
from harness.cell_view import CellView
from harness.plan import make_plan
from harness.records import (
    Boot,
    LikelyToken,
    LosslessnessRules,
    Matrix,
    Request,
    Rescore,
    Sampling,
    Where,
)
from harness.report.tables.outputs import losslessness
from harness.store import RunFolder

from . import synthetic
from .synthetic import OWN_TOKEN as OWN
from .synthetic import REFERENCE_TOKEN as REFERENCES
from .synthetic import rescore


@pytest.fixture(scope="module")
def views(tmp_path_factory: pytest.TempPathFactory) -> dict[str, CellView]:
    folder = synthetic.write_run(
        tmp_path_factory.mktemp("results"), synthetic.matrix(levels=(), boots=2)
    )
    return {view.cell.variant: view for view in dataset.load(folder).views}


def odds(*logprobs: tuple[int | None, float]) -> tuple[LikelyToken, ...]:
    """The end, None, is a token without text, as llama.cpp tells it."""
    return tuple(
        LikelyToken(token_id=2, logprob=logprob, text="")
        if token_id is None
        else LikelyToken(token_id=token_id, logprob=logprob, text=f"t{token_id}")
        for token_id, logprob in logprobs
    )


def differing(
    view: CellView,
    likeliest: tuple[LikelyToken, ...],
    *,
    rules: LosslessnessRules | None = None,
    dtype: str | None = None,
    at: int = 3,
) -> CellView:
    """One output is not the reference's."""
    reference = view.reference or view
    own = replace(view.requests[at], text_sha256="another")
    (pair,) = [each for each in differences.pairs((own,), reference.ok) if each.differs]

    def told(boot: Boot) -> Boot:
        return replace(boot, health={**(boot.health or {}), "dtype": dtype})

    its = replace(reference, boots=tuple(map(told, reference.boots)))
    return replace(
        view,
        requests=(*view.requests[:at], own, *view.requests[at + 1 :]),
        boots=tuple(map(told, view.boots)),
        reference=its if view.reference else None,
        rescores={str(own.where.request_id): rescore(own, pair.reference, likeliest)},
        losslessness=rules or LosslessnessRules(),
    )


def judged(view: CellView) -> differences.Judgement:
    (pair,) = [each for each in differences.pairs_of(view) if each.differs]
    return differences.judged(view, pair)


# --- one difference -------------------------------------------------------------------------------


def test_b136_a_gap_of_0_0004_nats_is_a_near_tie_and_one_of_1_7_is_real(
    views: dict[str, CellView],
) -> None:
    close = judged(differing(views["DFlash2"], odds((REFERENCES, -0.7), (OWN, -0.7004))))
    far = judged(differing(views["DFlash2"], odds((REFERENCES, -0.2), (OWN, -1.9))))

    assert (close.word, far.word) == ("near-tie", "real")
    assert close.gap_nats == pytest.approx(0.0004)
    assert far.gap_nats == pytest.approx(1.7)


def test_an_output_with_the_better_token_has_no_gap_and_the_references_is_near(
    views: dict[str, CellView],
) -> None:
    """Asked for once more, in another pass, the engine puts the two the other way round."""
    found = judged(differing(views["DFlash2"], odds((OWN, -0.7), (REFERENCES, -0.8))))
    assert (found.word, found.gap_nats) == ("near-tie", 0.0)


def test_a_reference_whose_own_token_is_unlikely_now_proves_nothing(
    views: dict[str, CellView],
) -> None:
    """Another prompt was asked for, or the engine does not repeat itself."""
    for told in (odds((OWN, -0.1), (REFERENCES, -3.0)), odds((OWN, -0.1), (5, -0.2))):
        found = judged(differing(views["DFlash2"], told))
        assert found.word == "unknown"
        assert found.reason == (
            "asked again, the reference's engine does not find its own token likeliest"
        )


def test_a_token_that_is_not_among_the_likeliest_is_at_least_as_unlikely_as_the_last_of_them(
    views: dict[str, CellView],
) -> None:
    far = judged(differing(views["DFlash2"], odds((REFERENCES, -0.1), (5, -3.1))))
    near = judged(differing(views["DFlash2"], odds((REFERENCES, -1.0), (5, -1.2))))

    assert (far.word, far.is_bound) == ("real", True)
    assert far.gap_nats == pytest.approx(3.0)
    assert (near.word, near.reason) == (
        "unknown",
        "the engine does not tell how likely the output's token is",
    )


def test_the_end_is_a_token_too_and_writes_nothing(views: dict[str, CellView]) -> None:
    def ended(view: CellView, **tokens: None) -> CellView:
        (key, asked) = next(iter(view.rescores.items()))
        return replace(view, rescores={key: replace(asked, **tokens)})

    told = odds((REFERENCES, -0.6), (None, -0.7), (OWN, -0.8))
    own_ended = ended(differing(views["DFlash2"], told), token_id=None)
    assert judged(own_ended).gap_nats == pytest.approx(0.1)

    told = odds((None, -0.6), (OWN, -3.6))
    reference_ended = ended(differing(views["DFlash2"], told), reference_token_id=None)
    assert judged(reference_ended).gap_nats == pytest.approx(3.0)

    by_id = tuple(replace(each, text=None) for each in odds((REFERENCES, -0.1), (None, -5.0)))
    assert judged(ended(differing(views["DFlash2"], by_id), token_id=None)).word == "unknown"


def test_what_an_engine_could_not_be_asked_is_unknown_for_its_reason(
    views: dict[str, CellView],
) -> None:
    found = judged(differing(views["DFlash2"], ()))
    assert (found.word, found.reason) == ("unknown", "the engine is a wall")


def test_odds_at_another_text_of_the_reference_are_no_odds_of_this_one(
    views: dict[str, CellView],
) -> None:
    view = differing(views["DFlash2"], odds((REFERENCES, -0.7), (OWN, -0.7)))
    (key, asked) = next(iter(view.rescores.items()))
    stale = replace(view, rescores={key: replace(asked, reference_text_sha256="of before")})
    assert judged(stale).reason == (
        "the reference's engine was not asked; `dflashbench resume` asks it"
    )
    old = replace(stale, losslessness=None)
    assert judged(old).reason == "the run did not ask for odds"


# --- how much rounding explains -------------------------------------------------------------------


@pytest.mark.parametrize(
    ("dtype", "tolerance"), [("float32", 0.01), ("bfloat16", 0.25), ("float16", 0.25), (None, 0.25)]
)
def test_the_tolerance_follows_the_type_that_engines_compute_in(
    views: dict[str, CellView], dtype: str | None, tolerance: float
) -> None:
    view = differing(views["DFlash2"], (), dtype=dtype)
    assert differences.tolerance_nats(view) == tolerance


def test_the_coarser_of_two_sides_and_before_all_the_matrix_decide_the_tolerance(
    views: dict[str, CellView],
) -> None:
    view = differing(views["DFlash2"], (), dtype="float32")
    assert view.reference is not None
    coarse = tuple(replace(each, health={"dtype": "bfloat16"}) for each in view.reference.boots)
    mixed = replace(view, reference=replace(view.reference, boots=coarse))
    assert differences.tolerance_nats(mixed) == 0.25
    told = replace(mixed, losslessness=LosslessnessRules(tolerance_nats=0.5))
    assert differences.tolerance_nats(told) == 0.5


def test_two_steps_of_a_bfloat16_between_16_and_32_are_a_quarter() -> None:
    """8 bits of which one is before the point: 16 has steps of 16 / 2**7."""
    assert differences.COARSE_TOLERANCE_NATS == 2 * 16 / 2**7


# --- what is compared -----------------------------------------------------------------------------


def test_outputs_of_the_reference_are_compared_with_its_first_and_others_with_it_too() -> None:
    plan = make_plan(synthetic.matrix(levels=(2,)))
    found = differences.compared_with(plan, "plain")
    assert [(cell.variant, cell.load) for cell in found] == [
        ("plain", "single"),
        ("DFlash2", "single"),
    ]
    assert differences.compared_with(plan, "DFlash2") == ()


def test_sampled_outputs_are_compared_with_nothing() -> None:
    asked = replace(synthetic.matrix(levels=()), sampling=Sampling(temperature=0.1))
    assert differences.compared_with(make_plan(asked), "plain") == ()


def test_a_reference_with_a_reference_of_its_own_is_asked_about_others_alone() -> None:
    """As a plain variant on another engine, held against the first engine's."""
    asked = synthetic.matrix(levels=(), drafters=("DFlash2",))
    plain, drafted = asked.variants
    other = replace(plain, name="other", flags={"other": 1}, reference="plain")
    chain: Matrix = replace(asked, variants=(plain, other, replace(drafted, reference="other")))
    plan = make_plan(chain)
    assert [c.variant for c in differences.compared_with(plan, "plain")] == ["plain", "other"]
    assert [c.variant for c in differences.compared_with(plan, "other")] == ["other", "DFlash2"]


# --- the check ------------------------------------------------------------------------------------


def verdict(view: CellView) -> tuple[str, str]:
    (found,) = [each for each in checks.judge(view) if each.check == "lossless"]
    return found.level, found.message


def test_a_drafter_with_a_real_difference_is_invalid_and_told_where(
    views: dict[str, CellView],
) -> None:
    level, message = verdict(differing(views["DFlash2"], odds((REFERENCES, -0.2), (OWN, -1.9))))
    assert level == "invalid"
    assert "1 of 30 outputs differ from plain's for real: that to 'refactor-1' " in message
    assert "1.7 nats less likely than the target's own, and rounding explains 0.25" in message
    assert "tolerance_nats" in message


@pytest.mark.parametrize(
    "likeliest", [odds((REFERENCES, -0.7), (OWN, -0.8)), (), odds((OWN, -0.1), (REFERENCES, -4.0))]
)
def test_near_ties_and_what_is_unknown_accuse_nobody(
    views: dict[str, CellView], likeliest: tuple[LikelyToken, ...]
) -> None:
    assert verdict(differing(views["DFlash2"], likeliest)) == ("ok", "")


def test_where_the_reference_does_not_repeat_itself_the_drafter_is_only_doubted(
    views: dict[str, CellView],
) -> None:
    far = odds((REFERENCES, -0.2), (OWN, -1.9))
    drafted = differing(views["DFlash2"], far)
    # of its second repetition, since the first is what it is held against
    unsteady = differing(views["plain"], far, at=8)
    level, message = verdict(replace(drafted, reference=unsteady))
    assert level == "warning"
    assert "plain does not repeat its own outputs either" in message


def test_of_another_target_or_engine_nobody_says_that_outputs_are_equal(
    views: dict[str, CellView],
) -> None:
    view = differing(views["DFlash2"], odds((REFERENCES, -0.2), (OWN, -1.9)))
    assert view.reference is not None
    for change in ({"target": "demo-q8"}, {"engine": "elsewhere"}):
        other = replace(view.reference, cell=replace(view.reference.cell, **change))
        assert verdict(replace(view, reference=other))[0] == "ok"
    plain = replace(view, cell=replace(view.cell, drafter=None))
    assert verdict(plain)[0] == "ok"


# --- from the files to the page -------------------------------------------------------------------


def write_with_differences(results: Path) -> RunFolder:
    """Of DFlash2's outputs in the first boot: code parts at a near-tie, prose for real, and of
    arithmetic nobody knows.
    """
    parting = {"code-1": -0.71, "prose-1": -2.7, "arithmetic-1": None}

    def edit(request: Request) -> Request:
        where = request.where
        is_first = str(where.boot_id) == "b2-s1" and where.repetition == 0
        return (
            replace(request, text_sha256="another")
            if is_first and request.prompt_id in parting
            else request
        )

    folder = synthetic.write_run(results, synthetic.matrix(levels=(), boots=2), edit=edit)
    requests = folder.usable(Request)
    first = {each.prompt_id: each for each in reversed(requests) if each.text_sha256 != "another"}
    for own in requests:
        if own.text_sha256 == "another":
            logprob = parting[own.prompt_id]
            told = odds((REFERENCES, -0.7), (OWN, logprob)) if logprob is not None else ()
            folder.append(rescore(own, first[own.prompt_id], told))
    folder.close()
    return RunFolder.open(folder.path)


def test_each_variant_is_told_by_near_ties_real_differences_and_unknown_ones(
    tmp_path: Path,
) -> None:
    summary = summarise(write_with_differences(tmp_path))
    plain, drafted = summary.losslessness

    assert (plain.num_near_ties, plain.num_real, plain.num_unknown) == (0, 0, 0)
    assert (drafted.num_identical, drafted.num_compared) == (27, 30)
    assert (drafted.num_near_ties, drafted.num_real, drafted.num_unknown) == (1, 1, 1)
    assert drafted.unknown_reason == "the engine is a wall"
    assert drafted.largest_gap_nats == pytest.approx(2.0)
    assert drafted.tolerance_nats == 0.25


def test_the_table_says_how_many_differences_are_what_and_up_to_which_gap_rounding_explains(
    tmp_path: Path,
) -> None:
    summary = summarise(write_with_differences(tmp_path))
    (table,) = losslessness(summary)
    texts = [[entry.text for entry in row] for row in table.rows]

    assert table.columns[2:] == (
        "workload",
        "identical outputs",
        "first difference",
        "near-ties",
        "real",
        "unknown",
        "largest gap, nats",
        "tolerance, nats",
    )
    assert texts[0][2:] == ["generate", "25 of 25", "none", "0", "0", "0", "–", "0.25"]
    assert texts[1][5:] == ["1", "1", "1", "2.0", "0.25"]
    assert "Up to the tolerance rounding explains it: a near-tie." in table.notes[0]
    assert "near-tie of the target or a fault" in table.notes[1]


def test_a_run_that_asked_for_no_odds_says_so_in_place_of_words(tmp_path: Path) -> None:
    folder = synthetic.write_run(
        tmp_path,
        synthetic.matrix(levels=(), boots=2),
        edit=lambda request: (
            replace(request, text_sha256="another")
            if request.where.boot_id == "b2-s1" and request.index == 0
            else request
        ),
    )
    (_, drafted) = losslessness(summarise(folder))[0].rows
    near, real, unknown, gap = drafted[5:9]

    assert (near.reason, real.reason) == ("the run did not ask for odds",) * 2
    assert (near.text, unknown.text, gap.text) == ("n/a", "3", "–")


def test_a_record_of_an_output_that_was_measured_again_counts_no_more(tmp_path: Path) -> None:
    """Its boot is not the one that finished the cell."""
    folder = write_with_differences(tmp_path)
    (record, *_) = folder.read(Rescore)
    old = Where(**{**_fields(record.where), "boot_id": "b2-s0"})
    folder.append(replace(record, where=old, reason=None))
    folder.close()
    assert len(folder.usable(Rescore)) == 3


def _fields(where: Where) -> dict[str, object]:
    return {name: getattr(where, name) for name in where.__dataclass_fields__}


def test_natural_logarithms_are_told_as_such() -> None:
    """A token that is half as likely is 0.69 nats away: more than rounding explains."""
    assert log(2) > differences.COARSE_TOLERANCE_NATS
