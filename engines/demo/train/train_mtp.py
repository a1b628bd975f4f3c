"""Trains the hybrid target's MTP head on the target's own answers; the target stays as it is.

The head is run as it will be served: once over the target's rows, then again and again on its own
output, each time one token further, and learns to predict the target's token at every depth. It
begins as a copy of the target's last layer, fed with the best linear guess at what that layer
reads one token later. The trained head is written into the target's own file, beside its weights,
as published checkpoints have it.

    python -m engines.demo.train.train_mtp --pair hybrid --work build/demo-hybrid --steps 400
"""

import argparse
from pathlib import Path
from random import Random
from statistics import fmean

import torch
import torch.nn.functional as F
from safetensors.torch import load_file
from torch import Tensor

from engines.demo.train.export import write_weights
from engines.demo.train.generate import Answers
from engines.demo.train.loop import Seen, by_kind, load_answers, run
from engines.demo.train.pairs import add_pair
from engines.dflash2.attention import additive_mask
from engines.dflash2.mtp import MTPHead
from engines.dflash2.target import Target
from engines.dflash2.weights import MTP_PREFIX, load_target

SEED = 3
DEPTH = 3  # tokens ahead that are trained
SEQUENCES = 2  # of each kind in one step
LATER_DEPTH_WEIGHT = 0.8
SAMPLE, RIDGE = 24, 1e-4  # answers of each kind that the first linear map is fitted to


class UnrolledCache:
    """Keys and values of the depths so far, side by side: what `CacheView.append` is in serving."""

    def __init__(self) -> None:
        self.keys: list[Tensor] = []
        self.values: list[Tensor] = []

    def append(self, layer: int, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
        self.keys.append(keys)
        self.values.append(values)
        return torch.cat(self.keys, 2), torch.cat(self.values, 2)


def depth_mask(depth: int, length: int, dtype: torch.dtype) -> Tensor:
    """[rows, keys]: who sees whom at a depth, whose keys stand behind those of the depths before.

    A row of depth d at place i began at the target's row i - d: it sees the target's rows up to
    there, and then its own past alone, one row of each depth between, and itself.
    """
    places = torch.arange(length)
    origins = (places - depth)[:, None]
    parts = [places <= origins, *(places == origins + step for step in range(1, depth + 1))]
    return additive_mask(torch.cat(parts, 1), dtype)


def unrolled(head: MTPHead, embedding: Tensor, hidden: Tensor, tokens: Tensor) -> list[Tensor]:
    """The head's rows at each depth: [batch, length, hidden], whose row i predicts token i + 2.

    hidden: [batch, length, hidden], the target's rows of all tokens but the last; tokens: [batch,
    length + 1]. The first d rows of depth d have no origin and mean nothing.
    """
    length = hidden.shape[1]
    embedded, positions = embedding[tokens[:, 1:]], torch.arange(length)
    cache, depths = UnrolledCache(), []
    for depth in range(DEPTH):
        mask = depth_mask(depth, length, hidden.dtype)
        if depth:
            hidden = F.pad(depths[-1], (0, 0, 1, 0))[:, :-1]
        depths.append(head(hidden, embedded, positions, mask, cache))
    return depths


def losses(
    head: MTPHead, target: Target, answers: Answers, random: Random
) -> tuple[Tensor, list[float]]:
    """The loss over all depths, and how often each depth's best token is the target's."""
    rows = random.sample(range(len(answers.tokens)), min(SEQUENCES, len(answers.tokens)))
    ends = answers.num_tokens[rows]
    tokens = answers.tokens[rows, : int(ends.max())]
    assert answers.hidden is not None, "answers of a pair with an MTP head keep it"
    hidden = answers.hidden[rows, : tokens.shape[1] - 1].to(torch.float32)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        depths = unrolled(head, target.embedding_weight, hidden, tokens)
    place = torch.arange(2, tokens.shape[1])  # of the tokens that rows 0, 1, ... predict
    # The prompt's end decides the answer's first token without a draft.
    known = (place > answers.num_prompt) & (place < ends[:, None])
    wanted, total, right = tokens[:, 2:][known], torch.zeros(()), []
    for depth, rows_of_depth in enumerate(depths):
        chosen = rows_of_depth[:, :-1][known]
        with torch.autocast("cpu", dtype=torch.bfloat16):
            logits = target.logits(chosen).float()
        total = total + LATER_DEPTH_WEIGHT**depth * F.cross_entropy(logits, wanted)
        right.append(float((logits.argmax(-1) == wanted).float().mean()))
    return total / sum(LATER_DEPTH_WEIGHT**depth for depth in range(DEPTH)), right


@torch.no_grad()
def initialise(head: MTPHead, target: Target, batches: list[Answers]) -> None:
    """Begin as the target's last layer, on what a linear map can tell of its next input.

    Could the map say that input exactly, the head would be as sure as the target is.
    """
    head.layers[0].load_state_dict(target.model.layers[-1].state_dict())
    head.norm.load_state_dict(target.model.norm.state_dict())
    inputs, wanted = (
        torch.cat(parts).double()
        for parts in zip(*(next_inputs(head, target, each) for each in batches), strict=True)
    )
    damping = RIDGE * inputs.pow(2).sum(0).mean() * torch.eye(inputs.shape[1]).double()
    weight = torch.linalg.solve(inputs.T @ inputs + damping, inputs.T @ wanted)
    head.fc.weight.data = weight.T.to(head.fc.weight.dtype)


def next_inputs(head: MTPHead, target: Target, answers: Answers) -> tuple[Tensor, Tensor]:
    """What the head's fc reads, and what the target's last layer reads one token later."""
    tokens, ends = answers.tokens[:SAMPLE], answers.num_tokens[:SAMPLE]
    before_last = target.config.num_hidden_layers - 2
    output = target(tokens[:, :-1], tap_layer_ids=(before_last,))
    assert output.features is not None
    embedded = head.pre_fc_norm_embedding(target.embedding_weight[tokens[:, 1:-1]])
    inputs = torch.cat((embedded, head.pre_fc_norm_hidden(output.hidden[:, :-1])), -1)
    known = torch.arange(1, tokens.shape[1] - 1) < ends[:, None]
    return inputs[known], output.features[:, 1:][known]


def gradient(head: MTPHead, target: Target, kinds: list[list[Answers]], random: Random) -> Seen:
    """Add up one step's gradient, every kind's share alike."""
    seen = []
    for answers in by_kind(kinds, random):
        loss, right = losses(head, target, answers, random)
        (loss / len(kinds)).backward()
        seen.append((loss.item(), right))
    values, shares = zip(*seen, strict=True)
    right = [round(fmean(column), 3) for column in zip(*shares, strict=True)]
    return {"loss": round(fmean(values), 4), "right": right}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    add_pair(parser)
    parser.add_argument("--work", type=Path, required=True)
    parser.add_argument("--target", type=Path, help="default: the pair's")
    parser.add_argument("--steps", type=int, required=True)
    parser.add_argument("--threads", type=int, default=2)
    options = parser.parse_args()
    folder = options.target or options.pair.target
    torch.set_num_threads(options.threads)
    torch.manual_seed(SEED)
    target = load_target(folder)
    head = MTPHead(target.config)
    kinds = load_answers(options.work)
    initialise(head, target, [batches[0] for batches in kinds])
    run(
        head,
        lambda step: gradient(head, target, kinds, Random(f"{SEED}:{step}")),
        options.work,
        "mtp",
        options.steps,
    )
    path = folder / "model.safetensors"
    stored = {n: t for n, t in load_file(path).items() if not n.startswith(MTP_PREFIX)}
    ours = {f"{MTP_PREFIX}{name}": tensor for name, tensor in head.state_dict().items()}
    write_weights(path, stored | ours)


if __name__ == "__main__":
    main()
