"""Training unrolls the MTP head as serving runs it."""

from random import Random
from typing import Any

import torch

from engines.demo.train.generate import Answers
from engines.demo.train.train_mtp import DEPTH, initialise, losses, next_inputs, unrolled
from engines.dflash2.drafting import Committed
from engines.dflash2.mtp import MTPDrafter, MTPHead

from .conftest import TINY_HYBRID, randomised


def test_every_depth_of_training_is_a_step_of_a_served_draft(make_hybrid: Any) -> None:
    """A sequence that goes on as it is drafted: each depth's row must say the drafted token."""
    target, head = make_hybrid(seed=61), randomised(MTPHead(TINY_HYBRID), 62)
    drafter = MTPDrafter(head, target, num_proposals=DEPTH)
    generator = torch.Generator().manual_seed(63)
    hidden = torch.randn(1, 30, 48, generator=generator, dtype=torch.float64)
    tokens = torch.randint(0, 96, (1, 31), generator=generator)
    for origin in (0, 7, 20):
        contexts = drafter.new_contexts(1, 40)
        rows = slice(0, origin + 1)
        seen = Committed(
            hidden=hidden[:, rows],
            features=None,
            num_rows=(origin + 1,),
            next_tokens=tokens[:, 1 : origin + 2],
        )
        drafter.append_context(seen, contexts, range(1))
        (draft,) = drafter.propose(
            [int(tokens[0, origin + 1])], contexts, range(1),
            temperatures=[0.0], generators=[generator],
        )  # fmt: skip
        tokens[0, origin + 2 : origin + 2 + DEPTH] = torch.tensor(draft.tokens)
        depths = unrolled(head, target.embedding_weight, hidden, tokens)
        said = [int(target.logits(row[0, origin + at]).argmax()) for at, row in enumerate(depths)]
        assert tuple(said) == draft.tokens


def two_answers() -> Answers:
    generator = torch.Generator().manual_seed(65)
    return Answers(
        num_prompt=6,
        tokens=torch.randint(0, 96, (2, 20), generator=generator),
        num_tokens=torch.tensor([20, 14]),
        features=torch.zeros(2, 19, 1),
        hidden=torch.randn(2, 19, 48, generator=generator),
    )


def test_the_head_begins_as_the_last_layer_on_its_best_guessed_input(make_hybrid: Any) -> None:
    target, answers, head = make_hybrid(seed=67), two_answers(), MTPHead(TINY_HYBRID).double()
    initialise(head, target, [answers])
    last = target.model.layers[-1].state_dict()
    assert all(torch.equal(last[name], each) for name, each in head.layers[0].state_dict().items())
    inputs, wanted = next_inputs(head, target, answers)
    assert len(inputs) == 18 + 13  # of 20 and 14 tokens: a row behind, and a token behind that
    error = (inputs @ head.fc.weight.T - wanted).detach()
    assert float(error.pow(2).mean()) < 0.01 * float(wanted.pow(2).mean())


def test_only_an_answers_own_tokens_are_learned(make_hybrid: Any) -> None:
    target = make_hybrid(seed=64).float()
    head = randomised(MTPHead(TINY_HYBRID), 66).float()
    answers = two_answers()
    before, _ = losses(head, target, answers, Random(1))
    answers.tokens[1, 14:] = 5  # behind the end of the second answer
    after, _ = losses(head, target, answers, Random(1))
    assert torch.equal(before, after)
    answers.tokens[1, 13] = (answers.tokens[1, 13] + 1) % 96
    changed, _ = losses(head, target, answers, Random(1))
    assert not torch.equal(before, changed)
