"""From recorded facts to figures: rates, acceptance, speed-up, scaling, crossover."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from harness.analysis import ledger, outputs, throughput
from harness.analysis.metrics import COMPARISONS, METRICS, POSITION_METRICS
from harness.analysis.summary import ALL, Section, Summary, summarise
from harness.cell_view import CellView, OutputEvents
from harness.records import Request, RequestError

from . import synthetic


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Summary:
    return summarise(synthetic.write_run(tmp_path_factory.mktemp("results")))


def sections(run: Summary) -> Mapping[str, Section]:
    return {section.word: section for section in run.sections}


def view(run: Summary, word: str, variant: str, concurrency: int = 1) -> CellView:
    found = sections(run)[word].view(variant, concurrency)
    assert found is not None
    return found


def value(run: Summary, of: CellView, metric: str, kind: str = ALL) -> float | None:
    row = run.row(of, metric, kind)
    assert row is not None, metric
    return row.estimate.value


# --- what shares a table --------------------------------------------------------------------------


def test_two_load_shapes_of_one_concurrency_have_two_workload_words(run: Summary) -> None:
    assert [section.word for section in run.sections] == [
        "generate",
        "concurrency",
        "concurrency-closed",
    ]


def test_every_figure_is_told_apart_by_the_keys_of_show_json(run: Summary) -> None:
    keys = [(r.variant, r.workload, r.kind, r.concurrency, r.metric) for r in run.rows]

    assert len(keys) == len(set(keys))


def test_workloads_of_one_word_are_told_apart_by_their_prompts(tmp_path: Path) -> None:
    asked = synthetic.matrix(levels=())
    again = replace(asked.workloads[0], max_tokens=128)
    folder = synthetic.write_run(tmp_path, replace(asked, workloads=(asked.workloads[0], again)))

    words = [section.word for section in summarise(folder).sections]

    assert words == ["generate:demo5:192", "generate:demo5:128"]


def test_levels_come_in_order_of_number_and_not_of_text(tmp_path: Path) -> None:
    asked = synthetic.matrix(levels=(16, 2, 1), boots=2)
    folder = synthetic.write_run(tmp_path, asked)

    section = sections(summarise(folder))["concurrency"]

    assert section.levels == (1, 2, 16)
    assert [item.cell.concurrency for item in section.of_variant("plain")] == [1, 2, 16]


# --- figures --------------------------------------------------------------------------------------


def test_plain_decode_rate_follows_from_the_step_time(run: Summary) -> None:
    # 11 ms a step: n / (wall - ttft) = n / ((n - 1) * 11 ms + 0.1 ms); n = 152 to 120, five kinds
    expected = sum(n / ((n - 1) * 0.011 + 0.0001) for n in (152, 144, 136, 128, 120)) / 5

    assert value(run, view(run, "generate", "plain"), "decode_rate") == pytest.approx(
        expected, rel=0.03
    )


def test_the_headline_rate_exceeds_the_strict_one_by_the_first_token(run: Summary) -> None:
    plain = view(run, "generate", "plain")
    headline = value(run, plain, "decode_rate", "code")
    strict = value(run, plain, "decode_rate_strict", "code")
    assert headline is not None
    assert strict is not None

    # 152 tokens against 151, and 0.1 ms between the last token and the end of the stream
    assert headline / strict == pytest.approx(152 / 151, rel=1e-3)


def test_a_wave_counts_tokens_from_first_send_to_last_end(run: Summary) -> None:
    one = view(run, "concurrency", "plain", 2)
    repetition = replace(one.requests[0].where, request_id=None)
    requests = [r for r in one.requests if replace(r.where, request_id=None) == repetition]
    begin_s = min(request.t0_ns for request in requests) / 1e9
    end_s = max(request.t0_ns / 1e9 + (request.wall_s or 0) for request in requests)
    tokens = sum(request.output_tokens or 0 for request in requests)

    first_wave = throughput.aggregate_throughput_groups(one)[0][0]

    assert len(requests) == 2
    assert first_wave == pytest.approx(tokens / (end_s - begin_s))


def test_steady_aggregate_counts_only_while_c_are_in_flight(run: Summary) -> None:
    closed = view(run, "concurrency-closed", "plain", 4)

    whole = value(run, closed, "aggregate_throughput")
    steady = value(run, closed, "aggregate_steady")

    assert whole is not None
    assert steady is not None
    assert steady > whole


def test_steady_window_runs_from_the_c_th_start_to_the_first_end_without_successor() -> None:
    # two slots: 0-4 and 0-6, then 4-10 and 6-9; nothing follows the end at 9
    starts_ns, walls_s = np.array([0, 0, 4, 6]) * 10**9, np.array([4.0, 6.0, 6.0, 3.0])

    assert throughput.steady_window_ns(starts_ns, walls_s, 2) == (0, 9 * 10**9)


def test_steady_aggregate_is_not_available_without_event_tokens(run: Summary) -> None:
    closed = view(run, "concurrency-closed", "plain", 4)
    blind = {
        request_id: replace(events, tokens=(None,) * len(events.tokens))
        for request_id, events in closed.events.items()
    }

    measured = METRICS["aggregate_steady"].compute(replace(closed, events=blind))

    assert measured.value is None
    assert measured.reason == "the tokens of single events are not known"


def test_occupancy_is_the_share_of_stream_seconds_in_use(run: Summary) -> None:
    # one wave of two: walls 1 and 3 s in a window of 3 s use 4 of 6 stream-seconds
    wave = view(run, "concurrency", "plain", 2)
    requests = tuple(
        replace(request, wall_s=wall)
        for request, wall in zip(wave.requests[:2], (1.0, 3.0), strict=True)
    )
    ends = (replace(wave.ends[0], window_s=3.0),)

    measured = throughput.occupancy(replace(wave, requests=requests, ends=ends))

    assert measured.value == pytest.approx(4 / 6)


def test_acceptance_is_pooled_before_it_is_divided(run: Summary) -> None:
    drafted = view(run, "generate", "DFlash2")
    deltas = [entry.delta for entry in drafted.ledger if entry.delta is not None]
    accepted = sum(delta.accepted_tokens or 0 for delta in deltas)
    drafts = sum(delta.drafts or 0 for delta in deltas)

    assert value(run, drafted, "acceptance_length") == pytest.approx(1 + accepted / drafts)
    assert value(run, drafted, "fraction_of_ceiling") == pytest.approx((1 + accepted / drafts) / 8)
    assert value(run, drafted, "acceptance_rate") == pytest.approx(accepted / (7 * drafts))


def test_positions_add_up_to_the_acceptance_length(run: Summary) -> None:
    drafted = view(run, "generate", "DFlash2")
    positions = [value(run, drafted, f"acceptance_at_position_{i}", "edit") for i in range(1, 8)]

    total = 1 + sum(share or 0.0 for share in positions)

    assert value(run, drafted, "acceptance_length", "edit") == pytest.approx(total)


def test_acceptance_by_kind_is_not_available_where_counters_are_shared(run: Summary) -> None:
    row = run.row(view(run, "concurrency", "DFlash2", 1), "acceptance_length", "code")

    assert row is not None
    assert row.estimate.value is None
    assert row.estimate.reason == "counters are shared"


def test_plain_decoding_has_no_acceptance_rather_than_zero(run: Summary) -> None:
    row = run.row(view(run, "generate", "plain"), "acceptance_length")

    assert row is not None
    assert (row.estimate.value, row.estimate.reason) == (None, "plain decoding")


def test_one_scope_without_counters_leaves_no_acceptance(run: Summary) -> None:
    drafted = view(run, "generate", "DFlash2")
    torn = replace(drafted, snapshots=drafted.snapshots[1:])

    measured = ledger.acceptance_length(torn)

    reason = "unavailable: no counters were read before it"
    assert (measured.value, measured.reason) == (None, reason)


def test_failed_requests_are_in_no_latency_and_their_share_is_shown(run: Summary) -> None:
    plain = view(run, "generate", "plain")

    def fail(request: Request) -> Request:
        error = RequestError(kind="timeout", message="nothing came for 30 s")
        return replace(
            request, status="failed", error=error, ttft_s=None, wall_s=None, output_tokens=None
        )

    one_failed = replace(plain, requests=(fail(plain.requests[0]), *plain.requests[1:]))

    assert METRICS["ttft_p50"].compute(one_failed).n == 29
    assert METRICS["failed_share"].compute(one_failed).value == pytest.approx(1 / 30)


def test_p99_of_thirty_requests_is_not_available(run: Summary) -> None:
    row = run.row(view(run, "generate", "plain"), "ttft_p99")

    assert row is not None
    assert row.estimate.reason == "needs 100 requests, has 30"


# --- between cells --------------------------------------------------------------------------------


def test_speedup_is_the_ratio_of_the_figures_that_stand_beside_it(run: Summary) -> None:
    drafted, plain = view(run, "generate", "DFlash2"), view(run, "generate", "plain")
    for kind in (ALL, "prose"):
        own, other = (value(run, of, "decode_rate", kind) for of in (drafted, plain))
        row = run.row(drafted, "speedup", kind)
        assert own is not None
        assert other is not None
        assert row is not None
        assert row.estimate.value == pytest.approx(own / other)
        assert row.estimate.low is not None
        assert row.estimate.high is not None
        assert row.estimate.low <= own / other <= row.estimate.high
        assert (row.estimate.n, row.estimate.method) == (2, "t over boots")


def test_the_reference_has_no_speedup_and_says_why(run: Summary) -> None:
    row = run.row(view(run, "generate", "plain"), "speedup")

    assert row is not None
    assert (row.estimate.value, row.estimate.reason) == (None, "is the reference")


def test_scaling_and_efficiency_follow_from_the_aggregates(run: Summary) -> None:
    eight, one = view(run, "concurrency", "plain", 8), view(run, "concurrency", "plain", 1)
    many, single = (value(run, of, "aggregate_throughput") for of in (eight, one))
    assert many is not None
    assert single is not None

    assert value(run, eight, "scaling") == pytest.approx(many / single)
    assert value(run, eight, "efficiency") == pytest.approx(many / single / 8)


def test_the_crossover_of_known_step_times_is_found(run: Summary) -> None:
    # in the closed loop DFlash 2 is faster at 4 streams and slower at 8 by construction
    (crossing,) = run.crossings["concurrency-closed"]

    assert (crossing.leader, crossing.other) == ("DFlash2", "plain")
    assert (crossing.bracket.last_ahead, crossing.bracket.first_behind) == (4, 8)


def test_an_output_repeats_itself_below_one_half_of_distinct_4grams(run: Summary) -> None:
    drafted = view(run, "generate", "DFlash2")
    shares = zip(drafted.requests, (0.5, 0.49, None), strict=False)
    requests = tuple(replace(item, distinct_4gram_share=share) for item, share in shares)

    measured = outputs.loops(replace(drafted, requests=requests))

    assert (measured.value, measured.n) == (1 / 2, 2)  # the one that has no 4-gram is not asked


def test_an_invalid_cell_gives_no_speedup_but_keeps_its_figure(tmp_path: Path) -> None:
    def loop(request: Request) -> Request:
        is_drafted = str(request.where.cell_id).startswith("dflash2-generate")
        return replace(request, distinct_4gram_share=0.1) if is_drafted else request

    run = summarise(synthetic.write_run(tmp_path, synthetic.matrix(levels=()), edit=loop))
    drafted = view(run, "generate", "DFlash2")
    speedup = run.row(drafted, "speedup")

    assert speedup is not None
    assert (speedup.estimate.value, speedup.estimate.reason) == (None, "invalid: loops")
    assert value(run, drafted, "decode_rate") is not None
    assert speedup.verdicts == ("loops",)
    assert run.level == "invalid"


def test_one_boot_is_titled_and_decides_no_crossover(tmp_path: Path) -> None:
    asked = synthetic.matrix(boots=1, levels=(1, 8))
    run = summarise(synthetic.write_run(tmp_path, asked))
    row = run.row(view(run, "generate", "DFlash2"), "speedup")

    assert row is not None
    assert row.estimate.method == "bootstrap within one boot"
    assert row.verdicts == ("within_one_boot",)
    assert run.visible_effects == ()
    assert not any(item.bracket.found for found in run.crossings.values() for item in found)


def test_a_variant_that_does_not_boot_is_shown_with_its_reason(tmp_path: Path) -> None:
    asked = synthetic.matrix(levels=())
    run = summarise(synthetic.write_run(tmp_path, asked, broken_variant="DFlash2"))
    rate = run.row(view(run, "generate", "DFlash2"), "decode_rate")

    assert rate is not None
    assert rate.estimate.value is None
    assert "ended with code 1" in str(rate.estimate.reason)
    assert value(run, view(run, "generate", "plain"), "decode_rate") is not None
    assert run.level == "invalid"


# --- outputs --------------------------------------------------------------------------------------


def test_the_reference_is_held_against_itself_first(run: Summary) -> None:
    first, second = run.losslessness

    # 5 prompts x 3 repetitions x 2 boots: 25 later outputs against the first of each prompt
    assert (first.variant, first.against, first.num_identical, first.num_compared) == (
        "plain",
        "itself",
        25,
        25,
    )
    assert (second.against, second.num_identical, second.num_compared) == ("plain", 30, 30)


def test_the_first_differing_token_is_named(run: Summary) -> None:
    drafted = view(run, "generate", "DFlash2")
    odd = drafted.requests[3]
    events = drafted.events[str(odd.where.request_id)]
    assert events.token_ids is not None
    other_ids = (*events.token_ids[:17], 999, *events.token_ids[18:])
    changed = replace(
        drafted,
        requests=tuple(
            replace(item, text_sha256="other") if item == odd else item for item in drafted.requests
        ),
        events={**drafted.events, str(odd.where.request_id): replace(events, token_ids=other_ids)},
    )

    result = outputs.losslessness(changed)

    assert (result.num_identical, result.num_compared) == (29, 30)
    assert result.first_difference == outputs.FirstDifference(
        prompt_id=odd.prompt_id, index=17, unit="token"
    )


def test_sampled_outputs_are_not_compared(tmp_path: Path) -> None:
    asked = synthetic.matrix(levels=(), temperature=0.8)
    run = summarise(synthetic.write_run(tmp_path, asked))

    assert {item.reason for item in run.losslessness} == {"sampled at temperature > 0"}


def test_a_request_without_events_is_compared_by_hash_alone(run: Summary) -> None:
    drafted = view(run, "generate", "DFlash2")
    events: dict[str, OutputEvents] = {}
    differing = replace(
        drafted,
        requests=tuple(replace(item, text_sha256="other") for item in drafted.requests),
        events=events,
        reference=replace(drafted.reference or drafted, events=events),
    )

    result = outputs.losslessness(differing)

    assert (result.num_identical, result.first_difference) == (0, None)


# --- the tables -----------------------------------------------------------------------------------


def test_every_row_has_a_metric_of_the_tables(run: Summary) -> None:
    known = {*METRICS, *COMPARISONS}
    positions = ("acceptance_at_position_", "conditional_acceptance_at_position_")

    assert all(row.metric in known or row.metric.startswith(positions) for row in run.rows)


def test_a_missing_figure_always_has_a_reason(run: Summary) -> None:
    gaps = [row for row in run.rows if row.estimate.value is None]

    assert gaps
    assert all(row.estimate.reason for row in gaps)


def test_the_page_on_figures_holds_every_metric() -> None:
    page = (Path(__file__).parents[2] / "docs" / "figures.md").read_text(encoding="utf-8")
    rows = {**METRICS, **COMPARISONS, **POSITION_METRICS}

    for name, row in rows.items():
        assert f"| `{name}` | {row.unit} | {row.direction} | {row.description} |" in page
    assert page.count("\n| `") == len(rows)
