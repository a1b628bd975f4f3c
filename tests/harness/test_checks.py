"""Each check on facts that break it and on facts that do not."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from harness import checks
from harness.analysis import dataset
from harness.cell_view import CellView
from harness.records import Level, Request, RequestError, Snapshot

from . import synthetic


@pytest.fixture(scope="module")
def views(tmp_path_factory: pytest.TempPathFactory) -> dict[str, CellView]:
    """Cells of a good run, by variant, workload and concurrency."""
    asked = synthetic.matrix(levels=(1, 2))
    folder = synthetic.write_run(tmp_path_factory.mktemp("results"), asked)
    return {
        f"{view.cell.variant} {view.cell.workload} {view.cell.load} {view.cell.concurrency}": view
        for view in dataset.load(folder).views
    }


@pytest.fixture
def drafted(views: dict[str, CellView]) -> CellView:
    return views["DFlash2 generate single 1"]


@pytest.fixture
def plain(views: dict[str, CellView]) -> CellView:
    return views["plain generate single 1"]


def level_of(check: str, view: CellView) -> Level:
    return checks.CHECKS[check].judge(view).level


def edited(view: CellView, edit: Callable[[Request], Request]) -> CellView:
    return replace(view, requests=tuple(map(edit, view.requests)))


def with_counters(view: CellView, moment: str, **changes: Any) -> CellView:
    """All readings of one moment changed; a value may be a function of the old one."""

    def edit(snapshot: Snapshot) -> Snapshot:
        if snapshot.moment != moment or snapshot.counters is None:
            return snapshot
        new = {
            name: change(getattr(snapshot.counters, name)) if callable(change) else change
            for name, change in changes.items()
        }
        return replace(snapshot, counters=replace(snapshot.counters, **new))

    return replace(view, snapshots=tuple(map(edit, view.snapshots)))


def test_a_good_run_is_accused_of_nothing(views: dict[str, CellView]) -> None:
    verdicts = [verdict for view in views.values() for verdict in checks.judge(view)]

    assert [verdict for verdict in verdicts if verdict.level != "ok"] == []
    assert checks.worst(verdicts) == "ok"


def test_every_message_that_accuses_says_what_to_do_and_no_ok_says_anything(
    views: dict[str, CellView],
) -> None:
    for view in views.values():
        assert all(verdict.message == "" for verdict in checks.judge(view))


# --- speculation ----------------------------------------------------------------------------------


def test_silent_fallback_to_plain_decoding_is_invalid(drafted: CellView) -> None:
    nothing = {"drafts": 0, "draft_tokens": 0, "accepted_tokens": 0, "plain_steps": 10}
    silent = with_counters(with_counters(drafted, "before", **nothing), "after", **nothing)

    found = checks.speculation.speculation_active(silent)

    assert found.level == "invalid"
    assert "drafted nothing" in found.message


def test_an_engine_without_counters_is_a_warning(drafted: CellView) -> None:
    blind = replace(
        drafted, snapshots=tuple(replace(item, counters=None) for item in drafted.snapshots)
    )

    assert level_of("speculation_active", blind) == "warning"
    assert level_of("al_within_k_plus_1", blind) == "ok"


def test_a_plain_variant_that_drafts_is_no_reference(plain: CellView) -> None:
    drafting = with_counters(plain, "after", drafts=lambda drafts: drafts + 3)

    assert level_of("speculation_active", drafting) == "invalid"


def test_acceptance_above_the_ceiling_is_invalid(drafted: CellView) -> None:
    # the drafter accepts 2.88 of 7 on average: with k = 2 at most 3 tokens a round are possible
    shallow = replace(drafted, cell=replace(drafted.cell, k=2))

    assert level_of("al_within_k_plus_1", shallow) == "invalid"
    assert level_of("drafted_depth", shallow) == "invalid"


def test_a_drafter_that_stops_early_is_a_warning(drafted: CellView) -> None:
    assert level_of("drafted_depth", replace(drafted, cell=replace(drafted.cell, k=8))) == "warning"


def test_a_drafter_at_its_ceiling_is_saturated(drafted: CellView) -> None:
    # 7 of 7 accepted in every round
    full = with_counters(
        with_counters(drafted, "before", drafts=0, accepted_tokens=0),
        "after",
        drafts=10,
        accepted_tokens=70,
    )

    assert level_of("saturated", full) == "warning"
    assert level_of("saturated", drafted) == "ok"


# --- counters -------------------------------------------------------------------------------------


def test_a_restarted_engine_is_invalid(drafted: CellView) -> None:
    assert level_of("counter_reset", with_counters(drafted, "after", process_start_s=9.9)) == (
        "invalid"
    )


def test_a_counter_that_falls_is_invalid_and_leaves_no_acceptance(drafted: CellView) -> None:
    reset = with_counters(drafted, "after", drafts=0, accepted_tokens=0)

    assert level_of("counter_reset", reset) == "invalid"
    assert reset.total.delta is None


def test_a_counter_that_vanishes_is_a_reset_too(drafted: CellView) -> None:
    assert level_of("counter_reset", with_counters(drafted, "after", drafts=None)) == "invalid"


def test_a_page_that_does_not_tell_when_its_process_began_accuses_nobody(
    drafted: CellView,
) -> None:
    untold = with_counters(drafted, "after", process_start_s=None)

    assert level_of("counter_reset", untold) == "ok"
    assert untold.total.delta is not None


def test_counters_of_an_engine_that_was_busy_say_nothing(drafted: CellView) -> None:
    busy = replace(drafted.snapshots[1], quiet=False)
    view = replace(drafted, snapshots=(drafted.snapshots[0], busy, *drafted.snapshots[2:]))

    assert view.total.delta is None
    reason = "unavailable: the engine was not quiet when its counters were read"
    assert view.total.reason == reason
    assert level_of("speculation_active", view) == "warning"


def test_a_second_model_in_the_counters_is_invalid(drafted: CellView) -> None:
    foreign = with_counters(drafted, "after", labels=("demo", "other"))

    assert level_of("counter_foreign_label", foreign) == "invalid"
    assert foreign.total.delta is None


def test_requests_that_we_did_not_send_are_foreign(drafted: CellView) -> None:
    shared = with_counters(drafted, "after", requests=lambda requests: requests + 1)

    assert level_of("foreign_traffic", shared) == "invalid"
    assert "contaminated by other traffic" in checks.counters.foreign_traffic(shared).message
    assert shared.total.delta is None


def test_tokens_that_we_did_not_get_are_foreign(drafted: CellView) -> None:
    """llama.cpp counts no requests."""
    shared = with_counters(
        drafted, "after", requests=None, generation_tokens=lambda tokens: tokens + 1
    )
    shared = with_counters(shared, "before", requests=None)

    assert level_of("foreign_traffic", shared) == "invalid"


def test_a_failed_request_may_have_had_its_tokens_and_no_more(drafted: CellView) -> None:
    first = drafted.requests[0]
    failing = edited(drafted, lambda item: failed(item) if item == first else item)
    spare = drafted.cell.max_tokens - (first.output_tokens or 0)

    def with_more(tokens: int) -> CellView:
        """In the scope of the failed request, whose reading is the first pair."""
        around = replace(failing, snapshots=failing.snapshots[:2])
        return with_counters(around, "after", generation_tokens=lambda count: count + tokens)

    assert level_of("foreign_traffic", failing) == "ok"
    assert level_of("foreign_traffic", with_more(spare)) == "ok"
    assert level_of("foreign_traffic", with_more(spare + 1)) == "invalid"


def test_counters_that_lack_our_work_say_nothing_of_it(drafted: CellView) -> None:
    """One of two workers was asked, or a router that counts for itself."""
    lacking = with_counters(drafted, "after", generation_tokens=lambda tokens: tokens - 1)

    assert lacking.total.delta is None
    assert "the counters lack work of ours" in str(lacking.total.reason)
    assert level_of("foreign_traffic", lacking) == "ok"
    assert level_of("speculation_active", lacking) == "warning"


def test_positions_that_do_not_add_up_are_invalid(drafted: CellView) -> None:
    replayed = with_counters(
        drafted, "after", accepted_at=lambda counts: (counts[0] + 1, *counts[1:])
    )

    assert level_of("positions_add_up", drafted) == "ok"
    assert level_of("positions_add_up", replayed) == "invalid"


def test_tokens_that_no_round_explains_are_invalid(drafted: CellView) -> None:
    more = edited(drafted, lambda item: replace(item, output_tokens=(item.output_tokens or 0) + 1))
    more = with_counters(more, "after", generation_tokens=lambda tokens: tokens + 1)

    assert level_of("token_identity", more) == "invalid"


@pytest.mark.parametrize(("missing", "level"), [(7, "ok"), (8, "invalid")])
def test_an_engine_that_hides_trimmed_tokens_may_be_short_by_k_a_request(
    plain: CellView, missing: int, level: Level
) -> None:
    cell = replace(plain.cell, drafter="dflash2", k=7)
    hidden = with_counters(replace(plain, cell=cell), "before", trimmed_tokens=None)
    hidden = with_counters(hidden, "after", trimmed_tokens=None)
    short = edited(
        hidden, lambda item: replace(item, output_tokens=(item.output_tokens or 0) - missing)
    )
    short = with_counters(short, "after", generation_tokens=lambda tokens: tokens - missing)

    assert level_of("token_identity", short) == level


# --- requests -------------------------------------------------------------------------------------


def failed(request: Request) -> Request:
    error = RequestError(kind="timeout", message="nothing came for 30 s")
    return replace(request, status="failed", error=error, wall_s=None, output_tokens=None)


def test_one_failed_request_of_thirty_is_a_warning_and_two_are_too_many(drafted: CellView) -> None:
    def failing(count: int) -> CellView:
        chosen = drafted.requests[:count]
        return edited(drafted, lambda item: failed(item) if item in chosen else item)

    assert len(drafted.requests) == 30
    assert level_of("failed_share", failing(1)) == "warning"
    assert level_of("failed_share", failing(2)) == "invalid"
    assert "timeout 2" in checks.answers.failed_share(failing(2)).message


@pytest.mark.parametrize(("factor", "level"), [(1.0, "ok"), (1.09, "warning"), (1.2, "invalid")])
def test_outputs_of_another_length_are_no_controlled_comparison(
    drafted: CellView, factor: float, level: Level
) -> None:
    longer = edited(
        drafted, lambda item: replace(item, output_tokens=int((item.output_tokens or 0) * factor))
    )

    assert level_of("lengths_equal", longer) == level


def test_sampled_outputs_of_natural_length_are_a_warning(drafted: CellView) -> None:
    sampling = replace(drafted.cell.sampling, temperature=0.7)
    sampled = replace(drafted, cell=replace(drafted.cell, sampling=sampling))

    assert level_of("lengths_equal", sampled) == "warning"
    forced = replace(sampled, cell=replace(sampled.cell, length="forced"))
    assert level_of("lengths_equal", forced) == "ok"


@pytest.mark.parametrize(("tokens", "level"), [(64, "ok"), (63, "warning"), (15, "invalid")])
def test_short_outputs_bias_the_decode_rate(drafted: CellView, tokens: int, level: Level) -> None:
    short = edited(drafted, lambda item: replace(item, output_tokens=tokens))

    assert level_of("short_outputs", short) == level


@pytest.mark.parametrize(("count", "level"), [(3, "ok"), (4, "warning"), (16, "invalid")])
def test_outputs_that_loop_inflate_acceptance(drafted: CellView, count: int, level: Level) -> None:
    chosen = drafted.requests[:count]
    looping = edited(
        drafted,
        lambda item: replace(item, distinct_4gram_share=0.2) if item in chosen else item,
    )

    assert level_of("loops", looping) == level


def test_a_prompt_that_is_rendered_otherwise_is_invalid(drafted: CellView) -> None:
    other = edited(drafted, lambda item: replace(item, prompt_tokens=31))

    found = checks.comparison.prompt_rendered_equal(other)

    assert found.level == "invalid"
    assert "31 prompt tokens, to 30" in found.message


def test_a_warm_prefix_cache_is_a_warning(drafted: CellView) -> None:
    warm = edited(drafted, lambda item: replace(item, cached_tokens=29))

    assert level_of("cache_state", warm) == "warning"


# --- load and client ------------------------------------------------------------------------------


def test_a_prompt_that_ran_less_often_unbalances_the_mix(views: dict[str, CellView]) -> None:
    view = views["DFlash2 concurrency wave 2"]
    without_first = replace(view, requests=view.requests[1:])

    assert level_of("balanced_mix", without_first) == "warning"


def test_a_prompt_that_never_ran_unbalances_the_mix(views: dict[str, CellView]) -> None:
    view = views["DFlash2 concurrency wave 1"]
    only_code = tuple(item for item in view.requests if item.kind == "code")

    assert level_of("balanced_mix", replace(view, requests=only_code)) == "warning"


@pytest.mark.parametrize(("reached", "level"), [(1, "warning"), (2, "ok"), (3, "invalid")])
def test_in_flight_is_what_was_asked_for(
    views: dict[str, CellView], reached: int, level: Level
) -> None:
    view = views["DFlash2 concurrency wave 2"]
    ends = tuple(replace(end, in_flight_max=reached) for end in view.ends)

    assert level_of("in_flight_is_c", replace(view, ends=ends)) == level


def test_a_boot_without_a_warm_up_is_a_warning(drafted: CellView) -> None:
    cold = replace(drafted, warmups=())

    assert level_of("warmed_up", cold) == "warning"


def test_a_client_that_sends_late_is_a_warning(drafted: CellView) -> None:
    late = edited(drafted, lambda item: replace(item, send_lateness_s=0.02 * (item.wall_s or 0)))

    assert level_of("client_late", late) == "warning"


def test_a_client_that_adds_more_than_a_hundredth_of_ttft_is_a_warning(drafted: CellView) -> None:
    # TTFT is 20 ms here
    slow = tuple(replace(item, client_lateness_s=0.001) for item in drafted.sessions)

    assert level_of("client_late", replace(drafted, sessions=slow)) == "warning"


@pytest.mark.parametrize(
    ("changes", "level"),
    [
        ({"cpu_share": 0.7}, "ok"),
        ({"cpu_share": 0.85}, "warning"),
        ({"cpu_share": 0.99}, "invalid"),
        ({"loop_lag_max_s": 0.2}, "warning"),
        ({"cpu_share": None, "loop_lag_max_s": None}, "ok"),
    ],
)
def test_a_busy_client_measures_itself(
    drafted: CellView, changes: dict[str, Any], level: Level
) -> None:
    ends = tuple(replace(end, **changes) for end in drafted.ends)

    assert level_of("client_busy", replace(drafted, ends=ends)) == level


# --- where the numbers come from ------------------------------------------------------------------


def test_one_boot_decides_nothing(drafted: CellView) -> None:
    assert level_of("within_one_boot", drafted.of_boot(drafted.boot_ids[0])) == "warning"


def test_a_reference_of_another_session_is_a_warning(drafted: CellView) -> None:
    boots = tuple(
        replace(boot, where=replace(boot.where, session_id="s2")) for boot in drafted.boots
    )

    assert level_of("split_session", replace(drafted, boots=boots)) == "warning"


def test_a_cell_that_no_block_finished_is_invalid_and_the_only_thing_said_of_it(
    drafted: CellView,
) -> None:
    reason = ("block b2: the server ended with code 1.",)
    empty = replace(drafted, requests=(), boots=(), snapshots=(), ends=(), unfinished=reason)

    verdicts = checks.judge(empty)

    told = [(verdict.check, verdict.level) for verdict in verdicts if verdict.level != "ok"]
    assert told == [("available", "invalid")]
    assert level_of("available", replace(drafted, unfinished=reason)) == "warning"


def test_the_page_on_checks_holds_every_rule() -> None:
    page = (Path(__file__).parents[2] / "docs" / "checks.md").read_text(encoding="utf-8")

    for name, check in checks.CHECKS.items():
        assert f"| `{name}` | {check.rule} |" in page
    assert page.count("\n| `") == len(checks.CHECKS)
