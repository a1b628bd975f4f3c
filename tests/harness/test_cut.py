"""Prompts of true lengths, by the count of a server whose tokens are known."""

from pathlib import Path

import httpx
import pytest

from harness import cli
from harness.errors import UsageError
from harness.run.cut import QUESTION, counter, cut, cut_prompts

TEMPLATE_TOKENS = 7


async def letters_and_template(text: str) -> int:
    """A tokenizer of the tests: three letters of a word are a token, and a template has seven."""
    return TEMPLATE_TOKENS + sum(-(-len(word) // 3) for word in text.split())


WORDS = [f"word{number}" * (1 + number % 4) for number in range(400)]


@pytest.mark.parametrize("length", [32, 100, 101, 102, 511])
async def test_a_prompt_has_exactly_the_tokens_that_were_asked_for(length: int) -> None:
    text = await cut(letters_and_template, WORDS, length)

    assert await letters_and_template(text) == length
    assert text.startswith(QUESTION)


async def test_a_text_that_is_too_short_is_refused() -> None:
    with pytest.raises(UsageError, match="fewer than 9999 tokens"):
        await cut(letters_and_template, WORDS, 9999)


async def test_prompts_of_one_length_differ_and_their_kind_is_the_length() -> None:
    prompts = await cut_prompts(
        letters_and_template, WORDS, [64, 128], per_length=2, source="s", licence="l"
    )

    assert [(prompt.prompt_id, prompt.kind) for prompt in prompts] == [
        ("64-1", "64"),
        ("64-2", "64"),
        ("128-1", "128"),
        ("128-2", "128"),
    ]
    assert len({prompt.messages[0]["content"] for prompt in prompts}) == 4


async def test_a_server_without_a_tokenizer_page_is_asked_for_one_token() -> None:
    def answer(request: httpx.Request) -> httpx.Response:
        if request.url.path == "/tokenize":
            return httpx.Response(404)
        return httpx.Response(200, json={"usage": {"prompt_tokens": 42}})

    transport = httpx.MockTransport(answer)
    async with httpx.AsyncClient(transport=transport, base_url="http://engine") as client:
        assert await counter(client, "demo")("hello") == 42


async def test_a_tokenizer_page_that_counts_messages_is_believed() -> None:
    transport = httpx.MockTransport(lambda _: httpx.Response(200, json={"count": 12}))
    async with httpx.AsyncClient(transport=transport, base_url="http://engine") as client:
        assert await counter(client, "demo")("hello") == 12


async def test_a_server_that_tells_no_prompt_tokens_is_named() -> None:
    transport = httpx.MockTransport(lambda _: httpx.Response(500, text="out of order"))
    async with httpx.AsyncClient(transport=transport, base_url="http://engine") as client:
        with pytest.raises(UsageError, match=r"500 and no prompt tokens.*out of order"):
            await counter(client, "demo")("hello")


async def test_a_server_that_answers_no_json_is_named() -> None:
    transport = httpx.MockTransport(lambda _: httpx.Response(200, text="<html>"))
    async with httpx.AsyncClient(transport=transport, base_url="http://engine") as client:
        with pytest.raises(UsageError, match="http://engine answers, but not in JSON"):
            await counter(client, "demo")("hello")


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"--url": "http://127.0.0.1:1"}, "no engine answers at http://127.0.0.1:1"),
        ({"--url": "banana"}, "no engine answers at banana"),
        ({"--lengths": "ten"}, "'ten' is no whole number above 0"),
        ({"--lengths": "64,32"}, "'64,32' does not rise"),
        ({"--per-length": "0"}, "'0' is no whole number above 0"),
        ({"text": "/no/such/text"}, "/no/such/text cannot be read"),
    ],
)
def test_what_cannot_be_cut_ends_with_one_message(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], changed: dict[str, str], said: str
) -> None:
    text = tmp_path / "text.md"
    text.write_text("one two three")
    out = tmp_path / "out.jsonl"
    options = {
        "--url": "http://127.0.0.1:1",
        "--model": "demo",
        "--lengths": "32",
        "--per-length": "1",
        "--source": "s",
        "--licence": "l",
        **changed,
    }
    given = options.pop("text", str(text))
    words = [word for option in options.items() for word in option]

    assert cli.main(["prompts", "cut", given, str(out), *words]) == 4

    assert said in capsys.readouterr().err
    assert not out.exists()
