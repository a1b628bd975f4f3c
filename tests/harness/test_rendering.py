"""What a boot's record says of the prompts: from each engine's own words for them to the check."""

import hashlib
import json
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import httpx
import pytest

from harness.adapters import ADAPTERS
from harness.analysis import dataset
from harness.cell_view import CellView
from harness.checks import CHECKS
from harness.checks.finding import OK, Finding
from harness.errors import EngineError
from harness.records import Prompt, PromptSet, Sampling
from harness.run.rendering import Rendered, rendered
from harness.scripted_server import Received, Script, page, serving

from . import synthetic

SET = PromptSet(
    name="two",
    prompts=tuple(
        Prompt(
            prompt_id=prompt_id,
            kind="prose",
            messages=({"role": "user", "content": text},),
            source="made for this test",
            licence="CC0-1.0",
        )
        for prompt_id, text in (("sea", "Tell me of the sea."), ("käse", "Erkläre “Käse”."))
    ),
    sha256="1" * 64,
)


def answer(value: Any) -> Script:
    return page(json.dumps(value))


async def asked_of(
    adapter: str, respond: Callable[[Received], Script], thinking: bool | None = None
) -> Rendered | None:
    with serving(respond) as server:
        async with httpx.AsyncClient(base_url=server.url, trust_env=False) as http:
            return await rendered(
                http, ADAPTERS[adapter], "demo", [SET], Sampling(thinking=thinking)
            )


def sha256(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


@pytest.mark.parametrize("adapter", ["vllm", "dflash2"])
async def test_a_server_that_tokenizes_a_chat_is_asked_for_every_prompt(adapter: str) -> None:
    def respond(request: Received) -> Script:
        assert request.path == "/tokenize"
        said = request.json()["messages"][0]["content"]
        return answer({"tokens": [1, 20, 300] if "sea" in said else [4]})

    assert await asked_of(adapter, respond) == {
        "two": {"sea": sha256("1,20,300"), "käse": sha256("4")}
    }


async def test_llama_cpp_is_asked_for_the_text_and_then_for_its_tokens() -> None:
    """With the special tokens as it adds and reads them in a chat."""

    def respond(request: Received) -> Script:
        body = request.json()
        if request.path == "/apply-template":
            return answer({"prompt": f"<|im_start|>{body['messages'][0]['content']}"})
        assert (request.path, body["add_special"], body["parse_special"]) == (
            "/tokenize",
            True,
            True,
        )
        return answer({"tokens": [len(body["content"])]})

    sea, cheese = (f"<|im_start|>{each.messages[0]['content']}" for each in SET.prompts)
    assert await asked_of("llamacpp", respond) == {
        "two": {"sea": sha256(str(len(sea))), "käse": sha256(str(len(cheese)))}
    }


@pytest.mark.parametrize("adapter", ["vllm", "dflash2", "llamacpp"])
async def test_whether_to_think_is_said_as_in_a_request(adapter: str) -> None:
    heard: list[Any] = []

    def respond(request: Received) -> Script:
        if "messages" in request.json():
            heard.append(request.json().get("chat_template_kwargs"))
        return answer({"prompt": "p", "tokens": [1]})

    await asked_of(adapter, respond, thinking=False)
    await asked_of(adapter, respond)

    off = {"enable_thinking": False}
    assert heard == [off, off, None, None]


@pytest.mark.parametrize("adapter", ["openai", "sglang"])
async def test_of_an_engine_without_words_for_it_nothing_is_known(adapter: str) -> None:
    def refuse(request: Received) -> Script:
        raise AssertionError(request.path)

    assert await asked_of(adapter, refuse) is None


@pytest.mark.parametrize(
    ("script", "words"),
    [
        (page("{}", status=404), r"/tokenize of http://\S+ says HTTP 404: {}"),
        (page("no JSON"), r"/tokenize of http://\S+: Expecting value"),
        (answer({"tokens": "none"}), r"/tokenize of http://\S+ tells no tokens"),
    ],
)
async def test_an_answer_of_another_kind_is_no_hash(script: Script, words: str) -> None:
    with pytest.raises(EngineError, match=words):
        await asked_of("vllm", lambda _: script)


# --- the check ------------------------------------------------------------------------------------

ALIKE = {"p1": "1" * 64, "p2": "2" * 64, "p3": "3" * 64, "p4": "4" * 64, "p5": "5" * 64}
THINKING = dict.fromkeys(ALIKE, "9" * 64)


@pytest.fixture(scope="module")
def drafted(tmp_path_factory: pytest.TempPathFactory) -> CellView:
    """In two boots, and so its reference."""
    made = synthetic.matrix(levels=(), boots=2)
    folder = synthetic.write_run(tmp_path_factory.mktemp("results"), made)
    return next(v for v in dataset.load(folder).views if v.cell.variant == "DFlash2")


def told(view: CellView, *by_boot: Mapping[str, str] | None) -> CellView:
    """What each boot made of the cell's prompts; None: its engine does not tell."""
    return replace(
        view,
        boots=tuple(
            replace(boot, rendered=None if found is None else {view.cell.prompt_set: found})
            for boot, found in zip(view.boots, by_boot, strict=True)
        ),
    )


def judged(ours: CellView, theirs: CellView) -> Finding:
    return CHECKS["rendered_alike"].judge(replace(ours, reference=theirs))


def test_hashes_that_are_equal_everywhere_are_alike(drafted: CellView) -> None:
    assert drafted.reference is not None
    assert judged(told(drafted, ALIKE, ALIKE), told(drafted.reference, ALIKE, ALIKE)) == OK


def test_a_reference_that_thinks_aloud_has_other_prompts(drafted: CellView) -> None:
    assert drafted.reference is not None
    found = judged(told(drafted, ALIKE, ALIKE), told(drafted.reference, THINKING, THINKING))

    assert found.level == "invalid"
    assert found.message.startswith(
        "5 of 5 prompts ('p1', 'p2', 'p3' and 2 more): rendered to other tokens in boot b2-s1 "
        "than for the reference, plain. Compare the two chat templates"
    )


def test_a_template_that_changed_between_two_boots_is_named_with_both(drafted: CellView) -> None:
    assert drafted.reference is not None
    changed = {**ALIKE, "p4": "0" * 64}
    found = judged(told(drafted, ALIKE, changed), told(drafted.reference, ALIKE, ALIKE))

    assert found.level == "invalid"
    assert found.message.startswith(
        "1 of 5 prompts ('p4'): rendered to other tokens in boot b2-s1 than in boot b3-s1."
    )


def test_an_engine_that_does_not_tell_is_not_accused(drafted: CellView) -> None:
    assert drafted.reference is not None
    assert judged(told(drafted, ALIKE, None), told(drafted.reference, None, None)) == OK
    assert judged(told(drafted, None, None), told(drafted.reference, ALIKE, ALIKE)) == OK
