"""The loop: with any drafter the output is the target's own, and the books add up."""

import dataclasses
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

from engines.dflash2.batch import Batch
from engines.dflash2.decode import LengthError, generate, new_workspace
from engines.dflash2.sampling import SamplingParams
from engines.dflash2.target import Qwen3ForCausalLM

from .decoding import GREEDY, VOCAB_SIZE, Oracle, prompts, run, run_together, tokens_of


@pytest.fixture(scope="module")
def plain(tiny_pair: Any) -> list[tuple[list[int], list[int]]]:
    """Prompts and the 208 tokens of plain greedy decoding after each."""
    work = new_workspace(tiny_pair.target, None, num_slots=25, kv_len=400)
    rounds = run_together(Batch(work), prompts(25), max_tokens=208)
    return [(p, tokens_of(each)) for p, each in zip(prompts(25), rounds, strict=True)]


def test_plain_decoding_takes_one_step_per_token(tiny_pair: Any) -> None:
    rounds = run(tiny_pair.target, None, [1, 2, 3], max_tokens=20)
    assert [step.num_drafted for step in rounds] == [0] * 20
    assert [len(step.tokens) for step in rounds] == [1] * 20
    assert rounds[-1].finish_reason == "length"


def test_plain_decoding_is_the_argmax_of_a_whole_pass(
    tiny_pair: Any, plain: list[tuple[list[int], list[int]]]
) -> None:
    for prompt, answer in plain:
        ids = torch.tensor([prompt + answer])
        best = tiny_pair.target.logits(tiny_pair.target(ids).hidden).argmax(-1)[0].tolist()
        assert answer == best[len(prompt) - 1 : -1]


def test_random_answers_are_not_one_token_over_and_over(
    plain: list[tuple[list[int], list[int]]],
) -> None:
    assert all(len(set(answer)) > 10 for _, answer in plain)


def test_greedy_output_with_the_drafter_equals_greedy_output_without_it(
    tiny_pair: Any, plain: list[tuple[list[int], list[int]]]
) -> None:
    num_accepted = 0
    for prompt, answer in plain[:3]:
        rounds = run(tiny_pair.target, tiny_pair.drafter, prompt)
        assert tokens_of(rounds) == answer[:200]
        num_accepted += sum(step.num_accepted for step in rounds)
    assert num_accepted > 0


def test_greedy_output_stays_the_targets_with_an_oracle_right_seven_times_in_ten(
    tiny_pair: Any, plain: list[tuple[list[int], list[int]]]
) -> None:
    generator = torch.Generator().manual_seed(10)
    oracle = Oracle(
        [prompt + answer for prompt, answer in plain],
        lambda: float(torch.rand(1, generator=generator)) < 0.7,
    )
    batch = Batch(new_workspace(tiny_pair.target, oracle, num_slots=25, kv_len=400))
    times: Counter[int] = Counter()
    for rounds, (_, answer) in zip(
        run_together(batch, [prompt for prompt, _ in plain]), plain, strict=True
    ):
        assert tokens_of(rounds) == answer[:200]
        times.update(step.num_accepted for step in rounds[1:])
    assert all(times[num_accepted] >= 50 for num_accepted in range(8)), times


def test_an_oracle_that_is_always_right_gives_eight_tokens_a_round(
    tiny_pair: Any, plain: list[tuple[list[int], list[int]]]
) -> None:
    for prompt, answer in plain[:5]:
        rounds = run(tiny_pair.target, Oracle([prompt + answer], lambda: True), prompt)
        assert tokens_of(rounds) == answer[:200]
        assert [step.num_accepted for step in rounds[1:]] == [7] * 25
        assert [step.num_trimmed for step in rounds[1:]] == [0] * 24 + [1]  # 1 + 25 * 8 - 1


def test_an_oracle_that_is_never_right_gives_one_token_a_round(
    tiny_pair: Any, plain: list[tuple[list[int], list[int]]]
) -> None:
    prompt, answer = plain[1]
    rounds = run(tiny_pair.target, Oracle([prompt + answer], lambda: False), prompt)
    assert tokens_of(rounds) == answer[:200]
    assert [step.num_accepted for step in rounds[1:]] == [0] * 199


def test_a_drafter_of_smaller_depth_drafts_that_many_and_changes_nothing(
    tiny_pair: Any, plain: list[tuple[list[int], list[int]]]
) -> None:
    drafter = type(tiny_pair.drafter)(tiny_pair.drafter.model, tiny_pair.target, num_proposals=3)
    prompt, answer = plain[2]
    rounds = run(tiny_pair.target, drafter, prompt)
    assert tokens_of(rounds) == answer[:200]
    assert {step.num_drafted for step in rounds[1:]} == {3}


@pytest.mark.parametrize(
    ("place", "num_kept"), [("first draft", 1), ("fourth draft", 4), ("bonus", 8)]
)
def test_a_stop_token_ends_the_answer_wherever_in_a_round_it_stands(
    tiny_pair: Any,
    plain: list[tuple[list[int], list[int]]],
    place: str,
    num_kept: int,
) -> None:
    prompt, answer = next(
        (prompt, answer)
        for prompt, answer in plain
        if answer[8 + num_kept] not in answer[: 8 + num_kept]
    )
    rounds = run(
        tiny_pair.target,
        Oracle([prompt + answer], lambda: True),
        prompt,
        stop_ids=frozenset({answer[8 + num_kept]}),
    )
    # One token from the prefill, eight from the first round, and the stop in the second.
    assert tokens_of(rounds) == answer[: 9 + num_kept]
    assert [len(step.tokens) for step in rounds] == [1, 8, num_kept]
    assert rounds[-1].finish_reason == "stop"
    assert rounds[-1].num_accepted == 7  # counted before trimming
    assert rounds[-1].num_trimmed == 8 - num_kept


def test_a_stop_token_of_the_prefill_ends_the_answer_at_once(
    tiny_pair: Any, plain: list[tuple[list[int], list[int]]]
) -> None:
    prompt, answer = plain[0]
    rounds = run(tiny_pair.target, tiny_pair.drafter, prompt, stop_ids=frozenset({answer[0]}))
    assert tokens_of(rounds) == answer[:1]
    assert rounds[0].finish_reason == "stop"


def test_stop_tokens_among_the_first_min_tokens_do_not_stop(
    tiny_pair: Any, plain: list[tuple[list[int], list[int]]]
) -> None:
    prompt, answer = plain[0]
    stops = frozenset(answer[:12])
    expected = next(n for n, token in enumerate(answer, start=1) if n > 12 and token in stops)
    rounds = run(tiny_pair.target, None, prompt, stop_ids=stops, min_tokens=12)
    assert tokens_of(rounds) == answer[:expected]
    assert rounds[-1].finish_reason == "stop"


@pytest.mark.parametrize("max_tokens", [1, 2, 9, 12, 16, 17, 18])
def test_max_tokens_cuts_inside_a_block(
    tiny_pair: Any, plain: list[tuple[list[int], list[int]]], max_tokens: int
) -> None:
    prompt, answer = plain[1]
    rounds = run(
        tiny_pair.target,
        Oracle([prompt + answer], lambda: True),
        prompt,
        max_tokens=max_tokens,
    )
    assert tokens_of(rounds) == answer[:max_tokens]
    assert rounds[-1].finish_reason == "length"
    assert all(step.num_drafted == 7 for step in rounds[1:])  # the whole block, to the end


def test_the_answer_may_end_at_the_very_end_of_the_cache(
    tiny_pair: Any, plain: list[tuple[list[int], list[int]]]
) -> None:
    prompt, answer = plain[3]
    kv_len = len(prompt) + 50
    for drafter in (None, tiny_pair.drafter, Oracle([prompt + answer], lambda: True)):
        rounds = run(tiny_pair.target, drafter, prompt, max_tokens=50, kv_len=kv_len)
        assert tokens_of(rounds) == answer[:50]


def test_the_answer_may_end_at_the_last_position_the_target_knows(tiny_pair: Any) -> None:
    limit = tiny_pair.target.config.max_position_embeddings
    prompt = [position % VOCAB_SIZE for position in range(limit - 20)]
    answers = [
        tokens_of(run(tiny_pair.target, drafter, prompt, max_tokens=20, kv_len=limit))
        for drafter in (None, tiny_pair.drafter)
    ]
    assert answers[0] == answers[1]
    with pytest.raises(LengthError, match=f"kv_len {limit + 1} is not in 1..{limit}"):
        new_workspace(tiny_pair.target, None, num_slots=1, kv_len=limit + 1)


def test_a_slot_remembers_nothing_of_the_sequence_before(
    tiny_pair: Any, plain: list[tuple[list[int], list[int]]]
) -> None:
    batch = Batch(new_workspace(tiny_pair.target, tiny_pair.drafter, num_slots=1, kv_len=400))
    for prompt, answer in (plain[8], plain[2], plain[8]):
        (rounds,) = run_together(batch, [prompt], max_tokens=60)
        assert tokens_of(rounds) == answer[:60]


def test_a_prompt_longer_than_a_prefill_chunk_gives_the_same_answer(
    tiny_pair: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    prompt = prompts(12)[-1]
    whole = tokens_of(run(tiny_pair.target, tiny_pair.drafter, prompt, max_tokens=60))
    monkeypatch.setattr("engines.dflash2.decode.PREFILL_CHUNK_TOKENS", 11)
    chunked = run(tiny_pair.target, tiny_pair.drafter, prompt, max_tokens=60)
    assert tokens_of(chunked) == whole


def test_the_drafter_gets_the_features_of_the_accepted_tokens_and_of_no_others(
    tiny_pair: Any, plain: list[tuple[list[int], list[int]]]
) -> None:
    generator = torch.Generator().manual_seed(12)
    prompt, answer = plain[4]
    oracle = Oracle([prompt + answer], lambda: float(torch.rand(1, generator=generator)) < 0.6)
    run(tiny_pair.target, oracle, prompt, max_tokens=100)
    seen = torch.cat(oracle.contexts.features[0]).unsqueeze(0)
    ids = torch.tensor([(prompt + answer)[: seen.shape[1]]])
    assert seen.shape[1] > len(prompt) + 80
    torch.testing.assert_close(seen, tiny_pair.target(ids, tap_layer_ids=(1,)).features)


@pytest.mark.parametrize("with_drafter", [False, True])
def test_a_seed_repeats_a_sampled_answer(tiny_pair: Any, with_drafter: bool) -> None:
    drafter = tiny_pair.drafter if with_drafter else None
    answers = [
        tokens_of(
            run(
                tiny_pair.target,
                drafter,
                [5, 6],
                max_tokens=40,
                sampling=SamplingParams(temperature=0.9, top_p=0.95, top_k=20, seed=seed),
            )
        )
        for seed in (1, 1, 2)
    ]
    assert answers[0] == answers[1] != answers[2]


def test_sampled_tokens_with_the_drafter_are_distributed_as_the_target_says(
    tiny_pair: Any,
) -> None:
    """Two tokens after a prompt, drafted, against the target's own probabilities of both."""
    target, prompt = tiny_pair.target, [5, 6, 7]
    sampling = SamplingParams(temperature=0.6, top_k=3)
    counts: Counter[tuple[int, int]] = Counter()
    num_draws = 700
    for seed in range(num_draws):
        seeded = dataclasses.replace(sampling, seed=seed)
        rounds = run(target, tiny_pair.drafter, prompt, max_tokens=2, sampling=seeded, kv_len=16)
        first, second = tokens_of(rounds)
        counts[first, second] += 1
    chi2, num_cells = 0.0, 0
    for first, p_first in probabilities(target, prompt, sampling).items():
        for second, p_second in probabilities(target, [*prompt, first], sampling).items():
            expected = num_draws * p_first * p_second
            chi2 += (counts.pop((first, second), 0) - expected) ** 2 / expected
            num_cells += 1
    assert not counts  # nothing that top-k forbids
    assert num_cells == 9
    assert chi2 < 26.1  # 8 degrees of freedom, p = 0.001


def probabilities(
    target: Qwen3ForCausalLM, ids: list[int], sampling: SamplingParams
) -> dict[int, float]:
    """The definition of temperature and top-k, on the logits after ids."""
    logits = target.logits(target(torch.tensor([ids])).hidden)[0, -1]
    best = sorted(range(VOCAB_SIZE), key=lambda token: -float(logits[token]))[: sampling.top_k]
    weights = torch.softmax(logits[best] / sampling.temperature, -1).tolist()
    return dict(zip(best, weights, strict=True))


def ticking() -> Callable[[], float]:
    ticks: Iterator[float] = iter(float(second) for second in range(10_000))
    return lambda: next(ticks)


def test_drafting_and_verifying_are_timed_apart(tiny_pair: Any) -> None:
    drafted = run(tiny_pair.target, tiny_pair.drafter, [1], max_tokens=5, clock=ticking())
    assert (drafted[0].draft_s, drafted[0].verify_s) == (0.0, 1.0)
    # Proposing, and taking in what was accepted; the target's pass is between the two.
    assert {(step.draft_s, step.verify_s) for step in drafted[1:]} == {(2.0, 1.0)}
    plain_steps = run(tiny_pair.target, None, [1], max_tokens=5, clock=ticking())
    assert {(step.draft_s, step.verify_s) for step in plain_steps} == {(0.0, 1.0)}


@pytest.mark.parametrize(
    ("prompt", "options", "message"),
    [
        ([], {}, "the prompt has no tokens"),
        ([1], {"max_tokens": 0}, "max_tokens is 0; ask for at least one"),
        (
            [1] * 10,
            {"max_tokens": 7, "kv_len": 16},
            "10 prompt tokens and max_tokens 7 do not fit kv_len 16",
        ),
    ],
)
def test_requests_that_cannot_be_answered_are_refused_before_anything_runs(
    tiny_pair: Any, prompt: list[int], options: dict[str, int], message: str
) -> None:
    settings: dict[str, Any] = {"max_tokens": 5, "kv_len": 400, **options}
    with pytest.raises(LengthError, match=message):
        generate(
            tiny_pair.target,
            None,
            prompt,
            sampling=GREEDY,
            stop_ids=frozenset(),
            **settings,
        )


def test_gradients_are_off_during_a_round_and_as_before_between_rounds(tiny_pair: Any) -> None:
    rounds = generate(
        tiny_pair.target,
        tiny_pair.drafter,
        [1],
        max_tokens=10,
        sampling=GREEDY,
        stop_ids=frozenset(),
        kv_len=20,
    )
    next(rounds)
    assert not torch.is_inference_mode_enabled()
    next(rounds)
    assert not torch.is_inference_mode_enabled()
