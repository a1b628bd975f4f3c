"""Choosing tokens: the target's distribution, and the rule that makes drafting lossless.

Greedy output is the target's greedy output; a sampled token has exactly the target's processed
distribution, whatever the drafter proposed (Leviathan et al. 2023, theorem in appendix A.1).
Knows nothing of models, only logits and drafts. p: target's probabilities, q: drafter's.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from engines.dflash2.drafting import Draft
from engines.dflash2.selector import NonFiniteError
from engines.dflash2.top_k import top_candidates

# Drafts must not share the verifier's noise, or acceptance is no longer independent of the draft
# (vLLM #54282). torch's CPU generator looks at the low 32 bits of a seed only.
DRAFT_SEED_SALT = 0x5EED_D1F5


@dataclass(frozen=True, kw_only=True)
class SamplingParams:
    """How a request wants its tokens chosen. The draft side uses the temperature alone.

    Top-k and top-p shape what the target decides; a draft they forbid is rejected. Any proposal
    distribution is lossless, and this one is what the selector was trained for.
    """

    temperature: float = 0.0  # 0: greedy
    top_p: float = 1.0
    top_k: int = 0  # 0: off
    seed: int | None = None  # None: another one each time

    def __post_init__(self) -> None:
        if not 0 <= self.temperature < float("inf"):
            raise ValueError(f"temperature {self.temperature} is not 0 (greedy) or greater")
        if not 0 < self.top_p <= 1:
            raise ValueError(f"top_p {self.top_p} is not in (0, 1]; 1 turns it off")
        if self.top_k < 0:
            raise ValueError(f"top_k {self.top_k} is not 0 (off) or greater")

    @property
    def is_greedy(self) -> bool:
        return self.temperature == 0


@dataclass(frozen=True, kw_only=True)
class Generators:
    """Two independent streams of noise: one for proposing, one for deciding."""

    drafts: torch.Generator
    target: torch.Generator


def generators(seed: int | None, device: torch.device | str = "cpu") -> Generators:
    drafts, target = torch.Generator(device), torch.Generator(device)
    if seed is None:
        drafts.seed()
        target.seed()
    else:
        drafts.manual_seed(seed ^ DRAFT_SEED_SALT)
        target.manual_seed(seed)
    return Generators(drafts=drafts, target=target)


@dataclass(frozen=True, kw_only=True)
class Accepted:
    num_accepted: int  # length of the draft's prefix that stays
    next_token: int  # the target's own: a correction, or the bonus where all were accepted


def accept_each(
    drafts: Sequence[Draft | None],
    logits: Tensor,
    samplings: Sequence[SamplingParams],
    noise: Sequence[torch.Generator],
) -> list[Accepted | NonFiniteError]:
    """Decide a round for each sequence, by its own settings and with its own generator.

    logits: [batch, k + 1, vocabulary], after the anchor and after each draft. A sequence whose
    logits are not numbers gets an error; the others do not notice.
    """
    best, tokens = logits.max(-1)  # of equals the smaller id
    is_broken = best.isnan().any(-1).tolist()
    return [
        NonFiniteError(
            "the target's logits are not numbers; compute in float32 or bfloat16 and check its "
            "weights (float16 overflows)"
        )
        if broken
        else accept(draft, greedy, rows, sampling, generator)
        for draft, greedy, rows, sampling, generator, broken in zip(
            drafts, tokens.tolist(), logits, samplings, noise, is_broken, strict=True
        )
    ]


def accept(
    draft: Draft | None,
    greedy: Sequence[int],
    logits: Tensor,
    sampling: SamplingParams,
    generator: torch.Generator,
) -> Accepted:
    """Decide one sequence's round. greedy: [k + 1], the best of each row of logits."""
    if sampling.is_greedy:
        return accept_greedy(() if draft is None else draft.tokens, greedy)
    p = target_probabilities(logits, sampling)
    if draft is None:
        return Accepted(num_accepted=0, next_token=draw(p[0], generator))
    return accept_sampled(draft, p, generator)


def accept_greedy(draft: Sequence[int], target: Sequence[int]) -> Accepted:
    """Keep the draft's longest prefix that the target agrees with, then the target's own token.

    draft: [k] proposed tokens; target: [k + 1], the target's best after the anchor and each draft.
    """
    num_accepted = 0
    while num_accepted < len(draft) and draft[num_accepted] == target[num_accepted]:
        num_accepted += 1
    return Accepted(num_accepted=num_accepted, next_token=target[num_accepted])


def accept_sampled(draft: Draft, p: Tensor, generator: torch.Generator) -> Accepted:
    """Keep each draft with probability min(1, p / q), up to the first that is rejected.

    p: [k + 1, vocabulary], processed. The token after the kept ones is drawn from the residual
    max(p - q, 0) of the rejected row, or from the last row of p where all were kept.
    """
    num_drafted = len(draft.tokens)
    tokens = torch.tensor(draft.tokens, device=p.device).unsqueeze(1)
    q_of_draft = (draft.probabilities * (draft.candidates == tokens)).sum(-1)
    p_of_draft = p[:num_drafted].gather(1, tokens).squeeze(1)
    u = torch.rand(num_drafted, generator=generator, dtype=p.dtype, device=p.device)
    num_accepted = int((u * q_of_draft < p_of_draft).long().cumprod(0).sum())
    if num_accepted == num_drafted:
        return Accepted(num_accepted=num_accepted, next_token=draw(p[-1], generator))
    rest = residual(
        p[num_accepted], draft.candidates[num_accepted], draft.probabilities[num_accepted]
    )
    return Accepted(num_accepted=num_accepted, next_token=draw(rest, generator))


def residual(p: Tensor, candidates: Tensor, q: Tensor) -> Tensor:
    """norm(max(p - q, 0)), or p where nothing is left.

    p: [vocabulary]; q: [c], the draft's probabilities of `candidates`, zero everywhere else.
    """
    rest = p.scatter_add(0, candidates, -q.to(p.dtype)).clamp_(min=0)
    total = rest.sum()
    return rest / total if total > 0 else p


def target_probabilities(logits: Tensor, sampling: SamplingParams) -> Tensor:
    """What the target draws from: temperature, then top-k, softmax, top-p, and normalised again.

    logits: [rows, vocabulary] -> probabilities of the same shape, in at least float32. Top-p keeps
    the tokens before which less than top_p of the mass lies, so the first always stays.
    """
    scores = logits.to(torch.promote_types(logits.dtype, torch.float32)) / sampling.temperature
    if 0 < sampling.top_k < scores.shape[-1]:
        best, ids = top_candidates(scores, sampling.top_k)
        scores = torch.full_like(scores, -torch.inf).scatter_(-1, ids, best)
    p = torch.softmax(scores, -1)
    if sampling.top_p < 1:
        ordered, ids = p.sort(dim=-1, descending=True, stable=True)
        left_out = ordered.cumsum(-1) - ordered >= sampling.top_p
        left_out[..., 0] = False  # where top_p is so small that float32 takes it for 0
        ordered[left_out] = 0
        p = torch.zeros_like(p).scatter_(-1, ids, ordered)
        p /= p.sum(-1, keepdim=True)
    return p


@dataclass(frozen=True, kw_only=True)
class Likely:
    token: int
    logprob: float  # natural logarithm


def likeliest_tokens(logits: Tensor, num_tokens: int) -> tuple[Likely, ...]:
    """The target's own odds, before temperature and cuts, best first; of equals the smaller id.

    logits: [1, vocabulary].
    """
    if num_tokens == 0:
        return ()
    scores = logits.to(torch.promote_types(logits.dtype, torch.float32))
    odds = torch.log_softmax(scores, -1)
    best, ids = top_candidates(odds, min(num_tokens, odds.shape[-1]))
    return tuple(
        Likely(token=token, logprob=logprob)
        for token, logprob in zip(ids[0].tolist(), best[0].tolist(), strict=True)
        if logprob > -torch.inf  # a token that cannot come is not likely
    )


def draw(p: Tensor, generator: torch.Generator) -> int:
    """One token from [vocabulary]."""
    return int(p.multinomial(1, generator=generator))
