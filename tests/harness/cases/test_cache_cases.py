"""B78: a prefix cache that warms up over repetitions and levels makes no figure of a cold prompt.

The server is the case's own, in two fifths of its time: it takes 0.2 s for a prompt that it has not
seen and 0.02 s for one that it has, and says with each answer how much of the prompt came from its
cache. What it takes for the same prompt is a matter of its adapter: the text, or a name beside it.
"""

import hashlib
import json
import re
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import pytest

from harness import measures
from harness.adapters import ADAPTERS
from harness.plan import repetitions, salts_of
from harness.prompts import salted
from harness.records import Prompt, PromptSet, Workload
from harness.scripted_server import DONE, Received, Respond, Script

from .end_to_end import READY, ROLE, C, Outcome, ch, measure, prompt_of, us

PROMPTS = ("A", "B", "C", "D")
COLD_S, WARM_S = 0.2, 0.02
PROMPT_TOKENS = 1000

LEVELS = (
    "{{kind: generate, prompts: cases, repetitions: 3, max_tokens: 4096{more}}}",
    "{{kind: concurrency, prompts: cases, levels: [1, 4], repetitions: 3, max_tokens: 4096{more}}}",
)


@dataclass(frozen=True, kw_only=True)
class Ran:
    outcome: Outcome
    received: Sequence[Received]  # the measured requests


def caching(identity: Callable[[Mapping[str, Any]], str], received: list[Received]) -> Respond:
    """The case's server; identity: what of a request its cache goes by."""
    seen: set[str] = set()

    def respond(request: Received) -> Script:
        if prompt_of(request) not in PROMPTS:
            return READY
        received.append(request)
        known = identity(request.json())
        warm, _ = known in seen, seen.add(known)
        usage = {
            **us(PROMPT_TOKENS, 70),
            "prompt_tokens_details": {"cached_tokens": PROMPT_TOKENS - 1 if warm else 0},
        }
        first_s = WARM_S if warm else COLD_S
        end = ch({}, "stop", usage=usage) + DONE
        return Script(sends=[(first_s, ROLE + C("word ")), (first_s + 0.05, C("next ") + end)])

    return respond


def text(body: Mapping[str, Any]) -> str:
    return json.dumps(body["messages"])


def text_and_salt(body: Mapping[str, Any]) -> str:
    return f"{text(body)} {body.get('cache_salt')}"


def run(
    path: Any,
    *,
    adapter: str,
    identity: Callable[..., str],
    cache: str | None,
    workloads: Sequence[str] = LEVELS,
) -> Ran:
    more = "" if cache is None else f", cache: {cache}"
    received: list[Received] = []
    outcome = measure(
        path,
        dict.fromkeys(PROMPTS, ()),
        workloads=[level.format(more=more) for level in workloads],
        adapter=adapter,
        pages={"/v1/chat/completions": caching(identity, received)},
    )
    return Ran(outcome=outcome, received=received)


@pytest.fixture(scope="module")
def salted_run(tmp_path_factory: pytest.TempPathFactory) -> Ran:
    """A server of which nothing is known, under a matrix that says nothing of caches."""
    path = tmp_path_factory.mktemp("salted")
    return run(path, adapter="openai", identity=text, cache=None)


@pytest.fixture(scope="module")
def named_run(tmp_path_factory: pytest.TempPathFactory) -> Ran:
    """A server that keeps prompts of other `cache_salt`s apart."""
    path = tmp_path_factory.mktemp("named")
    return run(path, adapter="vllm", identity=text_and_salt, cache="cold")


@pytest.fixture(scope="module")
def warm_run(tmp_path_factory: pytest.TempPathFactory) -> Ran:
    path = tmp_path_factory.mktemp("warm")
    return run(path, adapter="openai", identity=text, cache="warm")


NUM_REQUESTS = 12 + 4 + 12
"""Alone; at c = 1 in four waves, so that every prompt has one; at c = 4 in three."""

CELLS = (("generate", 1), ("concurrency", 1), ("concurrency", 4))


@pytest.mark.parametrize(("workload", "concurrency"), CELLS)
@pytest.mark.parametrize("made", ["salted_run", "named_run"])
def test_b78_the_median_of_every_cell_is_the_cold_one(
    made: str, workload: str, concurrency: int, request: pytest.FixtureRequest
) -> None:
    """Wrong: 0.02 s from the second repetition on, and c = 4 ten times as fast as c = 1."""
    outcome: Outcome = request.getfixturevalue(made).outcome
    which = {"workload": workload, "concurrency": concurrency}

    assert outcome.row("ttft_p50", **which)["value"] == pytest.approx(COLD_S, abs=COLD_S / 2)
    assert outcome.row("cached_share", **which)["value"] == 0
    assert min(request.ttft_s or 0 for request in outcome.requests) >= COLD_S
    assert {verdict["level"] for verdict in outcome.verdicts("cache_state")} == {"ok"}


def test_b78_an_unknown_server_gets_every_prompt_behind_a_word_it_has_not_seen(
    salted_run: Ran,
) -> None:
    sent = [text(request.json()) for request in salted_run.received]

    assert len(sent) == len(set(sent)) == NUM_REQUESTS
    for request in salted_run.received:
        (message,) = request.json()["messages"]
        assert message["content"].endswith(f"] {prompt_of(request)}")
    assert all(request.salt for request in salted_run.outcome.requests)


def test_b78_the_page_says_whether_prompts_were_cold_and_how(
    salted_run: Ran, named_run: Ran, warm_run: Ran
) -> None:
    assert "prompts cold behind a salt; protocol" in salted_run.outcome.page
    assert "prompts cold; protocol" in named_run.outcome.page
    assert "prompts warm; protocol" in warm_run.outcome.page


def test_b78_a_server_with_words_for_it_gets_the_prompts_as_they_are_written(
    named_run: Ran,
) -> None:
    names = [request.json()["cache_salt"] for request in named_run.received]
    # vLLM 0.32 answers 400 to a salt of more than 128 characters, or with `@`, `/` or `\\` in it
    assert all(re.fullmatch("[0-9a-f]{32}", name) for name in names)

    assert {request.json()["messages"][0]["content"] for request in named_run.received} == {
        *PROMPTS
    }
    assert len(names) == len(set(names)) == NUM_REQUESTS
    assert {request.salt for request in named_run.outcome.requests} == {None}
    # of the run's id too: a second run on the same server is cold as well
    ids = [[each.where.run_id, each.where.request_id] for each in named_run.outcome.requests]
    assert set(names) == {
        hashlib.sha256(json.dumps(each, separators=(",", ":")).encode()).hexdigest()[:32]
        for each in ids
    }


def test_b78_warm_prompts_are_sent_as_written_and_what_was_cached_is_told(
    warm_run: Ran,
) -> None:
    sent = [request.json()["messages"][0]["content"] for request in warm_run.received]
    first, *_ = warm_run.outcome.folder.manifest.plan.cells

    assert sorted(set(sent)) == sorted(PROMPTS)
    assert first.cache == "warm"
    assert warm_run.outcome.row("ttft_p50", workload="generate")["value"] == pytest.approx(
        WARM_S, abs=COLD_S / 2
    )
    assert warm_run.outcome.row("cached_share", workload="generate")["value"] == pytest.approx(
        8 * 999 / 12_000
    )


def test_b78_cold_and_warm_are_other_work_and_share_no_table(
    salted_run: Ran, warm_run: Ran
) -> None:
    for cold, warm in zip(
        salted_run.outcome.folder.manifest.plan.cells,
        warm_run.outcome.folder.manifest.plan.cells,
        strict=True,
    ):
        assert (cold.workload, cold.concurrency) == (warm.workload, warm.concurrency)
        assert cold.workload_key != warm.workload_key
        assert cold.protocol_id != warm.protocol_id


def test_b78_a_cache_that_answers_cold_prompts_all_the_same_is_flagged_on_the_page(
    tmp_path: Any,
) -> None:
    """It goes by the last word of a prompt, whatever stands before it."""
    ran = run(
        tmp_path,
        adapter="openai",
        identity=lambda body: str(body["messages"][0]["content"][-1]),
        cache="cold",
        workloads=LEVELS[:1],
    )
    outcome = ran.outcome

    (verdict, *_) = outcome.verdicts("cache_state")
    assert verdict["level"] == "warning"
    assert "8 of 12 prompts" in verdict["message"]
    assert "cache_state" in outcome.row("ttft_p50", workload="generate")["verdicts"]
    assert "cache_state" in outcome.page.replace("\\_", "_")


# --- the salt -------------------------------------------------------------------------------------


def workload(**changes: Any) -> Workload:
    prompts = tuple(
        Prompt(
            prompt_id=prompt_id,
            kind="code",
            messages=({"role": "user", "content": prompt_id},),
            source="",
            licence="",
        )
        for prompt_id in PROMPTS
    )
    asked = Workload(
        kind="concurrency",
        prompts=PromptSet(name="cases", prompts=prompts, sha256="c" * 64),
        warmup=None,
        repetitions=3,
        max_tokens=64,
        levels=(1, 4),
        load="closed",
        assignment="balanced",
    )
    return replace(asked, **changes)


@pytest.mark.parametrize("load", ["wave", "closed"])
@pytest.mark.parametrize("assignment", ["round-robin", "rotate", "balanced"])
def test_b78_no_salt_comes_twice_in_a_boot(load: Any, assignment: Any) -> None:
    asked = workload(load=load, assignment=assignment)
    salts: dict[int, list[str]] = defaultdict(list)
    for level in asked.levels:
        count = level if load == "wave" else 16
        for repetition in range(repetitions(asked, count)):
            of_repetition = salts_of(asked, level, repetition)
            assert len(of_repetition) == count
            salts[level] += of_repetition

    every = [salt for level in asked.levels for salt in salts[level]]
    assert len(every) == len(set(every))


def test_b78_a_salt_knows_workload_prompt_and_how_often_and_nothing_else() -> None:
    """Variant and boot are no arguments, and a level of its own begins where a first one does."""
    single = workload(kind="generate", load="single", levels=(1,), assignment="round-robin")
    wave = workload(load="wave", levels=(4,), assignment="round-robin")
    other = replace(wave, levels=(2,))

    assert salts_of(single, 1, 0) == salts_of(single, 1, 0)
    assert len({*salts_of(single, 1, 0), *salts_of(single, 1, 1)}) == 8
    assert salts_of(wave, 4, 0)[:2] == salts_of(other, 2, 0)
    assert not {*salts_of(wave, 4, 0)} & {*salts_of(single, 1, 0)}


def test_b78_a_salt_stands_before_the_first_message_whoever_speaks() -> None:
    messages = ({"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hello"})

    assert salted(messages, "0123456789ab") == (
        {"role": "system", "content": "[0123456789ab] Be brief."},
        {"role": "user", "content": "Hello"},
    )
    assert messages[0]["content"] == "Be brief."


# --- what engines know and count ------------------------------------------------------------------


def test_b78_each_engine_is_asked_in_its_own_words() -> None:
    asked = {
        name: None if adapter.uncached is None else dict(adapter.uncached("run/request"))
        for name, adapter in ADAPTERS.items()
    }

    assert asked == {
        "dflash2": {},  # it has no prefix cache
        "llamacpp": {"cache_prompt": False},
        "openai": None,
        "sglang": {"cache_salt": "run/request"},
        "vllm": {"cache_salt": "run/request"},
    }


@pytest.mark.parametrize(
    ("adapter", "series"),
    [
        ("vllm", 'vllm:prefix_cache_hits_total{engine="0",model_name="m"}'),
        ("llamacpp", "llamacpp:prompt_tokens_cached_total"),
    ],
)
def test_b78_cached_tokens_are_counted_where_no_answer_tells_them(
    adapter: str, series: str
) -> None:
    """vLLM tells them with a request only where it was started to."""
    pages = [f"{series} {count}\n{adapter}:prompt_tokens_total {count}\n" for count in (5, 1004)]
    before, after = (ADAPTERS[adapter].read_counters(page) for page in pages)
    delta = measures.counters_delta(before, after)

    assert isinstance(delta, measures.CountersDelta)
    assert delta.cached_prompt_tokens == 999
