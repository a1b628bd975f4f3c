"""STAT cases: repetitions, clocks, percentiles, aggregates. Each test's name begins with its case.

Expected figures are those of the list, or pencil and paper; where a policy was open,
docs/terms.md has it.
"""

import time
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from harness import checks
from harness.analysis import comparisons, outputs, stats, throughput
from harness.analysis.metrics import METRICS
from harness.analysis.summary import summarise
from harness.cell_view import CellView, OutputEvents
from harness.errors import ResultsError
from harness.plan import make_plan, requests_of
from harness.records import CellEnd, Request
from harness.report import sentences, tables
from harness.scripted_server import DONE
from tests.harness import synthetic
from tests.harness.cases.end_to_end import FIN, ROLE, C, Sends, measure, us
from tests.harness.cases.from_records import (
    at_rate,
    estimate,
    plain_run,
    prompts,
    repetitions_of,
    timed_out,
    view_of,
    written,
)

# --- mixes ----------------------------------------------------------------------------------------


def test_b79_a_prompt_that_ran_more_often_moves_no_figure_and_is_flagged(tmp_path: Path) -> None:
    """A B C D A B at 40 and 10 tok/s: 17.5, where the mean over requests is 20.0."""
    asked = synthetic.matrix(
        boots=1, levels=(), drafters=(), prompts=prompts(A="A", B="B", C="C", D="D")
    )
    rates = {"A": [40.0], "B": [10.0], "C": [10.0], "D": [10.0]}
    folder = synthetic.write_run(
        tmp_path, replace_repetitions(asked, 2), edit=repetitions_of(rates)
    )
    whole = view_of(summarise(folder))
    six = replace(whole, requests=whole.requests[:6])

    assert [request.prompt_id for request in six.requests] == ["A", "B", "C", "D", "A", "B"]
    assert METRICS["decode_rate"].compute(six).value == pytest.approx(17.5)
    assert METRICS["decode_rate"].compute(whole).value == pytest.approx(17.5)
    assert checks.load.balanced_mix(six).level == "warning"
    assert "1 to 2 times" in checks.load.balanced_mix(six).message
    assert checks.load.balanced_mix(whole).level == "ok"


def replace_repetitions(matrix: synthetic.Matrix, repetitions: int) -> synthetic.Matrix:
    workloads = tuple(replace(each, repetitions=repetitions) for each in matrix.workloads)
    return replace(matrix, workloads=workloads)


@pytest.mark.parametrize("concurrency", [1, 2, 3, 4])
def test_b79_every_level_of_a_balanced_workload_runs_the_same_multiset(concurrency: int) -> None:
    used = prompts(A="A", B="B", C="C", D="D")
    plan = make_plan(synthetic.matrix(boots=1, levels=(concurrency,), prompts=used))
    for cell in plan.cells:
        sent = [
            prompt.prompt_id
            for repetition in range(cell.repetitions)
            for prompt in requests_of(cell, used, repetition)
        ]
        assert len({sent.count(prompt.prompt_id) for prompt in used.prompts}) == 1


def test_b80_the_figure_is_the_mean_of_per_prompt_medians_by_name_and_not_the_pooled_one(
    tmp_path: Path,
) -> None:
    summary = plain_run(tmp_path, {"A": [40, 41, 60], "B": [10, 10, 11], "C": [30, None, None]})
    found = estimate(summary, "decode_rate")
    text, _ = written(summary, tmp_path / "reports")

    assert found.value == pytest.approx((41 + 10 + 30) / 3)  # 27.0
    assert found.value != pytest.approx(30)  # the pooled median
    assert found.value != pytest.approx(202 / 7)  # the pooled mean
    assert found.n == 7
    assert estimate(summary, "decode_rate", "C").n == 1
    assert "mean over prompts of the median over repetitions" in text
    assert "finished 1 to 3 times each" in text
    (table,) = tables.TABLES["outputs"](summary)
    requests = {row[1].text: row[2].text for row in table.rows}
    assert requests == {"all kinds": "7", "A": "3", "B": "3", "C": "1"}


# --- clocks ---------------------------------------------------------------------------------------


def test_b81_a_wall_clock_that_steps_back_moves_no_duration(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, stepped = time.time, [0.0]
    monkeypatch.setattr(time, "time", lambda: real() - stepped[0])

    def answer(times_asked: int) -> Sends:
        stepped[0] += 5.0  # while this request is under way
        return [(0.05, ROLE + C("a ")), (0.10, C("b ")), (0.15, FIN("stop", usage=us(3, 2)) + DONE)]

    found = measure(tmp_path, {"p1": answer, "p2": answer})

    assert stepped[0] == 10.0
    for request in found.requests:
        assert request.ttft_s is not None
        assert request.wall_s is not None
        assert 0.05 <= request.ttft_s <= request.wall_s
        assert request.wall_s >= 0.15
        assert request.send_lateness_s >= 0
    assert all(end.window_s > 0.29 for end in view_of(summarise(found.folder)).ends)


FINE = [(0.05, ROLE + C("a ")), (0.10, C("b ")), (0.15, FIN("stop", usage=us(3, 2)) + DONE)]


def test_b81_a_clock_that_steps_back_is_a_hard_error_and_no_duration(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Wrong: TTFT -4.9 s, or max(0, x) = 0."""
    stepped_ns = [0]
    clock = SimpleNamespace(perf_counter_ns=lambda: time.perf_counter_ns() - stepped_ns[0])
    monkeypatch.setattr("harness.run.client.time", clock)

    def answer(times_asked: int) -> Sends:
        stepped_ns[0] = 5_000_000_000  # while the second request is under way
        return FINE

    found = measure(tmp_path, {"p1": FINE, "p2": answer})

    assert found.exit_code == 3
    assert found.requests == []  # the whole repetition is void
    (end,) = found.folder.read(CellEnd)
    assert end.outcome == "unavailable"
    assert "the clock went backwards, so the repetition measured nothing" in str(end.message)
    assert "a duration of -4.9" in found.page or "a duration of -5" in found.page
    assert {row["value"] for row in found.summary["rows"] if row["metric"] == "ttft_p50"} == {None}


@pytest.mark.parametrize("field", ["ttft_s", "wall_s", "send_lateness_s", "connect_s"])
def test_b81_a_record_with_a_negative_duration_is_refused_by_name(
    tmp_path: Path, field: str
) -> None:
    asked = synthetic.matrix(boots=1, levels=(), drafters=())
    folder = synthetic.write_run(
        tmp_path, asked, edit=lambda request: replace(request, **{field: -4.9})
    )

    with pytest.raises(ResultsError, match=rf"`{field}` is -4.9 s, and no time is negative"):
        summarise(folder)


# --- percentiles ----------------------------------------------------------------------------------


def test_b85_a_percentile_of_too_few_requests_is_a_gap_that_says_how_many_it_needs(
    tmp_path: Path,
) -> None:
    """A p99 of two values, interpolated, would be 75.496; of twelve 90.1."""
    summary = plain_run(tmp_path, {letter: [10.0] for letter in "ABCDEFGHIJKL"})

    p99 = estimate(summary, "ttft_p99")
    assert (p99.value, p99.reason) == (None, "needs 100 requests, has 12")
    assert estimate(summary, "ttft_p90").value == pytest.approx(0.1)
    assert stats.percentile([45.4, 75.8], 0.99) is None
    assert stats.percentile([10.0] * 11 + [100.0], 0.99) is None
    assert stats.percentile([10.0] * 11 + [100.0], 0.95) is None


@pytest.mark.parametrize(("share", "value"), [(0.5, 50.5), (0.95, 95.05), (0.99, 99.01)])
def test_b85_percentiles_of_one_to_a_hundred_are_linear(share: float, value: float) -> None:
    assert stats.percentile(list(range(1, 101)), share) == pytest.approx(value)


@pytest.mark.parametrize(
    ("values", "median"),
    [([100, 200, 300, 400], 250), ([20, 10], 15), ([3, 1, 2], 2), ([5], 5), ([], None)],
)
def test_b86_the_median_of_an_even_number_lies_in_the_middle(
    values: list[float], median: float | None
) -> None:
    assert stats.percentile(values, 0.5) == median
    assert stats.mean_of_medians([values]) == median


# --- rates ----------------------------------------------------------------------------------------


def _four_streams(path: Path) -> CellView:
    """A closed repetition of four requests at c = 4."""
    used = prompts(A="A", B="B", C="C", D="D")
    asked = synthetic.matrix(boots=1, levels=(4,), drafters=(), prompts=used)
    closed = replace(asked.workloads[2], repetitions=1, num_requests=4)
    folder = synthetic.write_run(path, replace(asked, workloads=(closed,)))
    return view_of(summarise(folder))


def test_b88_four_streams_of_ten_tokens_per_second_are_an_aggregate_of_forty(
    tmp_path: Path,
) -> None:
    view = _four_streams(tmp_path)
    hundred = tuple(at_rate(each, 10.0, tokens=100, ttft_s=0.0) for each in view.requests)
    parallel = replace(
        view, requests=hundred, ends=tuple(replace(end, window_s=10.0) for end in view.ends)
    )

    assert METRICS["aggregate_throughput"].compute(parallel).value == pytest.approx(40.0)
    assert METRICS["decode_rate"].compute(parallel).value == pytest.approx(10.0)
    assert "tokens of all streams" in METRICS["aggregate_throughput"].description
    assert "of one stream" in METRICS["decode_rate"].description


def test_b88_prefill_is_named_as_a_mean_of_rates_or_pooled(tmp_path: Path) -> None:
    """72 tokens in 0.69 s, 6000 in 2.5 s. Wrong: 1252 tok/s without a word."""
    asked = synthetic.matrix(
        boots=1, levels=(), drafters=(), prompts=prompts(A="A", B="B"), repetitions=1, max_tokens=1
    )
    prefills = {"A": (72, 0.69), "B": (6000, 2.5)}

    def edit(request: Request) -> Request:
        if request.prompt_id not in prefills:
            return request
        prompt_tokens, ttft_s = prefills[request.prompt_id]
        return replace(
            at_rate(request, 1000.0, tokens=1, ttft_s=ttft_s),
            prompt_tokens=prompt_tokens,
            cached_tokens=0,
        )

    summary = summarise(synthetic.write_run(tmp_path, asked, edit=edit))
    pooled = estimate(summary, "prefill_rate_pooled")
    text, told = written(summary, tmp_path / "reports")

    assert pooled.value == pytest.approx(6072 / 3.19)  # 1903.4
    assert estimate(summary, "prefill_rate").value == pytest.approx((72 / 0.69 + 6000 / 2.5) / 2)
    assert "mean over prompts" in METRICS["prefill_rate"].description
    assert "sum of their TTFT" in METRICS["prefill_rate_pooled"].description
    assert "mean over prompts" in text
    rows = [row for row in told["rows"] if row["metric"] == "prefill_rate_pooled"]
    assert {row["unit"] for row in rows} == {"tok/s"}


def test_b89_a_request_that_timed_out_is_in_no_latency_and_its_wait_is_in_the_throughput(
    tmp_path: Path,
) -> None:
    view = _four_streams(tmp_path)
    *good, bad = view.requests
    seen = replace(
        view,
        requests=(*(at_rate(each, 50.0, tokens=100) for each in good), timed_out(bad)),
        ends=tuple(replace(end, window_s=30.0, num_failed=1) for end in view.ends),
    )
    ttft = METRICS["ttft_p50"].compute(seen)

    assert (ttft.value, ttft.n) == (pytest.approx(0.1), 3)
    assert METRICS["ttft_p99"].compute(seen).value is None  # and no p99 of 30 s
    assert METRICS["failed_share"].compute(seen).value == pytest.approx(0.25)
    assert METRICS["aggregate_throughput"].compute(seen).value == pytest.approx(10.0)
    assert checks.answers.failed_share(seen).level == "invalid"


def test_b89_the_share_that_failed_stands_in_the_row_of_the_figure(tmp_path: Path) -> None:
    summary = plain_run(tmp_path, {"A": [50.0, 50.0], "B": [50.0, None]})
    (table,) = tables.TABLES["single_stream"](summary)
    (row,) = table.rows
    text, _ = written(summary, tmp_path / "reports")

    assert [entry.text for entry in row] == [
        "plain",
        "50.00 (25.0 % failed)",
        "50.00",
        "50.00 (50.0 % failed)",
    ]
    assert "| plain | 50.00 (25.0 % failed) ✗ | 50.00 ✗ | 50.00 (50.0 % failed) ✗ |" in text
    assert "✗ failed_share (plain): 1 of 4 requests failed (timeout 1)" in text.replace("\\_", "_")


# --- intervals ------------------------------------------------------------------------------------


def test_b91_many_repetitions_in_one_boot_decide_nothing(tmp_path: Path) -> None:
    """Fifty values around 100 and fifty around 108, one boot each: no interval over boots."""
    rates = {"plain": [98.0, 100.0, 102.0], "DFlash2": [106.0, 108.0, 110.0]}

    def edit(request: Request) -> Request:
        variant = "plain" if str(request.where.cell_id).startswith("plain") else "DFlash2"
        repetition = max(request.where.repetition or 0, 0)
        return at_rate(request, rates[variant][repetition % 3])

    asked = synthetic.matrix(boots=1, levels=(), prompts=prompts(A="A"), repetitions=50)
    folder = synthetic.write_run(
        tmp_path,
        asked,
        behaviours={
            "DFlash2": synthetic.Behaviour(
                draft_ms=1, verify_ms=1, per_stream_ms=0, acceptance={"A": 0.5}
            )
        },
        edit=edit,
    )
    summary = summarise(folder)
    own, other = (
        comparisons.boot_figures(view_of(summary, name), "decode_rate")
        for name in ("DFlash2", "plain")
    )
    found = comparisons.ratio(own, other)

    assert found is not None
    value, interval = found
    assert value == pytest.approx(1.08)
    assert interval is not None
    assert interval.method == "bootstrap within one boot"
    assert stats.ratio_interval(own.per_boot, other.per_boot) is None
    level = stats.Level(concurrency=1, ratio=interval, usable=True)
    assert stats.crossover([level]) == stats.Crossover(last_ahead=None, first_behind=None)


def test_b91_with_the_spread_of_boots_eight_per_cent_cannot_be_told_from_none() -> None:
    """Same code, three boots: 96, 104, 112. Another three that mean 8 % more are no gain."""
    interval = stats.ratio_interval([104.0, 112.0, 120.0], [96.0, 104.0, 112.0])

    assert interval is not None
    assert interval.low < 1 < interval.high
    assert stats.ratio_interval([108.0], [96.0, 104.0, 112.0]) is None


# --- losslessness ---------------------------------------------------------------------------------


def _told(view: CellView, hashes: dict[str, str]) -> CellView:
    """The text of each request by its id."""
    return replace(
        view,
        requests=tuple(
            replace(each, text_sha256=hashes[str(each.where.request_id)])
            if str(each.where.request_id) in hashes
            else each
            for each in view.requests
        ),
    )


def test_b93_a_difference_of_sequential_outputs_is_reported_with_its_first_token(
    tmp_path: Path,
) -> None:
    asked = synthetic.matrix(boots=2, levels=(), prompts=prompts(A="code"))
    summary = summarise(synthetic.write_run(tmp_path, asked))
    drafted, plain = view_of(summary, "DFlash2"), view_of(summary)
    changed = [str(request.where.request_id) for request in drafted.requests]
    ids = tuple(range(64))
    events = {
        request_id: OutputEvents(
            offsets_ns=(0,), tokens=(64,), text="", token_ids=(*ids[:30], 999, *ids[31:])
        )
        for request_id in changed
    }
    same = OutputEvents(offsets_ns=(0,), tokens=(64,), text="", token_ids=ids)
    reference = replace(plain, events={str(each.where.request_id): same for each in plain.requests})
    speculative = replace(
        _told(drafted, dict.fromkeys(changed, "h4")), events=events, reference=reference
    )
    found = outputs.losslessness(speculative)

    assert (found.num_identical, found.num_compared) == (0, len(changed))
    assert found.first_difference == outputs.FirstDifference(prompt_id="A", index=30, unit="token")
    assert outputs.losslessness(reference).num_identical == len(plain.requests) - 1


def test_b93_outputs_that_differ_under_load_accuse_nobody(tmp_path: Path) -> None:
    """Batch shapes change roundings: only one request at a time is held against the reference."""

    def edit(request: Request) -> Request:
        under_load = "concurrency" in str(request.where.cell_id)
        return replace(request, text_sha256=f"h{request.index}") if under_load else request

    folder = synthetic.write_run(tmp_path, synthetic.matrix(levels=(4,)), edit=edit)
    summary = summarise(folder)

    assert {item.num_compared for item in summary.losslessness} == {25, 30}  # 5 prompts' first
    assert all(item.num_identical == item.num_compared for item in summary.losslessness)
    assert [verdict for verdict in summary.verdicts if verdict.level == "invalid"] == []
    assert "differ" not in sentences.headline(summary)


# --- a rate of arrivals ---------------------------------------------------------------------------


def test_b82_what_waited_for_its_turn_counts_from_the_moment_it_was_due(tmp_path: Path) -> None:
    """Ten due every 0.1 s at a server of one slot whose first answer takes 1 s, the others 1 ms."""
    view = _four_streams(tmp_path)
    (first, *_) = view.requests
    due_s = [number / 10 for number in range(10)]
    sent_s = [0.0, *(1.0 + 0.001 * number for number in range(9))]
    requests = tuple(
        replace(
            first,
            index=number,
            send_lateness_s=sent_s[number] - due_s[number],
            ttft_s=1.0 if number == 0 else 0.001,
        )
        for number in range(10)
    )
    seen = replace(view, requests=requests)
    from_due = METRICS["ttft_from_schedule_p50"].compute(seen)

    assert from_due.value == pytest.approx(0.5545)
    assert METRICS["ttft_p50"].compute(seen).value == pytest.approx(0.001)  # as a sender sees it
    latest = throughput.ttft_from_schedule_percentile(0.9)(seen)
    assert latest.value == pytest.approx(0.9109)  # a tenth of the way from 0.901 to 1.0


def test_b82_a_run_tells_what_a_schedule_waited_beside_what_a_sender_saw(tmp_path: Path) -> None:
    """The same over a socket: one place, ten arrivals of 0.1 s, the first answer after 1 s.

    Wrong: a median of 1 ms.
    """

    def answer(times_asked: int) -> Sends:
        first_s = 1.0 if times_asked == 0 else 0.0
        return [(first_s, C("a ")), (first_s, FIN("stop", usage=us(3, 1)) + DONE)]

    found = measure(
        tmp_path,
        {"p1": answer},
        workloads=[
            "{kind: concurrency, prompts: cases, load: constant, rate_per_s: 10, levels: [1], "
            "num_requests: 10, repetitions: 1, max_tokens: 8}"
        ],
    )
    of_schedule = found.row("ttft_from_schedule_p50")["value"]
    lateness = [request.send_lateness_s for request in found.requests]

    assert of_schedule == pytest.approx(0.5545, abs=0.15)
    assert found.row("ttft_p50")["value"] < 0.1
    assert max(lateness) == pytest.approx(0.9, abs=0.15)  # the second waits for its place
    assert found.row("send_lateness_max")["value"] == pytest.approx(max(lateness))
    assert "TTFT after the due moment p50, ms" in found.page
