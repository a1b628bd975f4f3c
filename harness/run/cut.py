"""Prompts of a true length: words of a text, as many as an engine's own count calls so many tokens.

What a length is depends on the tokenizer and on the chat template, which the engine alone knows. It
is asked, by `/tokenize` where that takes messages, else by a request for one token.
"""

from collections.abc import Awaitable, Callable, Sequence

import httpx

from harness.errors import UsageError
from harness.records import Prompt

Count = Callable[[str], Awaitable[int]]

QUESTION = "Summarise what follows.\n\n"
MOST_PROBES = 40  # a bisection over a million words and a margin


async def cut_prompts(
    count: Count,
    words: Sequence[str],
    lengths: Sequence[int],
    *,
    per_length: int,
    source: str,
    licence: str,
) -> tuple[Prompt, ...]:
    """`per_length` prompts of every length, each from another place of the text."""
    found = []
    for number in range(per_length):
        begin = number * len(words) // (per_length + 1)
        for length in lengths:
            text = await cut(count, [*words[begin:], *words[:begin]], length)
            found.append(
                Prompt(
                    prompt_id=f"{length}-{number + 1}",
                    kind=str(length),
                    messages=({"role": "user", "content": text},),
                    source=source,
                    licence=licence,
                )
            )
    return tuple(sorted(found, key=lambda prompt: lengths.index(int(prompt.kind))))


async def cut(count: Count, words: Sequence[str], length: int) -> str:
    """The longest beginning of `words` that is no longer, filled up with single letters to it."""
    low, high = 0, len(words)
    if await count(_asked(words)) < length:
        raise UsageError(
            f"the text has fewer than {length} tokens by the engine's count; give a longer one"
        )
    while low < high:
        middle = (low + high + 1) // 2
        if await count(_asked(words[:middle])) <= length:
            low = middle
        else:
            high = middle - 1
    return await _filled(count, _asked(words[:low]), length)


async def _filled(count: Count, text: str, length: int) -> str:
    """A word can be several tokens: what is missing is made up of letters of one token each."""
    for _ in range(MOST_PROBES):
        missing = length - await count(text)
        if missing == 0:
            return text
        if missing < 0:
            break
        text += " a" * missing
    raise UsageError(
        f"no text of exactly {length} tokens was found: the last one has {await count(text)}; take "
        "a neighbouring length"
    )


def _asked(words: Sequence[str]) -> str:
    return QUESTION + " ".join(words)


def counter(client: httpx.AsyncClient, model: str) -> Count:
    """By the server behind `client`; what it cannot say by `/tokenize` it says by an answer."""

    async def count(text: str) -> int:
        messages = [{"role": "user", "content": text}]
        try:
            told = await client.post("/tokenize", json={"model": model, "messages": messages})
            if told.status_code == 200 and "count" in (body := told.json()):
                return int(body["count"])
            return await _probed(client, model, messages)
        except (httpx.HTTPError, httpx.InvalidURL) as error:
            raise UsageError(
                f"no engine answers at {client.base_url} ({error}); start it, or correct the URL"
            ) from error
        except ValueError as error:
            raise UsageError(f"{client.base_url} answers, but not in JSON: {error}") from error

    return count


async def _probed(client: httpx.AsyncClient, model: str, messages: Sequence[dict[str, str]]) -> int:
    """`usage` of a request for one token."""
    asked = {"model": model, "messages": messages, "max_tokens": 1, "temperature": 0}
    answer = await client.post("/v1/chat/completions", json=asked)
    tokens = answer.json().get("usage", {}).get("prompt_tokens") if answer.is_success else None
    if not isinstance(tokens, int):
        raise UsageError(
            f"{client.base_url} says {answer.status_code} and no prompt tokens to a request for "
            f"one token of {model!r}: {answer.text[:200]}"
        )
    return tokens
