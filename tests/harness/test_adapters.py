"""Command lines, requests, counters and facts, engine by engine."""

import json
from dataclasses import replace
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


def test_the_targets_own_mtp_head_is_a_drafter_without_a_model():
    command = DFLASH2.command(variant(Drafter(method="mtp", k=3)), {}, 1)
    assert " ".join(command) == (
        "serve --model models/demo --mtp on --mtp-k 3 --served-name demo --host 127.0.0.1 --port 1"
    )


@pytest.mark.parametrize(
    ("drafter", "written"),
    [
        (Drafter(method="ngram", k=3), "drafter: {method: ngram, k: 3}"),
        (Drafter(method="mtp"), "drafter: {method: mtp}"),
        (
            Drafter(method="mtp", model=Model(name="d", path="d"), k=1),
            "drafter: {method: mtp, model: d, k: 1}",
        ),
        (Drafter(method="dflash2", k=7), "drafter: {method: dflash2, k: 7}"),
    ],
)
def test_another_drafter_than_the_bundled_engine_has_is_refused_with_advice(drafter, written):
    with pytest.raises(ConfigError, match=r"write `drafter: .*or `drafter: ") as refused:
        DFLASH2.command(variant(drafter), {}, 1)
    assert f"not with `{written}`" in str(refused.value)


def test_an_unknown_server_is_started_by_what_its_file_says():
    command = engine("server", "-m", "{model}", "--port={port}", "--alias", "{name}")
    assert OPENAI.command(variant(of=command), {}, 7) == (
        *("server", "-m", "models/demo", "--port=7", "--alias", "demo"),
    )


def test_a_name_in_braces_within_a_models_path_is_a_part_of_the_path():
    target = Model(name="demo", path="models/{name}/{port}")
    asked = variant(of=engine("server", "{model}", "--port={port}", "--json", '{"a": {}}'))
    assert OPENAI.command(replace(asked, target=target), {}, 7) == (
        *("server", "models/{name}/{port}", "--port=7", "--json", '{"a": {}}'),
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
    pages = {"/health": json.dumps(health)}
    assert DFLASH2.read_facts(pages, "") == {"depth": 7, "version": "0.1"}
    models = {"data": [{"id": "m", "created": 123, "max_model_len": 2048}]}
    pages = {"/health": '{"version": "1"}', "/v1/models": json.dumps(models)}
    assert OPENAI.read_facts(pages, "") == {"id": "m", "max_model_len": 2048}


# --- llama.cpp, vLLM, SGLang ----------------------------------------------------------------------

LLAMACPP, VLLM, SGLANG = ADAPTERS["llamacpp"], ADAPTERS["vllm"], ADAPTERS["sglang"]
PLACES = ("server", "{model}", "--port", "{port}")


def test_llama_server_gets_drafter_and_settings_in_its_own_words():
    drafter = Drafter(method="draft-dflash", model=Model(name="d", path="d.gguf"), k=7)
    settings = {"ctx_size": 2048, "cache_prompt": False, "swa_full": True, "spec_synth_len": 4.2}
    command = LLAMACPP.command(variant(drafter, engine(*PLACES)), settings, 7)
    assert " ".join(command) == (
        "server models/demo --port 7 --spec-type draft-dflash --model-draft d.gguf "
        "--spec-draft-n-max 7 --ctx-size 2048 --no-cache-prompt --swa-full --spec-synth-len 4.2"
    )


def test_the_depth_of_llamacpps_n_gram_drafters_has_options_of_its_own():
    drafter = Drafter(method="ngram-simple", k=16)
    command = LLAMACPP.command(variant(drafter, engine(*PLACES)), {}, 7)
    assert command[4:] == ("--spec-type", "ngram-simple", "--spec-ngram-simple-size-m", "16")


def test_vllm_gets_its_drafter_as_one_argument_with_what_else_it_needs():
    settings = {
        "dtype": "float32",
        "enforce_eager": True,
        "enable_prefix_caching": False,
        "speculative_config": {"prompt_lookup_max": 4},
    }
    drafter = Drafter(method="ngram", k=5)
    command = VLLM.command(variant(drafter, engine(*PLACES)), settings, 7)
    assert command == (
        *("server", "models/demo", "--port", "7", "--speculative-config"),
        '{"method": "ngram", "num_speculative_tokens": 5, "prompt_lookup_max": 4}',
        *("--dtype", "float32", "--enforce-eager", "--no-enable-prefix-caching"),
    )


def test_a_plain_vllm_variant_cannot_draft_by_its_flags():
    settings = {"speculative_config": {"method": "ngram"}}
    with pytest.raises(ConfigError, match=r"no drafter.*write `drafter:"):
        VLLM.command(variant(of=engine(*PLACES)), settings, 7)
    assert VLLM.command(variant(of=engine(*PLACES)), {}, 7) == (
        "server",
        "models/demo",
        "--port",
        "7",
    )


def test_llamacpp_counts_by_its_own_names():
    # one request: 256 = 1 + 118 rounds + 137 accepted, in 119 passes, one of them the prompt's
    before, after = (
        LLAMACPP.read_counters((RECORDED / "llamacpp" / f"metrics_{moment}.txt").read_text())
        for moment in ("before", "after")
    )
    delta = measures.counters_delta(before, after)
    assert isinstance(delta, measures.CountersDelta)
    assert (delta.drafts, delta.accepted_tokens, delta.generation_tokens) == (118, 137, 256)
    assert (delta.prompt_tokens, delta.decode_calls, delta.requests) == (38, 119, None)
    assert delta.accepted_at == (71, 39, 17, 10)
    alone = measures.with_plain_steps(delta, requests=1)
    assert measures.token_identity_residual(alone, tokens=256, requests=1) == 0
    assert measures.engine_decode_rate(delta) == pytest.approx(256 / 73.0229)


def test_llamacpp_is_quiet_by_its_slots_and_its_properties_are_wrong_about_drafting():
    folder = RECORDED / "llamacpp"
    assert LLAMACPP.quiet_path == "/slots"
    assert LLAMACPP.quiet((folder / "slots_idle.json").read_text()) is True
    assert LLAMACPP.quiet((folder / "slots_busy.json").read_text()) is False
    # why it is not asked: a drafter worked when this was recorded
    assert '"speculative.types":"none"' in (folder / "props.json").read_text()
    assert LLAMACPP.quiet((folder / "props.json").read_text()) is None


@pytest.mark.parametrize("slots", ["no", "[1]", '[{"id": 0}]', "{}"])
def test_slots_of_another_shape_tell_nothing(slots):
    assert LLAMACPP.quiet(slots) is None


def test_llamacpp_tells_drafting_with_a_request_and_rounds_never():
    line = (RECORDED / "llamacpp" / "chat_last_event.sse").read_text().splitlines()[0]
    piece = LLAMACPP.read_event(json.loads(line.removeprefix("data: ")))
    assert LLAMACPP.read_request is not None
    delta = LLAMACPP.read_request(piece.timings)
    assert (delta.draft_tokens, delta.accepted_tokens, delta.drafts) == (467, 137, None)


def test_vllm_tells_rounds_with_a_request_where_it_is_asked_to():
    # 43 rounds: 39 accepted nothing, one accepted 1 and three accepted 3
    told = {
        "acceptance_histogram": [39, 1, 0, 3],
        "num_spec_steps": 43,
        "num_accepted_draft_tokens": 10,
        "num_draft_tokens": 129,
    }
    piece = VLLM.read_event({"choices": [], "metrics": {"speculative_decoding": told}})
    assert VLLM.read_request is not None
    delta = VLLM.read_request(piece.timings)
    assert measures.acceptance_length(delta) == pytest.approx(1 + 10 / 43)
    assert delta.accepted_at == (4, 3, 3)
    assert VLLM.read_request({"tokens_per_second": 31.0}) is None
    assert VLLM.read_event({"choices": []}).timings is None


@pytest.mark.parametrize(
    "told",
    [
        {"num_spec_steps": None, "acceptance_histogram": None},
        {"num_spec_steps": "43", "acceptance_histogram": [39, None, 3]},
        {"mean_acceptance_length": 3.9, "acceptance_histogram": []},
    ],
)
def test_what_vllm_tells_in_another_shape_is_unknown_and_its_means_are_not_read(told):
    assert VLLM.read_request is not None
    assert VLLM.read_request({"speculative_decoding": told}) == measures.CountersDelta()


def test_vllms_first_engine_gives_a_rate_and_no_length():
    page = (
        'vllm:spec_decode_num_accepted_tokens_total{model_name="m"} 180\n'
        'vllm:spec_decode_num_draft_tokens_total{model_name="m"} 300\n'
        'vllm:spec_decode_num_emitted_tokens_total{model_name="m"} 280\n'
        'vllm:spec_decode_draft_acceptance_rate{model_name="m"} 0.6\n'
        'vllm:spec_decode_efficiency{model_name="m"} 0.7\n'
    )
    before = VLLM.read_counters('vllm:spec_decode_num_draft_tokens_total{model_name="m"} 0\n')
    delta = measures.counters_delta(before, VLLM.read_counters(page))
    assert isinstance(delta, measures.CountersDelta)
    assert measures.acceptance_rate(delta) == 0.6
    assert measures.acceptance_length(delta) is None


def sglang_page(name: str) -> str:
    """Written by SGLang's documentation, not recorded: see the README beside it."""
    return (RECORDED / "sglang" / name).read_text()


def test_sglang_counts_rounds_and_its_lifetime_gauges_are_refused():
    """60 + 46 tokens in 24 + 19 rounds, whatever 3.9 and 4.1 were before."""
    before, after = (
        SGLANG.read_counters(sglang_page(name))
        for name in ("metrics_before.txt", "metrics_after.txt")
    )
    delta = measures.counters_delta(before, after)
    assert isinstance(delta, measures.CountersDelta)
    assert (delta.drafts, delta.generation_tokens, delta.requests) == (43, 106, 2)
    assert (delta.prompt_tokens, delta.cached_prompt_tokens) == (80, 16)
    assert measures.acceptance_length(delta) is None
    assert measures.acceptance_rate(delta) is None
    assert measures.tokens_per_round(delta, tokens=106) == pytest.approx(106 / 43)
    assert SGLANG.quiet(sglang_page("metrics_after.txt")) is None


def test_sglang_says_with_what_it_was_started_and_nothing_of_its_life():
    facts = SGLANG.read_facts({"/server_info": sglang_page("server_info.json")}, "")
    assert facts == {
        "version": "0.5.23",
        "max_concurrent_requests": 48,
        "kv_tokens": 617000,
        "speculation": "on",
    }


@pytest.mark.parametrize(
    ("page", "speculation"),
    [('{"speculative_algorithm": null}', "off"), ("{}", None), ("not found", None)],
)
def test_sglang_without_an_algorithm_is_plain_and_without_the_page_unknown(page, speculation):
    assert SGLANG.read_facts({"/server_info": page}, "").get("speculation") == speculation


def test_whichever_process_starts_anew_the_start_time_moves():
    def counters(*starts: float):
        lines = [f"process_start_time_seconds {start}\n" for start in starts]
        return VLLM.read_counters("vllm:generation_tokens_total 5\n" + "".join(lines))

    assert counters(100.0, 200.0).process_start_s == 200.0
    delta = measures.counters_delta(counters(100.0, 200.0), counters(300.0, 200.0))
    assert isinstance(delta, measures.NotMeasured)
    assert delta.reason == "restart"
