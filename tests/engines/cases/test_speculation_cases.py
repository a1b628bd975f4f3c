"""Cases B126 to B138: drafting changes the speed and nothing else."""

import dataclasses
import math
from collections import Counter
from collections.abc import Sequence
from typing import Any

import pytest
import torch

from engines.dflash2.batch import Batch
from engines.dflash2.config import DrafterConfig, ModelError, TargetConfig, check_pair
from engines.dflash2.decode import (
    LengthError,
    generate,
    new_sequence,
    new_workspace,
    rounds_alone,
)
from engines.dflash2.drafting import Draft
from engines.dflash2.sampling import SamplingParams, accept_sampled
from tests.engines.decoding import GREEDY, run, run_together, tokens_of
from tests.engines.toys import ToyDrafter, ToyTarget, certain, following, saying

VOCAB = 40
STOP = 30


def answer(target: Any, drafter: Any, prompt: Sequence[int], **options: Any) -> tuple[Any, ...]:
    """The tokens and how they ended."""
    settings = {"max_tokens": 20, "sampling": GREEDY, "stop_ids": frozenset(), "kv_len": 100}
    rounds = list(generate(target, drafter, prompt, **{**settings, **options}))
    return tokens_of(rounds), rounds[-1].finish_reason


# --- B126: the stop token accepted in the middle of a block ---

COUNTING = ToyTarget(lambda ids: certain((ids[-1] + 1) % VOCAB, VOCAB))


def counts_on(num_right: int) -> ToyDrafter:
    """Proposes +1 again and again; from the given place on it is wrong."""

    def q(tokens: list[int]) -> list[float]:
        wrong = 1 if len(tokens) > num_right else 0
        return certain((tokens[-1] + 1 + wrong) % VOCAB, VOCAB)

    return ToyDrafter(7, q)


@pytest.mark.parametrize("stop_id", [3, 5, 10])  # first draft, third draft, bonus token
def test_b126_nothing_comes_behind_an_accepted_stop_token(stop_id: int) -> None:
    stops = {"stop_ids": frozenset({stop_id})}
    expected = (list(range(2, stop_id + 1)), "stop")
    assert answer(COUNTING, None, [1], **stops) == expected
    assert answer(COUNTING, counts_on(7), [1], **stops) == expected


def test_b126_a_stop_token_that_was_proposed_and_rejected_ends_nothing() -> None:
    # The drafter says 2 -> 3 -> 5; the target goes on with 4, and 5 comes one later.
    assert answer(COUNTING, counts_on(1), [1], stop_ids=frozenset({5}))[0] == [2, 3, 4, 5]
    assert answer(COUNTING, counts_on(0), [7], stop_ids=frozenset({5}))[1] == "length"


def test_b126_the_next_request_in_the_same_memory_is_not_changed_by_the_last() -> None:
    batch = Batch(new_workspace(COUNTING, counts_on(7), num_slots=1, kv_len=100))
    for prompt in ([1], [1], [2, 9]):
        stops = frozenset({prompt[-1] + 4})
        (rounds,) = run_together(batch, [prompt], max_tokens=20, stop_ids=stops)
        answered = (tokens_of(rounds), rounds[-1].finish_reason)
        assert answered == answer(COUNTING, None, prompt, stop_ids=stops)


# --- B127: stop and length limit in the same step ---

CHUNK = [10, 11, STOP, 20, 21, 22]


@pytest.mark.parametrize(
    ("chunk", "max_tokens", "expected"),
    [
        (CHUNK, 5, ([10, 11, STOP], "stop")),
        (CHUNK, 3, ([10, 11, STOP], "stop")),  # both at once: the answer was complete
        (CHUNK, 2, ([10, 11], "length")),
        ([10, 11, 12, 13, 14, STOP], 5, ([10, 11, 12, 13, 14], "length")),
    ],
)
def test_b127_what_comes_first_ends_the_answer_with_and_without_drafts(
    chunk: list[int], max_tokens: int, expected: tuple[list[int], str]
) -> None:
    # The prefill gives a first token of its own; the chunk then comes in one round.
    sequence = [9, *chunk]
    target = following(sequence, VOCAB, start=1)
    for drafter in (None, saying(sequence, 7, VOCAB)):
        tokens, reason = answer(
            target, drafter, [1], max_tokens=1 + max_tokens, stop_ids=frozenset({STOP})
        )
        assert (tokens[1:], reason) == expected


# --- B129: what the draft was drawn from is what the ratio divides by ---

P = torch.tensor([0.7, 0.3])
NUM_STEPS = 20_000


def steps(draw_from: list[float], recorded: list[float]) -> tuple[float, float]:
    """How often token 0 came out, and how often the draft was accepted."""
    generator = torch.Generator().manual_seed(0)
    drawn = torch.tensor(draw_from).multinomial(NUM_STEPS, replacement=True, generator=generator)
    candidates, q, p = torch.tensor([[0, 1]]), torch.tensor([recorded]), torch.stack((P, P))
    num_zeros, num_accepted = 0, 0
    for token in drawn.tolist():
        draft = Draft(tokens=(token,), candidates=candidates, probabilities=q)
        result = accept_sampled(draft, p, generator)
        num_accepted += result.num_accepted
        num_zeros += (token if result.num_accepted else result.next_token) == 0
    return num_zeros / NUM_STEPS, num_accepted / NUM_STEPS


def deviation(probability: float) -> float:
    return 3.9 * math.sqrt(probability * (1 - probability) / NUM_STEPS)


@pytest.mark.parametrize(
    ("q", "acceptance"), [([0.5, 0.5], 0.8), ([1.0, 0.0], 0.7)], ids=["sampled", "one-hot"]
)
def test_b129_tokens_are_distributed_as_the_target_and_accepted_as_often_as_they_can_be(
    q: list[float], acceptance: float
) -> None:
    zeros, accepted = steps(q, q)
    assert zeros == pytest.approx(0.7, abs=deviation(0.7))
    assert accepted == pytest.approx(acceptance, abs=deviation(acceptance))


def test_b129_a_certain_draft_recorded_as_a_doubtful_one_would_be_seen() -> None:
    zeros, _ = steps([1.0, 0.0], [0.5, 0.5])  # the bug of V3
    assert zeros == 1.0


# --- B130: sampling samples ---

LOGITS = (2.0, 1.5, 1.0)
CONSTANT = ToyTarget(lambda ids: LOGITS)


def doubtful(num_proposals: int) -> ToyDrafter | None:
    return ToyDrafter(num_proposals, lambda tokens: [0.2, 0.3, 0.5]) if num_proposals else None


def frequencies(drafter: Any, num_seeds: int, **sampling: Any) -> Counter[int]:
    counts: Counter[int] = Counter()
    for seed in range(num_seeds):
        params = SamplingParams(**{"temperature": 1.0, "seed": seed, **sampling})
        tokens, _ = answer(CONSTANT, drafter, [0], max_tokens=5, sampling=params)
        counts.update(tokens)
    return counts


@pytest.mark.parametrize("num_proposals", [0, 3])
def test_b130_drawn_tokens_have_the_softmax_frequencies(num_proposals: int) -> None:
    counts = frequencies(doubtful(num_proposals), 800)
    expected = [4000 * math.exp(x) / sum(map(math.exp, LOGITS)) for x in LOGITS]
    chi2 = sum((counts[token] - e) ** 2 / e for token, e in enumerate(expected))
    assert chi2 < 18.4  # 2 degrees of freedom, p = 0.0001


@pytest.mark.parametrize("num_proposals", [0, 3])
@pytest.mark.parametrize("control", [{"top_k": 1}, {"temperature": 0.0}])
def test_b130_controls_always_give_the_best_token(
    num_proposals: int, control: dict[str, Any]
) -> None:
    assert frequencies(doubtful(num_proposals), 20, **control) == {0: 100}


# --- B131: temperature 0 in the verifier ---


@pytest.mark.parametrize("temperature", [0, 0.0, 1e-6])
def test_b131_a_temperature_of_nothing_is_the_argmax_and_counts_stay_in_range(
    tiny_pair: Any, temperature: float
) -> None:
    prompt = [5, 6, 7]
    plain = tokens_of(run(tiny_pair.target, None, prompt, max_tokens=30))
    sampling = SamplingParams(temperature=temperature, seed=1)
    rounds = run(tiny_pair.target, tiny_pair.drafter, prompt, max_tokens=30, sampling=sampling)
    assert tokens_of(rounds) == plain
    assert all(0 <= step.num_accepted <= 7 for step in rounds)


# --- B133: the end of the context ---

KV_LEN = 2048
SENTINEL = 12345.0


@pytest.fixture(scope="module")
def long_pair(make_target: Any, make_drafter: Any) -> tuple[Any, Any]:
    target = make_target(seed=41, max_position_embeddings=KV_LEN)
    return target, make_drafter(seed=42, target=target, max_position_embeddings=KV_LEN)


@pytest.mark.parametrize(("num_prompt", "max_tokens"), [(2040, 8), (2047, 1)])
def test_b133_an_answer_may_fill_the_context_to_its_last_place_and_not_a_row_more(
    long_pair: tuple[Any, Any], num_prompt: int, max_tokens: int
) -> None:
    target, drafter = long_pair
    prompt = [(37 * position) % 96 for position in range(num_prompt)]
    answers = []
    for one in (None, drafter):
        work = new_workspace(target, one, num_slots=2, kv_len=KV_LEN)
        behind = [work.cache.keys[:, 1], work.cache.values[:, 1]]  # the slot after the one used
        for rows in behind:
            rows.fill_(SENTINEL)
        sequence = new_sequence(
            work, prompt, max_tokens=max_tokens, sampling=GREEDY, stop_ids=frozenset()
        )
        rounds = list(rounds_alone(work, sequence))
        answers.append((tokens_of(rounds), rounds[-1].finish_reason))
        assert all(bool((rows == SENTINEL).all()) for rows in behind)
    assert answers[0] == answers[1]
    assert len(answers[0][0]) == max_tokens
    assert answers[0][1] == "length"


@pytest.mark.parametrize(("num_prompt", "max_tokens"), [(2040, 16), (2048, 1)])
def test_b133_more_than_fits_is_refused_before_anything_runs(
    long_pair: tuple[Any, Any], num_prompt: int, max_tokens: int
) -> None:
    for drafter in (None, long_pair[1]):
        with pytest.raises(LengthError, match=f"max_tokens {max_tokens} do not fit kv_len 2048"):
            answer(long_pair[0], drafter, [1] * num_prompt, max_tokens=max_tokens, kv_len=KV_LEN)


def test_b133_a_drafter_with_fewer_positions_than_the_target_is_refused_at_the_start(
    tiny_target_config: TargetConfig, tiny_drafter_config: DrafterConfig
) -> None:
    short = dataclasses.replace(tiny_drafter_config, max_position_embeddings=256)
    with pytest.raises(ModelError, match="only 256 in the drafter and 512 in the target"):
        check_pair(short, tiny_target_config)


# --- B135: everything is rejected ---


def test_b135_a_drafter_that_is_never_right_costs_speed_and_shows_in_the_counts(
    tiny_pair: Any,
) -> None:
    plain = tokens_of(run(tiny_pair.target, None, [1, 2], max_tokens=40))

    def never_right(tokens: list[int]) -> list[float]:
        return certain((tokens[-1] + 50) % 96, 96)

    rounds = run(tiny_pair.target, ToyDrafter(7, never_right), [1, 2], max_tokens=40)
    assert tokens_of(rounds) == plain
    accepted = sum(step.num_accepted for step in rounds)
    assert accepted / sum(step.num_drafted for step in rounds) < 0.05


# --- B136: greedy output is the target's own ---


def test_b136_no_drafter_changes_a_greedy_answer(tiny_pair: Any) -> None:
    """In float64, where no rounding decides: every token, not the first so many."""
    for prompt in ([3], [5, 6, 7], list(range(60))):
        plain = tokens_of(run(tiny_pair.target, None, prompt, max_tokens=150))
        drafted = tokens_of(run(tiny_pair.target, tiny_pair.drafter, prompt, max_tokens=150))
        assert drafted == plain


# --- B138: a seed repeats a drafted answer ---


def seeded(pair: Any, num_proposals: int, seed: int) -> list[int]:
    drafter = type(pair.drafter)(pair.drafter.model, pair.target, num_proposals=num_proposals)
    sampling = SamplingParams(temperature=0.8, seed=seed)
    return tokens_of(run(pair.target, drafter, [5, 6], max_tokens=64, sampling=sampling))


def test_b138_a_seed_repeats_whatever_ran_in_between(tiny_pair: Any) -> None:
    first = seeded(tiny_pair, 7, seed=7)
    other = seeded(tiny_pair, 7, seed=8)
    torch.rand(100)  # somebody else's noise
    assert seeded(tiny_pair, 7, seed=7) == first != other
    assert seeded(tiny_pair, 3, seed=7) == seeded(tiny_pair, 3, seed=7)
