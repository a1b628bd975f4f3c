"""Which tokens stay: published vectors, and the distribution of what comes out."""

import math
from collections import Counter

import pytest
import torch
from torch import Tensor

from engines.dflash2.drafting import Draft
from engines.dflash2.sampling import (
    Accepted,
    SamplingParams,
    accept_each,
    accept_greedy,
    accept_sampled,
    draw,
    generators,
    likeliest_tokens,
    residual,
    target_probabilities,
)
from engines.dflash2.selector import NonFiniteError

P = torch.tensor([0.1, 0.2, 0.3, 0.25, 0.1, 0.05])
CANDIDATES = torch.tensor([2, 0, 4, 5])
Q = torch.tensor([0.5, 0.3, 0.15, 0.05])


def decide(
    draft: Draft | None,
    logits: Tensor,
    sampling: SamplingParams,
    generator: torch.Generator | None = None,
) -> Accepted | NonFiniteError:
    (result,) = accept_each([draft], logits[None], [sampling], [generator or torch.Generator()])
    return result


def draft_of(tokens: tuple[int, ...], candidates: Tensor, q: Tensor) -> Draft:
    rows = len(tokens)
    return Draft(
        tokens=tokens,
        candidates=candidates.expand(rows, -1),
        probabilities=q.expand(rows, -1),
    )


@pytest.mark.parametrize(("token", "probability"), [(2, 0.6), (0, 1 / 3), (4, 2 / 3), (5, 1.0)])
def test_a_draft_is_accepted_as_often_as_the_published_vector_says(
    token: int, probability: float
) -> None:
    generator, num_trials = torch.Generator().manual_seed(0), 3000
    draft, p = draft_of((token,), CANDIDATES, Q), torch.stack((P, P))
    accepted = sum(accept_sampled(draft, p, generator).num_accepted for _ in range(num_trials))
    deviation = math.sqrt(probability * (1 - probability) / num_trials)
    assert accepted / num_trials == pytest.approx(probability, abs=3.3 * deviation)


def test_residual_is_the_published_vector() -> None:
    expected = [0, 0.4444, 0, 0.5556, 0, 0]
    assert residual(P, CANDIDATES, Q).tolist() == pytest.approx(expected, abs=1e-4)


def test_residual_is_the_target_itself_where_nothing_is_left() -> None:
    p = torch.tensor([0.25, 0.75])
    assert torch.equal(residual(p, torch.tensor([1, 0]), torch.tensor([0.75, 0.25])), p)


def test_residual_of_a_certain_draft_is_the_target_without_it() -> None:
    p = torch.tensor([0.5, 0.2, 0.3])
    rest = residual(p, torch.tensor([0]), torch.tensor([1.0]))
    assert rest.tolist() == pytest.approx([0, 0.4, 0.6])


@pytest.mark.parametrize(
    ("sampling", "expected"),
    [
        (SamplingParams(temperature=0.8, top_k=4, top_p=0.75), [0.7773, 0.2227, 0, 0, 0]),
        (SamplingParams(temperature=1, top_p=0.9), [0.5793, 0.2131, 0.0784, 0, 0.1293]),
    ],
)
def test_processing_gives_the_published_vectors(
    sampling: SamplingParams, expected: list[float]
) -> None:
    logits = torch.tensor([[2.0, 1.0, 0.0, -1.0, 0.5]])
    p = target_probabilities(logits, sampling)[0]
    assert p.tolist() == pytest.approx(expected, abs=1e-4)


def test_a_top_p_of_nearly_nothing_keeps_the_best_token() -> None:
    sampling = SamplingParams(temperature=1, top_p=1e-9)
    assert target_probabilities(torch.tensor([[0.0, 2, 1]]), sampling).tolist() == [[0, 1, 0]]


def test_a_top_k_beyond_the_vocabulary_keeps_everything() -> None:
    logits = torch.tensor([[0.0, 2, 1]])
    everything = target_probabilities(logits, SamplingParams(temperature=1))
    assert torch.equal(
        target_probabilities(logits, SamplingParams(temperature=1, top_k=10)), everything
    )


def test_greedy_keeps_the_prefix_the_target_agrees_with_and_adds_its_own_token() -> None:
    assert accept_greedy([5, 6, 7], [5, 6, 8, 9]) == Accepted(num_accepted=2, next_token=8)
    assert accept_greedy([5, 6, 7], [4, 6, 7, 9]) == Accepted(num_accepted=0, next_token=4)
    assert accept_greedy([5, 6, 7], [5, 6, 7, 9]) == Accepted(num_accepted=3, next_token=9)
    assert accept_greedy([], [4]) == Accepted(num_accepted=0, next_token=4)


def test_the_smaller_id_wins_a_tie_of_logits() -> None:
    logits = torch.zeros(1, 1000)
    logits[0, [977, 41, 600]] = 1.0
    assert decide(None, logits, SamplingParams()) == Accepted(num_accepted=0, next_token=41)


def random_distribution(generator: torch.Generator, *shape: int) -> Tensor:
    return torch.softmax(1.5 * torch.randn(*shape, generator=generator), -1)


def test_the_first_token_is_distributed_as_the_target_whatever_the_drafter() -> None:
    generator, num_draws = torch.Generator().manual_seed(4), 40_000
    p = random_distribution(generator, 12)
    candidates = torch.tensor([7, 0, 3, 11])
    q = random_distribution(generator, 4)  # sparse: eight tokens are never proposed
    counts = torch.zeros(12)
    for choice in q.multinomial(num_draws, replacement=True, generator=generator).tolist():
        token = int(candidates[choice])
        result = accept_sampled(draft_of((token,), candidates, q), p.expand(2, -1), generator)
        counts[token if result.num_accepted else result.next_token] += 1
    assert float((counts / num_draws - p).abs().sum()) / 2 < 0.01


@pytest.mark.parametrize("drafts", ["sampled", "one-hot"])
def test_two_tokens_in_a_row_are_jointly_distributed_as_the_target(drafts: str) -> None:
    generator, num_draws = torch.Generator().manual_seed(5), 8_000
    p_first = random_distribution(generator, 4)
    p_second = random_distribution(generator, 4, 4)  # by the first token
    q_first, q_second = random_distribution(generator, 4), random_distribution(generator, 4, 4)
    if drafts == "one-hot":
        q_first, q_second = (
            torch.zeros_like(q).scatter_(-1, q.argmax(-1, keepdim=True), 1.0)
            for q in (q_first, q_second)
        )
    counts: Counter[tuple[int, int]] = Counter()
    for _ in range(num_draws):
        first = draw(q_first, generator)
        second = draw(q_second[first], generator)
        draft = Draft(
            tokens=(first, second),
            candidates=torch.arange(4).expand(2, -1),
            probabilities=torch.stack((q_first, q_second[first])),
        )
        p = torch.stack((p_first, p_second[first], torch.full((4,), 0.25)))
        result = accept_sampled(draft, p, generator)
        emitted = (*draft.tokens[: result.num_accepted], result.next_token)
        if len(emitted) == 1:  # the next round would begin after it
            emitted = (*emitted, draw(p_second[emitted[0]], generator))
        counts[emitted[0], emitted[1]] += 1
    expected = num_draws * p_first.unsqueeze(1) * p_second
    chi2 = sum(
        (counts[i, j] - float(expected[i, j])) ** 2 / float(expected[i, j])
        for i in range(4)
        for j in range(4)
    )
    assert chi2 < 37.7  # 15 degrees of freedom, p = 0.001


def test_drafts_drawn_from_the_target_itself_are_always_accepted() -> None:
    generator = torch.Generator().manual_seed(6)
    for _ in range(300):
        p = random_distribution(generator, 8, 12)
        tokens = tuple(p[:7].multinomial(1, generator=generator).flatten().tolist())
        draft = Draft(tokens=tokens, candidates=torch.arange(12).expand(7, -1), probabilities=p[:7])
        assert accept_sampled(draft, p, generator).num_accepted == 7


def test_a_certain_draft_is_accepted_with_the_targets_probability_or_replaced() -> None:
    generator, num_draws = torch.Generator().manual_seed(7), 6_000
    p = torch.tensor([0.5, 0.2, 0.3])
    draft = draft_of((1,), torch.tensor([1]), torch.tensor([1.0]))
    counts = [0, 0, 0]
    for _ in range(num_draws):
        result = accept_sampled(draft, p.expand(2, -1), generator)
        counts[1 if result.num_accepted else result.next_token] += 1
    chi2 = sum((c - num_draws * x) ** 2 / (num_draws * x) for c, x in zip(counts, p, strict=True))
    assert chi2 < 13.8  # 2 degrees of freedom, p = 0.001


def test_a_draft_that_top_k_forbids_is_never_accepted() -> None:
    generator = torch.Generator().manual_seed(8)
    logits = torch.tensor([[3.0, 2, 1]]).expand(2, -1)
    draft = draft_of((2,), torch.tensor([2]), torch.tensor([1.0]))
    sampling = SamplingParams(temperature=1, top_k=2)
    results = [decide(draft, logits, sampling, generator) for _ in range(200)]
    assert {r.num_accepted for r in results} == {0}
    assert {r.next_token for r in results} == {0, 1}


def test_seeds_repeat_both_streams_and_the_streams_differ() -> None:
    one, two = generators(1234), generators(1234)
    drafts, target = (torch.rand(50, generator=g) for g in (one.drafts, one.target))
    assert torch.equal(drafts, torch.rand(50, generator=two.drafts))
    assert torch.equal(target, torch.rand(50, generator=two.target))
    assert not torch.equal(drafts, target)


def test_without_a_seed_every_request_draws_differently() -> None:
    one, two = (torch.rand(50, generator=generators(None).target) for _ in range(2))
    assert not torch.equal(one, two)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"temperature": -1.0}, "temperature -1.0 is not 0"),
        ({"temperature": math.nan}, "temperature nan"),
        ({"temperature": math.inf}, "temperature inf"),
        ({"top_p": 0.0}, r"top_p 0.0 is not in \(0, 1\]"),
        ({"top_p": 1.5}, "top_p 1.5"),
        ({"top_k": -1}, "top_k -1"),
    ],
)
def test_parameters_that_mean_nothing_are_refused(wrong: dict[str, float], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        SamplingParams(**wrong)  # type: ignore[arg-type]


@pytest.mark.parametrize("sampling", [SamplingParams(), SamplingParams(temperature=1)])
def test_logits_that_are_not_numbers_are_an_error(sampling: SamplingParams) -> None:
    logits = torch.tensor([[0.0, math.nan, 1.0]])
    error = decide(None, logits, sampling)
    assert isinstance(error, NonFiniteError)
    assert "not numbers" in str(error)


def test_sequences_of_a_batch_are_decided_by_their_own_settings_and_noise() -> None:
    noise = torch.Generator().manual_seed(9)
    logits = 2 * torch.randn(5, 3, 12, generator=noise)
    logits[3, 1, 7] = math.nan
    drafts = [
        draft_of((seed, seed + 1), torch.tensor([seed, seed + 1]), torch.tensor([0.5, 0.5]))
        for seed in range(5)
    ]
    samplings = [
        SamplingParams(),
        SamplingParams(temperature=0.8),
        SamplingParams(temperature=1.5, top_k=3),
        SamplingParams(),
        SamplingParams(temperature=1, top_p=0.6),
    ]
    together = accept_each(drafts, logits, samplings, [generators(n).target for n in range(5)])
    for index, result in enumerate(together):
        alone = decide(drafts[index], logits[index], samplings[index], generators(index).target)
        if index == 3:
            assert isinstance(result, NonFiniteError)
            assert isinstance(alone, NonFiniteError)
        else:
            assert result == alone


def test_the_likeliest_token_stays_however_small_top_p_is() -> None:
    sampling = SamplingParams(temperature=1.0, top_p=1e-300)  # 0 in float32
    p = target_probabilities(torch.tensor([[1.0, 3.0, 2.0]]), sampling)
    assert p.tolist() == [[0.0, 1.0, 0.0]]


# --- what is likely ---


def test_likely_tokens_come_best_first_and_of_equals_the_smaller_id() -> None:
    # probabilities 1/2, 1/4, 1/4, 0: logits of them are their logarithms
    logits = torch.tensor([[0.25, 0.5, 0.25, 0.0]]).log()
    found = likeliest_tokens(logits, 4)
    assert [each.token for each in found] == [1, 0, 2]  # what cannot come is not likely
    assert [each.logprob for each in found] == pytest.approx([-math.log(2), *[-math.log(4)] * 2])
    assert [each.token for each in likeliest_tokens(logits, 1)] == [1]
    assert likeliest_tokens(logits, 0) == ()
    assert len(likeliest_tokens(torch.zeros(1, 3), 20)) == 3


def test_likely_tokens_of_bfloat16_logits_are_told_in_float32() -> None:
    (best, second) = likeliest_tokens(torch.tensor([[3.0, 1.0]], dtype=torch.bfloat16), 2)
    assert best.logprob - second.logprob == pytest.approx(2.0, abs=1e-6)
    assert best.logprob == pytest.approx(-math.log1p(math.exp(-2)), abs=1e-6)
