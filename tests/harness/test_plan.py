"""From a matrix to cells and blocks; every expected order and count is worked out by hand."""

from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from harness.errors import ConfigError
from harness.plan import (
    WARMUP,
    arrivals_s,
    make_plan,
    num_requests,
    remarks,
    repetitions,
    requests_of,
    resolve_reference,
    salts_of,
    turns,
)
from harness.price import Durations, durations_of, num_starts, starts_s
from harness.records import (
    Boot,
    Cell,
    Drafter,
    Engine,
    LosslessnessRules,
    Matrix,
    Model,
    Prompt,
    PromptSet,
    RepetitionEnd,
    Sampling,
    Schedule,
    Variant,
    Where,
    Workload,
)


def prompt_set(count: int, name: str = "demo5") -> PromptSet:
    prompts = tuple(
        Prompt(prompt_id=f"p{i}", kind="code", messages=(), source="", licence="")
        for i in range(1, count + 1)
    )
    return PromptSet(name=name, prompts=prompts, sha256=f"{name}-{count}")


ENGINE = Engine(name="dflash2", adapter="dflash2", kind="process", command=("serve",))
OTHER_ENGINE = Engine(name="vllm", adapter="openai", kind="process", command=("vllm", "serve"))
DEMO = Model(name="demo", path="demo/target")
PLAIN = Variant(name="plain", engine=ENGINE, target=DEMO)
DFLASH2 = Variant(
    name="DFlash2", engine=ENGINE, target=DEMO, drafter=Drafter(method="dflash2", k=7)
)
GENERATE = Workload(
    kind="generate", prompts=prompt_set(10), warmup=None, repetitions=3, max_tokens=384
)
WAVES = Workload(
    kind="concurrency",
    prompts=prompt_set(10),
    warmup=None,
    repetitions=2,
    max_tokens=192,
    levels=(1, 2, 4),
    load="wave",
)


def matrix(
    variants: tuple[Variant, ...] = (PLAIN, DFLASH2),
    workloads: tuple[Workload, ...] = (GENERATE, WAVES),
    **changes: object,
) -> Matrix:
    whole = Matrix(
        name="quickstart",
        path="configs/matrices/quickstart.yaml",
        purpose="measurement",
        variants=variants,
        workloads=workloads,
        sampling=Sampling(),
        schedule=Schedule(),
    )
    return replace(whole, **changes)


def sent(cell: Cell, prompts: PromptSet, repetition: int) -> list[str]:
    return [prompt.prompt_id for prompt in requests_of(cell, prompts, repetition)]


def only_cell(workload: Workload) -> Cell:
    (cell,) = make_plan(matrix(variants=(PLAIN,), workloads=(workload,))).cells
    return cell


# --- turns ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("boots", "expected"), [(2, "A B B A"), (4, "A B B A A B B A"), (6, "A B B A A B B A A B B A")]
)
def test_two_variants_take_turns_forth_and_back(boots: int, expected: str) -> None:
    assert turns(["A", "B"], Schedule(boots=boots)) == tuple(expected.split())


def test_three_variants_take_turns_forth_and_back() -> None:
    assert turns(["A", "B", "C"], Schedule(boots=2)) == ("A", "B", "C", "C", "B", "A")


def test_listed_order_repeats_as_written() -> None:
    assert turns(["A", "B"], Schedule(order="listed", boots=3)) == tuple("ABABAB")


# --- cells and blocks -----------------------------------------------------------------------------


def test_a_variant_has_a_cell_per_workload_and_level() -> None:
    cells = make_plan(matrix()).cells
    assert [(c.variant, c.workload, c.load, c.concurrency) for c in cells] == [
        ("plain", "generate", "single", 1),
        ("plain", "concurrency", "wave", 1),
        ("plain", "concurrency", "wave", 2),
        ("plain", "concurrency", "wave", 4),
        ("DFlash2", "generate", "single", 1),
        ("DFlash2", "concurrency", "wave", 1),
        ("DFlash2", "concurrency", "wave", 2),
        ("DFlash2", "concurrency", "wave", 4),
    ]


def test_cell_ids_read_well_and_differ() -> None:
    ids = [cell.cell_id for cell in make_plan(matrix()).cells]
    assert len(set(ids)) == 8
    assert [cell_id.rsplit("-", 1)[0] for cell_id in ids[4:]] == [
        "dflash2-generate-c1",
        "dflash2-concurrency-wave-c1",
        "dflash2-concurrency-wave-c2",
        "dflash2-concurrency-wave-c4",
    ]


def test_blocks_follow_the_turns_and_keep_the_order_of_their_cells() -> None:
    plan = make_plan(matrix())
    assert [(b.block_id, b.variant) for b in plan.blocks] == [
        ("b1", "plain"),
        ("b2", "DFlash2"),
        ("b3", "DFlash2"),
        ("b4", "plain"),
    ]
    ids = tuple(cell.cell_id for cell in plan.cells)
    assert [b.cell_ids for b in plan.blocks] == [ids[:4], ids[4:], ids[4:], ids[:4]]


def test_a_plan_is_the_same_each_time_and_its_hash_tells_plans_apart() -> None:
    assert make_plan(matrix()) == make_plan(matrix())
    again = make_plan(matrix(schedule=Schedule(boots=4)))
    assert again.plan_hash != make_plan(matrix()).plan_hash


def test_an_edit_of_one_workload_leaves_the_ids_of_the_other_cells() -> None:
    before = {cell.cell_id for cell in make_plan(matrix()).cells}
    longer = matrix(workloads=(replace(GENERATE, max_tokens=512), WAVES))
    after = {cell.cell_id for cell in make_plan(longer).cells}
    assert len(before & after) == 6


def test_a_retrained_model_gives_other_cells() -> None:
    before = make_plan(matrix(), identities={"demo": "aaaa"}).cells
    after = make_plan(matrix(), identities={"demo": "bbbb"}).cells
    assert not {cell.cell_id for cell in before} & {cell.cell_id for cell in after}
    assert [cell.workload_key for cell in before] == [cell.workload_key for cell in after]


def test_two_workloads_that_measure_the_same_are_refused() -> None:
    again = replace(WAVES, levels=(4, 8), repetitions=5)
    with pytest.raises(ConfigError) as caught:
        make_plan(matrix(workloads=(WAVES, again)))
    assert str(caught.value) == (
        "configs/matrices/quickstart.yaml: two workloads measure the same thing: concurrency, "
        "prompts demo5, load wave, c = 4; remove one, or raise `repetitions` of the other"
    )


# --- servers that cannot be booted ----------------------------------------------------------------


def attached(name: str, port: int) -> Variant:
    engine = Engine(name=name, adapter="openai", kind="attach", url=f"http://localhost:{port}")
    return Variant(name=name, engine=engine, target=DEMO)


HERE, THERE = attached("here", 8001), attached("there", 8002)


def turns_of(whole: Matrix) -> list[tuple[str, tuple[tuple[int, int], ...]]]:
    """Whose turn it is, and which repetitions of its cells."""
    blocks = make_plan(whole).blocks
    return [(b.variant, tuple((b.repetitions or {}).values())) for b in blocks]


def test_attached_servers_take_turns_by_repetition() -> None:
    two = replace(GENERATE, repetitions=2)
    whole = matrix(variants=(HERE, THERE), workloads=(two,), schedule=Schedule(boots=2))
    assert turns_of(whole) == [
        ("here", ((0, 1),)),
        ("there", ((0, 1),)),
        ("there", ((1, 2),)),
        ("here", ((1, 2),)),
        ("here", ((2, 3),)),
        ("there", ((2, 3),)),
        ("there", ((3, 4),)),
        ("here", ((3, 4),)),
    ]
    assert {cell.repetitions for cell in make_plan(whole).cells} == {4}


def test_a_cell_with_more_repetitions_has_some_in_every_turn() -> None:
    waves = replace(WAVES, prompts=prompt_set(5), levels=(2,), repetitions=5)
    one = replace(GENERATE, repetitions=1)
    whole = matrix(variants=(HERE, THERE), workloads=(one, waves), schedule=Schedule(boots=2))
    assert turns_of(whole) == [
        ("here", ((0, 1), (0, 5))),
        ("there", ((0, 1), (0, 5))),
        ("there", ((1, 2), (5, 10))),
        ("here", ((1, 2), (5, 10))),
    ]


def test_beside_an_engine_that_boots_an_attached_one_has_a_turn_per_boot() -> None:
    whole = matrix(variants=(PLAIN, HERE), workloads=(GENERATE,), schedule=Schedule(boots=2))
    assert turns_of(whole) == [
        ("plain", ()),
        ("here", ((0, 3),)),
        ("here", ((3, 6),)),
        ("plain", ()),
    ]
    assert [cell.repetitions for cell in make_plan(whole).cells] == [3, 6]


def test_one_attached_server_alone_has_one_turn() -> None:
    whole = matrix(variants=(HERE,), workloads=(GENERATE,), schedule=Schedule(boots=2))
    assert turns_of(whole) == [("here", ((0, 6),))]


def test_no_salt_is_sent_twice_to_a_server_that_goes_on() -> None:
    waves = replace(WAVES, prompts=prompt_set(4), levels=(1, 2), repetitions=4)
    sent = [
        salt
        for again in ("", "s2", "s2.b9")
        for level in waves.levels
        for repetition in range(8)  # four, twice
        for salt in salts_of(waves, level, repetition, again)
    ]
    assert len(sent) == len(set(sent)) == 3 * 8 * (1 + 2)


@settings(deadline=None)
@given(
    counts=st.lists(st.integers(1, 9), min_size=1, max_size=3),
    boots=st.sampled_from([1, 2, 4]),
    num_servers=st.integers(1, 3),
)
def test_every_repetition_of_an_attached_server_has_exactly_one_turn(
    counts: list[int], boots: int, num_servers: int
) -> None:
    servers = tuple(attached(f"server {n}", 8000 + n) for n in range(num_servers))
    workloads = tuple(
        replace(GENERATE, max_tokens=number, repetitions=count)
        for number, count in enumerate(counts, start=1)
    )
    order = "listed" if boots == 1 else "abba"
    plan = make_plan(
        matrix(variants=servers, workloads=workloads, schedule=Schedule(order=order, boots=boots))
    )
    for cell in plan.cells:
        taken = [
            number
            for block in plan.blocks
            for number in range(*(block.repetitions or {}).get(cell.cell_id, (0, 0)))
        ]
        assert taken == list(range(cell.repetitions))
    for block in plan.blocks:
        assert all(first < behind for first, behind in (block.repetitions or {}).values())


# --- the control ----------------------------------------------------------------------------------


def test_the_control_goes_first_and_last_in_cells_of_its_own() -> None:
    whole = matrix(workloads=(GENERATE,), schedule=Schedule(boots=2, control="plain"))
    plan = make_plan(whole)
    assert [b.variant for b in plan.blocks] == [
        "plain",
        "plain",
        "DFlash2",
        "DFlash2",
        "plain",
        "plain",
    ]
    plain, _, control = plan.cells
    assert control == replace(
        plain,
        cell_id=f"{plain.cell_id}-control",
        control_of=plain.cell_id,
        reference_reason="is the control",
    )
    assert plan.blocks[0].cell_ids == plan.blocks[-1].cell_ids == (control.cell_id,)
    assert plan.blocks[1].cell_ids == plan.blocks[4].cell_ids == (plain.cell_id,)
    assert [b.block_id for b in plan.blocks] == ["b1", "b2", "b3", "b4", "b5", "b6"]


# --- references -----------------------------------------------------------------------------------


def test_the_plain_variant_is_the_reference_of_the_same_workload() -> None:
    cells = make_plan(matrix()).cells
    assert [c.reference_cell_id for c in cells[4:]] == [c.cell_id for c in cells[:4]]
    assert [c.workload_key for c in cells[4:]] == [c.workload_key for c in cells[:4]]
    assert {c.reference_reason for c in cells[4:]} == {None}


def test_the_reference_has_none_of_its_own() -> None:
    plain = make_plan(matrix()).cells[0]
    assert plain.reference_cell_id is None
    assert plain.reference_reason == "is the reference"


@pytest.mark.parametrize(
    "other",
    [
        replace(PLAIN, target=Model(name="demo-fp8", path="x")),
        replace(PLAIN, engine=OTHER_ENGINE),
    ],
)
def test_another_target_or_engine_is_no_reference(other: Variant) -> None:
    reference, reason = resolve_reference(DFLASH2, (other, DFLASH2))
    assert reference is None
    assert reason == "no variant without a drafter has target demo on engine dflash2"


def test_two_plain_variants_need_a_word_from_the_user() -> None:
    threaded = replace(PLAIN, name="plain 2 threads", flags={"threads": 2})
    reference, reason = resolve_reference(DFLASH2, (PLAIN, threaded, DFLASH2))
    assert reference is None
    assert reason == (
        "more than one plain variant fits (plain, plain 2 threads); name one with `reference:`"
    )
    chosen = replace(DFLASH2, reference="plain 2 threads")
    assert resolve_reference(chosen, (PLAIN, threaded, chosen)) == (threaded, None)


def test_variants_on_other_machines_are_no_references() -> None:
    here = replace(DFLASH2, resources={"gb10": 1.0})
    assert resolve_reference(here, (PLAIN, here)) == (
        None,
        "no variant without a drafter has target demo on engine dflash2 and resources gb10: 1",
    )
    named = replace(here, reference="plain")
    assert resolve_reference(named, (PLAIN, named)) == (
        None,
        "its reference plain runs on other machines (none, here gb10: 1)",
    )
    beside = replace(PLAIN, resources={"gb10": 1.0})
    assert resolve_reference(named, (beside, named)) == (beside, None)


def test_a_named_reference_goes_before_the_plain_one() -> None:
    k3 = replace(DFLASH2, name="k3", drafter=Drafter(method="dflash2", k=3))
    k7 = replace(DFLASH2, reference="k3")
    cells = make_plan(matrix(variants=(PLAIN, k3, k7), workloads=(GENERATE,))).cells
    assert cells[2].reference_cell_id == cells[1].cell_id


# --- how many requests, how many repetitions ------------------------------------------------------


def test_a_single_stream_sends_every_prompt_once() -> None:
    assert num_requests(GENERATE, 1) == 10


def test_a_wave_is_c_requests() -> None:
    assert [num_requests(WAVES, c) for c in (1, 2, 4, 16)] == [1, 2, 4, 16]


@pytest.mark.parametrize(
    ("num_prompts", "concurrency", "expected"),
    [
        (10, 1, 40),  # 4 x 10 prompts
        (10, 16, 70),  # 64 requests, up to 7 rounds
        (4, 4, 16),  # both 16
        (5, 8, 35),  # 32 requests, up to 7 rounds of 5
    ],
)
def test_a_closed_load_runs_whole_rounds_of_the_prompts(
    num_prompts: int, concurrency: int, expected: int
) -> None:
    closed = replace(WAVES, load="closed", prompts=prompt_set(num_prompts))
    assert num_requests(closed, concurrency) == expected


def test_a_closed_load_runs_as_many_requests_as_asked() -> None:
    assert num_requests(replace(WAVES, load="closed", num_requests=13), 4) == 13


@pytest.mark.parametrize(
    ("num_prompts", "concurrency", "asked", "expected"),
    [
        (10, 1, 2, 10),
        (10, 2, 2, 5),
        (10, 4, 2, 5),  # 20 requests, each prompt twice
        (10, 4, 6, 10),
        (4, 8, 3, 3),  # every wave holds each prompt twice
        (5, 10, 1, 1),
    ],
)
def test_balanced_waves_are_repeated_until_all_prompts_ran_equally_often(
    num_prompts: int, concurrency: int, asked: int, expected: int
) -> None:
    waves = replace(WAVES, prompts=prompt_set(num_prompts), repetitions=asked)
    assert repetitions(waves, concurrency) == expected


@pytest.mark.parametrize("assignment", ["round-robin", "rotate"])
def test_other_assignments_are_repeated_as_often_as_asked(assignment: str) -> None:
    assert repetitions(replace(WAVES, assignment=assignment), 4) == 2


def test_a_single_stream_is_repeated_as_often_as_asked() -> None:
    assert repetitions(GENERATE, 10) == 3


# --- which prompt each request uses ---------------------------------------------------------------


def test_round_robin_begins_at_the_first_prompt_in_every_wave() -> None:
    prompts = prompt_set(4)
    cell = only_cell(replace(WAVES, prompts=prompts, levels=(3,), assignment="round-robin"))
    assert sent(cell, prompts, 0) == ["p1", "p2", "p3"]
    assert sent(cell, prompts, 1) == ["p1", "p2", "p3"]


def test_round_robin_wraps_within_a_large_wave() -> None:
    prompts = prompt_set(4)
    cell = only_cell(replace(WAVES, prompts=prompts, levels=(6,), assignment="round-robin"))
    assert sent(cell, prompts, 1) == ["p1", "p2", "p3", "p4", "p1", "p2"]


def test_rotate_goes_on_where_the_last_wave_stopped() -> None:
    prompts = prompt_set(4)
    cell = only_cell(replace(WAVES, prompts=prompts, levels=(3,), assignment="rotate"))
    assert sent(cell, prompts, 0) == ["p1", "p2", "p3"]
    assert sent(cell, prompts, 1) == ["p4", "p1", "p2"]
    assert sent(cell, prompts, 2) == ["p3", "p4", "p1"]


def test_balanced_goes_on_too_and_ends_even() -> None:
    prompts = prompt_set(4)
    cell = only_cell(replace(WAVES, prompts=prompts, levels=(3,), repetitions=1))
    waves = [sent(cell, prompts, repetition) for repetition in range(cell.repetitions)]
    assert waves == [
        ["p1", "p2", "p3"],
        ["p4", "p1", "p2"],
        ["p3", "p4", "p1"],
        ["p2", "p3", "p4"],
    ]
    counts = Counter(prompt_id for wave in waves for prompt_id in wave)
    assert counts == {"p1": 3, "p2": 3, "p3": 3, "p4": 3}


def test_a_single_stream_sends_the_prompts_in_order_in_every_repetition() -> None:
    prompts = prompt_set(3)
    cell = only_cell(replace(GENERATE, prompts=prompts))
    assert sent(cell, prompts, 0) == sent(cell, prompts, 2) == ["p1", "p2", "p3"]


def test_the_warm_up_sends_its_own_prompts_once_or_one_wave_of_them() -> None:
    warmup = prompt_set(2, name="warmup")
    assert sent(only_cell(GENERATE), warmup, WARMUP) == ["p1", "p2"]
    wave = only_cell(replace(WAVES, levels=(3,)))
    assert sent(wave, warmup, WARMUP) == ["p1", "p2", "p1"]
    closed = only_cell(replace(WAVES, levels=(4,), load="closed"))
    assert sent(closed, warmup, WARMUP) == ["p1", "p2", "p1", "p2"]


def test_arrivals_warm_up_with_each_prompt_once() -> None:
    warmup = prompt_set(2, name="warmup")
    cell = only_cell(replace(CONSTANT, levels=(64,)))
    assert sent(cell, warmup, WARMUP) == ["p1", "p2"]


# --- when each request arrives --------------------------------------------------------------------

CONSTANT = replace(WAVES, load="constant", levels=(8,), rate_per_s=4.0, num_requests=10)
POISSON = replace(CONSTANT, load="poisson")


def test_constant_arrivals_stand_evenly_apart() -> None:
    assert arrivals_s(CONSTANT, 0, 4) == (0.0, 0.25, 0.5, 0.75)


def test_a_load_without_a_rate_has_no_arrivals() -> None:
    assert arrivals_s(WAVES, 0, 4) == ()


def test_poisson_arrivals_depend_on_seed_and_repetition_alone() -> None:
    first = arrivals_s(POISSON, 0, 20)
    assert first == arrivals_s(replace(POISSON, max_tokens=9, levels=(2,)), 0, 20)
    assert first[:5] == arrivals_s(POISSON, 0, 5)
    others = {arrivals_s(POISSON, 1, 20), arrivals_s(replace(POISSON, seed=1), 0, 20)}
    assert len(others | {first}) == 3


def test_gaps_between_poisson_arrivals_are_exponential_and_independent() -> None:
    arrivals = np.array(arrivals_s(POISSON, 0, 20_001))
    gaps = np.diff(arrivals)
    assert arrivals[0] == 0.0
    assert gaps.mean() == pytest.approx(0.25, rel=0.03)
    assert stats.kstest(gaps * 4.0, "expon").pvalue > 0.01
    assert abs(np.corrcoef(gaps[:-1], gaps[1:])[0, 1]) < 0.03


def test_a_cell_of_arrivals_knows_its_rate_and_has_keys_of_its_own() -> None:
    cells = [only_cell(each) for each in (CONSTANT, POISSON, replace(CONSTANT, rate_per_s=2.0))]
    assert [cell.rate_per_s for cell in cells] == [4.0, 4.0, 2.0]
    assert [cell.num_requests for cell in cells] == [10, 10, 10]
    for key in ("workload_key", "protocol_id", "cell_id"):
        assert len({getattr(cell, key) for cell in cells}) == 3


# --- remarks --------------------------------------------------------------------------------------


def said(whole: Matrix, *, rescore: bool = False) -> tuple[str, ...]:
    whole = replace(whole, losslessness=LosslessnessRules(rescore=rescore))
    return remarks(whole, make_plan(whole))


def test_the_plan_says_where_it_repeats_more_often_than_asked() -> None:
    assert said(matrix()) == (
        "concurrency, load wave, c = 1: 10 repetitions instead of 2, so that all 10 prompts run "
        "equally often (assignment balanced)",
        "concurrency, load wave, c = 2: 5 repetitions instead of 2, so that all 10 prompts run "
        "equally often (assignment balanced)",
        "concurrency, load wave, c = 4: 5 repetitions instead of 2, so that all 10 prompts run "
        "equally often (assignment balanced)",
    )


def test_the_plan_says_where_prompts_run_unequally_often() -> None:
    rotating = replace(WAVES, assignment="rotate", repetitions=5)
    assert said(matrix(workloads=(rotating,))) == (
        "concurrency, load wave, c = 1: 10 prompts do not run equally often under rotate; "
        "`balanced` makes it so",
    )
    published = replace(WAVES, assignment="round-robin", repetitions=5, levels=(4,))
    assert len(said(matrix(workloads=(published,)))) == 1


def test_the_plan_says_whose_prompts_stand_behind_a_salt() -> None:
    elsewhere = replace(PLAIN, name="elsewhere", engine=OTHER_ENGINE)
    both = (PLAIN, elsewhere)
    assert said(matrix(variants=both, workloads=(GENERATE,))) == (
        "vllm: each prompt goes out behind a salt, twelve digits in brackets, so that no prefix "
        "cache answers it; `cache: warm` sends prompts as they are written",
    )
    warm = replace(GENERATE, cache="warm")
    assert said(matrix(variants=both, workloads=(warm,))) == ()
    assert said(matrix(variants=(PLAIN,), workloads=(GENERATE,))) == ()


def test_the_plan_says_which_variants_will_show_no_speed_up_and_why() -> None:
    assert said(matrix(variants=(DFLASH2,), workloads=(GENERATE,))) == (
        "DFlash2: no speed-up will be shown, no variant without a drafter has target demo on "
        "engine dflash2",
    )


def test_the_plan_says_of_attached_servers_that_they_cannot_be_booted() -> None:
    warm = replace(GENERATE, cache="warm")
    whole = matrix(variants=(HERE, THERE), workloads=(warm,), schedule=Schedule(boots=2))
    assert said(whole) == (
        "here, there: attached, so they cannot be booted: their repetitions (as many as 2 boots "
        "would have had) are spread over 6 turns, A/B/B/A, and their intervals are within one boot",
    )


def test_the_plan_says_what_the_control_is_for() -> None:
    whole = matrix(workloads=(GENERATE,), schedule=Schedule(control="plain"))
    assert said(whole) == (
        "control: plain is measured first and last besides; how far the two lie apart is the "
        "machine's drift",
    )


def test_the_plan_says_what_one_boot_and_a_smoke_run_are_worth() -> None:
    whole = matrix(
        workloads=(GENERATE,), purpose="smoke", schedule=Schedule(order="listed", boots=1)
    )
    assert said(whole) == (
        "one boot per variant: intervals are within one boot; `boots: 4` makes a claim",
        "purpose smoke: the report carries a banner and never becomes a baseline",
    )


def test_the_plan_says_who_is_asked_where_outputs_differ_and_what_that_costs() -> None:
    # 10 prompts, 3 repetitions, 2 boots, 2 variants
    assert said(matrix(workloads=(GENERATE,)), rescore=True) == (
        "losslessness: where an output differs from plain's, its engine is asked how likely both "
        "tokens are, at the end of its last block, b4, by at most 120 requests of one token",
    )


def test_a_reference_that_does_not_come_last_is_started_once_more_for_it() -> None:
    whole = matrix(workloads=(GENERATE,), schedule=Schedule(order="listed", boots=2))
    (remark,) = said(whole, rescore=True)
    assert "in one more start of it, if any differs, by at most 120 requests" in remark


def test_a_control_that_comes_last_is_the_reference_too() -> None:
    schedule = Schedule(boots=2, control="plain")
    *_, remark = said(matrix(workloads=(GENERATE,), schedule=schedule), rescore=True)
    assert "at the end of its last block, b6, by at most 120 requests" in remark


def test_of_an_engine_without_words_for_it_the_plan_says_that_near_ties_stay_unknown() -> None:
    elsewhere = replace(PLAIN, name="elsewhere", engine=OTHER_ENGINE)
    warm = replace(GENERATE, cache="warm")
    assert said(matrix(variants=(elsewhere,), workloads=(warm,)), rescore=True) == (
        "losslessness: where an output differs from elsewhere's, a near-tie cannot be told from a "
        "fault: adapter openai has no words for the odds of a token",
    )


@pytest.mark.parametrize(
    "whole",
    [
        matrix(workloads=(WAVES,)),
        matrix(workloads=(GENERATE,), sampling=Sampling(temperature=0.5)),
    ],
)
def test_nobody_is_asked_where_outputs_are_not_compared(whole: Matrix) -> None:
    assert not any("losslessness" in remark for remark in said(whole, rescore=True))


# --- how long it will take ------------------------------------------------------------------------


def test_the_estimate_adds_boots_cooldowns_warm_ups_and_repetitions() -> None:
    whole = matrix(workloads=(GENERATE,), schedule=Schedule(boots=2, cooldown_s=1.0))
    plain, dflash2 = (cell.cell_id for cell in make_plan(whole).cells)
    durations = Durations(
        boot_s=3.0, warmup_s={plain: 2.0}, repetition_s={plain: 20.0, dflash2: 10.0}
    )
    # 4 blocks x (3 + 1) + 2 x (2 + 3 x 20) + 2 x (3 x 10)
    assert make_plan(whole, durations).estimated_s == 16.0 + 124.0 + 60.0


def test_an_attached_server_warms_up_once_and_is_not_booted() -> None:
    whole = matrix(
        variants=(HERE, THERE),
        workloads=(replace(GENERATE, repetitions=1),),
        schedule=Schedule(boots=2, cooldown_s=1.0),
    )
    here, there = (cell.cell_id for cell in make_plan(whole).cells)
    durations = Durations(boot_s=3.0, warmup_s={here: 2.0}, repetition_s={here: 20.0, there: 10.0})
    # 4 turns x 1 + (2 + 2 x 20) + 2 x 10
    assert make_plan(whole, durations).estimated_s == 4.0 + 42.0 + 20.0


def test_a_control_takes_as_long_as_what_it_repeats() -> None:
    whole = matrix(workloads=(GENERATE,), schedule=Schedule(boots=2, control="DFlash2"))
    plain, dflash2, _ = (cell.cell_id for cell in make_plan(whole).cells)
    durations = Durations(boot_s=3.0, warmup_s={}, repetition_s={plain: 20.0, dflash2: 10.0})
    # 6 boots x 3 + 2 x 3 x 20 + 4 x 3 x 10
    assert make_plan(whole, durations).estimated_s == 18.0 + 120.0 + 120.0


def test_starts_are_priced_as_they_took_else_as_the_matrix_expects() -> None:
    slow = replace(ENGINE, expected_boot_s=600.0)
    variants = (replace(PLAIN, engine=slow), replace(DFLASH2, engine=slow), HERE)
    whole = matrix(variants=variants, workloads=(GENERATE,), schedule=Schedule(boots=4))
    blocks = make_plan(whole).blocks
    assert num_starts(blocks) == 8
    assert starts_s(whole, blocks, None) == 4800.0
    took = Durations(boot_s=30.0, warmup_s={}, repetition_s={})
    assert starts_s(whole, blocks, took) == 240.0
    assert starts_s(matrix(), make_plan(matrix()).blocks, None) is None


def test_there_is_no_estimate_when_a_cell_was_never_timed() -> None:
    whole = matrix(workloads=(GENERATE,))
    assert make_plan(whole).estimated_s is None
    plain = make_plan(whole).cells[0].cell_id
    some = Durations(boot_s=3.0, warmup_s={}, repetition_s={plain: 20.0})
    assert make_plan(whole, some).estimated_s is None


def test_durations_are_means_of_what_a_run_recorded() -> None:
    def end(repetition: int, window_s: float) -> RepetitionEnd:
        return RepetitionEnd(
            where=Where(run_id="r", session_id="s1", cell_id="c", repetition=repetition),
            started_at="",
            window_s=window_s,
            num_requests=1,
            num_failed=0,
            in_flight_max=1,
            cpu_share=None,
            loop_lag_max_s=None,
        )

    def boot(ready_s: float | None) -> Boot:
        return Boot(
            where=Where(run_id="r", session_id="s1"),
            variant="plain",
            argv=(),
            environment={},
            pid=None,
            url="",
            started_at="",
            ready_s=ready_s,
            version=None,
            health=None,
            build=None,
            log_path="",
        )

    ends = [end(-1, 3.0), end(-2, 2.0), end(0, 8), end(1, 12)]
    found = durations_of([boot(2.0), boot(None), boot(4.0)], ends)
    assert found == Durations(boot_s=3.0, warmup_s={"c": 5.0}, repetition_s={"c": 10.0})
    assert durations_of([boot(None)], []) is None


# --- properties -----------------------------------------------------------------------------------


@settings(deadline=None)  # a busy machine is no mistake
@given(num_prompts=st.integers(1, 12), concurrency=st.integers(1, 20), asked=st.integers(1, 7))
def test_balanced_always_ends_with_equal_counts_and_no_round_too_many(
    num_prompts: int, concurrency: int, asked: int
) -> None:
    prompts = prompt_set(num_prompts)
    cell = only_cell(replace(WAVES, prompts=prompts, levels=(concurrency,), repetitions=asked))
    counts = Counter(p for r in range(cell.repetitions) for p in sent(cell, prompts, r))
    assert len(counts) == num_prompts
    assert len(set(counts.values())) == 1
    fewer = range(asked, cell.repetitions)
    assert all(repetitions * concurrency % num_prompts for repetitions in fewer)


@settings(deadline=None)
@given(names=st.lists(st.text(min_size=1), min_size=2, max_size=5, unique=True))
def test_a_steady_drift_falls_on_all_variants_alike(names: list[str]) -> None:
    order = turns(names, Schedule(boots=4))
    places = {name: sum(i for i, n in enumerate(order) if n == name) for name in names}
    assert len(set(places.values())) == 1
