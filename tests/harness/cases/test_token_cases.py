"""B16 to B35: how many tokens there were, and when.

Each case in memory, cut at every position, and over a socket into a report. `run` holds every case
that is one stream; the cases that compare several have runs of their own.
"""

import re
from collections.abc import Mapping
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Any

import pytest

from harness import measures
from harness.scripted_server import DONE

from .end_to_end import FIN, ROLE, C, Outcome, R, U, ch, ev, measure, us
from .streams import SLACK_S, agrees, cuts, figures, parse, undisturbed

RECORDED = Path(__file__).parents[1] / "recorded"

SCRIPTS: Mapping[str, list[tuple[float, bytes]]] = {
    "B16": [
        (0.2, ROLE),
        *((round(0.2 + 0.1 * i, 1), C("w x y z ")) for i in range(10)),
        (1.2, FIN("stop") + U(5, 40) + DONE),
    ],
    "B17": [
        (0.2, C("a", usage=us(5, 1))),
        (0.4, C("bcde", usage=us(5, 5))),
        (0.6, C("fghi", usage=us(5, 9))),
        (0.6, FIN("stop")),
        (0.6, U(5, 9) + DONE),
    ],
    "B19": [
        *((0.1 * i + 0.1, C("u v w x y z ")) for i in range(8)),
        (2.5, C("u v w x y z ")),
        (2.6, FIN("stop") + U(5, 54) + DONE),
    ],
    "B20": [
        (0.05, ROLE),
        (0.55, C("a")),
        (0.65, C("b")),
        (0.75, C("c")),
        (0.75, FIN("stop") + U(5, 3) + DONE),
    ],
    "B22": [
        (0.1, C("", usage=us(99, 0))),
        (0.2, C("", usage=us(99, 0))),
        (0.4, C("a", usage=us(99, 1))),
        (0.5, C("", usage=us(99, 2))),
        (0.6, C("b", usage=us(99, 3))),
        (0.6, FIN("stop") + U(99, 3) + DONE),
    ],
    "B23": [
        (0.2, ROLE),
        *((round(0.3 + 0.1 * i, 1), R("t ")) for i in range(12)),
        (1.5, C("x")),
        (1.6, C("y")),
        (1.6, FIN("stop") + U(50, 14) + DONE),
    ],
    "B25": [(0.1, C("a")), (0.2, C("b")), (0.3, FIN("stop")), (0.4, U(7, 2)), (0.4, DONE)],
    "B26": [(0.1, C("a b c ")), (0.3, C("d e f ")), (0.3, FIN("stop") + DONE)],
    "B27": [
        (0.1, C("a", usage=None)),
        (0.2, C("b", usage={"prompt_tokens": 11, "total_tokens": 11})),
        (
            0.3,
            ch(
                {},
                "stop",
                usage={"prompt_tokens": 11, "completion_tokens": None, "total_tokens": None},
            ),
        ),
        (0.3, DONE),
    ],
    "B28": [
        *((0.1 * i, C("w", usage=us(10, i))) for i in range(1, 6)),
        (0.6, FIN("stop", usage=us(10, 5)) + U(10, 5) + DONE),
    ],
    "B30": [(0.3, ROLE + C("a")), (0.3, FIN("length") + U(12, 1) + DONE)],
}

EXPECT: Mapping[str, Mapping[str, Any]] = {
    "B16": {"status": "ok", "n": 40, "ttft": 0.2, "rate": 43.333, "tpot": 0.02308},
    "B17": {"status": "ok", "n": 9, "tpot": 0.05, "gaps": [0.2, 0.2]},
    "B19": {"status": "ok", "n": 54, "rate": 22.083},
    "B20": {"ttft": 0.55, "gaps": [0.1, 0.1], "n": 3, "tpot": 0.1},
    "B22": {"ttft": 0.4, "n": 3, "gaps": [0.1, 0.1], "tpot": 0.1},
    "B23": {"ttft": 0.3, "ttfa": 1.5, "tpot": 0.1, "n": 14, "status": "ok"},
    "B25": {"n": 2, "tpot": 0.1, "status": "ok", "prompt": 7, "t_last": 0.2, "t_end": 0.4},
    "B26": {"n": None, "ttft": 0.1, "t_end": 0.3, "tpot": None, "status": "ok"},
    "B27": {"n": None, "text": "ab", "status": "ok", "prompt": 11},
    "B28": {"n": 5, "prompt": 10, "tpot": 0.1, "status": "ok"},
    "B30": {
        "status": "ok",
        "n": 1,
        "ttft": 0.3,
        "prompt": 12,
        "tpot": None,
        "rate": None,
        "headline": None,
        "flags": (),
    },
}


# --- in memory ------------------------------------------------------------------------------------


@pytest.mark.parametrize("case", SCRIPTS)
def test_the_figures_are_the_expected_ones(case: str) -> None:
    assert agrees(figures(SCRIPTS[case]), EXPECT[case])


@pytest.mark.parametrize("case", SCRIPTS)
def test_the_figures_hold_wherever_the_stream_is_cut(case: str) -> None:
    for cut in cuts(SCRIPTS[case]):
        assert agrees(figures(cut), EXPECT[case]), cut


def times_per_token(case: str) -> tuple[float, ...] | None:
    _, row = parse(SCRIPTS[case])
    return measures.token_times([offset / 1e9 for offset in row.offset_ns], row.tokens)


def test_b17_the_mean_time_per_token_is_tpot_and_a_step_is_four_of_them() -> None:
    request, row = parse(SCRIPTS["B17"])
    times = times_per_token("B17")

    assert row.tokens == (1, 4, 4)
    assert request.event_tokens_source == "usage"
    assert times == pytest.approx([0.05] * 8)
    assert measures.step_times([0.2, 0.4, 0.6]) == pytest.approx((0.2, 0.2))


def test_b19_the_peak_counts_tokens_and_is_never_below_the_mean() -> None:
    """Wrong: eight events in the first second, so 8 per second."""
    _, row = parse(SCRIPTS["B19"])
    at_s = [offset / 1e9 for offset in row.offset_ns]

    assert measures.peak_rate(at_s, [6.0] * 9) == pytest.approx(48)
    # 100 tokens around the end of each second: a bucket per second would hold 50, the mean is 99
    assert measures.peak_rate([0.0, 1.01], [50.0, 50.0]) == pytest.approx(100 / 1.01)
    assert measures.peak_rate([0.0, 0.9], [1.0, 40.0]) is None


def test_b22_without_running_totals_an_empty_event_is_left_out_and_n_still_counts_it() -> None:
    found = figures(
        [
            (0.1, C("")),
            (0.4, C("a")),
            (0.5, C("")),
            (0.6, C("b") + FIN("stop") + U(99, 3) + DONE),
        ]
    )

    assert found["ttft"] == pytest.approx(0.4)
    assert found["gaps"] == pytest.approx([0.2])
    assert found["n"] == 3


def test_b25_a_total_in_the_event_of_the_finish_reason_dates_no_token() -> None:
    found = figures([(0.1, C("a")), (0.2, C("b")), (0.9, FIN("stop", usage=us(7, 2)) + DONE)])

    assert (found["n"], found["n_first"]) == (2, 1)
    assert found["t_last"] == pytest.approx(0.2)
    assert found["tpot"] == pytest.approx(0.1)


def test_b25_a_running_total_that_rises_with_the_finish_reason_dates_the_last_token() -> None:
    """An end-of-text token has no text, but the engine counts it: n and t_last speak of one set."""
    found = figures(
        [
            (0.1, C("a", usage=us(7, 1))),
            (0.2, C("b", usage=us(7, 2))),
            (0.3, FIN("stop", usage=us(7, 3)) + U(7, 3) + DONE),
        ]
    )

    assert found["t_last"] == pytest.approx(0.3)
    assert found["gaps"] == pytest.approx([0.1, 0.1])


def test_b28_an_event_behind_one_that_did_not_tell_has_no_count_of_its_own() -> None:
    request, row = parse(
        [
            (0.1, C("a", usage=us(10, 1))),
            (0.2, C("b c")),
            (0.3, C("d", usage=us(10, 4))),
            (0.4, C("e f", usage=us(10, 6)) + FIN("stop") + U(10, 6) + DONE),
        ]
    )

    assert row.tokens == (1, None, None, 2)
    assert request.event_tokens_source is None
    assert request.output_tokens == 6


# --- bursts ---------------------------------------------------------------------------------------


def bursts_of_four() -> list[tuple[float, bytes]]:
    """As llama.cpp b11434 streams with a drafter: an event per token, sent in bursts; 120 tokens,
    0.13 ms apart within a burst of four, a burst every 100 ms.
    """
    events = [(0.1 * burst + 0.00013 * i, C("w ")) for burst in range(30) for i in range(4)]
    return [*events, (3.0, FIN("length") + U(40, 120) + DONE)]


def test_bursts_of_one_token_events_become_no_rate() -> None:
    request, row = parse(bursts_of_four())
    at_s = [offset / 1e9 for offset in row.offset_ns]
    gaps = [later - earlier for earlier, later in pairwise(at_s)]
    found = figures(bursts_of_four())

    assert median(gaps) == pytest.approx(0.00013)  # as a rate: 7,700 tokens per second
    assert request.first_tokens == 4
    assert found["rate"] == pytest.approx((120 - 4) / 2.90039, rel=1e-6)
    assert median(measures.step_times(at_s)) == pytest.approx(0.1)
    assert measures.token_times(at_s, row.tokens) is None
    assert measures.peak_rate(at_s, [1.0] * 120) == pytest.approx(44 / 1.00039)  # 11 bursts


def test_a_recorded_stream_let_go_in_bursts_gives_the_rate_of_its_bursts() -> None:
    events = (RECORDED / "llamacpp_11434_chat_stream.sse").read_bytes().split(b"\n\n")
    script = [
        (0.1 * (i // 4) + 0.00013 * (i % 4), event + b"\n\n")
        for i, event in enumerate(events)
        if event.strip()
    ]
    request, _ = parse(script)
    first, last = request.ttft_s, request.t_last_s
    rate = measures.decode_rate_strict(request.output_tokens, request.first_tokens, first, last)

    # the role, 64 tokens, the finish reason, usage and the end: token 64 is event 64, in burst 16
    assert last == pytest.approx(1.6)
    assert rate == pytest.approx((64 - 3) / (1.6 - 0.00013))


# --- over a socket, into a report -----------------------------------------------------------------


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Outcome:
    """One prompt per case, and one whose 64 events come in 16 bursts."""
    bursts = [(round(0.1 * i, 1), C("w ") * 4) for i in range(16)]
    answers = {**SCRIPTS, "bursts": [*bursts, (1.6, FIN("length") + U(5, 64) + DONE)]}
    return undisturbed(lambda: measure(tmp_path_factory.mktemp("tokens"), answers))


@pytest.mark.parametrize("case", SCRIPTS)
def test_a_run_records_the_expected_figures(run: Outcome, case: str) -> None:
    request, expected = run.request(case), EXPECT[case]
    found = {"ttft": request.ttft_s, "ttfa": request.ttfa_s, "t_last": request.t_last_s}

    assert request.status == "ok"
    assert request.output_tokens == expected["n"]
    assert request.prompt_tokens == expected.get("prompt", request.prompt_tokens)
    for name in found.keys() & expected.keys():
        assert found[name] == pytest.approx(expected[name], abs=SLACK_S), name


def value(run: Outcome, metric: str, case: str) -> Any:
    return run.row(metric, kind=case)["value"]


def line(run: Outcome, head: str, case: str) -> str:
    """A case's row in the table of the page that has a column of this name."""
    (table,) = [lines for lines in run.tables() if head in lines[0]]
    (found,) = [text for text in table if f"| {case} |" in text]
    return found


def test_b16_ten_events_are_forty_tokens(run: Outcome) -> None:
    """Wrong: 10 tokens, 10 tok/s."""
    request = run.request("B16")
    assert request.ttft_s is not None
    assert request.t_last_s is not None

    rate = value(run, "decode_rate_strict", "B16")

    assert request.num_output_events == 10
    assert value(run, "tokens_per_event", "B16") == 4.0
    assert rate == pytest.approx(39 / (request.t_last_s - request.ttft_s))
    assert rate > 30


def test_b17_the_report_names_tpot_step_and_token_time(run: Outcome) -> None:
    """Wrong: 200 ms beside 50 ms without a word."""
    assert value(run, "step_time", "B17") == pytest.approx(0.2, abs=SLACK_S)
    assert value(run, "token_time_p50", "B17") < 0.1
    assert value(run, "tpot", "B17") < 0.1
    (table,) = [lines for lines in run.tables() if "TPOT, ms" in lines[0]]
    assert "step, ms" in table[0]
    assert "token p50, ms" in table[0]
    assert "where a step brings several, a step is no time per token" in run.page
    assert "ITL" not in run.page


def test_b17_headline_strict_rate_and_excess_stand_side_by_side(run: Outcome) -> None:
    headline, strict = (value(run, name, "B17") for name in ("decode_rate", "decode_rate_strict"))

    assert value(run, "decode_rate_excess", "B17") == pytest.approx(headline / strict - 1)
    assert "| tok/s | strict | excess |" in run.page


def test_b19_no_peak_lies_below_its_mean(run: Outcome) -> None:
    """Wrong: a peak of 8 events per second below a mean of 22 tokens per second."""
    assert value(run, "peak_rate", "B19") == pytest.approx(48)
    peaks = 0
    for case in SCRIPTS:
        peak, mean = value(run, "peak_rate", case), value(run, "decode_rate_strict", case)
        if peak is not None:
            peaks += 1
            assert peak >= mean
    assert peaks >= 2
    assert run.row("peak_rate", kind="B17")["reason"] == "a stream lasted less than a second"


def test_b20_a_role_is_the_first_event_and_not_the_first_token(run: Outcome) -> None:
    assert value(run, "ttfr_p50", "B20") == pytest.approx(0.05, abs=SLACK_S)
    assert value(run, "ttft_p50", "B20") == pytest.approx(0.55, abs=SLACK_S)
    assert value(run, "step_time", "B20") == pytest.approx(0.1, abs=SLACK_S)


def test_b23_thinking_is_output_and_the_answer_has_a_column_of_its_own(run: Outcome) -> None:
    """Wrong: TTFT 1.5 s and 140 tok/s."""
    assert value(run, "ttft_p50", "B23") == pytest.approx(0.3, abs=SLACK_S)
    assert value(run, "ttfa_p50", "B23") == pytest.approx(1.5, abs=SLACK_S)
    assert value(run, "decode_rate", "B23") < 14
    assert "| first answer, ms |" in run.page


def test_b26_an_unknown_count_is_not_available_and_times_stay(run: Outcome) -> None:
    """Wrong: 2 tokens, for two events."""
    for metric in ("output_tokens_median", "decode_rate", "tpot", "tokens_per_event"):
        row = run.row(metric, kind="B26")
        assert (row["value"], row["reason"]) == (None, "the engine reports no token count")
    assert value(run, "ttft_p50", "B26") == pytest.approx(0.1, abs=SLACK_S)
    assert value(run, "wall_p50", "B26") == pytest.approx(0.3, abs=SLACK_S)
    assert "unknown 1" in line(run, "tokens counted by", "B26")
    assert "usage 1" in line(run, "tokens counted by", "B25")


def test_b27_null_counts_are_no_zero_and_the_prompt_is_still_known(run: Outcome) -> None:
    assert value(run, "output_tokens_median", "B27") is None
    assert value(run, "prompt_tokens_median", "B27") == 11
    assert run.text("B27") == "ab"


def test_b28_running_totals_are_not_added_up(run: Outcome) -> None:
    """Wrong: prompt 70, output 25."""
    assert value(run, "prompt_tokens_median", "B28") == 10
    assert value(run, "output_tokens_median", "B28") == 5


def test_bursts_in_a_run_give_no_rate_above_that_of_the_bursts(run: Outcome) -> None:
    """Sixteen bursts of four in 1.5 s: 40 tokens per second, whatever lies within a burst."""
    rows = [row for row in run.summary["rows"] if row["kind"] == "bursts"]
    found = {row["metric"]: row["value"] for row in rows if row["unit"] == "tok/s"}

    assert found["decode_rate_strict"] == pytest.approx(40, rel=0.1)
    assert max(rate for rate in found.values() if rate is not None) < 60
    assert value(run, "step_time", "bursts") == pytest.approx(0.1, abs=SLACK_S)


def test_every_event_row_of_the_run_is_in_its_csv_with_its_sources(run: Outcome) -> None:
    header, *rows = run.csv("requests").splitlines()

    assert len(rows) == len(SCRIPTS) + 1
    for column in (
        "output_tokens_source",
        "event_tokens_source",
        "first_tokens_source",
        "send_lateness_s",
        "connect_s",
        "flags",
    ):
        assert column in header.split(",")


# --- cases of several requests --------------------------------------------------------------------


def test_b30_one_token_is_a_success_without_a_rate_and_leaves_the_others_theirs(
    tmp_path: Path,
) -> None:
    three = [(0.02, C("a")), (0.12, C("b")), (0.22, C("c") + FIN("stop") + U(12, 3) + DONE)]
    alone = [(0.02, C("a") + FIN("length") + U(12, 1) + DONE)]
    outcome = measure(
        tmp_path,
        {"B30": lambda asked: alone if asked == 0 else three, "B30-alone": alone},
        workloads=("{kind: generate, prompts: cases, repetitions: 2, max_tokens: 64}",),
    )
    request = outcome.request("B30")
    assert request.ttft_s is not None
    assert request.t_last_s is not None

    assert [item.status for item in outcome.requests] == ["ok"] * 4
    row = outcome.row("decode_rate_strict", kind="B30")
    assert (row["value"], row["n"]) == (
        pytest.approx(2 / (request.t_last_s - request.ttft_s)),
        1,
    )
    assert outcome.row("ttft_p50", kind="B30")["n"] == 2
    for kind in ("B30-alone", "all"):
        row = outcome.row("decode_rate", kind=kind)
        assert (row["value"], row["reason"]) == (None, "a reply came in one read")


def stream_of(n: int, reason: str) -> list[tuple[float, bytes]]:
    """`n` tokens, no two words alike, in two events."""
    words = [f"w{i} " for i in range(n)]
    half = n // 2
    return [
        (0.01, C("".join(words[:half]))),
        (0.03, C("".join(words[half:]))),
        (0.03, FIN(reason) + U(9, n) + DONE),
    ]


def test_b33_answers_of_unequal_length_are_no_comparison(tmp_path: Path) -> None:
    """Wrong: B is faster, as a plain verdict."""
    lengths = {"B33-1": 40, "B33-2": 61, "B33-3": 512, "B33-4": 55}
    outcome = measure(
        tmp_path,
        {
            prompt: lambda asked, n=n: (
                stream_of(512, "length") if asked == 0 else stream_of(n, "stop")
            )
            for prompt, n in lengths.items()
        },
        variants=(
            "{name: A, engine: scripted, target: model}",
            "{name: B, engine: scripted, target: model, drafter: {method: ngram, k: 4}}",
        ),
        workloads=("{kind: generate, prompts: cases, repetitions: 1, max_tokens: 512}",),
        kinds=dict.fromkeys(lengths, "prose"),
    )

    assert line_of(outcome, "A", "finish reasons").count("length 4") == 1
    assert line_of(outcome, "B", "finish reasons").count("stop 4") == 1
    figures_of = {
        variant: [
            outcome.row(f"output_tokens_{name}", variant=variant)["value"]
            for name in ("min", "median", "max")
        ]
        for variant in ("A", "B")
    }
    assert figures_of == {"A": [512, 512, 512], "B": [40, 58, 512]}
    (verdict,) = outcome.verdicts("lengths_equal", level="invalid")
    assert "differ in length from the reference's for 3 of 4 prompts" in verdict["message"]
    assert "No controlled comparison" in verdict["message"]
    speedup = outcome.row("speedup", variant="B")
    assert (speedup["value"], speedup["reason"]) == (None, "invalid: lengths_equal")
    (cap,) = outcome.verdicts("possible_cap", level="warning")
    assert cap["message"].startswith("1 of 4 requests: the finish reason is `stop` at exactly")
    assert "possible_cap 1" in outcome.page.replace("\\", "")


def line_of(outcome: Outcome, variant: str, head: str) -> str:
    """A variant's row over all kinds in the table with this column; its name may be marked."""
    (table,) = [lines for lines in outcome.tables() if head in lines[0]]
    (found,) = [text for text in table if re.match(rf"\| {variant}\b[^|]*\| all kinds \|", text)]
    return found


def test_b35_prefill_is_over_the_prompt_tokens_that_no_cache_held(tmp_path: Path) -> None:
    """Wrong: 44 tok/s by the client's 12 words, and 245 tok/s for the cached run."""

    def usage(cached: int) -> dict[str, Any]:
        details = {"cached_tokens": cached}
        return {"choices": [], "usage": {**us(27, 1), "prompt_tokens_details": details}}

    def answer(at_s: float, cached: int) -> list[tuple[float, bytes]]:
        return [(at_s, C("a")), (at_s, FIN("length") + ev(usage(cached)) + DONE)]

    outcome = measure(
        tmp_path,
        {"B35": answer(0.27, 0), "B35-cached": answer(0.11, 16)},
        workloads=("{kind: generate, prompts: cases, repetitions: 1, max_tokens: 1}",),
    )
    cold, warm = (outcome.request(name) for name in ("B35", "B35-cached"))
    assert cold.ttft_s is not None
    assert warm.ttft_s is not None

    assert (cold.prompt_tokens, warm.cached_tokens) == (27, 16)
    assert outcome.row("prefill_rate", kind="B35")["value"] == pytest.approx(27 / cold.ttft_s)
    assert outcome.row("prefill_rate", kind="B35-cached")["value"] == pytest.approx(
        (27 - 16) / warm.ttft_s
    )
    assert outcome.row("prefill_rate", kind="B35-cached")["value"] < 130
    assert outcome.row("cached_share", kind="B35-cached")["value"] == pytest.approx(16 / 27)
    (verdict,) = outcome.verdicts("cache_state", level="warning")
    assert "1 of 2 prompts" in verdict["message"]
    assert outcome.verdicts("short_outputs", level="invalid") == []


def test_b142_one_evaluated_prompt_token_is_no_prefill_rate_and_enters_no_mean(
    tmp_path: Path,
) -> None:
    """1024 tokens, then 1023 of them from the cache. Wrong: (421.4 + 4.4) / 2."""

    def answer(times_asked: int) -> list[tuple[float, bytes]]:
        at_s, cached = (0.243, 0) if times_asked == 0 else (0.0228, 1023)
        details = {"cached_tokens": cached}
        told = {"choices": [], "usage": {**us(1024, 1), "prompt_tokens_details": details}}
        return [(at_s, C("a")), (at_s, FIN("length") + ev(told) + DONE)]

    outcome = measure(
        tmp_path,
        {"B142": answer},
        workloads=("{kind: generate, prompts: cases, repetitions: 2, max_tokens: 1, cache: warm}",),
    )
    cold, warm = outcome.requests
    assert cold.ttft_s is not None

    assert (cold.prompt_tokens, warm.prompt_tokens) == (1024, 1024)
    assert warm.cached_tokens == 1023
    for metric in ("prefill_rate", "prefill_rate_pooled"):
        row = outcome.row(metric, kind="B142")
        assert (row["value"], row["n"]) == (pytest.approx(1024 / cold.ttft_s), 1)


def test_b139_more_tokens_than_were_asked_for_are_flagged_in_the_report(tmp_path: Path) -> None:
    """A server that takes max_tokens for no limit."""
    outcome = measure(
        tmp_path,
        {"B139": stream_of(80, "length")},
        workloads=("{kind: generate, prompts: cases, repetitions: 1, max_tokens: 64}",),
    )

    assert "over_cap" in outcome.request("B139").flags
    (verdict,) = outcome.verdicts("over_cap")
    assert verdict["level"] == "warning"
    assert "over_cap 1" in outcome.page.replace("\\", "")
