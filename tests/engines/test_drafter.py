"""The drafter against published golden numbers, its reference implementation, and its own rules.

The numbers come from the reference (dflash 0.1.0, float32 and float64) and were reproduced by an
independent implementation. Each wrong variant has the sum its error is known to give, which shows
that the golden test can fail.
"""

import dataclasses
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from engines.dflash2 import attention, drafter
from engines.dflash2.attention import additive_mask, sees_window
from engines.dflash2.cache import ContextRings
from engines.dflash2.config import DrafterConfig, TargetConfig
from engines.dflash2.drafter import DFlash2Drafter, DFlash2DraftModel
from engines.dflash2.drafting import Draft
from engines.dflash2.target import Qwen3ForCausalLM

from .decoding import ONE, committed, new_context, take_in
from .vectors import uniform

SHARED: dict[str, Any] = {
    "vocab_size": 512,
    "hidden_size": 320,
    "intermediate_size": 640,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 32,
    "max_position_embeddings": 4096,
    "rms_norm_eps": 1e-6,
    "rope_theta": 1e7,
    "dtype": None,
}
TARGET = TargetConfig(**SHARED, num_hidden_layers=8, tie_word_embeddings=False)
DRAFTER = DrafterConfig(
    **SHARED,
    num_hidden_layers=2,
    num_target_layers=8,
    target_layer_ids=(1, 3, 5),
    block_size=8,
    mask_token_id=500,
    sliding_window=32,
    conv_kernel_size=2,
    conv_group_size=16,
    selector_rank=32,
    selector_top_k=16,
    input_embedding_scale=1.0,
    output_multiplier=1.0,
    final_logit_softcapping=None,
)


@dataclasses.dataclass(frozen=True, kw_only=True)
class GoldenRound:
    num_features: int
    anchor: int
    proposals: tuple[int, ...]
    scores: tuple[float, ...]
    sum_abs_hidden: float
    unary: tuple[int, ...]
    anchor_row: tuple[float, ...]
    first_mask_row: tuple[float, ...]
    q_at_07: tuple[float, ...]


# fmt: off
GOLDEN = (
    GoldenRound(
        num_features=40, anchor=17, proposals=(296, 189, 240, 72, 447, 260, 316),
        scores=(4.2742, 3.6857, 6.4350, 6.3803, 4.0187, 5.7341, 7.0295), sum_abs_hidden=1894.5248,
        unary=(409, 189, 489, 363, 413, 437, 93),
        anchor_row=(-0.96500, 1.97385, -0.47362, -0.53965),
        first_mask_row=(-0.07500, 0.64361, -0.52040, -0.00120),
        q_at_07=(0.49462, 0.25470, 0.10633, 0.05782),
    ),
    GoldenRound(
        num_features=3, anchor=401, proposals=(481, 378, 231, 72, 262, 262, 258),
        scores=(3.2854, 5.5235, 5.6594, 4.8238, 6.2305, 6.3291, 5.7409), sum_abs_hidden=1892.8660,
        unary=(337, 389, 112, 209, 262, 376, 78),
        anchor_row=(2.05209, 1.19248, -0.46990, -1.22481),
        first_mask_row=(-1.14956, -0.61739, 0.24417, 0.04680),
        q_at_07=(0.26921, 0.19773, 0.19536, 0.11535),
    ),
    GoldenRound(
        num_features=8, anchor=250, proposals=(429, 6, 262, 372, 465, 375, 280),
        scores=(4.5232, 3.7312, 7.7393, 7.0212, 2.2099, 5.3393, 7.9733), sum_abs_hidden=1825.9574,
        unary=(154, 360, 372, 372, 372, 372, 84),
        anchor_row=(-1.53553, -0.73854, -0.81866, 0.43695),
        first_mask_row=(1.05723, 0.90544, 1.36913, -0.67964),
        q_at_07=(0.32820, 0.17300, 0.14897, 0.14193),
    ),
)
FIRST_CANDIDATES = (296, 134, 434, 483, 202, 446, 409, 371, 3, 194, 169, 226, 27, 188, 341, 480)
# fmt: on


def golden_tensor(number: int, name: str, shape: tuple[int, ...]) -> Tensor:
    value = uniform(number, shape)
    if name.endswith("base_kernel"):
        value *= 0.3
        value[:, 0] += 0.6
        return value
    if "norm" in name:
        return 1 + 0.1 * value
    scale = {"codebook": 1.0, "kernel_projection": 0.06, "hidden_projection": 0.12}
    return next((s for part, s in scale.items() if part in name), 0.16) * value


def golden_model(config: DrafterConfig = DRAFTER) -> DFlash2DraftModel:
    model = DFlash2DraftModel(config).requires_grad_(False)
    shapes = {name: tuple(value.shape) for name, value in model.state_dict().items()}
    assert len(shapes) == 36
    model.load_state_dict(
        {name: golden_tensor(t, name, shapes[name]) for t, name in enumerate(sorted(shapes))}
    )
    return model


def golden_drafter(model: DFlash2DraftModel | None = None) -> DFlash2Drafter:
    target = Qwen3ForCausalLM(TARGET).requires_grad_(False)
    target.model.embed_tokens.weight.copy_(0.05 * uniform(100, (512, 320)))
    target.lm_head.weight.copy_(0.06 * uniform(101, (512, 320)))
    return DFlash2Drafter(golden_model() if model is None else model, target)


def golden_features(number: int) -> Tensor:
    """[1, tokens, 960] of one round."""
    return uniform(200 + number, (GOLDEN[number].num_features, 960)).float().unsqueeze(0)


def draft_of(own: DFlash2Drafter, anchor: int, contexts: ContextRings) -> Draft:
    (draft,) = own.propose([anchor], contexts, ONE, temperatures=[0], generators=[None])
    return draft


def proposals(own: DFlash2Drafter, anchor: int, contexts: ContextRings) -> tuple[int, ...]:
    return draft_of(own, anchor, contexts).tokens


def first_round(own: DFlash2Drafter) -> tuple[float, tuple[int, ...]]:
    """Sum of |h| and the proposals of round 0."""
    context = new_context(own)
    take_in(own, golden_features(0), context)
    return own.hidden([17], context, ONE).abs().sum().item(), proposals(own, 17, context)


@pytest.fixture(scope="module", params=[torch.float32, torch.float64], ids=["fp32", "fp64"])
def golden(request: pytest.FixtureRequest) -> DFlash2Drafter:
    own = golden_drafter()
    own.model.to(request.param)
    own.target.to(request.param)
    return own


def test_three_rounds_give_the_published_drafts_scores_and_hidden_rows(
    golden: DFlash2Drafter,
) -> None:
    context = new_context(golden)
    for number, expected in enumerate(GOLDEN):
        take_in(golden, golden_features(number).to(golden.model.fc.weight.dtype), context)
        hidden = golden.hidden([expected.anchor], context, ONE)[0]
        assert hidden.abs().sum().item() == pytest.approx(expected.sum_abs_hidden, abs=2e-3)
        assert hidden[0, :4].tolist() == pytest.approx(expected.anchor_row, abs=2e-5)
        assert hidden[1, :4].tolist() == pytest.approx(expected.first_mask_row, abs=2e-5)
        logits = golden.logits(hidden[1:])
        assert tuple(logits.argmax(-1).tolist()) == expected.unary
        (candidates,), (scores,) = golden.model.candidate_selector.lattice(
            logits[None], hidden[None, 1:], torch.tensor([expected.anchor])
        )
        by_score, order = scores[0, 0].sort(descending=True)
        q = torch.softmax(by_score / 0.7, -1)
        assert q[:4].tolist() == pytest.approx(expected.q_at_07, abs=1e-5)
        if number == 0:
            assert tuple(candidates[0, order].tolist()) == FIRST_CANDIDATES
            assert hidden[7, -2:].tolist() == pytest.approx((0.22641, -2.44461), abs=2e-5)
        assert proposals(golden, expected.anchor, context) == expected.proposals
        assert chosen_scores(candidates, scores, expected.proposals) == pytest.approx(
            expected.scores, abs=1e-4
        )


def chosen_scores(candidates: Tensor, scores: Tensor, tokens: tuple[int, ...]) -> list[float]:
    indices = [row.tolist().index(token) for row, token in zip(candidates, tokens, strict=True)]
    before = [0, *indices[:-1]]
    return [float(scores[j, i, n]) for j, (i, n) in enumerate(zip(before, indices, strict=True))]


def test_context_taken_in_pieces_gives_the_same_block() -> None:
    own, features = golden_drafter(), golden_features(0)
    context = new_context(own)
    for piece in features.split([1, 5, 34], dim=1):
        take_in(own, piece, context)
    assert context.num_tokens == [40]
    assert own.hidden([17], context, ONE).abs().sum().item() == pytest.approx(1894.5248, abs=2e-3)
    assert proposals(own, 17, context) == GOLDEN[0].proposals


def test_context_taken_in_one_piece_gives_the_block_of_many_rounds() -> None:
    own = golden_drafter()
    context = new_context(own)
    take_in(own, torch.cat([golden_features(number) for number in range(3)], 1), context)
    assert proposals(own, 250, context) == GOLDEN[2].proposals


def test_ring_of_the_last_window_equals_the_whole_context_behind_the_mask() -> None:
    own = golden_drafter()
    features = uniform(300, (100, 960)).float().unsqueeze(0)
    context = new_context(own)
    for num_seen in range(1, 101):  # around the ring three times, token by token
        take_in(own, features[:, num_seen - 1 : num_seen], context)
        if num_seen not in (1, 24, 30, 31, 32, 33, 62, 63, 100):
            continue
        keys, values = own.model.context(features[:, :num_seen], torch.arange(num_seen))
        positions = torch.arange(num_seen, num_seen + 8)
        mask = additive_mask(sees_window(positions, torch.arange(num_seen + 8), 32), torch.float32)
        ids = torch.tensor([[17, *[500] * 7]])
        whole = own.model(own.target.embedding_weight[ids], positions, mask, keys, values)
        torch.testing.assert_close(own.hidden([17], context, ONE), whole, atol=1e-4, rtol=0)


def test_asking_for_three_proposals_returns_the_first_three_of_the_seven() -> None:
    own = golden_drafter()
    three = DFlash2Drafter(own.model, own.target, num_proposals=3)
    context = new_context(three)
    take_in(three, golden_features(0), context)
    draft = draft_of(three, 17, context)
    assert draft.tokens == GOLDEN[0].proposals[:3]
    assert draft.candidates.shape == draft.probabilities.shape == (3, 16)


@pytest.mark.parametrize("depth", [0, 8])
def test_depth_outside_the_trained_block_is_refused(depth: int) -> None:
    own = golden_drafter()
    with pytest.raises(ValueError, match=rf"num_proposals {depth} is not in 1\.\.7"):
        DFlash2Drafter(own.model, own.target, num_proposals=depth)


def test_blocks_of_a_batch_do_not_see_each_other() -> None:
    own = golden_drafter()
    keys, values = own.model.context(golden_features(0), torch.arange(40))
    positions = torch.arange(40, 48)
    mask = additive_mask(sees_window(positions, torch.arange(48), 32), torch.float32)
    blocks = uniform(301, (2, 8, 320)).float()
    both = own.model(
        blocks, positions, mask, keys.expand(-1, 2, -1, -1, -1), values.expand(-1, 2, -1, -1, -1)
    )
    for block, together in zip(blocks, both, strict=True):
        alone = own.model(block[None], positions, mask, keys, values)[0]
        torch.testing.assert_close(together, alone, atol=1e-5, rtol=0)


def test_sequences_of_different_lengths_draft_together_what_they_draft_alone() -> None:
    own = golden_drafter()
    # Rows that stay: nearly none, more than the window holds, and as many as it holds.
    pieces = [uniform(302, (3, 40, 960)).float(), uniform(303, (3, 12, 960)).float()]
    kept = [(1, 40, 31), (12, 1, 5)]
    together = own.new_contexts(num_slots=4, num_rows=200)
    slots, anchors = range(1, 4), [17, 401, 250]
    for features, num_rows in zip(pieces, kept, strict=True):
        own.append_context(committed(features, num_rows), together, slots)
    hidden = own.hidden(anchors, together, slots)
    drafts = own.propose(anchors, together, slots, temperatures=[0] * 3, generators=[None] * 3)
    for index, anchor in enumerate(anchors):
        alone = new_context(own)
        for features, num_rows in zip(pieces, kept, strict=True):
            take_in(own, features[index : index + 1, : num_rows[index]], alone)
        torch.testing.assert_close(
            hidden[index], own.hidden([anchor], alone, ONE)[0], atol=1e-4, rtol=0
        )
        assert drafts[index].tokens == proposals(own, anchor, alone)


# The deliberate errors: what to break, the sum of |h| and the proposals it is known to give.


def window(size: int) -> Callable[[], DFlash2Drafter]:
    return lambda: golden_drafter(golden_model(dataclasses.replace(DRAFTER, sliding_window=size)))


def changed(change: Callable[[str, Tensor], Tensor]) -> Callable[[], DFlash2Drafter]:
    def make() -> DFlash2Drafter:
        model = golden_model()
        model.load_state_dict({n: change(n, v) for n, v in model.state_dict().items()})
        return golden_drafter(model)

    return make


def without_hidden_norm() -> DFlash2Drafter:
    model = golden_model()
    model.hidden_norm = nn.Identity()
    return golden_drafter(model)


def swapped_codebooks() -> DFlash2Drafter:
    model = golden_model()
    selector = model.candidate_selector
    selector.predecessor_codebook, selector.successor_codebook = (
        selector.successor_codebook,
        selector.predecessor_codebook,
    )
    return golden_drafter(model)


def leave_rows_as_they_are(name: str, value: Tensor) -> Tensor:
    if "base_kernel" in name:
        return torch.tensor([1.0, 0.0]).view(1, 2, 1).expand_as(value).clone()
    return 0 * value if "kernel_projection" in name else value


def project_as_group_side_tap(name: str, value: Tensor) -> Tensor:
    if "kernel_projection" not in name:
        return value
    return value.view(20, 4, 320).transpose(0, 1).reshape(80, 320)


def swap_sides_and_taps(name: str, value: Tensor) -> Tensor:
    if "kernel_projection" not in name:
        return value
    return value.view(2, 2, 20, 320).transpose(0, 1).reshape(80, 320)


# fmt: off
WRONG: dict[str, tuple[Callable[[], DFlash2Drafter], float, tuple[int, ...]]] = {
    "window one too short": (window(31), 1914.6717, (134, 215, 489, 413, 316, 437, 262)),
    "window one too long": (window(33), 1903.7407, (134, 337, 105, 309, 27, 381, 154)),
    "no window": (window(4096), 1914.1556, (165, 496, 36, 75, 421, 202, 369)),
    "base kernel only": (
        changed(lambda name, value: 0 * value if "kernel_projection" in name else value),
        2018.1986, (330, 163, 129, 124, 433, 453, 30),
    ),
    "sides and taps of the projection swapped": (
        changed(swap_sides_and_taps), 1888.5985, (16, 496, 471, 432, 73, 470, 187),
    ),
    "projection read as group, side, tap": (
        changed(project_as_group_side_tap), 1894.2113, (389, 223, 47, 246, 188, 102, 282),
    ),
    "skipped convolutions": (
        changed(leave_rows_as_they_are), 2034.9588, (209, 30, 51, 443, 192, 7, 72),
    ),
    "norm weights counted from one": (
        changed(lambda name, value: 1 + value if "norm" in name else value),
        3791.8461, (79, 496, 457, 463, 196, 281, 301),
    ),
    "no norm of the projected features": (
        without_hidden_norm, 1921.5946, (214, 297, 429, 445, 163, 421, 324),
    ),
    "selector off": (
        changed(lambda name, value: 0 * value if "codebook" in name else value),
        1894.5248, (409, 189, 489, 363, 413, 437, 93),
    ),
    "codebooks swapped": (swapped_codebooks, 1894.5248, (202, 284, 380, 462, 437, 265, 453)),
}
# fmt: on


@pytest.mark.parametrize("error", WRONG)
def test_each_known_error_gives_its_known_wrong_numbers(error: str) -> None:
    make, sum_abs_hidden, tokens = WRONG[error]
    seen_sum, seen_tokens = first_round(make())
    assert seen_sum == pytest.approx(sum_abs_hidden, abs=2e-3)
    assert seen_tokens == tokens


def test_a_causal_block_gives_its_known_wrong_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    def causal(query_positions: Tensor, key_positions: Tensor, window: int) -> Tensor:
        past = attention.sees_past(query_positions, key_positions)
        return past & sees_window(query_positions, key_positions, window)

    monkeypatch.setattr(drafter, "sees_window", causal)
    seen_sum, seen_tokens = first_round(golden_drafter())
    assert seen_sum == pytest.approx(1918.9110, abs=2e-3)
    assert seen_tokens == (421, 467, 149, 279, 511, 80, 159)


def test_features_in_reversed_tap_order_give_their_known_wrong_numbers() -> None:
    own = golden_drafter()
    context = new_context(own)
    take_in(own, golden_features(0).unflatten(-1, (3, 320)).flip(-2).flatten(-2), context)
    assert own.hidden([17], context, ONE).abs().sum().item() == pytest.approx(1783.9558, abs=2e-3)
    assert proposals(own, 17, context) == (237, 278, 82, 256, 156, 341, 180)


def test_hidden_rows_and_drafts_equal_the_reference_implementation() -> None:
    reference = pytest.importorskip(
        "dflash.model", reason="the reference, dflash==0.1.0, is not installed (--no-deps)"
    )
    from transformers import DynamicCache, Qwen3Config

    config = Qwen3Config(**reference_values())
    theirs = reference.DFlash2DraftModel(config).float().eval().requires_grad_(False)
    own = golden_drafter()
    theirs.load_state_dict(
        {n + ".weight" * n.endswith("codebook"): v for n, v in own.model.state_dict().items()}
    )
    cache = DynamicCache(config=config)
    cache.activate_past_recording()
    context, num_past = new_context(own), 0
    for number in range(12):
        num_new = (40, 3, 8, 1)[number % 4]
        features = uniform(200 + number, (num_new, 960)).float().unsqueeze(0)
        anchor = (17 + 131 * number) % 512
        take_in(own, features, context)
        ids = torch.tensor([[anchor, *[500] * 7]])
        hidden = theirs(
            target_hidden=features,
            noise_embedding=own.target.embedding_weight[ids],
            position_ids=torch.arange(num_past, num_past + num_new + 8)[None],
            past_key_values=cache,
            use_cache=True,
        )
        num_past += num_new
        cache.crop(num_past - cache.get_seq_length())
        # From the float64 rows these are up to 0.9e-5 away, and the reference's up to 2.4e-5.
        torch.testing.assert_close(own.hidden([anchor], context, ONE), hidden, atol=3.3e-5, rtol=0)
        theirs_draft = theirs.propose(
            hidden[:, 1:], torch.tensor([anchor]), own.target.lm_head, 0.0
        )
        assert proposals(own, anchor, context) == tuple(theirs_draft[0][0].tolist())


def reference_values() -> dict[str, Any]:
    shared = {name: value for name, value in SHARED.items() if name not in ("rope_theta", "dtype")}
    return {
        **shared,
        "architectures": ["DFlash2DraftModel"],
        "num_hidden_layers": 2,
        "hidden_act": "silu",
        "attention_bias": False,
        "rope_parameters": {"rope_theta": 1e7, "rope_type": "default"},
        "use_sliding_window": True,
        "sliding_window": 32,
        "max_window_layers": 2,
        "layer_types": ["sliding_attention"] * 2,
        "is_causal": False,
        "num_target_layers": 8,
        "tie_word_embeddings": False,
        "dflash_config": {
            "block_size": 8,
            "conv_group_size": 16,
            "conv_kernel_size": 2,
            "mask_token_id": 500,
            "selector_rank": 32,
            "selector_top_k": 16,
            "target_layer_ids": [1, 3, 5],
        },
    }
