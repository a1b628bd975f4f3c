"""Cases B57 to B76, which other tools got wrong: what counters may say of a run.

Each case is read from pages of a real server, before and after; where a report would show it, it is
also a prompt of a whole run, whose answer moves the server's counters by what the case says.
"""

import json
import time
from collections import Counter
from collections.abc import Mapping
from typing import Any

import httpx
import pytest

from harness import measures
from harness.adapters import ADAPTERS
from harness.measures import CountersDelta, NotMeasured
from harness.records import Snapshot, Where
from harness.run import counters
from harness.run.counters import CounterReader
from harness.scripted_server import DONE, Received, Script, event, page, serving, usage

from .end_to_end import FIN, Answer, C, Outcome, Sends, measure

DRAFTED = "{name: drafted, engine: scripted, target: model, drafter: {method: mtp, k: 7}}"
DRAFTED_BY_LLAMACPP = DRAFTED.replace("mtp", "draft-mtp")
WHERE = Where(run_id="r", session_id="s1")


# --- two pages of a real server -------------------------------------------------------------------


async def readings(adapter: str, before: Script, after: Script) -> tuple[Snapshot, Snapshot]:
    told = {"/metrics": before}
    unknown = page("{}", status=404)
    with (
        pytest.MonkeyPatch.context() as patch,
        serving(lambda request: told.get(request.path, unknown)) as server,
    ):
        patch.setattr(counters, "EQUAL_SCRAPES_APART_S", 0.01)  # these pages stand still
        async with httpx.AsyncClient(base_url=server.url, trust_env=False) as http:
            reader = CounterReader(http, ADAPTERS[adapter])
            first = await reader.snapshot(WHERE, "request", "before")
            told["/metrics"] = after
            return first, await reader.snapshot(WHERE, "request", "after")


async def found(adapter: str, before: str, after: str) -> CountersDelta | NotMeasured:
    first, second = await readings(adapter, text(before), text(after))
    return measures.counters_delta(first.counters, second.counters)


async def gained(adapter: str, before: str, after: str) -> CountersDelta:
    delta = await found(adapter, before, after)
    assert isinstance(delta, CountersDelta)
    return delta


def text(lines: str) -> Script:
    return page(lines, content_type="text/plain")


def vllm(**counts: float) -> str:
    """Lines of one engine: `drafts_total=400` is vllm:spec_decode_num_drafts_total."""
    return "".join(
        f'vllm:spec_decode_num_{name}{{engine="0",model_name="m"}} {value}\n'
        for name, value in counts.items()
    )


async def test_b57_creation_times_are_no_counters() -> None:
    created = {"drafts_created": 1.77692439403224e09, "accepted_tokens_created": 1.776924394e09}
    delta = await gained(
        "vllm",
        vllm(drafts_total=400, accepted_tokens_total=1000, **created),
        vllm(drafts_total=500, accepted_tokens_total=1250, **created),
    )
    assert (delta.drafts, delta.accepted_tokens) == (100, 250)
    assert measures.acceptance_length(delta) == 3.5


async def test_b58_positions_are_not_added_to_the_total() -> None:
    positions = "".join(
        "vllm:spec_decode_num_accepted_tokens_per_pos_total"
        f'{{engine="0",model_name="m",position="{i}"}} {count}\n'
        for i, count in enumerate((90, 60, 30))
    )
    totals = vllm(drafts_total=100, draft_tokens_total=300, accepted_tokens_total=180)
    delta = await gained("vllm", vllm(drafts_total=0, draft_tokens_total=0), totals + positions)
    assert delta.accepted_tokens == 180 == sum(delta.accepted_at or ())
    assert measures.acceptance_length(delta) == pytest.approx(2.8)
    assert measures.acceptance_rate(delta) == pytest.approx(0.6)
    assert measures.acceptance_at_position(delta) == pytest.approx((0.9, 0.6, 0.3))


async def test_b59_engines_are_summed_before_dividing() -> None:
    def engine(number: int, drafts: int, accepted: int) -> str:
        label = f'{{engine="{number}",model_name="m"}}'
        return (
            f"vllm:spec_decode_num_drafts_total{label} {drafts}\n"
            f"vllm:spec_decode_num_accepted_tokens_total{label} {accepted}\n"
        )

    # engine 2 appears only in the second scrape, and counts from 0
    before = engine(0, 5, 7) + engine(1, 1, 2)
    after = engine(0, 15, 17) + engine(1, 31, 122) + engine(2, 60, 60)
    delta = await gained("vllm", before, after)
    # the first and the last engine alone give 2.0, the mean of the three quotients 3.0
    assert measures.acceptance_length(delta) == 2.9


async def test_b61_names_without_total_and_series_that_appear_with_the_first_draft() -> None:
    after = (
        "# TYPE llamacpp:spec_decode_num_drafts counter\n"
        "llamacpp:spec_decode_num_drafts 40\n"
        "# TYPE llamacpp:spec_decode_num_draft_tokens counter\n"
        "llamacpp:spec_decode_num_draft_tokens 280\n"
        "# TYPE llamacpp:spec_decode_num_accepted_tokens counter\n"
        "llamacpp:spec_decode_num_accepted_tokens 100\n"
    )
    delta = await gained(
        "llamacpp",
        "llamacpp:tokens_predicted_total 3\n",
        f"{after}" + "llamacpp:tokens_predicted_total 144\n",
    )
    assert measures.acceptance_length(delta) == 3.5
    assert measures.acceptance_rate(delta) == pytest.approx(100 / 280)


async def test_b63_odd_samples_spoil_only_themselves() -> None:
    odd = (
        "llamacpp:n_busy_slots_per_decode -nan\n"
        "x_ratio NaN\n"
        'lat_bucket{le="+Inf"} 7\n'
        "vllm:spec_decode_num_draft_tokens_total NaN\n"
    )
    exponent = 'vllm:spec_decode_num_drafts_total{engine="0",model_name="m"} 6.491797e+06\n'
    stamped = 'vllm:generation_tokens_total{engine="0",model_name="m"} 12 1790000000000\n'
    delta = await gained(
        "vllm",
        f"{odd}vllm:other_total 1\nvllm:generation_tokens_total 0\n",
        f"{odd}{exponent}{stamped}# EOF",
    )
    assert (delta.drafts, delta.generation_tokens, delta.draft_tokens) == (6491797, 12, None)
    assert isinstance(delta.drafts, int)


async def test_b64_label_values_may_hold_anything() -> None:
    name = 'a\\"b,c}d\\\\e f=g {h}'

    def told(first: int, second: int) -> str:
        return (
            f'vllm:generation_tokens_total{{engine="0",model_name="{name}"}} {first}\n'
            f'vllm:generation_tokens_total{{engine="1",model_name="{name}",}} {second}\n'
        )

    first, second = await readings("vllm", text(told(2, 3)), text(told(12, 30)))
    assert second.counters is not None
    assert second.counters.labels == ('a"b,c}d\\e f=g {h}',)
    assert second.counters.generation_tokens == 42
    delta = measures.counters_delta(first.counters, second.counters)
    assert isinstance(delta, CountersDelta)  # one model, not two
    assert delta.generation_tokens == 37


async def test_b65_a_counter_that_fell_is_no_delta() -> None:
    delta = await found(
        "vllm",
        vllm(drafts_total=1000, accepted_tokens_total=2500),
        vllm(drafts_total=50, accepted_tokens_total=120),
    )
    # 1 + (-2380) / (-950) = 3.51 would look plausible
    assert isinstance(delta, NotMeasured)
    assert delta.reason == "counter_reset"


async def test_b67_a_page_that_fails_is_no_zero() -> None:
    whole = text(vllm(drafts_total=5, accepted_tokens_total=9))
    first, second = await readings("vllm", whole, page("no", status=500))
    assert first.counters is not None
    assert second.counters is None
    assert second.error == "/metrics cannot be read: HTTP 500"


@pytest.mark.parametrize("timings", [{}, {"predicted_n": 120, "predicted_ms": 800.0}])
def test_b67_timings_without_a_draft_count_report_nothing(timings: Mapping[str, Any]) -> None:
    read_request = ADAPTERS["llamacpp"].read_request
    assert read_request is not None
    assert read_request(timings) is None


async def test_b69_warm_up_that_is_published_late_is_not_in_the_measured_delta() -> None:
    """The gauges say idle all along; 0.3 s after they are first asked the warm-up is published."""
    first_asked: list[float] = []
    done = Counter[str]()

    def respond(request: Received) -> Script:
        if not first_asked:
            first_asked.append(time.monotonic())
        late = time.monotonic() - first_asked[0] > 0.3
        published = Counter(drafts=20, accepted=140) if late else Counter()
        now = published + done
        return text(
            f"engine:spec_decode_num_drafts_total {now['drafts']}\n"
            f"engine:spec_decode_num_accepted_tokens_total {now['accepted']}\n"
            "engine:num_requests_running 0\nengine:num_requests_waiting 0\n"
        )

    with serving(respond) as server:
        async with httpx.AsyncClient(base_url=server.url, trust_env=False) as http:
            reader = CounterReader(http, ADAPTERS["openai"])
            before = await reader.snapshot(WHERE, "repetition", "before")
            done.update(drafts=100, accepted=150)
            after = await reader.snapshot(WHERE, "repetition", "after")
    assert before.quiet is True
    delta = measures.counters_delta(before.counters, after.counters)
    assert isinstance(delta, CountersDelta)
    # with the warm-up in it: 1 + 290 / 120 = 3.42
    assert measures.acceptance_length(delta) == 2.5


async def test_b71_rate_gauges_are_never_read() -> None:
    """Somebody else's scrape emptied the gauge; the counters are nobody's."""

    def told(gauge: float, tokens: int, seconds: float) -> str:
        return (
            f"llamacpp:predicted_tokens_seconds {gauge}\n"
            f"llamacpp:prompt_tokens_seconds {gauge}\n"
            f"llamacpp:tokens_predicted_total {tokens}\n"
            f"llamacpp:tokens_predicted_seconds_total {seconds}\n"
        )

    full = await gained("llamacpp", told(31.2, 100, 3.0), told(31.2, 612, 19.0))
    emptied = await gained("llamacpp", told(31.2, 100, 3.0), told(0, 612, 19.0))
    assert full == emptied
    assert measures.engine_decode_rate(emptied) == 32.0


async def test_b73_tokens_behind_the_end_are_in_the_length_and_not_in_tokens_per_step() -> None:
    passes = "vllm:iteration_tokens_total_count"
    delta = await gained(
        "vllm",
        vllm(drafts_total=0, draft_tokens_total=0, accepted_tokens_total=0) + f"{passes} 0\n",
        vllm(drafts_total=2, draft_tokens_total=10, accepted_tokens_total=10) + f"{passes} 3\n",
    )
    alone = measures.with_plain_steps(delta, requests=1)
    assert measures.acceptance_length(alone) == 6.0
    assert measures.tokens_per_step(alone, tokens=10, requests=1) == 4.5
    # d4, d5 and the bonus token behind the end
    assert measures.token_identity_residual(alone, tokens=10, requests=1) == -3


# --- whole runs -----------------------------------------------------------------------------------

STRANGE_MODEL = 'a\\"b,c}d\\\\e f=g {h}'
BOOTED = (
    "vllm:num_requests_running 0\nvllm:num_requests_waiting 0\nvllm:generation_tokens_total 0\n"
)
ODD = "vllm:cache_hit_rate NaN\nx_ratio -nan\n" + 'lat_bucket{le="+Inf"} 7\n'


class CountingServer:
    """A /metrics page whose series gain, with each answer, what the answer's case says.

    gains: prompt -> series as they stand on the page -> by how much they rise.
    always: further lines. Values are written as 1.5e+02, with a time behind them.
    """

    def __init__(self, gains: Mapping[str, Mapping[str, float]], always: str = "") -> None:
        self._gains = gains
        self._always = always
        self._values = Counter[str]()
        self.status = 200

    def answer(
        self, case: str, num_tokens: int, timings: Mapping[str, Any] | None = None
    ) -> Answer:
        def sends(_: int) -> Sends:
            self._values.update(self._gains[case])
            return reply(num_tokens, timings)

        return sends

    def metrics(self, _: Received) -> Script:
        lines = [f"{series} {value:.9e} 1790000000000\n" for series, value in self._values.items()]
        return page(self._always + "".join(lines), status=self.status, content_type="text/plain")


def reply(num_tokens: int, timings: Mapping[str, Any] | None = None) -> Sends:
    """Two events, then what the engine says they were."""
    told = {"choices": [], "usage": usage(5, num_tokens)}
    last = event({**told, "timings": timings} if timings is not None else told)
    return [(0.0, C("a ")), (0.01, C("b ")), (0.02, FIN("stop") + last + DONE)]


def series(name: str, engine: int = 0, **labels: str) -> str:
    """A vLLM counter as its page writes it, of a model with a name that splits badly."""
    all_labels = {"engine": str(engine), "model_name": STRANGE_MODEL, **labels}
    written = ",".join(f'{key}="{value}"' for key, value in all_labels.items())
    return f"vllm:{name}{{{written}}}"


def work(num_tokens: int, requests: int = 1) -> dict[str, float]:
    return {
        series("generation_tokens_total"): num_tokens,
        series("request_success_total", finished_reason="stop"): requests,
    }


def drafting(drafts: int, drafted: int, accepted: int, engine: int = 0) -> dict[str, float]:
    return {
        series("spec_decode_num_drafts_total", engine): drafts,
        series("spec_decode_num_draft_tokens_total", engine): drafted,
        series("spec_decode_num_accepted_tokens_total", engine): accepted,
    }


def positions(*accepted: int) -> dict[str, float]:
    name = "spec_decode_num_accepted_tokens_per_pos_total"
    return {series(name, position=str(i)): count for i, count in enumerate(accepted)}


VLLM_GAINS: Mapping[str, Mapping[str, float]] = {
    # what vLLM has counted before the first case, so that no difference is a total
    "first": {**work(9), **drafting(4, 28, 4), **positions(3, 1)},
    "B58": {**work(281), **drafting(100, 300, 180), **positions(90, 60, 30)},
    "B57": {**work(351), **drafting(100, 700, 250)},
    "B59": {
        **work(291),
        **drafting(10, 70, 10),
        **drafting(30, 210, 120, engine=1),
        **drafting(60, 420, 60, engine=2),
    },
    "B67": {**work(20), **drafting(0, 0, 0)},
    "B68": {**work(150, requests=2), **drafting(30, 210, 90)},
    "B73": {**work(10), **drafting(2, 10, 10), series("iteration_tokens_total_count"): 3},
    "B65": {**work(50), **drafting(-120, -1000, -300)},
}
"""In running order. B57's `_created` series and B63's odd lines stand on every page, B64's model
name on every series.
"""

VLLM_TOKENS = {"first": 9, "B58": 281, "B57": 351, "B59": 291, "B67": 20, "B68": 100, "B73": 10}


@pytest.fixture(scope="module")
def on_vllm(tmp_path_factory: pytest.TempPathFactory) -> Outcome:
    created = series("spec_decode_num_drafts_created") + " 1.77692439403224e+09\n"
    server = CountingServer(VLLM_GAINS, always=BOOTED + ODD + created)
    return measure(
        tmp_path_factory.mktemp("vllm"),
        {case: server.answer(case, VLLM_TOKENS.get(case, 50)) for case in VLLM_GAINS},
        variants=[DRAFTED],
        adapter="vllm",
        pages={"/metrics": server.metrics},
    )


def value(outcome: Outcome, metric: str, case: str) -> float | None:
    return outcome.row(metric, kind=case)["value"]  # type: ignore[no-any-return]


def reason(outcome: Outcome, metric: str, case: str) -> str:
    """Why a figure is n/a; asserts that it is."""
    row = outcome.row(metric, kind=case)
    assert row["value"] is None
    return str(row["reason"])


def test_b57_creation_times_are_no_counters_in_the_report(on_vllm: Outcome) -> None:
    assert value(on_vllm, "acceptance_length", "B57") == 3.5


def test_b58_positions_are_not_added_to_the_total_in_the_report(on_vllm: Outcome) -> None:
    assert value(on_vllm, "acceptance_length", "B58") == pytest.approx(2.8)
    assert value(on_vllm, "acceptance_rate", "B58") == pytest.approx(0.6)
    shares = [value(on_vllm, f"acceptance_at_position_{i}", "B58") for i in range(1, 8)]
    assert shares == pytest.approx([0.9, 0.6, 0.3, 0, 0, 0, 0])


def test_b59_engines_are_summed_before_dividing_in_the_report(on_vllm: Outcome) -> None:
    assert value(on_vllm, "acceptance_length", "B59") == pytest.approx(2.9)


def test_b63_b64_odd_lines_and_a_strange_model_cost_no_figure(on_vllm: Outcome) -> None:
    (page_file,) = (on_vllm.folder.path / "pages").iterdir()
    assert page_file.stat().st_size > 0
    assert on_vllm.verdicts("counter_foreign_label", level="invalid") == []
    assert "NaN" not in json.dumps(on_vllm.summary)


def test_b65_a_reset_is_unavailable_and_marks_the_run(on_vllm: Outcome) -> None:
    told = reason(on_vllm, "acceptance_length", "B65")
    assert told.startswith("unavailable: counter reset")
    (verdict,) = on_vllm.verdicts("counter_reset")
    assert verdict["level"] == "invalid"
    assert on_vllm.exit_code == 3


def test_b67_nothing_drafted_is_no_length_of_one(on_vllm: Outcome) -> None:
    assert reason(on_vllm, "acceptance_length", "B67") == "no_drafts: nothing was drafted"
    assert reason(on_vllm, "acceptance_rate", "B67") == "no_drafts: nothing was drafted"


def test_b68_other_traffic_is_not_printed_as_this_runs_acceptance(on_vllm: Outcome) -> None:
    told = reason(on_vllm, "acceptance_length", "B68")
    assert told == (
        "contaminated by other traffic: 150 tokens of 2 requests counted, 100 of 1 received"
    )
    (verdict,) = on_vllm.verdicts("foreign_traffic")
    assert verdict["level"] == "invalid"


def test_b73_what_lies_behind_the_end_is_shown_beside_the_length(on_vllm: Outcome) -> None:
    assert value(on_vllm, "acceptance_length", "B73") == 6.0
    assert value(on_vllm, "tokens_per_step", "B73") == 4.5
    assert value(on_vllm, "token_identity_residual", "B73") == -3


def llamacpp(**counts: float) -> dict[str, float]:
    return {f"llamacpp:{name}": count for name, count in counts.items()}


LLAMACPP_GAINS: Mapping[str, Mapping[str, float]] = {
    "B61": llamacpp(
        tokens_predicted_total=141,
        n_decode_total=41,
        spec_decode_num_drafts=40,
        spec_decode_num_draft_tokens=280,
        spec_decode_num_accepted_tokens=100,
    ),
    "B71": llamacpp(
        tokens_predicted_total=512, tokens_predicted_seconds_total=16.0, n_decode_total=512
    ),
    "B75": {
        **llamacpp(
            tokens_predicted_total=5,
            n_decode_total=2,
            spec_decode_num_drafts=1,
            spec_decode_num_draft_tokens=7,
            spec_decode_num_accepted_tokens=3,
        ),
        **{
            f'llamacpp:spec_decode_num_accepted_tokens_per_pos_total{{position="{i}"}}': 1.0
            for i in range(3)
        },
    },
}


@pytest.fixture(scope="module")
def on_llamacpp(tmp_path_factory: pytest.TempPathFactory) -> Outcome:
    """Each case alone, then each once more as a wave of one, whose counters are a repetition's."""
    server = CountingServer(
        {"nothing": llamacpp(tokens_predicted_total=3, n_decode_total=3), **LLAMACPP_GAINS},
        always="llamacpp:predicted_tokens_seconds 0\nllamacpp:n_busy_slots_per_decode -nan\n",
    )
    return measure(
        tmp_path_factory.mktemp("llamacpp"),
        {
            "nothing": server.answer("nothing", 3, {"predicted_n": 3}),
            "B61": server.answer("B61", 141, {"predicted_n": 141}),
            "B71": server.answer("B71", 512),
            "B75": server.answer("B75", 5, {"draft_n": 7, "draft_n_accepted": 3}),
        },
        variants=[DRAFTED_BY_LLAMACPP],
        workloads=[
            "{kind: generate, prompts: cases, repetitions: 1, max_tokens: 4096}",
            "{kind: concurrency, prompts: cases, levels: [1], repetitions: 1, max_tokens: 4096}",
        ],
        adapter="llamacpp",
        pages={
            "/metrics": server.metrics,
            "/slots": lambda _: page('[{"id": 0, "is_processing": false}]'),
        },
    )


def test_b61_series_that_appear_with_the_first_draft_count_from_zero(on_llamacpp: Outcome) -> None:
    row = on_llamacpp.row("acceptance_length", kind="B61", workload="generate")
    assert row["value"] == 3.5
    row = on_llamacpp.row("acceptance_rate", kind="B61", workload="generate")
    assert row["value"] == pytest.approx(0.357, abs=5e-4)


def test_b71_an_emptied_gauge_is_no_rate_of_the_engine(on_llamacpp: Outcome) -> None:
    row = on_llamacpp.row("engine_decode_rate", kind="B71", workload="generate")
    assert row["value"] == 32.0


def test_b75_a_draft_counts_once_and_positions_reach_to_k(on_llamacpp: Outcome) -> None:
    def of(metric: str) -> float:
        found = on_llamacpp.row(metric, kind="B75", workload="generate")["value"]
        assert found is not None
        return float(found)

    assert of("acceptance_rate") == pytest.approx(3 / 7)
    assert [of(f"acceptance_at_position_{i}") for i in range(1, 8)] == [1, 1, 1, 0, 0, 0, 0]
    assert of("token_identity_residual") == 0


def test_b67_an_answer_without_a_draft_count_is_not_reported(on_llamacpp: Outcome) -> None:
    """Among several kinds only what comes with a request can be told apart."""
    told = on_llamacpp.row("acceptance_rate", kind="B75", workload="concurrency")
    assert told["value"] == pytest.approx(3 / 7)
    length = on_llamacpp.row("acceptance_length", kind="B75", workload="concurrency")
    assert (length["value"], length["reason"]) == (
        None,
        "not_reported: the engine counts no rounds",
    )
    untold = on_llamacpp.row("acceptance_rate", kind="B61", workload="concurrency")
    assert untold["value"] is None
    assert untold["reason"].startswith("not_reported: counters are shared")


def test_b67_without_a_speculator_and_without_a_page(tmp_path: Any) -> None:
    """Series that never appear: not configured. A second scrape that fails: unavailable."""
    server = CountingServer({"off": work(20), "fails": work(20)}, always=BOOTED)

    def failing(asked: int) -> Sends:
        server.status = 500
        return reply(20)

    outcome = measure(
        tmp_path,
        {"off": server.answer("off", 20), "fails": failing},
        variants=[DRAFTED],
        adapter="vllm",
        pages={"/metrics": server.metrics},
    )
    for metric in ("acceptance_length", "acceptance_rate"):
        assert reason(outcome, metric, "off").startswith("not_configured: ")
        assert reason(outcome, metric, "fails") == (
            "unavailable: /metrics cannot be read: HTTP 500"
        )
    assert "NaN" not in json.dumps(outcome.summary)


ROUTER = "router_requests_total 10\n"


def test_b76_a_router_that_counts_for_itself_is_unavailable(tmp_path: Any) -> None:
    outcome = measure(
        tmp_path,
        {"B76": reply(351)},
        variants=[DRAFTED],
        adapter="vllm",
        pages={"/metrics": lambda _: text(ROUTER)},
    )
    told = reason(outcome, "acceptance_length", "B76")
    assert told == "unavailable: no series of vllm at /metrics"


def test_b76_the_workers_behind_a_router_are_summed(tmp_path: Any) -> None:
    workers = [
        CountingServer({"B76": {**work(181), **drafting(60, 420, 120)}}, always=BOOTED),
        CountingServer({"B76": {**work(170, requests=0), **drafting(40, 280, 130)}}, always=BOOTED),
    ]

    def answer(asked: int) -> Sends:
        for worker in workers:
            worker.answer("B76", 351)(asked)  # type: ignore[operator]
        return reply(351)

    with serving(workers[0].metrics) as first, serving(workers[1].metrics) as second:
        outcome = measure(
            tmp_path,
            {"B76": answer},
            variants=[DRAFTED],
            adapter=f'vllm, metrics_urls: ["{first.url}/metrics", "{second.url}/metrics"]',
            pages={"/metrics": lambda _: text(ROUTER)},
        )
    assert value(outcome, "acceptance_length", "B76") == 3.5
