"""In float32, as it is served: sixteen greedy answers together are those of each one alone.

A matrix product may round otherwise when it has more rows, so two tokens whose scores are equal up
to that rounding could change places; on these weights none do. `test_batch` tests the loop itself,
in float64, where no rounding decides.
"""

import itertools
import json
from pathlib import Path
from typing import Any

import pytest

from engines.dflash2.batch import Batch
from engines.dflash2.decode import new_workspace
from engines.dflash2.drafter import DFlash2Drafter
from engines.dflash2.target import Target
from engines.dflash2.tokenizer import load_tokenizer
from engines.dflash2.weights import load_drafter, load_target

from .decoding import prompts, run, run_together, tokens_of

DENSE = Path("engines/demo/dense")
NUM_SEQUENCES = 16


def assert_company_changes_nothing(
    target: Target, drafter: DFlash2Drafter, some_prompts: list[list[int]], num_tokens: int
) -> None:
    options = {"max_tokens": num_tokens, "kv_len": 512}
    expected = [tokens_of(run(target, None, prompt, **options)) for prompt in some_prompts]
    cycled = list(itertools.islice(itertools.cycle(range(len(some_prompts))), NUM_SEQUENCES))
    for one in (None, drafter):
        batch = Batch(new_workspace(target, one, num_slots=NUM_SEQUENCES, kv_len=512))
        together = run_together(
            batch, [some_prompts[index] for index in cycled], max_tokens=num_tokens
        )
        assert [tokens_of(rounds) for rounds in together] == [expected[index] for index in cycled]
        assert max(step.num_sharing for rounds in together for step in rounds) == NUM_SEQUENCES


def test_the_trained_dense_pair_answers_sixteen_as_it_answers_one() -> None:
    target = load_target(DENSE / "target")
    tokenizer = load_tokenizer(DENSE / "target")
    lines = map(json.loads, Path("prompts/demo5.jsonl").read_text(encoding="utf-8").splitlines())
    some_prompts = [tokenizer.encode_chat(line["messages"], {}) for line in lines]
    drafter = load_drafter(DENSE / "drafter", target)
    assert_company_changes_nothing(target, drafter, some_prompts[:5], num_tokens=48)


@pytest.mark.parametrize("kind", ["make_target", "make_hybrid"])
def test_random_pairs_answer_sixteen_as_they_answer_one(
    request: pytest.FixtureRequest, make_drafter: Any, kind: str
) -> None:
    target = request.getfixturevalue(kind)(seed=61)
    positions = target.config.max_position_embeddings
    drafter = make_drafter(seed=62, target=target, max_position_embeddings=positions)
    target.float()
    drafter.model.float()
    assert_company_changes_nothing(target, drafter, prompts(8), num_tokens=60)
