"""Adapters against what engines really said: a folder of `recorded/` for each that was asked.

`dflashbench record` made them. Streams and counters are two accounts of the same three answers, so
each is held against the other, and both against what was asked for.
"""

import json
from pathlib import Path
from typing import Any

import pytest

from harness import measures
from harness.adapters import ADAPTERS
from harness.adapters.base import Ask, Post
from harness.adapters.openai import served_names
from harness.measures import CountersDelta
from harness.records import Request, Sampling
from harness.run.parse import parse_exchange

from .cases.streams import raw

RECORDED = Path(__file__).parent / "recorded"
RECORDINGS = tuple(sorted(path.parent.name for path in RECORDED.glob("*/recording.json")))
POSTED = tuple(sorted(path.parent.name for path in RECORDED.glob("*/posted.json")))
MAX_TOKENS = {"prose": 64, "copy": 96, "cut": 8}


def text(recording: str, name: str) -> str:
    return (RECORDED / recording / name).read_text(encoding="utf-8")


def asked(recording: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(text(recording, "recording.json"))
    return found


def adapter(recording: str):
    return ADAPTERS[asked(recording)["adapter"]]


def pages(recording: str) -> dict[str, str]:
    """By path, as `read_facts` is given them."""
    found = {}
    for path in adapter(recording).fact_paths:
        is_metrics = path == "/metrics"
        name = "metrics_before.txt" if is_metrics else f"{path[1:].replace('/', '_')}.json"
        if (RECORDED / recording / name).exists():
            found[path] = text(recording, name)
    return found


def answer(recording: str, name: str) -> tuple[Request, str]:
    """The request and its text, parsed as in a run from reads as they came."""
    data = (RECORDED / recording / f"{name}.sse").read_bytes()
    script, start = [], 0
    for at_ns, length in json.loads(text(recording, f"{name}.reads.json")):
        script.append((at_ns / 1e9, data[start : start + length]))
        start += length
    assert start == len(data)
    request, row = parse_exchange(raw(script), adapter(recording))
    return request, row.text or ""


def ledger(recording: str) -> CountersDelta:
    read = adapter(recording).read_counters
    before, after = (read(text(recording, f"metrics_{m}.txt")) for m in ("before", "after"))
    delta = measures.counters_delta(before, after)
    assert isinstance(delta, CountersDelta)
    return delta


def test_every_engine_that_could_be_asked_was_recorded():
    """SGLang could not: its pages are written from its documentation."""
    assert {adapter(each).name for each in RECORDINGS} == {"dflash2", "llamacpp", "vllm"}


@pytest.mark.parametrize("recording", RECORDINGS)
def test_the_engine_tells_the_drafter_that_was_asked_for(recording):
    facts = adapter(recording).read_facts(pages(recording), text(recording, "start.log"))
    wanted = asked(recording)
    told = {"drafter": facts.get("drafter"), "k": facts.get("k", facts.get("depth"))}
    if recording == "llamacpp_ngram":  # it says that it drafts, and not by what
        assert told == {"drafter": None, "k": None}
        assert facts["speculation"] == "on"
    else:
        assert told == {"drafter": wanted["drafter"], "k": wanted["k"]}
    assert facts.get("version") == wanted["version"]


@pytest.mark.parametrize("recording", [r for r in RECORDINGS if not r.startswith("dflash2")])
def test_the_name_that_was_asked_for_is_served(recording):
    assert served_names(text(recording, "v1_models.json")) == (asked(recording)["target"],)


@pytest.mark.parametrize("name", MAX_TOKENS)
@pytest.mark.parametrize("recording", RECORDINGS)
def test_a_stream_is_read_to_its_end(recording, name):
    request, written = answer(recording, name)
    assert request.status == "ok", request.error
    assert written
    assert request.output_tokens is not None
    assert 0 < request.output_tokens <= MAX_TOKENS[name]
    assert request.finish_reason == (
        "length" if request.output_tokens == MAX_TOKENS[name] else "stop"
    )
    assert request.ttft_s is not None
    assert request.wall_s is not None
    assert 0 < request.ttft_s <= request.wall_s


@pytest.mark.parametrize("recording", RECORDINGS)
def test_counters_and_streams_tell_of_the_same_tokens(recording):
    answers = [answer(recording, name)[0] for name in MAX_TOKENS]
    delta = ledger(recording)
    assert delta.requests in (3, None)  # llama.cpp counts no requests
    assert delta.generation_tokens == sum(request.output_tokens or 0 for request in answers)
    # llama.cpp counts what its cache knew apart
    cached = delta.cached_prompt_tokens if recording.startswith("llamacpp") else 0
    prompt_tokens = sum(request.prompt_tokens or 0 for request in answers)
    assert (delta.prompt_tokens or 0) + (cached or 0) == prompt_tokens


@pytest.mark.parametrize("recording", RECORDINGS)
def test_every_token_is_explained(recording):
    """tokens = requests + rounds + plain steps + accepted - trimmed; what vLLM and llama.cpp trim
    they do not count, and it is at most k for each request.
    """
    delta = measures.with_plain_steps(ledger(recording), 3)  # one at a time, so passes are steps
    assert delta.drafts
    assert delta.generation_tokens is not None
    residual = measures.token_identity_residual(delta, delta.generation_tokens, 3)
    allowed = 0 if recording == "dflash2" else 3 * asked(recording)["k"]
    assert residual is not None
    assert -allowed <= residual <= 0


@pytest.mark.parametrize("recording", RECORDINGS)
def test_positions_add_up_to_what_was_accepted(recording):
    delta = ledger(recording)
    assert delta.accepted_at is not None
    assert sum(delta.accepted_at) == delta.accepted_tokens
    assert len(delta.accepted_at) <= asked(recording)["k"]
    assert list(delta.accepted_at) == sorted(delta.accepted_at, reverse=True)


@pytest.mark.parametrize("recording", RECORDINGS)
def test_an_engine_is_quiet_before_and_after_and_not_while_it_works(recording):
    engine = adapter(recording)
    if engine.quiet_path == engine.metrics_path:
        for moment in ("before", "after"):
            assert engine.quiet(text(recording, f"metrics_{moment}.txt")) is True
        return
    page = engine.quiet_path[1:]
    assert engine.quiet(text(recording, f"{page}.json")) is True
    assert engine.quiet(text(recording, f"{page}_busy.json")) is False


@pytest.mark.parametrize("recording", RECORDINGS)
def test_a_refusal_names_what_is_wrong(recording):
    refused = asked(recording)["refused"]
    assert 400 <= refused["http_status"] < 500
    error = adapter(recording).read_event(json.loads(text(recording, "refused.json"))).error
    assert error is not None
    assert "temperature" in error
    assert "number" in error


def test_the_same_weights_say_the_same_in_every_engine():
    texts = {name: {answer(recording, name)[1] for recording in RECORDINGS} for name in MAX_TOKENS}
    assert {name: len(each) for name, each in texts.items()} == dict.fromkeys(MAX_TOKENS, 1)


@pytest.mark.parametrize("recording", RECORDINGS)
def test_a_recording_holds_nothing_of_the_machine_it_was_made_on(recording):
    for path in (RECORDED / recording).iterdir():
        data = path.read_text(encoding="utf-8")
        for word in ("/home/", "/root/", "/work/", "/Users/", "hf_", "Bearer "):
            assert word not in data, f"{path.name} has {word}"


# --- what a chat becomes, and what is likely behind it --------------------------------------------


def posts(recording: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads(text(recording, "posted.json"))
    return found


def prose(recording: str) -> Ask:
    body = asked(recording)["requests"][0]["body"]
    return Ask(
        model=body["model"],
        messages=body["messages"],
        max_tokens=body["max_tokens"],
        sampling=Sampling(),
        length="natural",
    )


def rendered(recording: str) -> tuple[int, ...]:
    """As the engine answered, each question being the one that its adapter writes today."""
    words, (told, *others) = adapter(recording), posts(recording)
    assert Post(path=told["path"], body=told["body"]) == words.render.request(prose(recording))
    made = words.render.read(told["answer"])
    if isinstance(made, str):
        asked_then = Post(path=others[0]["path"], body=others[0]["body"])
        assert asked_then == words.tokenize.request(made, True)
        made = words.tokenize.read(others[0]["answer"])
    assert isinstance(made, tuple)
    return made


def odds(recording: str) -> dict[int, float]:
    words, last = adapter(recording), posts(recording)[-1]
    wanted = words.score.request(asked(recording)["target"], rendered(recording))
    assert Post(path=last["path"], body=last["body"]) == wanted
    found = words.score.read(last["answer"])
    assert found is not None
    return {each.token_id: each.logprob for each in found}


def test_every_engine_that_has_words_for_it_was_asked_what_it_makes_of_a_chat():
    able = {adapter(each).name for each in RECORDINGS if adapter(each).render is not None}
    assert {adapter(each).name for each in POSTED} == able == {"dflash2", "llamacpp", "vllm"}


@pytest.mark.parametrize("recording", POSTED)
def test_a_chat_is_rendered_to_as_many_tokens_as_its_answer_counts(recording):
    request, _ = answer(recording, "prose")
    assert len(rendered(recording)) == request.prompt_tokens


def test_three_engines_make_the_same_tokens_of_one_chat():
    assert len({rendered(recording) for recording in POSTED}) == 1


def test_three_engines_find_the_same_tokens_likely_behind_it():
    """Of the same weights in float32, by log-probabilities that are sums of many roundings."""
    first, *others = (odds(recording) for recording in POSTED)
    best = list(first)[:5]
    assert len(best) == 5
    for other in others:
        assert list(other)[:5] == best
        assert [other[token] for token in best] == pytest.approx(
            [first[token] for token in best], abs=1e-3
        )
