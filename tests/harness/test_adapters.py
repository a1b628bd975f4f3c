"""Command lines, requests, counters and facts, engine by engine."""

from pathlib import Path

import pytest

from harness import measures
from harness.adapters import ADAPTERS, prometheus
from harness.adapters.base import Ask
from harness.errors import ConfigError
from harness.records import Drafter, Engine, Model, Sampling, Variant

RECORDED = Path(__file__).parent / "recorded"
DFLASH2, OPENAI = ADAPTERS["dflash2"], ADAPTERS["openai"]


def engine(*command: str, adapter: str = "dflash2") -> Engine:
    return Engine(name="e", adapter=adapter, kind="process", command=command)


def variant(drafter: Drafter | None = None, of: Engine | None = None) -> Variant:
    target = Model(name="demo", path="models/demo")
    return Variant(name="v", engine=of or engine("serve"), target=target, drafter=drafter)


def ask(**changes) -> Ask:
    facts = {
        "model": "demo",
        "messages": ({"role": "user", "content": "Hi"},),
        "max_tokens": 9,
        "sampling": Sampling(),
        "length": "natural",
    }
    return Ask(**{**facts, **changes})


# --- command lines --------------------------------------------------------------------------------


def test_the_bundled_engine_gets_models_settings_and_port():
    drafter = Drafter(method="dflash2", model=Model(name="d", path="models/d"), k=7)
    command = DFLASH2.command(variant(drafter), {"kv_len": 2048, "threads": 2}, 4711)
    assert " ".join(command) == (
        "serve --model models/demo --dflash2 on --dflash2-model models/d --served-name demo "
        "--kv-len 2048 --threads 2 --host 127.0.0.1 --port 4711"
    )


def test_no_drafter_is_said_aloud():
    command = DFLASH2.command(variant(), {"verbose": True, "quiet": False}, 1)
    assert " ".join(command) == (
        "serve --model models/demo --dflash2 off --served-name demo --verbose "
        "--host 127.0.0.1 --port 1"
    )


def test_another_drafter_than_dflash2_is_refused_with_advice():
    with pytest.raises(ConfigError, match=r"'mtp'.*write `drafter:"):
        DFLASH2.command(variant(Drafter(method="mtp", k=3)), {}, 1)


def test_an_unknown_server_is_started_by_what_its_file_says():
    command = engine("server", "-m", "{model}", "--port={port}", "--alias", "{name}")
    assert OPENAI.command(variant(of=command), {}, 7) == (
        *("server", "-m", "models/demo", "--port=7", "--alias", "demo"),
    )


def test_a_command_without_a_port_would_listen_elsewhere():
    with pytest.raises(ConfigError, match=r"no \{port\}"):
        OPENAI.command(variant(of=engine("server")), {}, 7)


# --- requests -------------------------------------------------------------------------------------


def test_only_what_was_asked_for_is_sent():
    assert OPENAI.request_body(ask()) == {
        "model": "demo",
        "messages": [{"role": "user", "content": "Hi"}],
        "max_tokens": 9,
        "temperature": 0.0,
        "stream": True,
        "stream_options": {"include_usage": True},
    }


def test_sampling_thinking_and_forced_length():
    sampling = Sampling(temperature=0.8, top_p=0.9, top_k=0, seed=0, thinking=False)
    body = OPENAI.request_body(ask(sampling=sampling, length="forced"))
    assert {key: body[key] for key in ("temperature", "top_p", "top_k", "seed", "ignore_eos")} == {
        "temperature": 0.8,
        "top_p": 0.9,
        "top_k": 0,
        "seed": 0,
        "ignore_eos": True,
    }
    assert body["chat_template_kwargs"] == {"enable_thinking": False}


def test_the_bundled_engine_is_asked_for_counts_and_ids_in_every_event():
    body = DFLASH2.request_body(ask())
    assert body["return_token_ids"] is True
    assert body["stream_options"] == {"include_usage": True, "continuous_usage_stats": True}


# --- events ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "event",
    [
        {},
        {"choices": None, "usage": None, "timings": None},
        {"choices": [None]},
        {"choices": [{"delta": None, "finish_reason": None, "token_ids": None}]},
        {"choices": "what", "usage": [1]},
    ],
)
def test_fields_of_another_shape_are_not_there(event):
    piece = OPENAI.read_event(event)
    assert (piece.answer, piece.token_ids, piece.completion_tokens) == ("", None, None)
    assert piece.error is None


def test_a_null_count_is_unknown_and_a_truth_value_no_count():
    usage = {"completion_tokens": None, "prompt_tokens": True, "prompt_tokens_details": None}
    piece = OPENAI.read_event({"usage": usage})
    assert (piece.completion_tokens, piece.prompt_tokens, piece.cached_tokens) == (None, None, None)


def test_cached_prompt_tokens():
    usage = {"prompt_tokens": 54, "prompt_tokens_details": {"cached_tokens": 24}}
    assert OPENAI.read_event({"usage": usage}).cached_tokens == 24


@pytest.mark.parametrize(
    ("event", "message"),
    [
        ({"error": {"message": "too long", "code": 400}}, "too long"),
        ({"error": "too long"}, "too long"),
        ({"object": "error", "message": "too long"}, "too long"),
    ],
)
def test_errors_in_a_stream(event, message):
    assert OPENAI.read_event(event).error == message


# --- counters -------------------------------------------------------------------------------------


def read(page: str):
    counters = OPENAI.read_counters(page)
    assert counters is not None
    return counters


def test_creation_times_are_no_counters():
    counters = read(
        'vllm:spec_decode_num_drafts_total{engine="0",model_name="m"} 400\n'
        'vllm:spec_decode_num_drafts_created{engine="0",model_name="m"} 1.77692439403224e+09\n'
        'vllm:spec_decode_num_accepted_tokens_total{engine="0",model_name="m"} 1000\n'
        'vllm:spec_decode_num_accepted_tokens_created{engine="0",model_name="m"} 1.7769e+09\n'
    )
    assert (counters.drafts, counters.accepted_tokens) == (400, 1000)
    assert counters.labels == ("m",)


def test_positions_are_not_added_to_the_total():
    page = "vllm:spec_decode_num_accepted_tokens_total 180\n" + "".join(
        f'vllm:spec_decode_num_accepted_tokens_per_pos_total{{position="{i}"}} {n}\n'
        for i, n in ((10, 1), (0, 90), (1, 60), (2, 30))
    )
    counters = read(page)
    assert counters.accepted_tokens == 180
    assert counters.accepted_at == (90, 60, 30, 0, 0, 0, 0, 0, 0, 0, 1)


def test_engines_are_summed():
    counters = read(
        'vllm:spec_decode_num_drafts_total{engine="0"} 10\n'
        'vllm:spec_decode_num_drafts_total{engine="1"} 30\n'
        'vllm:spec_decode_num_drafts_total{engine="2"} 60\n'
    )
    assert counters.drafts == 100


def test_names_without_total():
    counters = read(
        "# TYPE llamacpp:spec_decode_num_drafts counter\n"
        "llamacpp:spec_decode_num_drafts 40\n"
        "llamacpp:spec_decode_num_draft_tokens 280\n"
    )
    assert (counters.drafts, counters.draft_tokens, counters.accepted_tokens) == (40, 280, None)


def test_odd_samples_spoil_only_themselves():
    counters = read(
        "llamacpp:n_busy_slots_per_decode -nan\n"
        "x_ratio NaN\n"
        'lat_bucket{le="+Inf"} 7\n'
        "this line is no sample at all {\n"
        'vllm:spec_decode_num_drafts_total{engine="0",model_name="m"} 6.491797e+06\n'
        "vllm:spec_decode_num_draft_tokens_total NaN\n"
        'vllm:generation_tokens_total{engine="0",model_name="m"} 12 1790000000000\n'
        "# EOF"
    )
    assert (counters.drafts, counters.generation_tokens) == (6491797, 12)
    assert counters.draft_tokens is None


def test_label_values_may_hold_anything():
    counters = read(
        'vllm:generation_tokens_total{engine="0",model_name="a\\"b,c}d\\\\e f=g {h}"} 12\n'
        'vllm:generation_tokens_total{engine="1",model_name="a\\"b,c}d\\\\e f=g {h}",} 30\r\n'
    )
    assert counters.generation_tokens == 42
    assert counters.labels == ('a"b,c}d\\e f=g {h}',)


def test_a_name_that_ends_in_a_digit_has_no_value_in_it():
    assert prometheus.samples("vllm:drafts_total12\n") == []


def test_a_page_without_our_counters_is_none():
    assert OPENAI.read_counters("router_requests_total 10\n") is None


def test_another_engines_counters_are_not_ours():
    assert DFLASH2.read_counters("vllm:spec_decode_num_drafts_total 1\n") is None


def test_a_request_that_was_cancelled_in_the_queue_got_no_token_and_is_not_counted():
    page = (
        'dflash2:requests_total{model_name="m"} 3\n'
        'dflash2:request_success_total{model_name="m",finished_reason="stop"} 3\n'
        'dflash2:request_success_total{model_name="m",finished_reason="abort"} 2\n'
    )
    assert DFLASH2.read_counters(page).requests == 3


def test_a_recorded_page_of_llamacpp():
    # 43 drafts, 167 drafted, 75 accepted = 27 + 19 + 15 + 14
    counters = read((RECORDED / "llamacpp_11434_metrics_after_synth3.txt").read_text())
    assert (counters.drafts, counters.draft_tokens, counters.accepted_tokens) == (43, 167, 75)
    assert counters.accepted_at == (27, 19, 15, 14)
    assert sum(counters.accepted_at) == counters.accepted_tokens


def test_a_recorded_page_of_vllm():
    counters = read((RECORDED / "vllm_0.32_metrics.txt").read_text())
    assert (counters.generation_tokens, counters.prompt_tokens, counters.requests) == (64, 40, 1)
    assert counters.process_start_s == 1795975425.56
    assert counters.labels == ("smol",)
    assert counters.drafts is None


def test_a_series_that_appears_with_the_first_draft_makes_a_delta():
    before = read("dflash2:generation_tokens_total 5\n")
    after = read("dflash2:generation_tokens_total 9\ndflash2:spec_decode_num_drafts_total 2\n")
    delta = measures.counters_delta(before, after)
    assert isinstance(delta, measures.CountersDelta)
    assert (delta.drafts, delta.generation_tokens) == (2, 4)


# --- quiet, facts ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("page", "quiet"),
    [
        ("vllm:num_requests_running 0\nvllm:num_requests_waiting 0\n", True),
        ("vllm:num_requests_running 1\nvllm:num_requests_waiting 0\n", False),
        ("vllm:num_requests_running 0\n", None),
        ("", None),
    ],
)
def test_quiet_by_gauges(page, quiet):
    assert OPENAI.quiet(page) is quiet


@pytest.mark.parametrize(
    ("health", "quiet"), [('{"quiet": true}', True), ('{"quiet": false}', False), ("ok", None)]
)
def test_quiet_by_health(health, quiet):
    assert DFLASH2.quiet(health) is quiet


def test_facts_are_what_stays_equal():
    health = {"status": "ok", "running": 1, "quiet": False, "depth": 7, "version": "0.1"}
    assert DFLASH2.read_facts(health, {}) == {"depth": 7, "version": "0.1"}
    models = {"data": [{"id": "m", "created": 123, "max_model_len": 2048}]}
    assert OPENAI.read_facts({}, models) == {"id": "m", "max_model_len": 2048}
