"""The selector: its scores, its walk, its ties, and the distribution it says it drew from."""

import math
from typing import Any

import pytest
import torch
from torch import Tensor

from engines.dflash2.drafting import Draft
from engines.dflash2.selector import CandidateSelector, NonFiniteError, edge_scores, walk


@pytest.fixture(scope="module")
def selector() -> CandidateSelector:
    generator = torch.Generator().manual_seed(0)
    selector = CandidateSelector(vocab_size=40, hidden_size=6, rank=5, top_k=4)
    for parameter in selector.requires_grad_(False).parameters():
        parameter.copy_(torch.randn(parameter.shape, generator=generator))
    return selector


@pytest.fixture(scope="module")
def block() -> tuple[Tensor, Tensor]:
    """Logits and hidden rows of seven masks."""
    generator = torch.Generator().manual_seed(1)
    return torch.randn(7, 40, generator=generator), torch.randn(7, 6, generator=generator)


def select(
    selector: CandidateSelector,
    logits: Tensor,
    hidden: Tensor,
    anchor: int,
    *,
    temperature: float,
    generator: Any,
) -> Draft:
    (draft,) = selector.select(
        logits[None],
        hidden[None],
        torch.tensor([anchor]),
        temperatures=[temperature],
        generators=[generator],
    )
    return draft


def lattice(
    selector: CandidateSelector, logits: Tensor, hidden: Tensor, anchor: int
) -> tuple[Tensor, Tensor]:
    (candidates,), (scores,) = selector.lattice(logits[None], hidden[None], torch.tensor([anchor]))
    return candidates, scores


def score(
    selector: CandidateSelector, logits: Tensor, hidden: Tensor, before: int, token: int
) -> float:
    """The definition, term by term: logit + sum of A[before] * gate * B[token]."""
    gate = selector.hidden_projection.weight @ hidden
    terms = selector.predecessor_codebook[before] * gate * selector.successor_codebook[token]
    return float(logits[token]) + math.fsum(terms.tolist())


def test_greedy_walk_takes_the_best_candidate_after_the_one_it_took_before(
    selector: CandidateSelector, block: tuple[Tensor, Tensor]
) -> None:
    before, expected = 23, []
    for logits, hidden in zip(*block, strict=True):
        candidates = sorted(range(40), key=lambda token: -float(logits[token]))[:4]
        scores = {c: score(selector, logits, hidden, before, c) for c in candidates}
        before = max(scores, key=lambda token: scores[token])
        expected.append(before)
    draft = select(selector, *block, 23, temperature=0, generator=None)
    assert list(draft.tokens) == expected


def test_the_lattice_scores_each_candidate_after_each_candidate_of_the_row_before(
    selector: CandidateSelector, block: tuple[Tensor, Tensor]
) -> None:
    candidates, scores = lattice(selector, *block, 23)
    logits, hidden = block
    for row in range(7):
        befores = [23] * 4 if row == 0 else candidates[row - 1].tolist()
        for i, before in enumerate(befores):
            for n, token in enumerate(candidates[row].tolist()):
                expected = score(selector, logits[row], hidden[row], before, token)
                assert float(scores[row, i, n]) == pytest.approx(expected, abs=1e-4)


def test_a_greedy_draft_says_it_was_certain(
    selector: CandidateSelector, block: tuple[Tensor, Tensor]
) -> None:
    draft = select(selector, *block, 23, temperature=0, generator=None)
    certain = draft.candidates[draft.probabilities == 1]
    assert tuple(certain.tolist()) == draft.tokens
    assert draft.probabilities.sum() == 7


def test_a_low_temperature_draws_the_greedy_walk(
    selector: CandidateSelector, block: tuple[Tensor, Tensor]
) -> None:
    generator = torch.Generator().manual_seed(2)
    cold = select(selector, *block, 23, temperature=1e-4, generator=generator)
    greedy = select(selector, *block, 23, temperature=0, generator=None)
    assert cold.tokens == greedy.tokens
    torch.testing.assert_close(cold.probabilities, greedy.probabilities)


def test_each_token_is_drawn_from_the_distribution_that_the_draft_reports(
    selector: CandidateSelector, block: tuple[Tensor, Tensor]
) -> None:
    generator, num_draws = torch.Generator().manual_seed(3), 4000
    logits, hidden = block
    counts: dict[tuple[int, int], int] = {}
    for _ in range(num_draws):
        draft = select(selector, logits[:2], hidden[:2], 23, temperature=0.7, generator=generator)
        first, second = draft.tokens
        counts[first, second] = counts.get((first, second), 0) + 1
        row = {
            c: math.exp(score(selector, logits[1], hidden[1], first, c) / 0.7)
            for c in draft.candidates[1].tolist()
        }
        q = [weight / sum(row.values()) for weight in row.values()]
        assert draft.probabilities[1].tolist() == pytest.approx(q, abs=1e-4)
    candidates, scores = lattice(selector, logits[:2], hidden[:2], 23)
    q = torch.softmax(scores / 0.7, -1)
    chi2 = 0.0
    for i, first in enumerate(candidates[0].tolist()):
        for n, second in enumerate(candidates[1].tolist()):
            expected = num_draws * float(q[0, 0, i] * q[1, i, n])
            chi2 += (counts.get((first, second), 0) - expected) ** 2 / expected
    assert chi2 < 37.7  # 15 degrees of freedom, p = 0.001


def test_sequences_of_a_batch_draw_with_their_own_temperature_and_noise(
    selector: CandidateSelector,
) -> None:
    noise = torch.Generator().manual_seed(5)
    logits = torch.randn(3, 7, 40, generator=noise)
    hidden = torch.randn(3, 7, 6, generator=noise)
    anchors, temperatures = [23, 5, 11], [0.0, 0.7, 1.5]
    together = selector.select(
        logits,
        hidden,
        torch.tensor(anchors),
        temperatures=temperatures,
        generators=[torch.Generator().manual_seed(seed) for seed in range(3)],
    )
    for index, draft in enumerate(together):
        alone = select(
            selector,
            logits[index],
            hidden[index],
            anchors[index],
            temperature=temperatures[index],
            generator=torch.Generator().manual_seed(index),
        )
        assert draft.tokens == alone.tokens
        torch.testing.assert_close(draft.probabilities, alone.probabilities)


def test_the_smaller_id_wins_a_tie_of_scores(selector: CandidateSelector) -> None:
    logits = torch.zeros(2, 40)
    logits[:, [31, 7, 12, 25]] = 3.0
    draft = select(selector, logits, torch.zeros(2, 6), 0, temperature=0, generator=None)
    assert draft.candidates.tolist() == [[7, 12, 25, 31]] * 2
    assert draft.tokens == (7, 7)


@pytest.mark.parametrize("wrong", [math.nan, math.inf])
def test_scores_that_are_not_finite_are_an_error(
    selector: CandidateSelector, block: tuple[Tensor, Tensor], wrong: float
) -> None:
    logits, hidden = block[0].clone(), block[1].clone()
    logits[3, 17] = wrong
    with pytest.raises(NonFiniteError, match="float16 overflows"):
        select(selector, logits, hidden, 23, temperature=0, generator=None)
    hidden[3, 2] = wrong
    with pytest.raises(NonFiniteError):
        select(selector, block[0], hidden, 23, temperature=1.0, generator=torch.Generator())


def test_all_1792_scores_are_within_the_published_bound_of_a_float64_reference() -> None:
    """gamma(rank + 2) * sum |A gate B| + 2u / (1 - u) * |score|, u: float32's unit roundoff."""
    noise = torch.Generator().manual_seed(4)
    rank, u = 256, 2.0**-24
    before, after = (torch.randn(7, 16, rank, generator=noise) for _ in range(2))
    gate, unary = torch.randn(7, rank, generator=noise), torch.randn(7, 16, generator=noise)
    scores = edge_scores(before, gate, after, unary)
    terms = torch.einsum("jmr,jr,jnr->jmnr", before.double(), gate.double(), after.double())
    reference = terms.sum(-1) + unary.double().unsqueeze(1)
    gamma = (rank + 2) * u / (1 - (rank + 2) * u)
    bound = gamma * terms.abs().sum(-1) + 2 * u / (1 - u) * reference.abs()
    assert scores.numel() == 1792
    assert ((scores.double() - reference).abs() <= bound).all()


def test_a_walk_follows_the_index_that_the_row_before_chose() -> None:
    assert walk([[1, 1, 1], [0, 2, 0], [5, 6, 7]]) == [1, 2, 7]
