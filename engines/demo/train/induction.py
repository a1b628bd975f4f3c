"""Gives a half-trained target the two parts of an induction circuit that it was slow to find.

Copying needs two attention layers that agree: an early one that tells every token which tokens
came before it, and a later one that looks up where the present token came before and reads what
followed (Olsson et al. 2022, "In-context learning and induction heads"). After 3.6 million tokens
this target had no trace of the first part: a linear probe read the previous token from no layer
(R^2 0.00 to 0.06). So three heads of layer 1 are set to look exactly 1, 2 and 3 tokens back, and
three heads of layer 2 to match the present and the last token with those. Training then goes on
as before and decides what to make of them. Refuses to know the data's kinds; reads only windows
of tokens.

Two tokens are a poor address, though: in a file of "name: type = value" lines most pairs stand in
several places, and after 9.4 million tokens only a third of the attention lay on the right one.
`--lengthen` gives the circuit five tokens to match: layer 1's other heads look 0, 4 and 5 back,
and all six write a code of what they see into quiet directions of the stream, turned by the
distance, so that one dot product in layer 2 compares five tokens with five.

    python -m engines.demo.train.induction --work build/demo
    python -m engines.demo.train.induction --work build/demo --lengthen
"""

import argparse
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from engines.demo.train.model import Attention, TargetShape, TrainedTarget, rotary_table

SHAPE = TargetShape()
LOOK_BACK_LAYER, MATCH_LAYER = 1, 2
GROUP = SHAPE.num_attention_heads // SHAPE.num_key_value_heads  # heads that share one key
HEAD = SHAPE.head_dim
FAST = range(6)  # rotary pairs that tell neighbours apart
SLOW = range(20, 32)  # rotary pairs that barely turn within a request
CODE_SIZE, CODE_OF_LAST = 2 * len(SLOW), 14  # of the code, the part that matches the last token
FAST_NORM, SLOW_NORM = 1.9, 3.5  # the norms' new weights there: how sharp attention can be
# The norms take the size of queries and keys away, but training moves large weights more slowly:
# without this, the first fifty steps dissolved most of the circuit before anything used it.
STIFFNESS = 20.0
WRITE_SCALE, VALUE_GAIN = 0.6, 1.0
SAMPLE = slice(3000, 3024)  # training windows to measure on
SAMPLE_TOKENS = 700
NUM_MATCHED = 5  # tokens that the lengthened circuit compares
DISTANCES = (1, 2, 3, 0, 4, 5)  # how far back each head of the first layer looks then
NUM_PARTS = 40  # directions of what those heads read that are mixed into the code
SIGNAL = 4.0  # the code's size, in standard deviations of the directions it is written to
CENTRE = 200  # tokens from an answer back to what it copies, about: where matching is in phase
RIDGE = 1e-5


def pairs(frequencies: range) -> list[int]:
    """The channels of some rotary pairs: channel i turns with i + head_dim / 2."""
    return [*frequencies, *(f + HEAD // 2 for f in frequencies)]


def hidden_before(model: TrainedTarget, ids: Tensor, layer: int) -> tuple[Tensor, Tensor]:
    """The residual stream that enters a layer, and as its attention reads it: normalised."""
    x = model.model.embed_tokens(ids)
    cosine, sine = rotary_table(ids.shape[1], HEAD, SHAPE.rope_theta)
    for each in model.model.layers[:layer]:
        x = each(x, cosine, sine)
    return x, model.model.layers[layer].input_layernorm(x)


def least_squares(inputs: Tensor, wanted: Tensor) -> Tensor:
    """The [inputs, outputs] map with the smallest squared error, slightly damped."""
    inputs, wanted = inputs.double(), wanted.double()
    damping = RIDGE * len(inputs) * inputs.pow(2).mean() * torch.eye(inputs.shape[1])
    return torch.linalg.solve(inputs.T @ inputs + damping, inputs.T @ wanted).float()


def principal_parts(inputs: Tensor, count: int) -> Tensor:
    """[count, inputs]: the directions of largest variance, scaled to unit variance."""
    centred = inputs - inputs.mean(0)
    variance, directions = torch.linalg.eigh(centred.T @ centred / len(centred))
    return (directions.flip(1)[:, :count] / variance.flip(0)[:count].sqrt()).T


def sharpen(attention: Attention, channels: list[int], weight: float) -> None:
    """Raise the norms on some channels; the layer's other heads shrink there in return."""
    first_group = GROUP * HEAD
    for norm, rows in (
        (attention.q_norm, attention.q_proj.weight[first_group:]),
        (attention.k_norm, attention.k_proj.weight[HEAD:]),
    ):
        heads = rows.view(-1, HEAD, SHAPE.hidden_size)
        heads[:, channels] *= (norm.weight[channels] / weight)[None, :, None]
        norm.weight[channels] = weight


def install_look_back(model: TrainedTarget, ids: Tensor, generator: torch.Generator) -> Tensor:
    """Heads that look 1, 2 and 3 tokens back, whatever stands there; -> what they read, by token.

    Keys and queries are one constant direction each, which the norms make exact; the query's is
    turned back by the distance, so that the rotary embedding is in phase with that key alone.
    """
    attention = model.model.layers[LOOK_BACK_LAYER].self_attn
    x, normed = hidden_before(model, ids, LOOK_BACK_LAYER)
    hidden = normed.flatten(0, 1)
    constant = least_squares(hidden, torch.ones(len(hidden), 1))[:, 0]
    key = torch.zeros(HEAD)
    key[list(FAST)] = 1.0
    attention.k_proj.weight[:HEAD] = STIFFNESS * torch.outer(key, constant)
    for head in range(GROUP):
        rows = slice(head * HEAD, (head + 1) * HEAD)
        attention.q_proj.weight[rows] = STIFFNESS * torch.outer(look_back(head + 1), constant)
    sharpen(attention, pairs(FAST), FAST_NORM)
    reader = principal_parts(hidden, HEAD)
    attention.v_proj.weight[:HEAD] = reader
    size = SHAPE.hidden_size, GROUP * HEAD
    places, _ = torch.linalg.qr(torch.randn(size, generator=generator))
    scale = 0.6 * WRITE_SCALE * float(x.pow(2).mean().sqrt()) * (size[0] / size[1]) ** 0.5
    attention.o_proj.weight[:, : GROUP * HEAD] = places * scale
    return (hidden @ reader.T).view(*ids.shape, HEAD)


def install_match(
    model: TrainedTarget, ids: Tensor, read: Tensor, generator: torch.Generator
) -> None:
    """Heads whose query is the present and the last token and whose key the last two before.

    Their values vote, softly for now, for the token that they look at.
    """
    attention = model.model.layers[MATCH_LAYER].self_attn
    _, normed = hidden_before(model, ids, MATCH_LAYER)
    hidden = normed[:, 3:].flatten(0, 1)
    mix, _ = torch.linalg.qr(torch.randn(HEAD, CODE_SIZE, generator=generator))
    code = F.normalize(read @ mix, dim=-1) * CODE_SIZE**0.5
    back = [code[:, 3 - d : ids.shape[1] - d].flatten(0, 1) for d in range(3)]
    present, last, last_but_one = (least_squares(hidden, each) for each in back)
    attention.k_proj.weight[:HEAD] = STIFFNESS * code_rows(last, last_but_one)
    attention.q_proj.weight[: GROUP * HEAD] = STIFFNESS * code_rows(present, last).repeat(GROUP, 1)
    sharpen(attention, pairs(SLOW), SLOW_NORM)
    reader = principal_parts(hidden, HEAD)
    votes = vote_directions(model, ids, hidden @ reader.T)
    attention.v_proj.weight[:HEAD] = reader
    attention.o_proj.weight[:, : GROUP * HEAD] = (votes / GROUP).T.repeat(1, GROUP)


def code_rows(nearer: Tensor, farther: Tensor) -> Tensor:
    """[head_dim, hidden]: the code of two neighbouring tokens, in the slow channels."""
    rows = torch.zeros(HEAD, SHAPE.hidden_size)
    for at, channel in enumerate(pairs(SLOW)):
        rows[channel] = nearer[:, at] if at < CODE_OF_LAST else farther[:, at - CODE_OF_LAST]
    return rows


def vote_directions(model: TrainedTarget, ids: Tensor, values: Tensor) -> Tensor:
    """[values, hidden]: what to add to the stream so that the value's token gains VALUE_GAIN."""
    tokens = ids[:, 3:].flatten()
    weight = model.model.embed_tokens.weight * model.model.norm.weight
    count = torch.bincount(tokens, minlength=SHAPE.vocab_size).float()[:, None]
    centred = weight - (weight * count).sum(0) / count.sum()
    variance, directions = torch.linalg.eigh((centred * count).T @ centred / count.sum())
    inverse = directions @ torch.diag(1 / variance.clamp_min(variance.max() * 1e-2)) @ directions.T
    votes = least_squares(values, (centred @ inverse)[tokens])
    gain = float(((values @ votes) * weight[tokens]).sum(-1).mean())
    final, _ = hidden_before(model, ids[:8], SHAPE.num_hidden_layers - 1)
    final = model.model.layers[-1](final, *rotary_table(ids.shape[1], HEAD, SHAPE.rope_theta))
    return votes * (VALUE_GAIN * float(final.pow(2).mean(-1).sqrt().mean()) / gain)


def frequencies() -> Tensor:
    """[head_dim / 2]: by how much each rotary pair turns from token to token."""
    return SHAPE.rope_theta ** (-torch.arange(HEAD // 2) / (HEAD // 2))


def look_back(distance: int) -> Tensor:
    """[head_dim]: the constant query that is in phase with the constant key `distance` before."""
    query = torch.zeros(HEAD)
    for f in FAST:
        angle = distance * frequencies()[f]
        query[f], query[f + HEAD // 2] = torch.cos(angle), -torch.sin(angle)
    return query


def gather_five(
    model: TrainedTarget, ids: Tensor, generator: torch.Generator
) -> tuple[Tensor, Tensor]:
    """All six heads of the first layer write codes; -> the wanted query and key codes.

    Each [batch, length, code]: the sum of the codes of the present and the four tokens before,
    and of the five tokens before, every distance turned by a rotation of its own. The first
    three heads keep what they do, the others are set anew.
    """
    attention = model.model.layers[LOOK_BACK_LAYER].self_attn
    _, normed = hidden_before(model, ids, LOOK_BACK_LAYER)
    reader = attention.v_proj.weight[:HEAD].clone()
    read = normed @ reader.T
    random = torch.randn(NUM_PARTS, CODE_SIZE, generator=generator)
    mix = torch.linalg.qr(random)[0].T @ principal_parts(read.flatten(0, 1), NUM_PARTS)
    hidden = normed.flatten(0, 1)
    constant = least_squares(hidden, torch.ones(len(hidden), 1))[:, 0]
    key = torch.zeros(HEAD)
    key[list(FAST)] = 1.0
    attention.k_proj.weight[HEAD:] = STIFFNESS * torch.outer(key, constant)
    attention.v_proj.weight[HEAD:] = reader
    for head in range(GROUP, 2 * GROUP):
        rows = slice(head * HEAD, (head + 1) * HEAD)
        query = look_back(DISTANCES[head])
        attention.q_proj.weight[rows] = STIFFNESS * torch.outer(query, constant)
    attention.o_proj.weight[:, GROUP * HEAD :] = 0.0
    turns = [
        torch.linalg.qr(torch.randn(CODE_SIZE, CODE_SIZE, generator=generator))[0]
        for _ in range(NUM_MATCHED)
    ]
    write_codes(model, ids, mix, turns)
    code = read @ mix.T
    code = code - code.mean((0, 1))
    back = [F.pad(code, (0, 0, d, 0))[:, : ids.shape[1]] for d in range(NUM_MATCHED + 1)]
    present = sum(each @ turn.T for each, turn in zip(back[:-1], turns, strict=True))
    before = sum(each @ turn.T for each, turn in zip(back[1:], turns, strict=True))
    return torch.as_tensor(present), torch.as_tensor(before)


def write_codes(model: TrainedTarget, ids: Tensor, mix: Tensor, turns: list[Tensor]) -> None:
    """Let the first layer's heads add their codes to the stream where least else happens."""
    stream, _ = hidden_before(model, ids, MATCH_LAYER)
    centred = stream.flatten(0, 1) - stream.mean((0, 1))
    variance, directions = torch.linalg.eigh(centred.T @ centred / len(centred))
    for_query, for_key = (directions[:, side : 2 * CODE_SIZE : 2] for side in range(2))
    scale = SIGNAL * float(variance[: 2 * CODE_SIZE].mean().sqrt()) / NUM_MATCHED**0.5
    out = model.model.layers[LOOK_BACK_LAYER].self_attn.o_proj.weight
    for head, distance in enumerate(DISTANCES):
        code = torch.zeros(SHAPE.hidden_size, CODE_SIZE)
        if distance < NUM_MATCHED:
            code += for_query @ turns[distance]
        if distance > 0:
            code += for_key @ turns[distance - 1]
        out[:, head * HEAD : (head + 1) * HEAD] += code @ mix * scale


@torch.no_grad()
def lengthen(model: TrainedTarget, ids: Tensor) -> None:
    """Make an installed circuit match five tokens instead of two; its votes stay as they are."""
    present, before = gather_five(model, ids, torch.Generator().manual_seed(1))
    _, normed = hidden_before(model, ids, MATCH_LAYER)
    hidden = normed[:, NUM_MATCHED:].flatten(0, 1)
    query, key = (
        least_squares(hidden, code[:, NUM_MATCHED:].flatten(0, 1)).T for code in (present, before)
    )
    query_rows, key_rows = torch.zeros(2, HEAD, SHAPE.hidden_size)
    half = CODE_SIZE // 2
    for at, f in enumerate(SLOW):
        cosine, sine = (turn(CENTRE * frequencies()[f]) for turn in (torch.cos, torch.sin))
        key_rows[f], key_rows[f + HEAD // 2] = key[at], key[at + half]
        query_rows[f] = cosine * query[at] + sine * query[at + half]
        query_rows[f + HEAD // 2] = cosine * query[at + half] - sine * query[at]
    attention = model.model.layers[MATCH_LAYER].self_attn
    attention.k_proj.weight[:HEAD] = STIFFNESS * key_rows
    attention.q_proj.weight[: GROUP * HEAD] = STIFFNESS * query_rows.repeat(GROUP, 1)


@torch.no_grad()
def install(model: TrainedTarget, ids: Tensor) -> None:
    generator = torch.Generator().manual_seed(1)
    read = install_look_back(model, ids, generator)
    install_match(model, ids, read, generator)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--work", type=Path, required=True)
    parser.add_argument("--lengthen", action="store_true", help="an installed circuit")
    options = parser.parse_args()
    path = options.work / "checkpoint" / "model.pt"
    saved = torch.load(path)
    model = TrainedTarget(SHAPE)
    model.load_state_dict(saved["model"])
    with np.load(options.work / "windows_1024.npz") as file:
        ids = torch.from_numpy(file["tokens"][SAMPLE, :SAMPLE_TOKENS].astype(np.int64))
    (lengthen if options.lengthen else install)(model, ids)
    torch.save({**saved, "model": model.state_dict()}, path)


if __name__ == "__main__":
    main()
