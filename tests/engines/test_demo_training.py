"""Training computes what serving computes, and packs whole documents."""

from pathlib import Path
from random import Random

import numpy as np
import pytest
import torch

from engines.demo.train.drafter_config import TARGET_LAYER_IDS, drafter_config
from engines.demo.train.export import target_config, write_json
from engines.demo.train.generate import Answers, answer
from engines.demo.train.model import TargetShape, TrainedTarget, causal_attention
from engines.demo.train.pack import ANSWER, PADDING, QUESTION, Encoded, as_arrays, fill
from engines.demo.train.tokenizer import SPECIAL, train
from engines.demo.train.train_drafter import block_hidden, draw_blocks, initialise, rate
from engines.demo.train.train_target import Settings, as_tensors
from engines.dflash2.config import load_drafter_config, load_target_config
from engines.dflash2.decode import generate
from engines.dflash2.drafter import DFlash2Drafter, DFlash2DraftModel
from engines.dflash2.sampling import SamplingParams
from engines.dflash2.target import Qwen3ForCausalLM

SHAPE = TargetShape(
    vocab_size=300, hidden_size=64, num_attention_heads=2, num_key_value_heads=1,
    head_dim=32, intermediate_size=96, max_position_embeddings=512,
)  # fmt: skip
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
    write_json(folder / "config.json", drafter_config(SHAPE, TOKENIZER))
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


def test_chunked_attention_is_causal_attention() -> None:
    q, k, v = torch.randn(3, 2, 3, 37, 16, generator=torch.Generator().manual_seed(3))
    expected = torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
    assert torch.allclose(causal_attention(q, k, v), expected, atol=1e-5)


def test_batched_answers_are_the_engines_greedy_answers(tmp_path: Path) -> None:
    target = small_target(tmp_path)
    prompts = [[5, 9, 250, 33], [7, 8, 120, 2]]
    batched = answer(target, prompts, {299}, max_tokens=20)
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
    endless = answer(target, prompts, {299}, max_tokens=24)
    stop = int(endless.tokens[0, 4 + 2])  # ends the first row at once, others when they meet it
    stopped = answer(target, prompts, {stop}, max_tokens=24)
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
        context = drafter.new_context()
        drafter.append_context(blocks.features[:1, :place], context)
        served = drafter.hidden(int(blocks.ids[0, block, 0]), context)[0, 1:]
        assert torch.allclose(hidden[0, block], served, atol=1e-4)


def answer_of_any_length(target: Qwen3ForCausalLM) -> Answers:
    """One sequence of 40 random tokens as if the last 32 of them were an answer."""
    tokens = torch.randint(0, 300, (1, 40), generator=torch.Generator().manual_seed(5))
    features = target(tokens[:, :-1], tap_layer_ids=TARGET_LAYER_IDS).features
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
        work=Path(), windows="8", batch_windows=2, steps=100, warmup_steps=10, cooldown_steps=40,
        muon_rate=1.0, adam_rate=1.0, log_every=1, evaluate_every=1, resume=False,
        first_window=None,
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
