"""Trains the DFlash 2 drafter on the target's own answers, with the engine's own modules.

A training example is a block: an anchor somewhere in an answer, seven masks after it, and the
features of all tokens before it as context. The loss is the cross-entropy of the target's tokens
under the rows' logits alone and under the logits with the selector's edge from the true
predecessor; later rows weigh less, because a wrong early row makes them useless. Every step sees
all five kinds. Embedding and head are the target's and stay fixed.

    python -m engines.demo.train.train_drafter --work build/demo --steps 800
"""

import argparse
import json
import os
import signal
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random
from statistics import fmean

import torch
import torch.nn.functional as F
from tokenizers import Tokenizer
from torch import Tensor, nn

from engines.demo.train.corpus.split import KINDS
from engines.demo.train.drafter_config import BLOCK_SIZE, drafter_config
from engines.demo.train.export import TARGET, write_json, write_weights
from engines.demo.train.generate import Answers
from engines.demo.train.model import TargetShape
from engines.dflash2.attention import additive_mask
from engines.dflash2.config import load_drafter_config
from engines.dflash2.drafter import DFlash2DraftModel
from engines.dflash2.target import Qwen3ForCausalLM
from engines.dflash2.weights import load_target

DRAFTER = Path("engines/demo/dense/drafter")
SEED = 2
SEQUENCES, ANCHORS = 3, 28  # of each kind in one step
LATER_ROW_WEIGHT = 0.85
UNARY_WEIGHT = 0.5
MUON_RATE, ADAM_RATE = 4e-3, 2e-3
WARMUP_STEPS = 30
CHECKPOINT_EVERY_S = 120.0


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
    model: DFlash2DraftModel, target: Qwen3ForCausalLM, blocks: Blocks
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


def initialise(model: DFlash2DraftModel, target: Qwen3ForCausalLM) -> None:
    """Begin as the target's last layers, which read the last tap as they read it in the target.

    Convolutions pass everything through, codebooks say little, other taps whisper.
    """
    sources = target.model.layers[-len(model.layers) :]
    for layer, source in zip(model.layers, sources, strict=True):
        for name in ("self_attn", "mlp", "input_layernorm", "post_attention_layernorm"):
            getattr(layer, name).load_state_dict(getattr(source, name).state_dict())
        for conv in (layer.attention_conv, layer.mlp_conv):
            nn.init.zeros_(conv.base_kernel)
            conv.base_kernel.data[:, 0] = 1.0
            nn.init.normal_(conv.kernel_projection.weight, std=0.002)
    model.hidden_norm.load_state_dict(sources[0].input_layernorm.state_dict())
    model.norm.load_state_dict(target.model.norm.state_dict())
    nn.init.normal_(model.fc.weight, std=0.005)
    model.fc.weight.data[:, -model.config.hidden_size :] += torch.eye(model.config.hidden_size)
    selector = model.candidate_selector
    nn.init.normal_(selector.hidden_projection.weight, std=0.05)
    for codebook in (selector.predecessor_codebook, selector.successor_codebook):
        nn.init.normal_(codebook, std=0.1)


def optimisers(model: DFlash2DraftModel) -> tuple[torch.optim.Optimizer, torch.optim.Optimizer]:
    named = list(model.named_parameters())
    hidden = [p for name, p in named if p.dim() == 2 and "codebook" not in name]
    rest = [p for name, p in named if p.dim() != 2 or "codebook" in name]
    return (
        torch.optim.Muon(hidden, lr=MUON_RATE, weight_decay=0.05, adjust_lr_fn="match_rms_adamw"),
        torch.optim.AdamW(rest, lr=ADAM_RATE, betas=(0.9, 0.95), weight_decay=0.0, fused=True),
    )


def rate(step: int, steps: int) -> float:
    """Up over the warm-up, then linearly down to a fiftieth."""
    return min((step + 1) / WARMUP_STEPS, max(0.02, 1 - step / steps))


def load_answers(work: Path) -> list[list[Answers]]:
    """The batches of answers of each kind."""
    return [
        [
            answers
            for path in sorted(work.glob(f"answers_{kind}.*.pt"))
            for answers in torch.load(path, weights_only=False, mmap=True)
        ]
        for kind in KINDS
    ]


def gradient(
    model: DFlash2DraftModel,
    target: Qwen3ForCausalLM,
    kinds: Sequence[Sequence[Answers]],
    random: Random,
) -> tuple[float, float, Tensor]:
    """Add up one step's gradient, every kind's share alike; means of what `losses` says."""
    seen = []
    for answers in kinds:
        sizes = [len(each.tokens) for each in answers]
        unary, edged, right = losses(
            model, target, draw_blocks(random.choices(answers, sizes)[0], random)
        )
        ((UNARY_WEIGHT * unary + edged) / len(kinds)).backward()
        seen.append((unary.item(), edged.item(), right))
    unary_losses, edged_losses, shares = zip(*seen, strict=True)
    return fmean(unary_losses), fmean(edged_losses), torch.stack(shares).mean(0)


def train(
    model: DFlash2DraftModel,
    target: Qwen3ForCausalLM,
    kinds: Sequence[Sequence[Answers]],
    work: Path,
    steps: int,
) -> Iterator[dict[str, object]]:
    """The training loop; yields what is worth a line in the log."""
    both, done, path = optimisers(model), 0, work / "drafter.pt"
    if path.exists():
        saved = torch.load(path)
        model.load_state_dict(saved["model"])
        for optimiser, state in zip(both, saved["optimisers"], strict=True):
            optimiser.load_state_dict(state)
        done = saved["step"]
    began_s = saved_s = time.monotonic()
    stop = []
    signal.signal(signal.SIGTERM, lambda number, frame: stop.append(number))
    for step in range(done, steps):
        unary, edged, right = gradient(model, target, kinds, Random(f"{SEED}:{step}"))
        norm = nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        for optimiser, full in zip(both, (MUON_RATE, ADAM_RATE), strict=True):
            optimiser.param_groups[0]["lr"] = full * rate(step, steps)
            optimiser.step()
            optimiser.zero_grad()
        if (step + 1) % 10 == 0:
            yield {
                "step": step + 1, "seconds": round(time.monotonic() - began_s, 1),
                "unary": round(unary, 4), "edged": round(edged, 4),
                "norm": round(float(norm), 3), "right": [round(float(r), 3) for r in right],
            }  # fmt: skip
        if stop or time.monotonic() - saved_s > CHECKPOINT_EVERY_S or step + 1 == steps:
            saved_s = time.monotonic()
            state = {"model": model.state_dict(), "step": step + 1,
                     "optimisers": [optimiser.state_dict() for optimiser in both]}  # fmt: skip
            torch.save(state, path.with_suffix(".new"))
            os.replace(path.with_suffix(".new"), path)
        if stop:
            return


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--work", type=Path, required=True)
    parser.add_argument("--target", type=Path, default=TARGET)
    parser.add_argument("--drafter", type=Path, default=DRAFTER)
    parser.add_argument("--steps", type=int, required=True)
    parser.add_argument("--threads", type=int, default=2)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    torch.manual_seed(SEED)
    tokenizer = Tokenizer.from_file(str(options.target / "tokenizer.json"))
    target = load_target(options.target)
    options.drafter.mkdir(parents=True, exist_ok=True)
    write_json(options.drafter / "config.json", drafter_config(TargetShape(), tokenizer))
    model = DFlash2DraftModel(load_drafter_config(options.drafter))
    initialise(model, target)
    log = options.work / "drafter.jsonl"
    for values in train(model, target, load_answers(options.work), options.work, options.steps):
        line = json.dumps(values)
        print(line, flush=True)
        with log.open("a", encoding="utf-8") as file:
            file.write(line + "\n")
    write_weights(options.drafter / "model.safetensors", model.state_dict())


if __name__ == "__main__":
    main()
