"""Runs of the decode loop for tests: checked books, and a drafter that knows the answer."""

import dataclasses
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from engines.dflash2.decode import Round, generate
from engines.dflash2.sampling import SamplingParams
from engines.dflash2.selector import Draft
from engines.dflash2.target import Target

GREEDY = SamplingParams()
VOCAB_SIZE = 96
NUM_PROPOSALS = 7


@dataclasses.dataclass(kw_only=True)
class OracleContext:
    num_tokens: int = 0
    features: list[Tensor] = dataclasses.field(default_factory=list)


class Oracle:
    """Knows the whole sequence, and tells the truth at each position as often as it is told to."""

    num_proposals = NUM_PROPOSALS
    target_layer_ids = (1,)

    def __init__(self, sequence: list[int], is_right: Callable[[], bool]) -> None:
        self._sequence = sequence
        self._is_right = is_right
        self.context = OracleContext()

    def new_context(self) -> OracleContext:
        self.context = OracleContext()
        return self.context

    def append_context(self, features: Tensor, context: OracleContext) -> None:
        context.num_tokens += features.shape[1]
        context.features.append(features)

    def propose(
        self,
        anchor: int,
        context: OracleContext,
        *,
        temperature: float,
        generator: torch.Generator,
    ) -> Draft:
        # The anchor stands right after the context: were a rejected row kept or an accepted one
        # lost, this would fail at once.
        assert self._sequence[context.num_tokens] == anchor
        ahead = self._sequence[context.num_tokens + 1 :][:NUM_PROPOSALS]
        truth = ahead + [0] * (NUM_PROPOSALS - len(ahead))
        tokens = [t if self._is_right() else (t + 1) % VOCAB_SIZE for t in truth]
        return Draft(
            tokens=tuple(tokens),
            candidates=torch.tensor(tokens).unsqueeze(1),
            probabilities=torch.ones(NUM_PROPOSALS, 1),
        )


def prompts(num_prompts: int) -> list[list[int]]:
    generator = torch.Generator().manual_seed(9)
    return [
        torch.randint(0, VOCAB_SIZE, (1 + 7 * number,), generator=generator).tolist()
        for number in range(num_prompts)
    ]


def run(target: Target, drafter: Any, prompt: list[int], **options: Any) -> list[Round]:
    settings: dict[str, Any] = {
        "max_tokens": 200,
        "sampling": GREEDY,
        "stop_ids": frozenset(),
        "kv_len": 400,
        **options,
    }
    rounds = list(generate(target, drafter, prompt, **settings))
    assert_the_books_add_up(rounds)
    return rounds


def tokens_of(rounds: list[Round]) -> list[int]:
    return [token for step in rounds for token in step.tokens]


def assert_the_books_add_up(rounds: list[Round]) -> None:
    first, *steps = rounds
    assert first.is_prefill
    assert not any(step.is_prefill for step in steps)
    assert [step.finish_reason is None for step in rounds] == [True] * len(steps) + [False]
    num_rounds = sum(step.num_drafted > 0 for step in steps)
    num_plain_steps = sum(step.num_drafted == 0 for step in steps)
    num_accepted = sum(step.num_accepted for step in rounds)
    num_trimmed = sum(step.num_trimmed for step in rounds)
    expected = 1 + num_rounds + num_plain_steps + num_accepted - num_trimmed
    assert len(tokens_of(rounds)) == expected
    for step in steps:
        assert len(step.tokens) + step.num_trimmed == step.num_accepted + 1
