"""What an engine makes of the prompts before it answers any: a hash of each one's tokens.

The engine's own pages tell. Whether two engines make the same of a prompt is for the checks to say.
"""

import hashlib
from collections.abc import Iterable, Mapping
from typing import Any

import httpx

from harness.adapters import Adapter
from harness.adapters.base import Ask, Post
from harness.errors import EngineError
from harness.records import Prompt, PromptSet, Sampling

Rendered = Mapping[str, Mapping[str, str]]
"""Prompt set -> prompt id -> SHA-256 of its token ids."""


async def rendered(
    http: httpx.AsyncClient,
    adapter: Adapter,
    model: str,
    sets: Iterable[PromptSet],
    sampling: Sampling,
) -> Rendered | None:
    """Of the prompts as they are written, without a salt; None where the engine has no words for
    it.
    """
    if adapter.render is None:
        return None
    return {
        prompts.name: {
            prompt.prompt_id: digest(
                await prompt_tokens(http, adapter, _asked(model, prompt, sampling))
            )
            for prompt in prompts.prompts
        }
        for prompts in sets
    }


async def prompt_tokens(http: httpx.AsyncClient, adapter: Adapter, ask: Ask) -> tuple[int, ...]:
    """Raises EngineError where the engine answers otherwise than its adapter expects."""
    assert adapter.render is not None
    asked = adapter.render.request(ask)
    made = adapter.render.read(await _answer(http, asked))
    if isinstance(made, str) and adapter.tokenize is not None:
        asked = adapter.tokenize.request(made, True)
        made = adapter.tokenize.read(await _answer(http, asked))
    if not isinstance(made, tuple):
        raise EngineError(f"{asked.path} of {http.base_url} tells no tokens of a prompt")
    return made


def digest(token_ids: Iterable[int]) -> str:
    """Of the ids in decimal, with commas between them."""
    return hashlib.sha256(",".join(map(str, token_ids)).encode()).hexdigest()


def _asked(model: str, prompt: Prompt, sampling: Sampling) -> Ask:
    return Ask(
        model=model, messages=prompt.messages, max_tokens=1, sampling=sampling, length="natural"
    )


async def _answer(http: httpx.AsyncClient, asked: Post) -> Any:
    try:
        response = await http.post(asked.path, json=asked.body)
        answer = response.json()
    except (httpx.HTTPError, ValueError) as error:
        reason = str(error) or type(error).__name__
        raise EngineError(f"{asked.path} of {http.base_url}: {reason}") from error
    if not response.is_success:
        raise EngineError(
            f"{asked.path} of {http.base_url} says HTTP {response.status_code}: "
            f"{response.text[:200]}"
        )
    return answer
