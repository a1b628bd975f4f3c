"""Runs of the decode loop for tests: checked books, and a drafter that knows the answers."""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from engines.dflash2.batch import Batch
from engines.dflash2.cache import ContextRings, KVCache
from engines.dflash2.decode import Round, generate
from engines.dflash2.drafter import DFlash2Drafter
from engines.dflash2.drafting import Committed, Draft
from engines.dflash2.sampling import SamplingParams
from engines.dflash2.target import Target, TargetOutput

GREEDY = SamplingParams()
VOCAB_SIZE = 96
NUM_PROPOSALS = 7


class OracleContexts:
    """The tokens behind each slot's rows, and their features: what an accepted row must be."""

    num_bytes = 0

    def __init__(self, num_slots: int) -> None:
        self.tokens: list[list[int]] = [[] for _ in range(num_slots)]
        self.features: list[list[Tensor]] = [[] for _ in range(num_slots)]

    def reset(self, slot: int) -> None:
        self.tokens[slot], self.features[slot] = [], []

    def move(self, source: int, destination: int) -> None:
        self.tokens[destination] = self.tokens[source]
        self.features[destination] = self.features[source]
        self.reset(source)


class Oracle:
    """Knows whole sequences, and tells the truth at each position as often as it is told to.

    A sequence is known by its anchor and all tokens before it.
    """

    num_proposals = NUM_PROPOSALS
    target_layer_ids = (1,)

    def __init__(self, sequences: list[list[int]], is_right: Callable[[], bool]) -> None:
        self._sequences = sequences
        self._is_right = is_right
        self.contexts = OracleContexts(0)

    def new_contexts(self, num_slots: int, num_rows: int) -> OracleContexts:
        self.contexts = OracleContexts(num_slots)
        return self.contexts

    def append_context(self, committed: Committed, contexts: OracleContexts, slots: range) -> None:
        for index, slot in enumerate(slots):
            num_rows = committed.num_rows[index]
            contexts.tokens[slot] += committed.next_tokens[index, :num_rows].tolist()
            assert committed.features is not None
            contexts.features[slot].append(committed.features[index, :num_rows])

    def propose(
        self,
        anchors: Sequence[int],
        contexts: OracleContexts,
        slots: range,
        *,
        temperatures: Sequence[float],
        generators: Sequence[torch.Generator],
    ) -> list[Draft]:
        return [
            self._draft(anchor, contexts.tokens[slot])
            for anchor, slot in zip(anchors, slots, strict=True)
        ]

    def _draft(self, anchor: int, behind: list[int]) -> Draft:
        # Behind the last row stands the anchor: were a rejected row kept, an accepted one lost or
        # two sequences mixed up, no sequence would fit.
        assert behind[-1] == anchor
        end = len(behind) + 1
        sequence = next(each for each in self._sequences if each[1:end] == behind)
        ahead = sequence[end:][:NUM_PROPOSALS]
        truth = ahead + [0] * (NUM_PROPOSALS - len(ahead))
        tokens = [t if self._is_right() else (t + 1) % VOCAB_SIZE for t in truth]
        return Draft(
            tokens=tuple(tokens),
            candidates=torch.tensor(tokens).unsqueeze(1),
            probabilities=torch.ones(NUM_PROPOSALS, 1),
        )


ONE = range(1)  # the slots of a batch of one


def new_context(drafter: DFlash2Drafter) -> ContextRings:
    """For one sequence of any length."""
    return drafter.new_contexts(num_slots=1, num_rows=0)


def take_in(drafter: DFlash2Drafter, features: Tensor, contexts: ContextRings) -> None:
    """features: [1, tokens, taps * hidden], all of them accepted."""
    drafter.append_context(committed(features, (features.shape[1],)), contexts, ONE)


def committed(features: Tensor, num_rows: tuple[int, ...]) -> Committed:
    """A pass as DFlash 2 looks at it."""
    unread = torch.zeros(features.shape[:2])
    return Committed(hidden=unread, features=features, num_rows=num_rows, next_tokens=unread)


def prompts(num_prompts: int) -> list[list[int]]:
    generator = torch.Generator().manual_seed(9)
    return [
        torch.randint(0, VOCAB_SIZE, (1 + 7 * number,), generator=generator).tolist()
        for number in range(num_prompts)
    ]


def run_pass(
    target: Target,
    ids: Tensor,
    cache: KVCache,
    *,
    num_kept: int | None = None,
    tap_layer_ids: tuple[int, ...] = (),
) -> TargetOutput:
    """One pass over ids: [batch, rows] behind the first slots' sequences; None: all rows stay."""
    view = cache.view(range(len(ids)))
    output = target(ids, cache=view, tap_layer_ids=tap_layer_ids)
    view.commit([ids.shape[1] if num_kept is None else num_kept] * len(ids))
    return output


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


def run_together(
    batch: Batch, prompts: Sequence[Sequence[int]], **options: Any
) -> list[list[Round]]:
    """All prompts at once, and the rounds of each; options: the same for all, or a list."""
    settings = {"max_tokens": 200, "min_tokens": 0, "sampling": GREEDY, "stop_ids": frozenset()}
    added = []
    for index, prompt in enumerate(prompts):
        own = {k: v[index] if isinstance(v, list) else v for k, v in options.items()}
        added.append(batch.add(prompt, **{**settings, **own}))
    rounds: dict[Any, list[Round]] = {sequence: [] for sequence in added}
    while batch.num_sequences > 0:
        for sequence, outcome in batch.step():
            assert isinstance(outcome, Round)
            rounds[sequence].append(outcome)
    for each in rounds.values():
        assert_the_books_add_up(each)
    return [rounds[sequence] for sequence in added]


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
