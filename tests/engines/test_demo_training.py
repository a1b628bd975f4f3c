"""Training computes what serving computes, and packs whole documents."""

import json
from pathlib import Path
from random import Random

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from engines.demo.train.drafter_config import drafter_config
from engines.demo.train.export import target_config, write_json
from engines.demo.train.generate import Answers, answer
from engines.demo.train.hybrid_model import HybridShape, TrainedHybridTarget, delta_rule
from engines.demo.train.loop import rate
from engines.demo.train.model import TargetShape, TrainedTarget, causal_attention
from engines.demo.train.pack import ANSWER, PADDING, QUESTION, Encoded, as_arrays, fill
from engines.demo.train.pairs import PAIRS, Pair, lend_embedding
from engines.demo.train.tokenizer import SPECIAL, train
from engines.demo.train.train_drafter import as_dense, block_hidden, draw_blocks, initialise
from engines.demo.train.train_target import Settings, as_tensors
from engines.dflash2.config import load_drafter_config, load_target_config
from engines.dflash2.decode import generate
from engines.dflash2.deltanet import run_step
from engines.dflash2.drafter import DFlash2Drafter, DFlash2DraftModel
from engines.dflash2.qwen3_5 import Qwen3_5ForCausalLM
from engines.dflash2.sampling import SamplingParams
from engines.dflash2.target import Qwen3ForCausalLM

from .decoding import ONE, new_context, take_in

SHAPE = TargetShape(
    vocab_size=300, hidden_size=64, num_attention_heads=2, num_key_value_heads=1,
    head_dim=32, intermediate_size=96, max_position_embeddings=512,
)  # fmt: skip
HYBRID = HybridShape(
    vocab_size=300, hidden_size=64, num_hidden_layers=4, num_attention_heads=2,
    num_key_value_heads=1, head_dim=32, linear_num_key_heads=1, linear_num_value_heads=2,
    linear_key_head_dim=16, linear_value_head_dim=16, intermediate_size=96,
    max_position_embeddings=512,
)  # fmt: skip
PAIR = Pair(name="small", shape=SHAPE, target_layer_ids=(1, 4, 7))
HYBRID_PAIR = Pair(name="small-hybrid", shape=HYBRID, target_layer_ids=(0, 2))
TOKENIZER = train(["a small text about nothing at all"], 300)


def small_target(folder: Path) -> Qwen3ForCausalLM:
    """The engine's target with the training model's random weights."""
    torch.manual_seed(0)
    trained = TrainedTarget(SHAPE)
    for parameter in trained.parameters():
        if parameter.dim() == 2:
            torch.nn.init.normal_(parameter, std=0.15)
    write_json(folder / "config.json", target_config(SHAPE, TOKENIZER))
    target = Qwen3ForCausalLM(load_target_config(folder))
    target.load_state_dict(trained.state_dict())
    return target.eval().requires_grad_(False)


def small_drafter(folder: Path, target: Qwen3ForCausalLM) -> DFlash2DraftModel:
    folder.mkdir()
    write_json(folder / "config.json", drafter_config(PAIR, TOKENIZER))
    model = DFlash2DraftModel(load_drafter_config(folder))
    torch.manual_seed(1)
    initialise(model, target)
    for parameter in model.parameters():
        parameter.data += 0.05 * torch.randn_like(parameter)  # convolutions and norms as well
    return model.eval().requires_grad_(False)


def test_the_training_forward_agrees_with_the_engine(tmp_path: Path) -> None:
    target = small_target(tmp_path)
    trained = TrainedTarget(SHAPE)
    trained.load_state_dict(target.state_dict())
    ids = torch.randint(0, 300, (2, 40), generator=torch.Generator().manual_seed(2))
    with torch.autocast("cpu", dtype=torch.bfloat16), torch.no_grad():
        rounded = trained(ids).float()
    exact = target.logits(target(ids).hidden)
    assert (rounded - exact).abs().max() < 0.05 * exact.abs().max()  # bfloat16 has 8 bits


def small_hybrid(folder: Path) -> tuple[TrainedHybridTarget, Qwen3_5ForCausalLM]:
    """The training model with weights that matter, and the engine's target with the same."""
    torch.manual_seed(7)
    trained = TrainedHybridTarget(HYBRID)
    for parameter in trained.parameters():
        if parameter.dim() == 2:
            torch.nn.init.normal_(parameter, std=0.15)
        elif parameter.dim() == 1:
            parameter.data += 0.1 * torch.randn_like(parameter)  # norms, decays
    write_json(folder / "config.json", target_config(HYBRID, TOKENIZER))
    target = Qwen3_5ForCausalLM(load_target_config(folder))
    target.load_state_dict(trained.state_dict())
    return trained, target.eval().requires_grad_(False)


def test_the_hybrids_training_forward_agrees_with_the_engine(tmp_path: Path) -> None:
    trained, target = small_hybrid(tmp_path)
    ids = torch.randint(0, 300, (2, 96), generator=torch.Generator().manual_seed(8))
    with torch.no_grad():
        logits = trained(ids)
    assert torch.allclose(logits, target.logits(target(ids).hidden), atol=1e-3)


def test_the_delta_rule_for_all_chunks_at_once_is_the_recurrence() -> None:
    generator = torch.Generator().manual_seed(9)
    q, k, v = torch.randn(3, 2, 3, 96, 8, generator=generator, dtype=torch.float64)
    k = torch.nn.functional.normalize(k, dim=-1)
    beta, decay = torch.rand(2, 2, 3, 96, generator=generator, dtype=torch.float64)
    S = torch.zeros(2, 3, 8, 8, dtype=torch.float64)
    rows = [run_step(*(x[:, :, t : t + 1] for x in (q, k, v, beta, -decay)), S) for t in range(96)]
    assert torch.allclose(delta_rule(q, k, v, beta, -decay), torch.cat(rows, 2), atol=1e-10)


def test_a_lent_embedding_keeps_which_tokens_are_alike() -> None:
    narrow = 0.02 * torch.randn(2048, 256, generator=torch.Generator().manual_seed(10))
    size = narrow.std()
    lend_embedding(PAIRS["dense"].target, narrow)
    wide = load_file(PAIRS["dense"].target / "model.safetensors")["model.embed_tokens.weight"]
    there, here = (torch.corrcoef(rows[:400].float()).flatten() for rows in (wide, narrow))
    assert torch.corrcoef(torch.stack((there, here)))[0, 1] > 0.9
    assert torch.isclose(narrow.std(), size)


def test_a_layer_without_its_gate_and_offsets_attends_as_a_dense_one(tmp_path: Path) -> None:
    _, target = small_hybrid(tmp_path)
    layer = target.model.layers[3]
    values = as_dense(layer)
    x = torch.randn(5, 64, generator=torch.Generator().manual_seed(11))
    heads = layer.self_attn.q_proj(x).view(5, 2, 2, 32)  # head by head: its queries, its gate
    queries = x @ values["self_attn.q_proj.weight"].T
    assert torch.allclose(queries, heads[:, :, 0].flatten(1), atol=1e-5)
    normed = torch.nn.functional.rms_norm(x, (64,), eps=1e-6)
    expected = layer.input_layernorm(x)
    assert torch.allclose(values["input_layernorm.weight"] * normed, expected, atol=1e-5)


def test_an_exported_hybrid_says_that_it_has_an_mtp_head(tmp_path: Path) -> None:
    write_json(tmp_path / "config.json", target_config(HYBRID, TOKENIZER))
    values = json.loads((tmp_path / "config.json").read_text())
    config = load_target_config(tmp_path)
    assert config.num_mtp_layers == 1
    assert sum(values["rope_parameters"]["mrope_section"]) == config.rotary_dim // 2


def test_chunked_attention_is_causal_attention() -> None:
    q, k, v = torch.randn(3, 2, 3, 37, 16, generator=torch.Generator().manual_seed(3))
    expected = torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
    assert torch.allclose(causal_attention(q, k, v), expected, atol=1e-5)


def test_batched_answers_are_the_engines_greedy_answers(tmp_path: Path) -> None:
    target = small_target(tmp_path)
    prompts = [[5, 9, 250, 33], [7, 8, 120, 2]]
    batched = answer(target, prompts, {299}, PAIR.target_layer_ids, max_tokens=20)
    for row, prompt in enumerate(prompts):
        rounds = generate(
            target, None, prompt, max_tokens=20, sampling=SamplingParams(),
            stop_ids=frozenset({299}), kv_len=64,
        )  # fmt: skip
        alone = [token for each in rounds for token in each.tokens]
        assert batched.tokens[row, 4 : 4 + len(alone)].tolist() == alone


def test_rows_that_ended_leave_the_batch_and_change_nothing(tmp_path: Path) -> None:
    target = small_target(tmp_path)
    prompts = [[5, 9, 250, 33], [7, 8, 120, 2], [64, 3, 71, 200]]
    endless = answer(target, prompts, {299}, PAIR.target_layer_ids, max_tokens=24)
    stop = int(endless.tokens[0, 4 + 2])  # ends the first row at once, others when they meet it
    stopped = answer(target, prompts, {stop}, PAIR.target_layer_ids, max_tokens=24)
    assert len(set(stopped.num_tokens.tolist())) > 1
    for row, num_tokens in enumerate(stopped.num_tokens.tolist()):
        assert torch.equal(stopped.tokens[row, :num_tokens], endless.tokens[row, :num_tokens])
        features = stopped.features[row, : num_tokens - 1].float()
        assert torch.allclose(features, endless.features[row, : num_tokens - 1].float(), atol=1e-2)


def test_a_training_block_computes_the_rows_that_serving_computes(tmp_path: Path) -> None:
    target = small_target(tmp_path)
    model = small_drafter(tmp_path / "drafter", target)
    drafter = DFlash2Drafter(model, target)
    answers = answer_of_any_length(target)
    blocks = draw_blocks(answers, Random(4))
    hidden = block_hidden(model, target.embedding_weight, blocks)
    hidden = hidden.unflatten(0, blocks.anchors.shape)
    for block in range(0, blocks.anchors.shape[1], 13):
        place = int(blocks.anchors[0, block])
        contexts = new_context(drafter)
        take_in(drafter, blocks.features[:1, :place], contexts)
        served = drafter.hidden([int(blocks.ids[0, block, 0])], contexts, ONE)[0, 1:]
        assert torch.allclose(hidden[0, block], served, atol=1e-4)


def answer_of_any_length(target: Qwen3ForCausalLM) -> Answers:
    """One sequence of 40 random tokens as if the last 32 of them were an answer."""
    tokens = torch.randint(0, 300, (1, 40), generator=torch.Generator().manual_seed(5))
    features = target(tokens[:, :-1], tap_layer_ids=PAIR.target_layer_ids).features
    return Answers(num_prompt=8, tokens=tokens, num_tokens=torch.tensor([40]), features=features)


def test_rows_behind_the_end_of_an_answer_are_not_learned(tmp_path: Path) -> None:
    blocks = draw_blocks(answer_of_any_length(small_target(tmp_path)), Random(6))
    places = blocks.anchors[..., None] + torch.arange(8)
    assert torch.equal(blocks.known, places < 40)
    assert bool(blocks.known[..., 1].all())  # every anchor has something to predict


def test_windows_hold_whole_documents_and_nothing_twice() -> None:
    lengths = [7, 3, 5, 5, 2, 8, 1]
    documents = [
        Encoded(tokens=tuple([index] * length), num_question=1)
        for index, length in enumerate(lengths)
    ]
    windows = fill(documents, 8)
    assert sorted(d.tokens[0] for window in windows for d in window) == list(range(7))
    assert max(sum(len(d.tokens) for d in window) for window in windows) <= 8
    assert len(windows) == 4  # 31 tokens do not fit three windows of 8


def test_questions_answers_and_padding_are_weighed_apart() -> None:
    document = Encoded(tokens=(10, 11, 12, 13), num_question=2)
    arrays = as_arrays([[document]], 6)
    assert arrays["roles"].tolist() == [[QUESTION, QUESTION, ANSWER, ANSWER, PADDING, PADDING]]
    ids, weights = as_tensors(arrays["tokens"], arrays["roles"])
    assert ids.tolist() == [[10, 11, 12, 13, 0, 0]]
    assert weights.tolist() == [[0.25, 1.0, 1.0, 0.0, 0.0]]  # of the predicted tokens 11, 12, ...
    assert arrays["tokens"].dtype == np.uint16


@pytest.mark.parametrize(
    ("step", "expected"), [(0, 0.1), (9, 1.0), (60, 1.0), (80, 0.5), (99, 0.025)]
)
def test_the_rate_is_a_trapezoid(step: int, expected: float) -> None:
    settings = Settings(
        pair=PAIR, work=Path(), data=Path(), workers=1, compile=False, windows="8",
        batch_windows=2, steps=100, warmup_steps=10, cooldown_steps=40, muon_rate=1.0,
        adam_rate=1.0, log_every=1, evaluate_every=1, resume=False, first_window=None,
    )  # fmt: skip
    assert settings.rate(step) == pytest.approx(expected)


def test_the_drafters_rate_falls_to_nearly_nothing() -> None:
    assert rate(0, 1000) < 0.05
    assert rate(500, 1000) == pytest.approx(0.5)
    assert rate(999, 1000) == pytest.approx(0.02)


def test_special_tokens_come_first_and_digits_stay_single() -> None:
    tokenizer = train(["the year 2024 and 2024 again 2024"] * 3, 300)
    assert [tokenizer.token_to_id(name) for name in SPECIAL] == [0, 1, 2, 3]
    assert len(tokenizer.encode("2024").ids) == 4
    text = "für 12 Äpfel\n\tund mehr"
    assert tokenizer.decode(tokenizer.encode(text).ids) == text
