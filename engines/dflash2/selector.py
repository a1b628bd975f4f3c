"""The candidate selector: which of each row's sixteen best tokens, given the one before it.

A row of the block predicts its token without knowing its neighbours' choices. The selector adds,
to a candidate's own logit, how well it follows its predecessor, and walks from left to right.
Drafts are a proposal only; whatever happens here, the target decides.
"""

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from engines.dflash2.drafting import Draft
from engines.dflash2.layers import Linear
from engines.dflash2.top_k import top_candidates


class NonFiniteError(ArithmeticError):
    """NaN or infinity among scores: the pass before overflowed, and no choice means anything."""


class CandidateSelector(nn.Module):
    def __init__(self, vocab_size: int, hidden_size: int, rank: int, top_k: int) -> None:
        super().__init__()
        self.top_k = top_k
        self.hidden_projection = Linear(hidden_size, rank)
        self.predecessor_codebook = nn.Parameter(torch.zeros(vocab_size, rank))
        self.successor_codebook = nn.Parameter(torch.zeros(vocab_size, rank))

    def select(
        self,
        logits: Tensor,
        hidden: Tensor,
        anchors: Tensor,
        *,
        temperatures: Sequence[float],
        generators: Sequence[torch.Generator | None],
    ) -> list[Draft]:
        """Propose a token for each row of each sequence.

        logits: [batch, k, vocabulary]; hidden: [batch, k, hidden]; anchors: [batch].
        """
        candidates, scores = self.lattice(logits, hidden, anchors)
        choices, probabilities = choose(scores, temperatures, generators)
        path = torch.tensor([walk(each) for each in choices.tolist()], device=scores.device)
        # The predecessor of a row is what the row before it chose; of the first, the anchor.
        predecessors = path.roll(1, 1)
        predecessors[:, 0] = 0
        tokens = candidates.gather(2, path.unsqueeze(2)).squeeze(2).tolist()
        rows = probabilities[
            torch.arange(len(path)).unsqueeze(1), torch.arange(path.shape[1]), predecessors
        ]
        return [
            Draft(tokens=tuple(own), candidates=candidates[number], probabilities=rows[number])
            for number, own in enumerate(tokens)
        ]

    def lattice(self, logits: Tensor, hidden: Tensor, anchors: Tensor) -> tuple[Tensor, Tensor]:
        """Score every candidate after every candidate of the row before it.

        -> candidates: [batch, k, c]; scores: [batch, k, c predecessors, c successors], in at least
        float32, score = logit + sum over r of A[predecessor, r] * gate[r] * B[successor, r]. The
        first row's predecessors are the anchor, c times.
        """
        found = top_candidates(logits.flatten(0, 1), self.top_k)
        unary, candidates = (x.unflatten(0, logits.shape[:2]) for x in found)
        predecessors = candidates.roll(1, 1)
        predecessors[:, 0] = anchors.unsqueeze(1)
        scores = edge_scores(
            self.predecessor_codebook[predecessors],
            self.hidden_projection(hidden),
            self.successor_codebook[candidates],
            unary,
        )
        if not scores.isfinite().all():
            raise NonFiniteError(
                "the drafter's scores are not finite; compute in float32 or bfloat16 and check "
                "its weights (float16 overflows here)"
            )
        return candidates, scores


def edge_scores(before: Tensor, gate: Tensor, after: Tensor, unary: Tensor) -> Tensor:
    """unary[j, n] + sum over r of before[j, m, r] * gate[j, r] * after[j, n, r].

    before, after: [..., k, c, rank]; gate: [..., k, rank]; unary: [..., k, c] -> [..., k,
    c predecessors, c successors], in at least float32.
    """
    follows = (before * gate.unsqueeze(-2)) @ after.transpose(-1, -2)
    wide = torch.promote_types(unary.dtype, torch.float32)
    return follows.to(wide) + unary.to(wide).unsqueeze(-2)


def choose(
    scores: Tensor, temperatures: Sequence[float], generators: Sequence[torch.Generator | None]
) -> tuple[Tensor, Tensor]:
    """Each candidate's successor, and the distribution that it was drawn from.

    scores: [batch, k, c, c] -> [batch, k, c] indices, [batch, k, c, c]. At temperature 0 the best
    candidate, else one drawn from softmax(scores / temperature).
    """
    choices = scores.argmax(-1)  # the first of equals: the smaller id, see top_candidates
    probabilities = torch.zeros_like(scores).scatter_(-1, choices.unsqueeze(-1), 1.0)
    for number, (temperature, generator) in enumerate(zip(temperatures, generators, strict=True)):
        if temperature > 0:
            drawn_from = torch.softmax(scores[number] / temperature, -1)
            drawn = drawn_from.flatten(0, 1).multinomial(1, generator=generator)
            probabilities[number], choices[number] = drawn_from, drawn.view(choices.shape[1:])
    return choices, probabilities


def walk(choices: list[list[int]]) -> list[int]:
    """Follow the choice of each row, given the index that the row before it chose.

    choices: [k, c]: for each predecessor, the index of the successor. In the first row all
    predecessors are the same.
    """
    path: list[int] = []
    for by_predecessor in choices:
        path.append(by_predecessor[path[-1] if path else 0])
    return path
