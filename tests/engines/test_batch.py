"""Sequences that are decoded together: nobody's answer depends on the company it is in."""

import dataclasses
from collections.abc import Callable
from typing import Any

import pytest
import torch

from engines.dflash2.batch import Batch
from engines.dflash2.decode import Outcome, Round, Sequence, new_workspace
from engines.dflash2.sampling import SamplingParams
from engines.dflash2.selector import NonFiniteError

from .decoding import GREEDY, VOCAB_SIZE, prompts, run, run_together, tokens_of
from .toys import ToyTarget, certain

NUM_TOKENS = 60
PROMPTS = prompts(16)


@pytest.fixture(scope="module", params=["dense", "hybrid"])
def pair(request: pytest.FixtureRequest) -> Any:
    """In float64: what is tested is who sees whom, not what rounding does."""
    return request.getfixturevalue({"dense": "tiny_pair", "hybrid": "hybrid_pair"}[request.param])


def batch_of(pair: Any, *, drafted: bool, num_slots: int = 16, **options: Any) -> Batch:
    drafter = pair.drafter if drafted else None
    work = new_workspace(pair.target, drafter, num_slots=num_slots, kv_len=400)
    return Batch(work, **options)


def alone(pair: Any, prompt: list[int], **options: Any) -> list[int]:
    return tokens_of(run(pair.target, None, prompt, max_tokens=NUM_TOKENS, **options))


def add(batch: Batch, prompt: list[int], **options: Any) -> Sequence:
    settings = {"max_tokens": NUM_TOKENS, "min_tokens": 0, "sampling": GREEDY}
    return batch.add(prompt, **{**settings, "stop_ids": frozenset(), **options})


def finish(batch: Batch) -> dict[Sequence, list[Outcome]]:
    """Everything that comes until nobody is left."""
    outcomes: dict[Sequence, list[Outcome]] = {}
    while batch.num_sequences > 0:
        for sequence, outcome in batch.step():
            outcomes.setdefault(sequence, []).append(outcome)
    return outcomes


@pytest.fixture(scope="module")
def answers(pair: Any) -> list[list[int]]:
    """What each prompt is answered alone and undrafted."""
    return [alone(pair, prompt) for prompt in PROMPTS]


@pytest.mark.parametrize("drafted", [False, True])
def test_sixteen_greedy_sequences_together_answer_what_each_answers_alone(
    pair: Any, answers: list[list[int]], drafted: bool
) -> None:
    batch = batch_of(pair, drafted=drafted)
    together = run_together(batch, PROMPTS, max_tokens=NUM_TOKENS)
    assert [tokens_of(rounds) for rounds in together] == answers
    assert max(step.num_sharing for rounds in together for step in rounds) == 16
    assert batch.num_used_positions == 0


@pytest.mark.parametrize("drafted", [False, True])
def test_sequences_that_join_and_leave_in_between_change_no_other(
    pair: Any, answers: list[list[int]], drafted: bool
) -> None:
    """Four slots for sixteen sequences of different lengths: each leaves at another time."""
    batch = batch_of(pair, drafted=drafted, num_slots=4)
    waiting = list(range(16))
    lengths = [5 + 11 * index % 47 for index in waiting]
    names: dict[Sequence, int] = {}
    found: dict[int, list[int]] = {index: [] for index in waiting}
    while waiting or batch.num_sequences > 0:
        if waiting and batch.num_sequences < batch.num_slots:
            index = waiting.pop(0)
            names[add(batch, PROMPTS[index], max_tokens=lengths[index])] = index
        for sequence, outcome in batch.step():
            assert isinstance(outcome, Round)
            found[names[sequence]] += outcome.tokens
    assert list(found.values()) == [
        answer[:length] for answer, length in zip(answers, lengths, strict=True)
    ]


@pytest.mark.parametrize("drafted", [False, True])
def test_b138_a_seed_repeats_its_answer_whatever_the_company(pair: Any, drafted: bool) -> None:
    sampling = SamplingParams(temperature=0.8, top_p=0.95, top_k=40, seed=7)
    others = [SamplingParams(temperature=1.0, seed=seed) for seed in (7, 8, 9)]
    drafter = pair.drafter if drafted else None
    by_itself = run(pair.target, drafter, PROMPTS[2], max_tokens=NUM_TOKENS, sampling=sampling)
    batch = batch_of(pair, drafted=drafted)
    together = run_together(
        batch, [*PROMPTS[5:8], PROMPTS[2]], max_tokens=NUM_TOKENS, sampling=[*others, sampling]
    )
    assert tokens_of(together[-1]) == tokens_of(by_itself)
    assert len({tuple(tokens_of(rounds)) for rounds in together}) == 4


@pytest.mark.parametrize("drafted", [False, True])
def test_b131_greedy_and_sampled_sequences_share_a_batch_and_do_not_notice(
    pair: Any, answers: list[list[int]], drafted: bool
) -> None:
    samplings = [
        GREEDY if index % 2 else SamplingParams(temperature=0.8, seed=index) for index in range(8)
    ]
    batch = batch_of(pair, drafted=drafted)
    together = run_together(batch, PROMPTS[:8], max_tokens=NUM_TOKENS, sampling=samplings)
    for index, rounds in enumerate(together):
        assert all(0 <= step.num_accepted <= step.num_drafted for step in rounds)
        assert (tokens_of(rounds) == answers[index]) == bool(index % 2)


def test_short_prompts_are_read_together_up_to_a_chunks_worth(
    tiny_pair: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("engines.dflash2.decode.PREFILL_CHUNK_TOKENS", 20)
    batch = batch_of(tiny_pair, drafted=True)
    six = [add(batch, prompt) for prompt in PROMPTS[:6]]  # 1, 8, 15, 22, 29 and 36 tokens
    turns = [[six.index(sequence) for sequence, _ in batch.step()] for _ in range(7)]
    # Prompts and rounds in turn: 1 + 8 + 15 tokens; 20; 2 + 20; 9 + 20 tokens.
    assert turns == [[0, 1, 2], [0, 1, 2], [], [0, 1, 2], [3], [0, 1, 2, 3], [4]]


def test_a_long_prompt_is_read_in_chunks_and_the_others_go_on_in_between(
    hybrid_pair: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("engines.dflash2.decode.PREFILL_CHUNK_TOKENS", 128)
    long_prompt = [(37 * position) % VOCAB_SIZE for position in range(1500)]
    work = new_workspace(hybrid_pair.target, hybrid_pair.drafter, num_slots=4, kv_len=1600)
    batch = Batch(work)
    short = [add(batch, prompt, max_tokens=200) for prompt in PROMPTS[:2]]
    for _ in range(4):
        batch.step()  # the prompts of both, and rounds
    late = add(batch, long_prompt, max_tokens=5)
    num_chunks, who = 0, []
    while not late.is_read:
        num_read = late.num_read
        who.append([sequence for sequence, _ in batch.step()])
        num_chunks += late.num_read > num_read
    assert num_chunks == 12  # 1500 / 128, rounded up
    assert who[-1] == [late]  # its first token
    assert who[:-1] == [[], short] * 11 or who[:-1] == [short, *([], short) * 11]
    expected = run(hybrid_pair.target, None, long_prompt, max_tokens=5, kv_len=1600)
    rounds = [outcome for outcome in finish(batch)[late] if isinstance(outcome, Round)]
    assert [late.anchor] == tokens_of(expected)[-1:]
    assert tokens_of(rounds) == tokens_of(expected)[1:]


@pytest.mark.parametrize("place", ["waiting", "being read", "decoding"])
def test_a_sequence_can_be_removed_whatever_it_is_doing(
    pair: Any, answers: list[list[int]], place: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("engines.dflash2.decode.PREFILL_CHUNK_TOKENS", 20)
    batch = batch_of(pair, drafted=True, num_slots=4)
    first = add(batch, PROMPTS[3])
    for _ in range(3):
        batch.step()
    gone = add(batch, PROMPTS[15])  # 106 tokens, six chunks
    second = add(batch, PROMPTS[4])
    if place != "waiting":
        while gone.num_read == 0 or (place == "decoding" and gone.anchor < 0):
            batch.step()
    batch.remove(gone)
    assert batch.num_sequences == 2
    tokens: dict[Sequence, list[int]] = {}
    for sequence, outcomes in finish(batch).items():
        tokens[sequence] = tokens_of([each for each in outcomes if isinstance(each, Round)])
    assert gone not in tokens
    assert tokens[second] == answers[4][-len(tokens[second]) :]
    assert tokens[first] == answers[3][-len(tokens[first]) :]
    assert batch.num_used_positions == 0


def test_drafting_pauses_while_the_batch_is_large(pair: Any, answers: list[list[int]]) -> None:
    batch = batch_of(pair, drafted=True, draft_until_batch=2)
    together = run_together(batch, PROMPTS[:4], max_tokens=[10, 10, NUM_TOKENS, NUM_TOKENS])
    assert [tokens_of(rounds) for rounds in together] == [
        answers[0][:10],
        answers[1][:10],
        *answers[2:4],
    ]
    for step in (step for rounds in together for step in rounds[1:]):
        assert step.num_drafted == (7 if step.num_sharing <= 2 else 0)
    assert {step.num_sharing for rounds in together for step in rounds[1:]} >= {2, 4}


def test_a_drafter_that_paused_has_read_what_was_decoded_meanwhile(tiny_pair: Any) -> None:
    """Its context after plain steps is that of a drafter that never paused."""
    contexts = []
    for limit in (None, 0):
        batch = batch_of(tiny_pair, drafted=True, draft_until_batch=limit)
        sequence = add(batch, PROMPTS[3], max_tokens=100)
        while batch._work.cache.lengths[0] < 40:
            batch.step()
        contexts.append((batch._work.contexts, batch._work.cache.lengths[0], sequence))
    for rings, length, _ in contexts:
        assert rings.num_tokens[0] == length
    shortest = min(length for _, length, _ in contexts)
    held = []
    for rings, _, _ in contexts:
        positions, keys = rings.positions(range(1))[0], rings.keys(range(1))[:, 0]
        at = positions.argsort()
        at = at[(positions[at] < shortest) & (positions[at] >= shortest - 10)]
        held.append(keys[:, :, at])
    torch.testing.assert_close(*held)


def test_a_sequence_whose_logits_are_no_numbers_fails_alone_and_leaves_nothing_behind(
    pair: Any, answers: list[list[int]]
) -> None:
    poisoned = pair.target.embedding_weight
    before = poisoned[VOCAB_SIZE - 1].clone()
    batch = batch_of(pair, drafted=True, num_slots=3)
    healthy = [add(batch, PROMPTS[index], max_tokens=30) for index in (3, 4)]
    for _ in range(4):
        batch.step()
    try:
        poisoned[VOCAB_SIZE - 1] = torch.nan
        broken = add(batch, [VOCAB_SIZE - 1], max_tokens=30)
        (outcome,) = next(
            [outcome for sequence, outcome in found if sequence is broken]
            for found in iter(batch.step, None)
            if any(sequence is broken for sequence, _ in found)
        )
        assert isinstance(outcome, NonFiniteError)
    finally:
        poisoned[VOCAB_SIZE - 1] = before
    next_one = add(batch, PROMPTS[5], max_tokens=30)
    outcomes = finish(batch)
    for sequence, index in zip([*healthy, next_one], (3, 4, 5), strict=True):
        tokens = tokens_of([each for each in outcomes[sequence] if isinstance(each, Round)])
        assert tokens == answers[index][:30][-len(tokens) :]


def test_a_sequence_that_ends_with_its_first_token_never_decodes() -> None:
    target: Any = ToyTarget(lambda ids: certain(5, 10))
    batch = Batch(new_workspace(target, None, num_slots=2, kv_len=20))
    ((only,), (other, *more)) = run_together(batch, [[1, 2], [3]], max_tokens=[1, 3])
    assert (only.tokens, only.finish_reason) == ((5,), "length")
    assert [step.num_sharing for step in (other, *more)] == [1, 1, 1]


def ticking() -> Callable[[], float]:
    ticks = iter(float(second) for second in range(100_000))
    return lambda: next(ticks)


def test_a_round_says_what_the_pass_took_and_how_many_shared_it(tiny_pair: Any) -> None:
    work = new_workspace(tiny_pair.target, None, num_slots=3, kv_len=100, clock=ticking())
    together = run_together(Batch(work), PROMPTS[:3], max_tokens=6)
    for rounds in together:
        assert (rounds[0].verify_s, rounds[0].num_sharing) == (1.0, 1)
        assert {step.verify_s for step in rounds[1:]} == {1.0}
        assert rounds[-1].num_sharing <= 3


def test_a_prompts_time_is_that_of_its_own_chunks(
    tiny_pair: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("engines.dflash2.decode.PREFILL_CHUNK_TOKENS", 10)
    work = new_workspace(tiny_pair.target, None, num_slots=2, kv_len=200, clock=ticking())
    batch = Batch(work)
    add(batch, PROMPTS[0], max_tokens=100)
    late = add(batch, PROMPTS[5])  # 36 tokens, four chunks
    first = next(
        outcome
        for found in iter(batch.step, None)
        for sequence, outcome in found
        if sequence is late
    )
    assert isinstance(first, Round)
    assert first.verify_s == 4.0  # one tick for each chunk, none for the rounds in between


@pytest.mark.parametrize("num_slots", [1, 3])
def test_memory_is_counted_and_positions_are_those_in_use(tiny_pair: Any, num_slots: int) -> None:
    batch = batch_of(tiny_pair, drafted=True, num_slots=num_slots)
    # Float64; 4 layers of 2 heads of 16, 407 rows; and rings of 2 layers, 23 rows and positions.
    per_slot = 2 * 4 * 407 * 2 * 16 * 8 + 2 * 2 * 23 * 2 * 16 * 8 + 23 * 8
    assert batch.num_bytes == num_slots * per_slot
    assert batch.num_used_positions == 0
    add(batch, [1] * 30)
    batch.step()
    assert batch.num_used_positions == 30  # its first token is decided, but in no cache yet


def test_a_prompt_that_does_not_fit_is_refused_and_takes_no_slot(tiny_pair: Any) -> None:
    batch = batch_of(tiny_pair, drafted=False, num_slots=1)
    with pytest.raises(ValueError, match="do not fit kv_len 400"):
        add(batch, [1] * 390, max_tokens=11)
    assert batch.num_sequences == 0


def test_the_settings_of_a_sequence_are_its_own(tiny_pair: Any) -> None:
    batch = batch_of(tiny_pair, drafted=True)
    reference = alone(tiny_pair, PROMPTS[3])
    stop = next(token for token in reference[5:] if token not in reference[:5])
    place = reference.index(stop)
    stopped, limited, _ = run_together(
        batch,
        [PROMPTS[3]] * 3,
        stop_ids=[frozenset({stop}), frozenset(), frozenset()],
        max_tokens=[NUM_TOKENS, place, NUM_TOKENS],
    )
    assert tokens_of(stopped) == reference[: place + 1]
    assert stopped[-1].finish_reason == "stop"
    assert tokens_of(limited) == reference[:place]
    assert limited[-1].finish_reason == "length"


def test_noise_without_a_seed_differs_between_sequences(tiny_pair: Any) -> None:
    batch = batch_of(tiny_pair, drafted=True)
    sampling = dataclasses.replace(GREEDY, temperature=1.0)
    one, two = run_together(batch, [PROMPTS[3]] * 2, max_tokens=40, sampling=sampling)
    assert tokens_of(one) != tokens_of(two)
