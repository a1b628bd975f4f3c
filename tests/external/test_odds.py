"""Real engines with the same weights find the same tokens likely behind the same prompt."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import cache
from pathlib import Path

import pytest

from harness.adapters.base import Ask
from harness.config import load_matrix
from harness.prompts import load_prompt_set
from harness.records import LikelyToken, Matrix, Variant, Where
from harness.run import boot
from harness.run.boot import RunningEngine
from harness.run.rendering import prompt_tokens

from .conftest import CHECKOUT

pytestmark = pytest.mark.external

NEEDS = {"llama.cpp": ".engines/models/demo-dense.f32.gguf", "vLLM": ".engines/vllm/bin/python"}
WHERE = Where(run_id="r", session_id="s1", block_id="b1", boot_id="b1-s1")
ANSWER = "```python\ndef "
"""What an answer to the first prompt may begin with."""


@cache
def matrix() -> Matrix:
    """Read when a test runs: it names files that only `tests/external/install` makes."""
    return load_matrix(CHECKOUT / "configs" / "matrices" / "three-engines.yaml")


@asynccontextmanager
async def running(name: str, folder: Path) -> AsyncIterator[tuple[RunningEngine, Variant]]:
    variant = next(variant for variant in matrix().variants if variant.name == name)
    folder.mkdir()
    engine = await boot.launch(variant, variant.flags, WHERE, folder)
    try:
        await boot.wait_ready(engine, variant.target.name)
        yield engine, variant
    finally:
        await boot.stop(engine)


async def told(
    name: str, folder: Path
) -> tuple[tuple[int, ...], tuple[int, ...], tuple[LikelyToken, ...]]:
    """The tokens of the first demo prompt and of the answer's begin, and the odds behind them."""
    (prompt, *_) = load_prompt_set(CHECKOUT / "prompts" / "demo5.jsonl").prompts
    async with running(name, folder) as (engine, variant):
        ask = Ask(
            model=variant.target.name,
            messages=prompt.messages,
            max_tokens=1,
            sampling=matrix().sampling,
            length="natural",
        )
        adapter = engine.adapter
        assert adapter.tokenize is not None
        assert adapter.score is not None
        chat = await prompt_tokens(engine.http, adapter, ask)
        post = adapter.tokenize.request(ANSWER, False)
        begun = adapter.tokenize.read((await engine.http.post(post.path, json=post.body)).json())
        assert begun is not None
        post = adapter.score.request(variant.target.name, (*chat, *begun))
        odds = adapter.score.read((await engine.http.post(post.path, json=post.body)).json())
        assert odds is not None
        return chat, begun, odds


@pytest.mark.parametrize("name", NEEDS)
async def test_another_engine_tells_the_odds_that_ours_tells(name: str, tmp_path: Path) -> None:
    if not (CHECKOUT / NEEDS[name]).exists():
        pytest.skip(f"{NEEDS[name]} is not there: run tests/external/install")
    ours, others = await told("bundled", tmp_path / "ours"), await told(name, tmp_path / "others")

    assert others[:2] == ours[:2]
    likely = {each.token_id: each.logprob for each in ours[2]}
    theirs = {each.token_id: each.logprob for each in others[2]}
    assert len(likely) == len(theirs) == 20
    assert others[2][0].token_id == ours[2][0].token_id
    common = likely.keys() & theirs.keys()
    assert len(common) >= 18  # at the end of the list two may change places
    # all three compute in float32: what the tolerance of near-ties is for that
    assert max(abs(likely[token] - theirs[token]) for token in common) < 0.01
