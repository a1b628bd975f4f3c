"""The committed demo pair: it loads wherever such pairs load, and drafting changes no token."""

import json
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from engines.dflash2.decode import Round, generate
from engines.dflash2.drafter import DFlash2Drafter
from engines.dflash2.sampling import SamplingParams
from engines.dflash2.target import Qwen3ForCausalLM
from engines.dflash2.tokenizer import Tokenizer, load_stop_ids, load_tokenizer
from engines.dflash2.weights import load_drafter, load_target

PAIR = Path("engines/demo/dense")
MAX_BYTES = 40_000_000
MESSAGES = [{"role": "user", "content": "Anna has 12 pens and buys 30 more. How many is that?"}]


@pytest.fixture(scope="module")
def target() -> Qwen3ForCausalLM:
    return load_target(PAIR / "target")


@pytest.fixture(scope="module")
def drafter(target: Qwen3ForCausalLM) -> DFlash2Drafter:
    return load_drafter(PAIR / "drafter", target)


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return load_tokenizer(PAIR / "target")


def first_prompts() -> list[dict]:
    lines = Path("prompts/demo5.jsonl").read_text(encoding="utf-8").splitlines()
    return [line for line in map(json.loads, lines) if line["id"].endswith("-1")]


def decode(
    target: Qwen3ForCausalLM, drafter: DFlash2Drafter | None, prompt: list[int]
) -> list[Round]:
    stop = load_stop_ids(PAIR / "target")
    return list(
        generate(
            target, drafter, prompt, max_tokens=96, sampling=SamplingParams(),
            stop_ids=stop, kv_len=1024,
        )
    )  # fmt: skip


def test_the_pair_is_small_enough_to_live_in_the_repository() -> None:
    assert sum(path.stat().st_size for path in PAIR.rglob("*") if path.is_file()) <= MAX_BYTES


def test_transformers_and_the_engine_compute_the_same_logits(
    target: Qwen3ForCausalLM, tokenizer: Tokenizer
) -> None:
    theirs = AutoModelForCausalLM.from_pretrained(PAIR / "target", dtype=torch.float32)
    ids = torch.tensor([tokenizer.encode_chat(MESSAGES, {})])
    with torch.no_grad():
        difference = theirs(ids).logits - target.logits(target(ids).hidden)
    assert difference.abs().max() < 1e-3


def test_transformers_and_the_engine_write_the_same_chat(tokenizer: Tokenizer) -> None:
    theirs = AutoTokenizer.from_pretrained(PAIR / "target")
    ids = theirs.apply_chat_template(MESSAGES, add_generation_prompt=True, return_dict=False)
    assert ids == tokenizer.encode_chat(MESSAGES, {})


def test_an_answer_ends_at_either_end_token() -> None:
    theirs = AutoTokenizer.from_pretrained(PAIR / "target")
    names = ("<|im_end|>", "<|endoftext|>")
    assert load_stop_ids(PAIR / "target") == {theirs.convert_tokens_to_ids(name) for name in names}


def test_the_mask_is_a_token_of_its_own(drafter: DFlash2Drafter) -> None:
    theirs = AutoTokenizer.from_pretrained(PAIR / "target")
    assert theirs.convert_tokens_to_ids("<|mask|>") == drafter.config.mask_token_id


def test_numbers_are_written_digit_by_digit(tokenizer: Tokenizer) -> None:
    with_number = len(tokenizer.encode("a 2024"))
    assert with_number - len(tokenizer.encode("a 2")) == 3


def test_drafting_changes_no_token_and_saves_rounds(
    target: Qwen3ForCausalLM, drafter: DFlash2Drafter, tokenizer: Tokenizer
) -> None:
    num_tokens = num_rounds = 0
    for line in first_prompts():
        prompt = tokenizer.encode_chat(line["messages"], {})
        plain, drafted = decode(target, None, prompt), decode(target, drafter, prompt)
        tokens = [token for each in plain for token in each.tokens]
        assert [token for each in drafted for token in each.tokens] == tokens, line["id"]
        num_tokens += len(tokens)
        num_rounds += len(drafted)
    assert num_tokens > 2 * num_rounds
