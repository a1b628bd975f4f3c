"""Checks of an engine's set-up and of a run's steadiness, on facts that break each and do not."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from harness import checks
from harness.analysis import dataset
from harness.cell_view import CellView
from harness.records import Level, Request, Snapshot

from . import synthetic


@pytest.fixture(scope="module")
def views(tmp_path_factory: pytest.TempPathFactory) -> dict[str, CellView]:
    asked = synthetic.matrix(levels=(2,))
    folder = synthetic.write_run(tmp_path_factory.mktemp("results"), asked)
    return {
        f"{view.cell.variant} {view.cell.workload} {view.cell.load}": view
        for view in dataset.load(folder).views
    }


@pytest.fixture
def drafted(views: dict[str, CellView]) -> CellView:
    return views["DFlash2 generate single"]


@pytest.fixture
def plain(views: dict[str, CellView]) -> CellView:
    return views["plain generate single"]


def level_of(check: str, view: CellView) -> Level:
    return checks.CHECKS[check].judge(view).level


def booted(view: CellView, **changes: Any) -> CellView:
    return replace(view, boots=tuple(replace(boot, **changes) for boot in view.boots))


def telling(view: CellView, **facts: Any) -> CellView:
    """Boots whose health page says this too."""
    boots = tuple(replace(boot, health={**(boot.health or {}), **facts}) for boot in view.boots)
    return replace(view, boots=boots)


def edited(view: CellView, edit: Callable[[Request], Request]) -> CellView:
    return replace(view, requests=tuple(map(edit, view.requests)))


def counted(view: CellView, **readings: tuple[Any, Any]) -> CellView:
    """Counters as they stood before and after every scope."""

    def edit(snapshot: Snapshot) -> Snapshot:
        assert snapshot.counters is not None
        moment = 0 if snapshot.moment == "before" else 1
        new = {name: values[moment] for name, values in readings.items()}
        return replace(snapshot, counters=replace(snapshot.counters, **new))

    return replace(view, snapshots=tuple(map(edit, view.snapshots)))


# --- the engine and its settings ------------------------------------------------------------------


def test_an_engine_that_names_another_drafter_is_invalid(drafted: CellView) -> None:
    assert level_of("speculator_kind", drafted) == "ok"
    assert level_of("speculator_kind", telling(drafted, drafter="dflash")) == "invalid"
    assert (
        "'dflash'" in checks.speculation.speculator_kind(telling(drafted, drafter="dflash")).message
    )
    assert level_of("speculator_kind", booted(drafted, health=None)) == "ok"


def test_a_plain_variant_whose_engine_names_a_drafter_is_invalid(plain: CellView) -> None:
    assert level_of("speculator_kind", plain) == "ok"
    assert level_of("speculator_kind", telling(plain, drafter="dflash2")) == "invalid"


@pytest.mark.parametrize(
    ("variant", "said", "level"),
    [
        ("DFlash2 generate single", "off", "invalid"),  # llama-server refuses a drafter and goes on
        ("DFlash2 generate single", "on", "ok"),
        ("plain generate single", "on", "invalid"),
        ("plain generate single", "off", "ok"),
    ],
)
def test_an_engine_that_says_it_drafts_otherwise_than_asked_is_invalid(
    views: dict[str, CellView], variant: str, said: str, level: Level
) -> None:
    view = booted(views[variant], health={"speculation": said})

    assert level_of("speculator_kind", view) == level


@pytest.mark.parametrize(("block", "level"), [(8, "ok"), (7, "invalid"), (None, "ok"), (0, "ok")])
def test_seven_drafted_tokens_want_a_block_of_eight(
    drafted: CellView, block: int | None, level: Level
) -> None:
    assert level_of("k_le_block", telling(drafted, block=block)) == level


@pytest.mark.parametrize(
    "changes",
    [
        {"argv": ("llama-server", "--spec-synth-len", "4.2")},
        {"wanted": {"spec_synth_rates": [0.5]}},
        {"wanted": {"speculative_config": {"rejection_sample_method": "synthetic"}}},
    ],
)
def test_an_engine_that_was_told_how_much_to_accept_is_invalid(
    drafted: CellView, changes: dict[str, Any]
) -> None:
    assert level_of("synthetic_acceptance", drafted) == "ok"
    assert level_of("synthetic_acceptance", booted(drafted, **changes)) == "invalid"
    honest = booted(drafted, argv=("serve", "--model", "models/synthetic"))
    assert level_of("synthetic_acceptance", honest) == "ok"


def test_an_engine_that_runs_with_another_number_than_was_asked_for_is_invalid(
    drafted: CellView,
) -> None:
    asked = booted(drafted, wanted={"kv_len": 2048, "dtype": "float32", "prefix": True})

    assert level_of("flags_diff", telling(asked, kv_len=2048)) == "ok"
    assert level_of("flags_diff", telling(asked, kv_len=1024)) == "invalid"
    assert "kv_len 2048, the engine says 1024" in (
        checks.engine.flags_diff(telling(asked, kv_len=1024)).message
    )
    # words and switches have too many spellings to accuse by
    assert level_of("flags_diff", telling(asked, dtype="torch.float32", prefix="on")) == "ok"


@pytest.mark.parametrize(
    ("asked", "told", "level"),
    [("0.80", 0.8, "ok"), ("0.80", 0.9, "invalid"), ("1e-3", 0.001, "ok"), ("25921e05", "x", "ok")],
)
def test_a_number_is_compared_as_a_number_however_it_was_written(
    drafted: CellView, asked: str, told: Any, level: Level
) -> None:
    assert level_of(
        "flags_diff", telling(booted(drafted, wanted={"share": asked}), share=told)
    ) == (level)


def test_a_depth_that_the_engine_says_otherwise_is_another_flag(drafted: CellView) -> None:
    assert level_of("flags_diff", telling(booted(drafted, wanted={"k": 7}), k=5)) == "invalid"


def test_another_setting_than_the_drafter_that_moved_too_is_a_warning(
    drafted: CellView, plain: CellView
) -> None:
    models = {"target": "t", "drafter": "dflash2", "drafter_model": "d", "k": 7}
    ours = booted(drafted, wanted={**models, "threads": 2, "kv_len": 2048})

    def against(**changes: Any) -> CellView:
        return replace(ours, reference=booted(plain, **changes))

    assert level_of("confounded", against(wanted={"threads": 2, "kv_len": 2048})) == "ok"
    assert level_of("confounded", against(wanted={"threads": 1, "kv_len": 2048})) == "warning"
    found = checks.comparison.confounded(against(wanted={"kv_len": 2048}, environment={"OMP": "1"}))
    assert found.level == "warning"
    assert "differs in OMP, threads" in found.message


@pytest.mark.parametrize(
    ("setting", "level"),
    [
        ("speculative_config", "ok"),
        ("spec_ngram_simple_size_n", "ok"),
        ("ctx_size_draft", "ok"),
        ("draft_until_batch", "ok"),
        ("special_tokens", "warning"),
    ],
)
def test_what_only_a_drafter_reads_is_no_other_setting(
    drafted: CellView, plain: CellView, setting: str, level: Level
) -> None:
    ours = booted(drafted, wanted={"threads": 2, setting: 4})

    assert level_of(
        "confounded", replace(ours, reference=booted(plain, wanted={"threads": 2}))
    ) == (level)


@pytest.mark.parametrize(("k", "level"), [(None, "ok"), (7, "ok"), (3, "warning")])
def test_a_reference_that_drafts_less_deep_is_a_warning(
    drafted: CellView, plain: CellView, k: int | None, level: Level
) -> None:
    reference = replace(plain, cell=replace(plain.cell, k=k))

    assert level_of("unequal_depth", replace(drafted, reference=reference)) == level


def test_an_engine_without_a_version_is_a_warning_and_two_builds_are_none(
    drafted: CellView,
) -> None:
    first, second = drafted.boots
    rebuilt = replace(drafted, boots=(first, replace(second, build="c" * 12)))

    assert level_of("build_known", drafted) == "ok"
    assert level_of("build_known", booted(drafted, version=None)) == "warning"
    assert level_of("build_known", rebuilt) == "invalid"


@pytest.mark.parametrize(("slots", "level"), [(1, "warning"), (2, "ok"), (None, "ok")])
def test_an_engine_with_fewer_slots_than_requests_is_a_warning(
    views: dict[str, CellView], slots: int | None, level: Level
) -> None:
    view = views["DFlash2 concurrency wave"]

    assert level_of("slots_ge_c", telling(view, max_concurrent_requests=slots)) == level
    untold = telling(view, max_concurrent_requests=None)
    assert level_of("slots_ge_c", booted(untold, wanted={"max_num_seqs": slots})) == level


def test_a_request_whose_cache_was_given_up_for_another_is_invalid(drafted: CellView) -> None:
    assert level_of("preemptions", drafted) == "ok"  # the engine counts none
    assert level_of("preemptions", counted(drafted, preemptions=(2, 2))) == "ok"
    given_up = counted(drafted, preemptions=(2, 3))
    assert level_of("preemptions", given_up) == "invalid"
    # one in each of 30 scopes
    assert "30 times" in checks.engine.preemptions(given_up).message


# --- the prefix cache -----------------------------------------------------------------------------


def asked_for(view: CellView, cache: str) -> CellView:
    return replace(view, cell=replace(view.cell, cache=cache))


@pytest.mark.parametrize(("cached", "level"), [(0, "ok"), (1, "warning"), (29, "warning")])
def test_a_cold_prompt_that_was_cached_in_part_is_a_warning(
    drafted: CellView, cached: int, level: Level
) -> None:
    """Prompts have 30 tokens; one request of 30 tells what it found."""
    first = drafted.requests[0]
    seen = edited(drafted, lambda item: replace(item, cached_tokens=cached if item == first else 0))

    assert level_of("cache_state", seen) == level
    assert level_of("cache_state", asked_for(seen, "cold")) == level


@pytest.mark.parametrize(("gained", "level"), [(0, "ok"), (1, "warning")])
def test_where_no_request_tells_the_counters_do_from_one_in_a_hundred_on(
    drafted: CellView, gained: int, level: Level
) -> None:
    """30 of 900 prompt tokens, one in each of 30 scopes."""
    untold = edited(drafted, lambda item: replace(item, cached_tokens=None))
    seen = counted(untold, cached_prompt_tokens=(100, 100 + gained))

    assert level_of("cache_state", untold) == "ok"
    assert level_of("cache_state", seen) == level
    assert level_of("cache_state", asked_for(seen, "warm")) == ("ok" if gained else "warning")


def test_warm_prompts_that_were_warm_are_as_asked_for_and_cold_ones_are_not(
    drafted: CellView,
) -> None:
    warm = edited(drafted, lambda item: replace(item, cached_tokens=29))

    assert level_of("cache_state", asked_for(warm, "warm")) == "ok"
    assert level_of("cache_state", asked_for(drafted, "warm")) == "warning"
    assert "cache: cold" in checks.engine.cache_state(asked_for(drafted, "warm")).message


# --- drafting -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("drafts", "accepted", "level"),
    [(500, 0, "invalid"), (500, 4, "invalid"), (500, 5, "ok"), (20, 0, "invalid"), (19, 0, "ok")],
)
def test_b135_a_drafter_of_which_everything_is_rejected_is_none(
    drafted: CellView, drafts: int, accepted: int, level: Level
) -> None:
    """500 rounds of 7, none accepted: right output, and slower than plain decoding."""
    one = replace(drafted, snapshots=drafted.snapshots[:2], requests=drafted.requests[:1])
    seen = counted(one, drafts=(0, drafts), draft_tokens=(0, 7 * drafts))
    seen = counted(seen, accepted_tokens=(0, accepted), accepted_at=((), ()))

    assert level_of("all_rejected", seen) == level
    if drafts == 500 and not accepted:
        assert "Acceptance length 1.00 with k = 7" in checks.speculation.all_rejected(seen).message


def test_a_plain_variant_has_nothing_to_reject(plain: CellView) -> None:
    assert level_of("all_rejected", plain) == "ok"
    assert level_of("draft_coverage", plain) == "ok"


@pytest.mark.parametrize(("plain_steps", "level"), [(50, "ok"), (51, "warning")])
def test_a_drafter_that_seldom_drafts_is_a_warning(
    drafted: CellView, plain_steps: int, level: Level
) -> None:
    """50 rounds with a draft among 100 decode steps, or among 101."""
    one = replace(drafted, snapshots=drafted.snapshots[:2], requests=drafted.requests[:1])
    seen = counted(one, drafts=(0, 50), plain_steps=(0, plain_steps))

    assert level_of("draft_coverage", seen) == level


@pytest.mark.parametrize(("limit", "level"), [(None, "invalid"), (1, "warning"), (2, "invalid")])
def test_an_engine_that_may_not_draft_for_so_many_is_a_warning_and_no_failure(
    views: dict[str, CellView], limit: int | None, level: Level
) -> None:
    """Two requests at once, and nothing was drafted."""
    silent = counted(views["DFlash2 concurrency wave"], drafts=(0, 0))

    assert level_of("speculation_active", telling(silent, draft_until_batch=limit)) == level


@pytest.mark.parametrize(
    ("reason", "tokens", "level"),
    [("length", 191, "warning"), ("length", 192, "ok"), ("stop", 191, "ok")],
)
def test_an_output_cut_off_before_its_limit_is_a_warning(
    drafted: CellView, reason: str, tokens: int, level: Level
) -> None:
    assert drafted.cell.max_tokens == 192
    cut = edited(drafted, lambda item: replace(item, finish_reason=reason, output_tokens=tokens))

    assert level_of("context_fits", cut) == level


@pytest.mark.parametrize(
    ("thinking", "ttfa_s", "level"),
    [(False, 0.5, "warning"), (False, None, "warning"), (False, 0.02, "ok"), (True, 0.5, "ok")],
)
def test_an_output_that_thinks_although_thinking_is_off_is_a_warning(
    drafted: CellView, thinking: bool, ttfa_s: float | None, level: Level
) -> None:
    sampling = replace(drafted.cell.sampling, thinking=thinking)
    asked = replace(drafted, cell=replace(drafted.cell, sampling=sampling))
    seen = edited(asked, lambda item: replace(item, ttft_s=0.02, ttfa_s=ttfa_s))

    assert level_of("thinking_off", seen) == level


def test_a_kind_of_which_half_repeat_themselves_is_a_warning(drafted: CellView) -> None:
    """3 of 30 outputs, but half of the 6 of one kind."""
    edits = [item for item in drafted.requests if item.kind == "edit"][:3]
    looping = edited(
        drafted, lambda item: replace(item, distinct_4gram_share=0.2) if item in edits else item
    )

    assert level_of("loops", looping) == "warning"
    assert (
        "3 of 30 outputs repeat themselves, 50 % of kind edit"
        in checks.answers.loops(looping).message
    )


# --- steadiness -----------------------------------------------------------------------------------


def timed(view: CellView, wall_s: Callable[[Request], float]) -> CellView:
    return edited(view, lambda item: replace(item, wall_s=wall_s(item)))


@pytest.mark.parametrize(("first_s", "level"), [(1.5, "ok"), (1.6, "warning")])
def test_a_first_request_that_takes_half_as_long_again_was_cold(
    drafted: CellView, first_s: float, level: Level
) -> None:
    first = drafted.requests[0]

    assert level_of("cold_in_measured", timed(drafted, lambda item: 1.0)) == "ok"
    seen = timed(drafted, lambda item: first_s if item == first else 1.0)
    assert level_of("cold_in_measured", seen) == level


@pytest.mark.parametrize(("spread", "level"), [(0.04, "ok"), (0.06, "warning")])
def test_repetitions_that_lie_far_apart_are_a_warning(
    drafted: CellView, spread: float, level: Level
) -> None:
    """Three repetitions at 1 - s, 1 and 1 + s: a range of 2 s."""
    seen = timed(drafted, lambda item: 1.0 + spread * ((item.where.repetition or 0) - 1))

    assert level_of("scatter", seen) == level
    sampled = replace(
        seen, cell=replace(seen.cell, sampling=replace(seen.cell.sampling, temperature=0.7))
    )
    assert level_of("scatter", sampled) == "ok"  # each repetition is another answer


@pytest.mark.parametrize(("last_s", "level"), [(1.04, "ok"), (1.06, "warning"), (0.9, "warning")])
def test_a_machine_that_moved_between_first_and_last_boot_is_a_warning(
    plain: CellView, last_s: float, level: Level
) -> None:
    last = plain.boot_ids[-1]
    seen = timed(plain, lambda item: last_s if item.where.boot_id == last else 1.0)

    assert level_of("drift", seen) == level
    assert level_of("drift", seen.of_boot(last)) == "ok"


def test_every_check_of_the_table_stands_in_the_page_and_none_beside_it() -> None:
    page = (Path(__file__).parents[2] / "docs" / "checks.md").read_text(encoding="utf-8")
    rows = [line.split("|")[1].strip().strip("`") for line in page.splitlines() if "| `" in line]

    assert rows == list(checks.CHECKS)
