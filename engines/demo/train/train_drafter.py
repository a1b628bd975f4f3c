"""Trains the DFlash 2 drafter on the target's own answers, with the engine's own modules.

A training example is a block: an anchor somewhere in an answer, seven masks after it, and the
features of all tokens before it as context. The loss is the cross-entropy of the target's tokens
under the rows' logits alone and under the logits with the selector's edge from the true
predecessor; later rows weigh less, because a wrong early row makes them useless. Every step sees
all five kinds. Embedding and head are the target's and stay fixed.

    python -m engines.demo.train.train_drafter --work build/demo --steps 800
    python -m engines.demo.train.train_drafter --pair hybrid --work build/demo-hybrid --steps 500
"""

import argparse
from dataclasses import dataclass
from pathlib import Path
from random import Random
from statistics import fmean

import torch
import torch.nn.functional as F
from tokenizers import Tokenizer
from torch import Tensor, nn

from engines.demo.train.drafter_config import BLOCK_SIZE, drafter_config
from engines.demo.train.export import write_json, write_weights
from engines.demo.train.generate import Answers
from engines.demo.train.loop import Seen, by_kind, load_answers, run
from engines.demo.train.pairs import add_pair
from engines.dflash2.attention import additive_mask
from engines.dflash2.config import load_drafter_config
from engines.dflash2.drafter import DFlash2DraftModel
from engines.dflash2.layers import OffsetRMSNorm
from engines.dflash2.qwen3_5 import GatedAttention
from engines.dflash2.target import DecoderLayer, Target
from engines.dflash2.weights import load_target

SEED = 2
SEQUENCES, ANCHORS = 3, 28  # of each kind in one step
LATER_ROW_WEIGHT = 0.85
UNARY_WEIGHT = 0.5


@dataclass(frozen=True, kw_only=True)
class Blocks:
    """Training blocks of some sequences of one length.

    features: [sequences, context, taps * hidden]; anchors: [sequences, blocks] positions;
    ids: [sequences, blocks, block] the true tokens; known: the same, False behind an answer's end.
    """

    features: Tensor
    anchors: Tensor
    ids: Tensor
    known: Tensor


def draw_blocks(answers: Answers, random: Random) -> Blocks:
    """Different sequences of one batch of answers, and anchors at random places of each answer."""
    rows = random.sample(range(len(answers.tokens)), min(SEQUENCES, len(answers.tokens)))
    ends = answers.num_tokens[rows]
    length = int(ends.max())
    last = [max(answers.num_prompt, int(end) - 2) for end in ends]
    anchors = torch.tensor(
        [[random.randint(answers.num_prompt, at) for _ in range(ANCHORS)] for at in last]
    )
    places = anchors[..., None] + torch.arange(BLOCK_SIZE)
    tokens = answers.tokens[rows]
    ids = tokens.gather(1, places.flatten(1).clamp(max=tokens.shape[1] - 1)).view_as(places)
    return Blocks(
        features=answers.features[rows, : length - 1],
        anchors=anchors,
        ids=ids,
        known=places < ends[:, None, None],
    )


def block_hidden(model: DFlash2DraftModel, embedding: Tensor, blocks: Blocks) -> Tensor:
    """The masks' final rows: [sequences * blocks, block - 1, hidden]."""
    _, num_blocks, block = blocks.ids.shape
    length = blocks.features.shape[1]
    context_positions = torch.arange(length)
    keys, values = (
        part.unsqueeze(2).expand(-1, -1, num_blocks, -1, -1, -1).flatten(1, 2)
        for part in model.context(blocks.features, context_positions)
    )
    positions = (blocks.anchors[..., None] + torch.arange(block)).flatten(0, 1)
    key_positions = torch.cat((context_positions.expand(len(positions), -1), positions), 1)
    near = (positions[:, :, None] - key_positions[:, None]).abs() < model.config.sliding_window
    past = key_positions[:, None, :length] < positions[:, :1, None]  # features exist up to there
    own = torch.ones(len(positions), 1, block, dtype=torch.bool)
    visible = near & torch.cat((past, own), -1)
    masks = torch.full((len(positions), block - 1), model.config.mask_token_id)
    x = embedding[torch.cat((blocks.ids.flatten(0, 1)[:, :1], masks), 1)]
    mask = additive_mask(visible, x.dtype).unsqueeze(1)
    return model(x, positions, mask, keys, values)[:, 1:]


def losses(
    model: DFlash2DraftModel, target: Target, blocks: Blocks
) -> tuple[Tensor, Tensor, Tensor]:
    """Unary loss, loss with the selector's edges, and how often each row's best is right."""
    with torch.autocast("cpu", dtype=torch.bfloat16):
        hidden = block_hidden(model, target.embedding_weight, blocks)
        unary = target.logits(hidden).float()
        selector = model.candidate_selector
        ids = blocks.ids.flatten(0, 1)
        predecessors = selector.predecessor_codebook[ids[:, :-1]]
        gate = selector.hidden_projection(hidden)
        edges = F.linear(predecessors * gate, selector.successor_codebook)
    scores = unary + edges.float()
    known = blocks.known.flatten(0, 1)[:, 1:]
    weights = known * LATER_ROW_WEIGHT ** torch.arange(known.shape[1])
    wanted = ids[:, 1:]
    right = ((scores.argmax(-1) == wanted) & known).sum(0) / known.sum(0).clamp(min=1)
    return cross_entropy(unary, wanted, weights), cross_entropy(scores, wanted, weights), right


def cross_entropy(logits: Tensor, wanted: Tensor, weights: Tensor) -> Tensor:
    each = F.cross_entropy(logits.flatten(0, 1), wanted.flatten(), reduction="none")
    return (each * weights.flatten()).sum() / weights.sum()


def initialise(model: DFlash2DraftModel, target: Target) -> None:
    """Begin as the target's last layers of attention, which read the last tap as they do there.

    Convolutions pass everything through, codebooks say little, other taps whisper.
    """
    attending = [layer for layer in target.model.layers if hasattr(layer, "self_attn")]
    sources = attending[-len(model.layers) :]
    for layer, source in zip(model.layers, sources, strict=True):
        layer.load_state_dict(as_dense(source), strict=False)  # all but the convolutions
        for conv in (layer.attention_conv, layer.mlp_conv):
            nn.init.zeros_(conv.base_kernel)
            conv.base_kernel.data[:, 0] = 1.0
            nn.init.normal_(conv.kernel_projection.weight, std=0.002)
    model.hidden_norm.weight.data = as_dense(sources[0])["input_layernorm.weight"].clone()
    model.norm.weight.data = plain_norm(target.model.norm)
    nn.init.normal_(model.fc.weight, std=0.005)
    model.fc.weight.data[:, -model.config.hidden_size :] += torch.eye(model.config.hidden_size)
    selector = model.candidate_selector
    nn.init.normal_(selector.hidden_projection.weight, std=0.05)
    for codebook in (selector.predecessor_codebook, selector.successor_codebook):
        nn.init.normal_(codebook, std=0.1)


def plain_norm(norm: nn.Module) -> Tensor:
    """The factors of a norm, whether it keeps them as w or as 1 + w."""
    return norm.weight + 1 if isinstance(norm, OffsetRMSNorm) else norm.weight.clone()


def as_dense(layer: DecoderLayer) -> dict[str, Tensor]:
    """A layer of attention in a qwen3's form: without a gate, and norms that multiply by w."""
    values = dict(layer.state_dict())
    for name, norm in layer.named_modules():
        if name.endswith(("norm", "layernorm")):
            values[f"{name}.weight"] = plain_norm(norm)
    if isinstance(layer.self_attn, GatedAttention):
        heads = values["self_attn.q_proj.weight"].unflatten(0, (-1, 2, layer.self_attn.head_dim))
        values["self_attn.q_proj.weight"] = heads[:, 0].flatten(0, 1)
    return values


def gradient(
    model: DFlash2DraftModel,
    target: Target,
    kinds: list[list[Answers]],
    random: Random,
) -> Seen:
    """Add up one step's gradient, every kind's share alike; means of what `losses` says."""
    seen = []
    for answers in by_kind(kinds, random):
        unary, edged, right = losses(model, target, draw_blocks(answers, random))
        ((UNARY_WEIGHT * unary + edged) / len(kinds)).backward()
        seen.append((unary.item(), edged.item(), right))
    unary_losses, edged_losses, shares = zip(*seen, strict=True)
    return {
        "unary": round(fmean(unary_losses), 4),
        "edged": round(fmean(edged_losses), 4),
        "right": [round(float(r), 3) for r in torch.stack(shares).mean(0)],
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    add_pair(parser)
    parser.add_argument("--work", type=Path, required=True)
    parser.add_argument("--target", type=Path, help="default: the pair's")
    parser.add_argument("--drafter", type=Path, help="where to; default: the pair's")
    parser.add_argument("--steps", type=int, required=True)
    parser.add_argument("--threads", type=int, default=2)
    options = parser.parse_args()
    folder = options.drafter or options.pair.drafter
    torch.set_num_threads(options.threads)
    torch.manual_seed(SEED)
    target_folder = options.target or options.pair.target
    tokenizer = Tokenizer.from_file(str(target_folder / "tokenizer.json"))
    target = load_target(target_folder)
    folder.mkdir(parents=True, exist_ok=True)
    write_json(folder / "config.json", drafter_config(options.pair, tokenizer))
    model = DFlash2DraftModel(load_drafter_config(folder))
    initialise(model, target)
    kinds = load_answers(options.work)
    run(
        model,
        lambda step: gradient(model, target, kinds, Random(f"{SEED}:{step}")),
        options.work,
        "drafter",
        options.steps,
    )
    write_weights(folder / "model.safetensors", model.state_dict())


if __name__ == "__main__":
    main()
