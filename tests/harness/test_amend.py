"""A stored run and an edited matrix: exactly what changed is measured, worked out by hand."""

from collections.abc import Mapping
from dataclasses import replace

import pytest

from harness.amend import Amended, amended, missing
from harness.errors import ConfigError
from harness.plan import make_plan
from harness.records import Drafter, Matrix, Plan, Schedule
from harness.turns import Place, asked_of

from .test_plan import DFLASH2, GENERATE, HERE, PLAIN, THERE, WAVES, matrix, prompt_set

TWO_BOOTS = Schedule(boots=2)


def stored_of(whole: Matrix) -> tuple[Plan, Mapping[Place, frozenset[int]]]:
    """A run of it that was finished."""
    plan = make_plan(whole)
    return plan, asked_of(plan)


def after(before: Matrix, now: Matrix, only: str | None = None) -> Amended:
    plan, measured = stored_of(before)
    return amended(plan, now, make_plan(now), measured, only)


def told(found: Amended) -> list[str]:
    """Per place that is to be measured: block, variant and workload, in running order."""
    cells = {cell.cell_id: cell for cell in found.plan.cells}
    return [
        f"{block.block_id} {cells[cell_id].variant} {cells[cell_id].workload}"
        f"{' control' if cells[cell_id].control_of else ''}"
        for block in found.plan.blocks
        for cell_id in block.cell_ids
        if (block.block_id, cell_id) in found.todo
    ]


WAVE = replace(WAVES, levels=(10,))  # a cell each
BASE = matrix(workloads=(GENERATE, WAVE), schedule=TWO_BOOTS)  # b1 plain, b2 b3 DFlash2, b4 plain


def test_an_unchanged_matrix_leaves_nothing_to_measure() -> None:
    found = after(BASE, BASE)
    assert found.plan == make_plan(BASE)
    assert not found.todo
    assert found.control is None


def test_a_flag_of_one_variant_measures_its_cells_after_a_control_of_the_kept_ones() -> None:
    faster = replace(DFLASH2, flags={"threads": 2})
    found = after(BASE, replace(BASE, variants=(PLAIN, faster)))
    assert told(found) == [
        "b5 plain generate control",
        "b5 plain concurrency control",
        "b2 DFlash2 generate",
        "b2 DFlash2 concurrency",
        "b3 DFlash2 generate",
        "b3 DFlash2 concurrency",
    ]
    by_variant = {cell.variant: cell for cell in found.plan.cells if cell.workload == "generate"}
    assert by_variant["DFlash2"].reference_cell_id == make_plan(BASE).cells[0].cell_id


def test_a_prompt_file_measures_the_workload_that_uses_it_in_every_variant() -> None:
    other = replace(GENERATE, prompts=prompt_set(9, name="demo5"))
    found = after(BASE, replace(BASE, workloads=(other, WAVE)))
    # no control: of this work no old figure is left to stand beside
    assert told(found) == [
        "b1 plain generate",
        "b2 DFlash2 generate",
        "b3 DFlash2 generate",
        "b4 plain generate",
    ]


@pytest.mark.parametrize(("repetitions", "measured_again"), [(5, True), (2, False)])
def test_more_repetitions_measure_a_cell_anew_and_fewer_keep_what_is_there(
    repetitions: int, measured_again: bool
) -> None:
    edited = replace(GENERATE, repetitions=repetitions)
    found = after(BASE, replace(BASE, workloads=(edited, WAVE)))
    places = [
        f"b{n} {v} generate" for n, v in enumerate(("plain", "DFlash2", "DFlash2", "plain"), 1)
    ]
    assert told(found) == (places if measured_again else [])
    assert [c.repetitions for c in found.plan.cells if c.workload == "generate"] == [
        repetitions
    ] * 2


def test_more_boots_are_added_after_a_control_and_fewer_keep_what_is_there() -> None:
    four = replace(BASE, workloads=(GENERATE,), schedule=Schedule(boots=4))
    two = replace(four, schedule=TWO_BOOTS)
    assert told(after(two, four)) == [
        "b9 plain generate control",
        "b5 plain generate",
        "b6 DFlash2 generate",
        "b7 DFlash2 generate",
        "b8 plain generate",
    ]
    found = after(four, two)
    assert not found.todo
    assert found.plan.blocks == make_plan(four).blocks


def test_a_new_name_measures_nothing_and_is_shown() -> None:
    found = after(BASE, replace(BASE, variants=(PLAIN, replace(DFLASH2, name="DFlash 2"))))
    assert not found.todo
    before = make_plan(BASE)
    assert [c.cell_id for c in found.plan.cells] == [c.cell_id for c in before.cells]
    assert [c.variant for c in found.plan.cells] == ["plain", "plain", "DFlash 2", "DFlash 2"]
    assert [b.variant for b in found.plan.blocks] == ["plain", "DFlash 2", "DFlash 2", "plain"]


def test_a_new_variant_has_blocks_of_its_own_and_a_removed_one_none() -> None:
    deeper = replace(DFLASH2, name="k15", drafter=Drafter(method="dflash2", k=15))
    three = replace(BASE, workloads=(GENERATE,), variants=(PLAIN, DFLASH2, deeper))
    two = replace(three, variants=(PLAIN, DFLASH2))
    assert told(after(two, three)) == [
        "b7 plain generate control",
        "b5 k15 generate",
        "b6 k15 generate",
    ]
    found = after(three, two)
    assert not found.todo
    assert [b.block_id for b in found.plan.blocks] == ["b1", "b2", "b5", "b6"]  # of A B C C B A


def test_a_variant_that_is_put_back_has_its_figures_again() -> None:
    deeper = replace(DFLASH2, name="k15", drafter=Drafter(method="dflash2", k=15))
    three = replace(BASE, workloads=(GENERATE,), variants=(PLAIN, DFLASH2, deeper))
    plan, measured = stored_of(three)  # A B C C B A
    without = amended(plan, replace(three, variants=(PLAIN, DFLASH2)), plan_of_two(three), measured)

    again = amended(without.plan, three, plan, measured)
    assert not again.todo
    assert not again.started
    assert [b.block_id for b in again.plan.blocks] == ["b1", "b2", "b5", "b6", "b3", "b4"]

    anew = amended(without.plan, three, plan, measured, only="k15")
    assert told(anew) == ["b9 plain generate control", "b7 k15 generate", "b8 k15 generate"]
    assert anew.started == {"plain", "k15"}


def plan_of_two(three: Matrix) -> Plan:
    return make_plan(replace(three, variants=(PLAIN, DFLASH2)))


def test_a_cell_of_before_is_known_by_its_keys_and_never_by_its_name_alone() -> None:
    """Three protocols, one after the other: what was measured by the first is not the third's."""
    plan, measured = stored_of(BASE)
    by_httpx = replace(BASE, transport="httpx")
    second = amended(plan, by_httpx, make_plan(by_httpx), measured)
    measured = {**measured, **asked_of(second.plan)}

    third = replace(BASE, workloads=(replace(GENERATE, retries=1), WAVE))
    fresh = amended(second.plan, third, make_plan(third), measured, earlier=plan.cells)
    assert {c.cell_id for c in fresh.plan.cells if c.workload == "generate"}.isdisjoint(
        cell.cell_id for cell in (*plan.cells, *second.plan.cells)
    )
    assert told(fresh) == [
        "b1 plain generate",
        "b2 DFlash2 generate",
        "b3 DFlash2 generate",
        "b4 plain generate",
    ]

    back = amended(second.plan, BASE, plan, measured, earlier=plan.cells)
    assert not back.todo
    assert {c.cell_id for c in back.plan.cells} == {c.cell_id for c in plan.cells}


def test_figures_of_another_protocol_have_cells_of_their_own() -> None:
    found = after(BASE, replace(BASE, transport="httpx"))
    assert len(found.todo) == 8
    assert found.control is None
    assert not {c.cell_id for c in found.plan.cells} & {c.cell_id for c in make_plan(BASE).cells}


def test_the_matrix_says_who_the_control_is() -> None:
    deeper = replace(DFLASH2, name="k15", drafter=Drafter(method="dflash2", k=15))
    schedule = replace(TWO_BOOTS, control="DFlash2")
    now = replace(BASE, variants=(PLAIN, DFLASH2, deeper), schedule=schedule)
    plan, measured = stored_of(BASE)
    found = amended(plan, now, make_plan(replace(now, schedule=TWO_BOOTS)), measured)
    assert found.control is not None
    assert found.control.variant == "DFlash2"


def test_what_was_left_undone_is_still_to_do() -> None:
    plan, measured = stored_of(BASE)
    first, *rest = sorted(measured)
    found = amended(plan, BASE, plan, {place: measured[place] for place in rest})
    assert first in found.todo
    assert found.control is not None  # the rest was measured in another session
    assert missing(plan, {}) == measured.keys()


# --- one variant alone ----------------------------------------------------------------------------


def test_one_variant_is_measured_anew_in_blocks_of_its_own() -> None:
    found = after(BASE, BASE, only="DFlash2")
    assert told(found) == [
        "b7 plain generate control",
        "b7 plain concurrency control",
        "b5 DFlash2 generate",
        "b5 DFlash2 concurrency",
        "b6 DFlash2 generate",
        "b6 DFlash2 concurrency",
    ]
    assert [b.block_id for b in found.plan.blocks] == ["b1", "b4", "b7", "b5", "b6"]


def test_one_variant_is_added_and_others_of_the_matrix_are_not() -> None:
    deeper = replace(DFLASH2, name="k15", drafter=Drafter(method="dflash2", k=15))
    third = replace(DFLASH2, name="k3", drafter=Drafter(method="dflash2", k=3))
    found = after(BASE, replace(BASE, variants=(PLAIN, DFLASH2, third, deeper)), only="k15")
    variants = dict.fromkeys(c.variant for c in found.plan.cells if c.control_of is None)
    assert list(variants) == ["plain", "DFlash2", "k15"]
    assert {each.split()[1] for each in told(found)} == {"plain", "k15"}


def test_a_reference_that_was_not_measured_is_none() -> None:
    k3 = replace(DFLASH2, name="k3", drafter=Drafter(method="dflash2", k=3))
    k7 = replace(DFLASH2, name="k7", reference="k3")
    found = after(BASE, replace(BASE, variants=(PLAIN, DFLASH2, k3, k7)), only="k7")
    own = [cell for cell in found.plan.cells if cell.variant == "k7"]
    assert {cell.reference_reason for cell in own} == {"its reference was not measured in this run"}


def test_the_plain_variant_can_be_measured_anew_beside_the_others() -> None:
    found = after(BASE, BASE, only="plain")
    assert found.control is not None
    assert found.control.variant == "DFlash2"


def test_one_variant_is_refused_where_others_changed_too() -> None:
    faster = replace(PLAIN, flags={"threads": 2})
    with pytest.raises(ConfigError, match=r"changed for plain too .* leave `--only` out"):
        after(BASE, replace(BASE, variants=(faster, DFLASH2)), only="DFlash2")


# --- a control that was measured before, and servers that only go on ------------------------------


def test_controls_of_before_are_kept_with_what_they_repeat() -> None:
    controlled = replace(BASE, schedule=replace(TWO_BOOTS, control="plain"))
    plan, measured = stored_of(controlled)
    found = amended(plan, controlled, make_plan(BASE), measured)
    assert not found.todo
    assert found.plan.cells == plan.cells
    assert {b.block_id: b for b in found.plan.blocks} == {b.block_id: b for b in plan.blocks}


def test_an_attached_server_goes_on_with_the_repetitions_that_are_missing() -> None:
    before = matrix(
        variants=(HERE, THERE),
        workloads=(replace(GENERATE, repetitions=1),),
        schedule=TWO_BOOTS,
    )
    found = after(before, replace(before, workloads=(replace(GENERATE, repetitions=2),)))
    turns = {b.block_id: [*(b.repetitions or {}).values()] for b in found.plan.blocks}
    # here there there here, two turns each before, four now
    assert turns == {
        "b1": [(0, 1)],
        "b2": [(0, 1)],
        "b3": [(1, 2)],
        "b4": [(1, 2)],
        "b9": [(0, 4)],  # the control: all repetitions of its cell
        "b5": [(2, 3)],
        "b6": [(2, 3)],
        "b7": [(3, 4)],
        "b8": [(3, 4)],
    }
    assert {block_id for block_id, _ in found.todo} == {"b5", "b6", "b7", "b8", "b9"}
