"""The arithmetic of benchmarks.engine, with numbers that fit on a slip of paper."""

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest

from benchmarks.engine import results
from benchmarks.engine.candidates import CANDIDATES, LOADS, Candidate, Load, command
from benchmarks.engine.machine import last_level_cache_bytes, measure_machine
from benchmarks.engine.models import NUM_PROMPTS, models
from benchmarks.engine.outcome import Outcome
from benchmarks.engine.processes import together
from benchmarks.engine.results import Goal, Spread
from benchmarks.engine.weights_read import (
    product_flop_per_s,
    share_of_read_roof,
    weights_read,
)

OURS = Candidate(way="ours", precision="F32", drafts=True)
PYPI = Candidate(way="PyPI dflash", precision="F32", drafts=True)
REFERENCE = Candidate(way="transformers", precision="F32", drafts=False)
ALONE, MANY = LOADS[0], LOADS[1]

TIED = {"model.embed_tokens.weight": [10, 4], "model.layers.0.mlp.up_proj.weight": [6, 4]}
UNTIED = {**TIED, "lm_head.weight": [10, 4], "model.norm.weight": [4]}
DRAFTER = {"fc.weight": [4, 12], "candidate_selector.predecessor_codebook": [10, 2]}


def an_outcome(**values: Any) -> Outcome:
    """Two answers of five tokens: two first ones, and eight more in four steps."""
    usual: dict[str, Any] = {
        "wall_s": 2.0,
        "answers": [[1, 2, 3, 4, 5], [6, 7, 8, 9, 10]],
        "decode_s": 1.0,
        "num_steps": 4,
        "draft_s": 0.2,
        "verify_s": 0.6,
    }
    return Outcome(**{**usual, **values})


def a_file(*runs: tuple[Candidate, Load, int, Outcome]) -> list[str]:
    """A raw file with a machine that reads 100 bytes per ms."""
    weights = {"plain_step": 25, "drafted_round": 50, "products": 20}
    header = {"kind": "header", "weights": {load.model: weights for load in LOADS}, "threads": 2}
    machine = {"read_bytes_per_s": 100e3, "read_by": "paper", "product_flop_per_s": 100e3}
    told = [
        {
            "kind": "run",
            "round": number,
            "candidate": dataclasses.asdict(candidate),
            "load": dataclasses.asdict(load),
            "outcome": dataclasses.asdict(outcome),
            "peak_memory_bytes": 5_000_000,
            "others_cpu_s": 0.0,
            "machine": machine,
        }
        for candidate, load, number, outcome in runs
    ]
    return [json.dumps(line) for line in (header, *told)]


# --- one outcome ----------------------------------------------------------------------------------


def test_the_first_token_of_an_answer_is_of_no_step():
    outcome = an_outcome()
    assert outcome.tokens_per_step == 2.0  # (10 - 2) / 4
    assert outcome.tok_per_s == 5.0  # but it is in the rate, as its prompt's time is


def test_a_steps_time_falls_into_draft_verification_and_rest():
    outcome = an_outcome()
    assert outcome.step_ms == 250
    assert outcome.draft_ms == pytest.approx(50)
    assert outcome.verify_ms == pytest.approx(150)
    assert outcome.rest_ms == pytest.approx(50)


def test_a_candidate_that_tells_no_parts_has_no_rest():
    assert an_outcome(draft_s=None).rest_ms is None


def test_requests_of_a_load_add_up_but_their_wall_times_overlap():
    both = together(3.0, [an_outcome(), an_outcome(verify_s=None)])
    assert (both.wall_s, both.num_tokens, both.num_steps, both.decode_s) == (3.0, 20, 8, 2.0)
    assert both.draft_s == pytest.approx(0.4)
    assert both.verify_s is None  # one of them did not tell


# --- the roof -------------------------------------------------------------------------------------


def test_a_tied_embedding_is_read_whole_because_it_is_the_head():
    assert weights_read(TIED, None).plain_step == 40 + 24


def test_an_untied_embedding_is_only_looked_up():
    read = weights_read(UNTIED, None)
    assert read.plain_step == 24 + 40 + 4
    assert read.products == 24 + 40  # a norm is read but multiplies no matrix
    assert read.drafted_round is None


def test_a_round_reads_target_and_drafter_and_the_head_once_more():
    assert weights_read(TIED, DRAFTER).drafted_round == 64 + 48 + 40


def test_the_share_of_the_roof_is_reading_time_over_step_time():
    # 52 MB at 26 GB/s take 2 ms
    assert share_of_read_roof(52e6, step_ms=5.0, read_bytes_per_s=26e9) == pytest.approx(0.4)


def test_a_pass_of_128_rows_multiplies_and_adds_each_weight_128_times():
    assert product_flop_per_s(128, 1_000_000, step_ms=4.0) == pytest.approx(64e9)


def test_the_buffer_is_measured_by_the_largest_cache(tmp_path: Path):
    for index, size in enumerate(("32K", "32K", "1024K", "32768K")):
        folder = tmp_path / f"index{index}"
        folder.mkdir()
        (folder / "size").write_text(size + "\n")
    assert last_level_cache_bytes(tmp_path) == 32 << 20


def test_the_fastest_way_of_reading_is_named():
    found = measure_machine(buffer_bytes=1 << 20, num_threads=1)
    assert found.read_bytes_per_s > 1e6
    assert found.product_flop_per_s > 1e6
    assert found.read_by.startswith(("torch", "numpy"))


# --- over rounds ----------------------------------------------------------------------------------


def test_a_ratio_is_taken_within_each_round():
    slow, fast = an_outcome(wall_s=4.0), an_outcome(wall_s=1.0)
    told = results.read(
        a_file(
            (OURS, ALONE, 0, fast),
            (PYPI, ALONE, 0, slow),
            (OURS, ALONE, 1, slow),
            (PYPI, ALONE, 1, slow),
        )
    )
    found = results.ratio(told.of(OURS, ALONE), told.of(PYPI, ALONE))
    assert found == Spread(median=2.5, lowest=1.0, highest=4.0)


def test_a_round_that_only_one_of_them_ran_is_in_no_ratio():
    told = results.read(a_file((OURS, ALONE, 0, an_outcome()), (PYPI, ALONE, 1, an_outcome())))
    assert results.ratio(told.of(OURS, ALONE), told.of(PYPI, ALONE)) is None


def test_a_drafted_rounds_roof_counts_the_drafters_bytes():
    told = results.read(a_file((OURS, ALONE, 0, an_outcome())))
    # 50 numbers of 4 bytes at 100 bytes per ms are 2 ms, and the step took 250
    found = results.roof_share(told, OURS, ALONE)
    assert found is not None
    assert found.median == pytest.approx(0.008)


def test_the_verify_pass_of_sixteen_sequences_has_128_rows():
    told = results.read(a_file((OURS, MANY, 0, an_outcome())))
    found = results.verify_share(told, OURS, MANY)
    assert found is not None
    # 2 * 128 * 20 products in 150 ms are 34,133 per second, of 100,000
    assert found.median == pytest.approx(0.34133, rel=1e-4)


def test_an_answer_must_be_the_references_in_every_round():
    right, wrong = an_outcome(), an_outcome(answers=[[1, 2, 3, 4, 5], [6, 7, 8, 9, 11]])
    load = dataclasses.replace(ALONE, num_requests=2)
    told = results.read(
        a_file((REFERENCE, load, 0, right), (OURS, load, 0, right), (OURS, load, 1, wrong))
    )
    assert results.num_equal_answers(told, OURS, load) == 1
    assert results.num_equal_answers(told, REFERENCE, load) == 2


def test_without_a_reference_nobody_knows_whether_answers_are_right():
    told = results.read(a_file((OURS, ALONE, 0, an_outcome())))
    assert results.num_equal_answers(told, OURS, ALONE) is None


def test_a_candidate_that_was_run_again_has_its_later_figures():
    first = a_file((OURS, ALONE, 0, an_outcome(wall_s=1.0)), (PYPI, ALONE, 0, an_outcome()))
    told = results.read(first + a_file((OURS, ALONE, 0, an_outcome(wall_s=5.0))))
    assert told.of(OURS, ALONE)[0].outcome.wall_s == 5.0
    assert told.of(PYPI, ALONE)[0].outcome.wall_s == 2.0


def test_a_failure_is_told_until_the_candidate_was_run_again():
    who = {"candidate": dataclasses.asdict(OURS), "load": dataclasses.asdict(ALONE)}
    failed = json.dumps({"kind": "failed", **who, "problem": "it did not start"})
    before = [*a_file(), failed]
    assert results.read(before).problems == ["it did not start"]
    assert results.read(before + a_file((OURS, ALONE, 0, an_outcome()))).problems == []


@pytest.mark.parametrize(("median", "is_met"), [(2.9, False), (3.0, True)])
def test_a_goal_is_met_by_its_median(median: float, is_met: bool):
    found = Spread(median=median, lowest=1.0, highest=9.0)
    assert Goal(what="", at_least=3.0, found=found).is_met is is_met
    assert Goal(what="", at_most=2.9, found=found).is_met is not is_met


def test_a_goal_that_was_not_measured_is_neither_met_nor_missed():
    assert Goal(what="", at_least=3.0, found=None).is_met is None
    told = results.read(a_file((OURS, ALONE, 0, an_outcome())))
    assert "not measured" in "\n".join(results.goal_table(told))


def test_the_table_says_who_was_asked_over_http():
    served = dataclasses.replace(OURS, way="ours served")
    told = results.read(
        a_file((OURS, ALONE, 0, an_outcome()), (served, ALONE, 0, an_outcome(draft_s=None)))
    )
    rows = [line.split(" | ") for line in results.loads(told) if "DFlash 2" in line]
    assert [row[2] for row in rows] == ["no", "yes"]
    assert [row[8] for row in rows] == ["50.00", "n/a"]


# --- who takes part -------------------------------------------------------------------------------


def test_a_model_without_a_drafter_is_run_plain_and_not_by_a_drafters_package(tmp_path: Path):
    smollm2 = models(tmp_path)["smollm2-135m"]
    able = [candidate for candidate in CANDIDATES if candidate.can(LOADS[2], smollm2)]
    assert {candidate.way for candidate in able} == {
        *("ours", "ours served", "transformers", "llama.cpp")
    }
    assert not any(candidate.drafts for candidate in able)


def test_the_reference_package_takes_one_request_at_a_time(tmp_path: Path):
    demo = models(tmp_path)["demo-dense"]
    assert PYPI.can(ALONE, demo)
    assert not PYPI.can(MANY, demo)


def test_everybody_computes_with_two_threads(tmp_path: Path):
    known = models(tmp_path)
    for candidate in CANDIDATES:
        words = command(candidate, ALONE, known[ALONE.model], port=1)
        assert words[words.index("--threads") + 1] == "2"


def test_no_load_wants_more_than_was_prepared(tmp_path: Path):
    known = models(tmp_path)
    assert max(load.num_requests for load in LOADS) <= NUM_PROMPTS
    assert all(load.num_tokens <= known[load.model].num_tokens for load in LOADS)
