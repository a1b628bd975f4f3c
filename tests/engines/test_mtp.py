"""The MTP head: an independent float64 oracle's drafts, cached or not, and lossless decoding."""

import json
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from engines.dflash2.config import HybridTargetConfig, ModelError, load_target_config
from engines.dflash2.drafting import Committed, Draft
from engines.dflash2.mtp import MTPDrafter, MTPHead
from engines.dflash2.qwen3_5 import Qwen3_5ForCausalLM
from engines.dflash2.sampling import SamplingParams
from engines.dflash2.weights import load_mtp, load_target

from .conftest import TINY_HYBRID, randomised
from .decoding import prompts, run, tokens_of
from .mtp_oracle import Head
from .test_checkpoint import fp8_and_scale, published_names, write_shards

PUBLISHED = Path(__file__).parent / "golden" / "target"
Json = dict[str, Any]


@pytest.fixture(scope="module")
def target(make_hybrid: Any) -> Qwen3_5ForCausalLM:
    model: Qwen3_5ForCausalLM = make_hybrid(seed=41)
    return model


@pytest.fixture(scope="module")
def head() -> MTPHead:
    return randomised(MTPHead(TINY_HYBRID), 42)


@pytest.fixture(scope="module")
def oracle(head: MTPHead) -> Head:
    return Head(
        {name: tensor.double().numpy() for name, tensor in head.state_dict().items()},
        num_heads=TINY_HYBRID.num_attention_heads,
        num_groups=TINY_HYBRID.num_key_value_heads,
        head_dim=TINY_HYBRID.head_dim,
        rotary_dim=TINY_HYBRID.rotary_dim,
        theta=TINY_HYBRID.rope_theta,
    )


def committed(hidden: Tensor, next_tokens: Tensor, num_rows: tuple[int, ...]) -> Committed:
    return Committed(hidden=hidden, features=None, num_rows=num_rows, next_tokens=next_tokens)


def greedy_drafts(drafter: MTPDrafter, contexts: Any, anchors: list[int]) -> list[Draft]:
    none = [torch.Generator()] * len(anchors)
    slots = range(len(anchors))
    return drafter.propose(
        anchors, contexts, slots, temperatures=[0.0] * len(anchors), generators=none
    )


def random_sequence(num_rows: int, seed: int) -> tuple[Tensor, Tensor]:
    """Final hidden rows as a target might have made them, and the token behind each."""
    generator = torch.Generator().manual_seed(seed)
    hidden = torch.randn(num_rows, 48, generator=generator, dtype=torch.float64)
    return hidden, torch.randint(0, 96, (num_rows,), generator=generator)


def test_the_heads_rows_are_the_oracles(
    target: Qwen3_5ForCausalLM, head: MTPHead, oracle: Head
) -> None:
    hidden, tokens = random_sequence(30, seed=43)
    embedded = target.embedding_weight[tokens]
    rows = head(hidden[None], embedded[None], torch.arange(30), None, None)[0]
    expected = oracle.rows(hidden.numpy(), embedded.numpy())
    # The engine's rotary table is float32, so a float64 head agrees to single precision.
    np.testing.assert_allclose(rows.numpy(), expected, atol=2e-6)


@pytest.mark.parametrize("num_proposals", [1, 2, 3, 5])
def test_drafts_are_the_oracles_however_the_context_came(
    target: Qwen3_5ForCausalLM, head: MTPHead, oracle: Head, num_proposals: int
) -> None:
    """In one piece; in pieces of 1, 5 and the rest; with rejected rows; drafting in between."""
    drafter = MTPDrafter(head, target, num_proposals=num_proposals)
    hidden, tokens = random_sequence(34, seed=44)
    expected, logits = oracle.drafts(
        hidden.numpy(),
        tokens.tolist(),
        target.embedding_weight.numpy(),
        target.head_weight.numpy(),
        num_proposals,
    )
    best = [np.sort(row)[-2:] for row in logits]
    assert min(high - low for low, high in best) > 1e-4  # no draft hangs on rounding
    for pieces in ([(34, 34)], [(1, 1), (5, 5), (28, 28)], [(8, 3), (8, 8), (8, 1), (22, 22)]):
        contexts = drafter.new_contexts(1, 60)
        start = 0
        for length, num_rows in pieces:
            wrong = torch.full((length - num_rows,), 7)
            padded = torch.cat((hidden[start : start + num_rows], hidden[:1].repeat(len(wrong), 1)))
            behind = torch.cat((tokens[start : start + num_rows], wrong))
            drafter.append_context(
                committed(padded[None], behind[None], (num_rows,)), contexts, range(1)
            )
            start += num_rows
            drafts = greedy_drafts(drafter, contexts, [int(behind[num_rows - 1])])
        assert drafts[0].tokens == tuple(expected)
        assert torch.equal(drafts[0].probabilities.sum(-1), torch.ones(num_proposals).double())


def test_a_sequence_drafts_the_same_alone_and_beside_a_longer_one(
    target: Qwen3_5ForCausalLM, head: MTPHead
) -> None:
    drafter = MTPDrafter(head, target, num_proposals=3)
    sequences = [random_sequence(20, seed=45), random_sequence(9, seed=46)]
    alone = []
    for hidden, tokens in sequences:
        contexts = drafter.new_contexts(1, 40)
        seen = committed(hidden[None], tokens[None], (len(tokens),))
        drafter.append_context(seen, contexts, range(1))
        alone += greedy_drafts(drafter, contexts, [int(tokens[-1])])

    together = drafter.new_contexts(3, 40)
    for slot, (hidden, tokens) in zip((0, 2), sequences, strict=True):
        seen = committed(hidden[None], tokens[None], (len(tokens),))
        drafter.append_context(seen, together, range(slot, slot + 1))
    together.move(2, 1)
    anchors = [int(tokens[-1]) for _, tokens in sequences]
    for _ in range(2):  # proposing leaves no trace
        drafts = greedy_drafts(drafter, together, anchors)
        assert [draft.tokens for draft in drafts] == [draft.tokens for draft in alone]


def test_a_drawn_proposal_comes_from_the_distribution_that_is_recorded(
    target: Qwen3_5ForCausalLM, head: MTPHead
) -> None:
    """Of one draft's first place: 4,000 draws against the recorded 16 probabilities."""
    drafter = MTPDrafter(head, target, num_proposals=1)
    hidden, tokens = random_sequence(12, seed=47)
    contexts = drafter.new_contexts(1, 20)
    drafter.append_context(committed(hidden[None], tokens[None], (12,)), contexts, range(1))
    generator = torch.Generator().manual_seed(48)
    counts: Counter[int] = Counter()
    for _ in range(4000):
        (draft,) = drafter.propose(
            [int(tokens[-1])], contexts, range(1), temperatures=[1.5], generators=[generator]
        )
        counts[draft.tokens[0]] += 1
    logits = target.logits(head_row(drafter, hidden, tokens))
    scores, ids = logits.sort(descending=True)
    q = torch.softmax(scores[:16] / 1.5, -1)
    assert draft.candidates[0].tolist() == ids[:16].tolist()
    torch.testing.assert_close(draft.probabilities[0], q)
    expected = 4000 * q
    observed = torch.tensor([counts[token] for token in ids[:16].tolist()])
    assert int(observed.sum()) == 4000
    assert float(((observed - expected) ** 2 / expected).sum()) < 37.7  # 15 degrees, p = 0.001


def head_row(drafter: MTPDrafter, hidden: Tensor, tokens: Tensor) -> Tensor:
    embedded = drafter.target.embedding_weight[tokens]
    return drafter.model(hidden[None], embedded[None], torch.arange(len(tokens)), None, None)[0, -1]


@pytest.mark.parametrize("num_proposals", [1, 3])
def test_greedy_output_with_a_random_head_equals_greedy_output_without_it(
    target: Qwen3_5ForCausalLM, head: MTPHead, num_proposals: int
) -> None:
    drafter = MTPDrafter(head, target, num_proposals=num_proposals)
    for prompt in prompts(6)[::2]:
        plain = tokens_of(run(target, None, prompt))
        rounds = run(target, drafter, prompt)
        assert tokens_of(rounds) == plain
        assert {step.num_drafted for step in rounds[1:]} == {num_proposals}


def test_the_same_seed_draws_the_same_text_and_another_seed_another(
    target: Qwen3_5ForCausalLM, head: MTPHead
) -> None:
    drafter = MTPDrafter(head, target, num_proposals=2)
    one, again, other = (
        tokens_of(
            run(target, drafter, [1, 2, 3], sampling=SamplingParams(temperature=1.0, seed=seed))
        )
        for seed in (5, 5, 6)
    )
    assert one == again != other


def test_the_published_head_has_its_published_inventory() -> None:
    config = load_target_config(PUBLISHED)
    assert isinstance(config, HybridTargetConfig)
    assert config.num_mtp_layers == 1
    with torch.device("meta"):
        tensors = MTPHead(config).state_dict()
    assert len(tensors) == 15
    assert sum(tensor.numel() for tensor in tensors.values()) == 424_699_392
    assert tuple(tensors["fc.weight"].shape) == (5120, 10240)
    assert tuple(tensors["layers.0.self_attn.q_proj.weight"].shape) == (12288, 5120)


def with_head(hybrid_json: Json, **changes: Any) -> Json:
    text = {
        **hybrid_json["text_config"],
        "mtp_num_hidden_layers": 1,
        "mtp_use_dedicated_embeddings": False,
        **changes,
    }
    return {**hybrid_json, "text_config": text}


def test_a_sharded_fp8_checkpoints_head_is_what_its_numbers_say(
    tmp_path: Path, make_hybrid: Any, hybrid_json: Json
) -> None:
    model, head = make_hybrid(seed=49).float(), randomised(MTPHead(TINY_HYBRID), 50).float()
    stored = {n: t.bfloat16() for n, t in published_names(model.state_dict()).items()}
    of_head: dict[str, Tensor] = {}
    for name, tensor in head.state_dict().items():
        if name.endswith("_proj.weight"):
            codes, scales = fp8_and_scale(tensor, 20)
            of_head |= {f"mtp.{name}": codes, f"mtp.{name}_scale_inv": scales}
        else:
            of_head[f"mtp.{name}"] = tensor.bfloat16()  # mtp.fc too, as published
    config = {
        **with_head(hybrid_json),
        "quantization_config": {"quant_method": "fp8", "weight_block_size": [20, 20]},
    }
    folder = write_shards(tmp_path, config, {"a.safetensors": stored, "b.safetensors": of_head})
    target = load_target(folder, torch.float32, say=lambda text: None)
    loaded = load_mtp(folder, target, num_proposals=2, say=lambda text: None)
    for name, tensor in loaded.model.state_dict().items():
        codes = of_head[f"mtp.{name}"].float()
        if f"mtp.{name}_scale_inv" in of_head:
            wide = of_head[f"mtp.{name}_scale_inv"].float().repeat_interleave(20, 0)
            codes = codes * wide.repeat_interleave(20, 1)[: len(codes), : codes.shape[1]]
        assert torch.equal(tensor, codes)
    plain = tokens_of(run(target, None, [4, 5]))
    assert tokens_of(run(target, loaded, [4, 5])) == plain


def test_mtp_on_a_checkpoint_without_a_head_is_refused(
    tmp_path: Path, target: Qwen3_5ForCausalLM, hybrid_json: Json
) -> None:
    (tmp_path / "config.json").write_text(json.dumps(hybrid_json))
    with pytest.raises(ModelError, match=r"names no MTP head .*without --mtp on"):
        load_mtp(tmp_path, target, num_proposals=1)


def test_a_head_that_the_config_promises_and_the_files_lack_is_refused(
    tmp_path: Path, make_hybrid: Any, hybrid_json: Json, write_checkpoint: Any
) -> None:
    model = make_hybrid(seed=51).float()
    folder = write_checkpoint(tmp_path, with_head(hybrid_json), published_names(model.state_dict()))
    with pytest.raises(ModelError, match=r"15 missing \(fc\.weight"):
        load_mtp(folder, load_target(folder), num_proposals=1)


@pytest.mark.parametrize(
    ("key", "value"), [("mtp_num_hidden_layers", 2), ("mtp_use_dedicated_embeddings", True)]
)
def test_a_head_of_another_kind_is_refused(
    tmp_path: Path, hybrid_json: Json, key: str, value: object
) -> None:
    (tmp_path / "config.json").write_text(json.dumps(with_head(hybrid_json, **{key: value})))
    with pytest.raises(ModelError, match=key):
        load_target_config(tmp_path)
