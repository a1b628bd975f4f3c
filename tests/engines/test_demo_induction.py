"""The installed circuit looks at the token that followed the same five tokens before."""

import pytest
import torch

from engines.demo.train import induction
from engines.demo.train import model as model_module
from engines.demo.train.induction import SHAPE, install, lengthen
from engines.demo.train.model import TrainedTarget

LENGTH = 60


def attention_of_match_layer(
    target: TrainedTarget, ids: torch.Tensor, monkeypatch: pytest.MonkeyPatch
) -> torch.Tensor:
    """[heads, length, length]: written down by an attention in place of the model's own."""
    seen: list[torch.Tensor] = []

    def attention(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        future = torch.ones(q.shape[-2], q.shape[-2], dtype=torch.bool).triu(1)
        scores = (q @ k.transpose(-1, -2)).float() * q.shape[-1] ** -0.5
        seen.append(scores.masked_fill(future, float("-inf")).softmax(-1))
        return seen[-1].to(v.dtype) @ v

    monkeypatch.setattr(model_module, "causal_attention", attention)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        target(ids)
    return seen[induction.MATCH_LAYER][0]


def repeated_pairs() -> torch.Tensor:
    """[1, 240]: lines that all go through the same two tokens, twice over in one order.

    Two tokens before, a line names itself; so only a match of more than two tokens finds it.
    """
    names = torch.randperm(1000, generator=torch.Generator().manual_seed(4))[: 2 * LENGTH] + 100
    lines = [[int(a), 7, 9, int(b)] for a, b in names.view(-1, 2)[: LENGTH // 2]]
    text = [token for line in lines for token in line]
    return torch.tensor([text + text])


def share_on_the_right_token(target: TrainedTarget, monkeypatch: pytest.MonkeyPatch) -> float:
    """Mean attention, from the second `9` of each line on, to what followed it the first time."""
    ids = repeated_pairs()
    weights = attention_of_match_layer(target, ids, monkeypatch)
    half = ids.shape[1] // 2
    asking = torch.arange(half + 4 + 2, 2 * half, 4)  # the `9` of every line but the first
    return float(weights[0, asking, asking - half + 1].mean())


def test_five_matched_tokens_find_a_place_that_two_do_not(monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(0)
    target = TrainedTarget(SHAPE).requires_grad_(False)
    target.model.embed_tokens.weight += 0.02  # a trained stream has a direction all tokens share
    generator = torch.Generator().manual_seed(1)
    sample = torch.randint(100, SHAPE.vocab_size, (6, 300), generator=generator)
    install(target, sample)
    two = share_on_the_right_token(target, monkeypatch)
    monkeypatch.undo()
    lengthen(target, sample)
    five = share_on_the_right_token(target, monkeypatch)
    assert two < 0.2  # thirty places begin with the same two tokens
    assert five > 0.8
