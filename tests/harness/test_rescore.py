"""What a reference's engine is asked where outputs leave its own, and what is kept of its word."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import pytest

from harness.adapters import ADAPTERS
from harness.analysis import dataset
from harness.errors import EngineError
from harness.records import Boot, Cell, LikelyToken, Request, Rescore, Where, Workload
from harness.run import rescore
from harness.run.boot import RunningEngine
from harness.run.rescore import Question
from harness.store import EventRow, RunFolder

from . import synthetic

CHAT = (1, 2, 3)
"""What every chat becomes in the engine of these tests."""

END = 0


@pytest.fixture
def folder(tmp_path: Path) -> RunFolder:
    """Two boots, three repetitions; DFlash2's first output to code and prose is another."""

    def edit(request: Request) -> Request:
        where = request.where
        is_first = where.boot_id == "b2-s1" and where.repetition == 0 and request.index < 2
        return replace(request, text_sha256="another") if is_first else request

    return synthetic.write_run(tmp_path, synthetic.matrix(levels=(), boots=2), edit=edit)


# --- an engine ------------------------------------------------------------------------------------


class FakeEngine:
    """Answers as its adapter expects: tokens are the codes of a text's characters, and the next one
    is 7 or 9, or 9 behind a prompt that ends with 5.
    """

    def __init__(self, adapter: str = "dflash2") -> None:
        self.adapter = adapter
        self.asked: list[tuple[str, dict[str, Any]]] = []
        self.num_pauses = 0
        self.answers: dict[str, Callable[[dict[str, Any]], httpx.Response]] = {
            "/tokenize": self._tokens,
            "/apply-template": lambda body: httpx.Response(200, json={"prompt": "\1\2\3"}),
            "/v1/completions": self._odds,
        }

    def _tokens(self, body: dict[str, Any]) -> httpx.Response:
        if "messages" in body:
            return httpx.Response(200, json={"tokens": list(CHAT)})
        text = body.get("content", body.get("prompt"))
        return httpx.Response(200, json={"tokens": list(map(ord, text))})

    def _odds(self, body: dict[str, Any]) -> httpx.Response:
        if self.adapter == "llamacpp":
            tops = [{"id": i, "token": f"t{i}", "logprob": -i / 10} for i in (7, 9)]
            return httpx.Response(
                200, json={"choices": [{"logprobs": {"content": [{"top_logprobs": tops}]}}]}
            )
        tops = {"token_id:7": -0.7, "token_id:9": -0.9}
        return httpx.Response(200, json={"choices": [{"logprobs": {"top_logprobs": [tops]}}]})

    def handle(self, request: httpx.Request) -> httpx.Response:
        body = json.loads(request.content)
        self.asked.append((request.url.path, body))
        return self.answers[request.url.path](body)

    def prompts(self) -> list[list[int]]:
        """That the odds were asked behind."""
        return [body["prompt"] for path, body in self.asked if path == "/v1/completions"]

    def running(self) -> RunningEngine:
        where = Where(run_id="r", session_id="s1", block_id="b4", boot_id="b4-s1")
        return RunningEngine(
            boot=a_boot(where),
            adapter=ADAPTERS[self.adapter],
            http=httpx.AsyncClient(
                base_url="http://engine", transport=httpx.MockTransport(self.handle)
            ),
            headers={},
            process=None,
            port=None,
            ready_timeout_s=1.0,
            log_folder=Path("nowhere"),
        )


def a_boot(where: Where) -> Boot:
    return Boot(
        where=where,
        variant="plain",
        argv=(),
        environment={},
        pid=None,
        url="http://engine",
        started_at="",
        ready_s=1.0,
        version=None,
        health={},
        build=None,
        log_path="",
    )


def question(folder: RunFolder, own: EventRow | None, reference: EventRow | None) -> Question:
    """Of DFlash2's first output in place of the stored ones."""
    (found, _) = rescore.questions(folder, folder.manifest.plan, "plain")
    return replace(found, own=own, reference=reference)


def output(*token_ids: int, text: str | None = None) -> EventRow:
    """As engines tell it: with its tokens, or, where a text is given, by that alone."""
    return EventRow(
        request_id="q",
        offset_ns=(),
        tokens=(),
        text="".join(map(chr, token_ids)) if text is None else text,
        token_ids=token_ids if text is None else None,
    )


async def answered(folder: RunFolder, fake: FakeEngine, *questions: Question) -> list[Rescore]:
    async def pause() -> None:
        fake.num_pauses += 1

    workload: Workload = synthetic.matrix(levels=()).workloads[0]
    before = len(folder.read(Rescore))
    await rescore.ask(
        fake.running(),
        questions,
        folder,
        workload_of=lambda cell: workload,
        timeout_s=5.0,
        pause=pause,
        at=lambda what: None,
    )
    folder.close()
    return folder.read(Rescore)[before:]


# --- what there is to ask -------------------------------------------------------------------------


def test_every_output_that_differs_is_a_question_until_it_was_asked(folder: RunFolder) -> None:
    plan = folder.manifest.plan
    found = rescore.questions(folder, plan, "plain")
    assert [each.pair.own.prompt_id for each in found] == ["code-1", "prose-1"]
    assert all(each.pair.reference.where.boot_id == "b1-s1" for each in found)
    assert all(each.own is not None and each.reference is not None for each in found)
    assert rescore.questions(folder, plan, "DFlash2") == ()

    folder.append(rescore.untold(found[0], "for a reason"))
    (left,) = rescore.questions(folder, plan, "plain")
    assert left.pair.own.prompt_id == "prose-1"


def test_a_stored_run_of_before_has_nothing_left_to_ask(folder: RunFolder) -> None:
    assert folder.manifest.losslessness is None
    assert rescore.cells_left(folder) == frozenset()


# --- where tokens are told ------------------------------------------------------------------------


async def test_odds_are_asked_for_behind_the_prompt_and_what_both_outputs_begin_with(
    folder: RunFolder,
) -> None:
    fake = FakeEngine()
    asked = question(folder, output(5, 6, 7, 8), output(5, 6, 9, 8))
    (record,) = await answered(folder, fake, asked)

    assert fake.prompts() == [[*CHAT, 5, 6]]
    assert fake.asked[0][1]["messages"] == [{"role": "user", "content": "code 1"}]
    assert record.where == asked.pair.own.where
    assert (record.index, record.token_id, record.reference_token_id) == (2, 7, 9)
    assert record.likeliest == (
        LikelyToken(token_id=7, logprob=-0.7),
        LikelyToken(token_id=9, logprob=-0.9),
    )
    assert (record.asked_boot_id, record.reason) == ("b4-s1", None)
    assert record.reference_request_id == asked.pair.reference.where.request_id
    assert record.reference_text_sha256 == "code-1"


async def test_outputs_that_part_alike_cost_one_request(folder: RunFolder) -> None:
    fake = FakeEngine()
    same = question(folder, output(5, 7), output(5, 9))
    third = question(folder, output(5, 8), output(5, 9))
    records = await answered(folder, fake, same, same, third)

    assert len(records) == 3
    assert [path for path, _ in fake.asked] == ["/tokenize", "/v1/completions"]
    assert [record.token_id for record in records] == [7, 7, 8]


async def test_a_prompt_that_went_out_behind_a_salt_is_asked_about_behind_it(
    folder: RunFolder,
) -> None:
    fake = FakeEngine()
    asked = question(folder, output(7), output(9))
    salted = replace(asked.pair.own, salt="0123456789ab")
    await answered(folder, fake, replace(asked, pair=replace(asked.pair, own=salted)))
    assert fake.asked[0][1]["messages"][0]["content"] == "[0123456789ab] code 1"


# --- where only texts are told --------------------------------------------------------------------


async def test_llamacpps_own_tokenizer_finds_the_tokens_of_texts(folder: RunFolder) -> None:
    fake = FakeEngine("llamacpp")
    asked = question(folder, output(text="AB\7"), output(text="AB\11"))
    (record,) = await answered(folder, fake, of(asked, "llamacpp"))

    assert [path for path, _ in fake.asked] == [
        "/tokenize",
        "/tokenize",
        "/apply-template",
        "/tokenize",
        "/v1/completions",
    ]
    assert [body.get("parse_special") for path, body in fake.asked if path == "/tokenize"] == [
        False,
        False,
        True,
    ]
    assert fake.prompts() == [[1, 2, 3, ord("A"), ord("B")]]
    assert (record.token_id, record.reference_token_id) == (7, 9)
    assert [each.text for each in record.likeliest] == ["t7", "t9"]


async def test_tokens_that_another_engine_numbered_are_not_trusted(folder: RunFolder) -> None:
    """The reference tells its tokens; the output is another engine's, whose ids may differ."""
    fake = FakeEngine()
    own = replace(output(70, 71), text="A\7")
    asked = question(folder, own, replace(output(50, 51), text="A\11"))
    mixed = replace(asked, cell=replace(asked.cell, adapter="vllm"))
    (record,) = await answered(folder, fake, mixed)

    assert fake.prompts() == [[*CHAT, ord("A")]]
    assert (record.index, record.token_id, record.reference_token_id) == (1, 7, 9)


def of(asked: Question, adapter: str) -> Question:
    def told(cell: Cell) -> Cell:
        return replace(cell, adapter=adapter)

    return replace(asked, cell=told(asked.cell), reference_cell=told(asked.reference_cell))


# --- where something is missing -------------------------------------------------------------------


async def test_an_output_that_the_model_ended_has_no_token_there(folder: RunFolder) -> None:
    fake = FakeEngine()
    (record,) = await answered(folder, fake, question(folder, output(5), output(5, 9)))
    assert (record.index, record.token_id, record.reference_token_id) == (1, None, 9)
    assert record.likeliest


async def test_an_output_that_was_cut_off_is_no_word_of_the_model(folder: RunFolder) -> None:
    asked = question(folder, output(5), output(5, 9))
    cut = replace(asked.pair, own=replace(asked.pair.own, finish_reason="length"))
    (record,) = await answered(folder, FakeEngine(), replace(asked, pair=cut))
    assert record.reason == "one output was cut off where the other goes on"
    assert (record.index, record.likeliest) == (None, ())


@pytest.mark.parametrize(
    ("own", "reference", "reason"),
    [
        (None, output(9), "the outputs themselves were not stored"),
        (output(7), None, "the outputs themselves were not stored"),
        (
            output(7),
            output(7),
            "the texts differ, but not the tokens that they are written with",
        ),
    ],
)
async def test_what_cannot_be_asked_is_kept_with_its_reason(
    folder: RunFolder, own: EventRow | None, reference: EventRow | None, reason: str
) -> None:
    fake = FakeEngine()
    (record,) = await answered(folder, fake, question(folder, own, reference))
    assert (record.reason, record.likeliest, fake.prompts()) == (reason, (), [])


@pytest.mark.parametrize(
    ("response", "reason"),
    [
        (httpx.Response(400, text="too long"), "/v1/completions says HTTP 400: too long"),
        (httpx.Response(200, text="<html>"), "/v1/completions answers what is no JSON"),
        (
            httpx.Response(200, json={"choices": []}),
            "/v1/completions does not answer as dflash2 is known to",
        ),
    ],
)
async def test_a_refusal_is_the_answer_to_one_question_and_the_next_is_asked(
    folder: RunFolder, response: httpx.Response, reason: str
) -> None:
    fake = FakeEngine()
    good = fake.answers["/v1/completions"]
    fake.answers["/v1/completions"] = lambda body: (
        response if body["prompt"][-1] == 5 else good(body)
    )
    asked = (
        question(folder, output(5, 7), output(5, 9)),
        question(folder, output(6, 7), output(6, 9)),
    )
    refused, told = await answered(folder, fake, *asked)
    assert (refused.reason, refused.index, refused.token_id) == (reason, 1, 7)
    assert (told.reason, len(told.likeliest)) == (None, 2)


async def test_an_engine_that_is_gone_leaves_its_questions_open(folder: RunFolder) -> None:
    fake = FakeEngine()

    def gone(body: dict[str, Any]) -> httpx.Response:
        raise httpx.ConnectError("connection refused")

    fake.answers["/v1/completions"] = gone
    with pytest.raises(EngineError, match=r"connection refused.*resume` asks again"):
        await answered(folder, fake, question(folder, output(7), output(9)))
    assert folder.read(Rescore) == []


@pytest.mark.parametrize(
    ("adapter", "reason"),
    [("openai", "adapter openai has no words for the tokens of a text")],
)
async def test_an_adapter_without_words_is_told_by_name(
    folder: RunFolder, adapter: str, reason: str
) -> None:
    asked = question(folder, output(text="A"), output(text="B"))
    (record,) = await answered(folder, FakeEngine(adapter), of(asked, adapter))
    assert (record.reason, record.asked_boot_id) == (reason, "b4-s1")


async def test_a_server_that_allows_few_requests_is_given_time_before_each(
    folder: RunFolder,
) -> None:
    fake = FakeEngine("llamacpp")
    asked = question(folder, output(text="A\7"), output(text="A\11"))
    await answered(folder, fake, of(asked, "llamacpp"), of(asked, "llamacpp"))
    assert fake.num_pauses == 4  # for two texts, the prompt and the odds, each of them once


# --- from the record to the view ------------------------------------------------------------------


def test_a_view_has_its_records_by_the_output_that_they_are_about(folder: RunFolder) -> None:
    for each in rescore.questions(folder, folder.manifest.plan, "plain"):
        folder.append(rescore.untold(each, "nobody asked"))
    folder.close()
    views = {view.cell.variant: view for view in dataset.load(RunFolder.open(folder.path)).views}
    others = [each for each in views["DFlash2"].requests if each.text_sha256 == "another"]
    assert views["plain"].rescores == {}
    assert {str(each.where.request_id) for each in others} == views["DFlash2"].rescores.keys()
