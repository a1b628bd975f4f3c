"""The committed hybrid pair: its three ways to draft change no token, and what each remembers."""

import json
from collections import Counter
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM

from engines.dflash2.drafter import DFlash2Drafter
from engines.dflash2.drafting import Drafter
from engines.dflash2.target import Target
from engines.dflash2.tokenizer import load_stop_ids, load_tokenizer
from engines.dflash2.weights import load_drafter, load_mtp, load_target

from .decoding import Oracle, run, tokens_of

PAIR = Path("engines/demo/hybrid")
MAX_BYTES = 25_000_000
NUM_FIRST, NUM_TOKENS = 40, 520
KV_LEN = 1024
# In float32 a pass of eight rows and one of one row may break a near tie differently.
DTYPE = torch.float64


@pytest.fixture(scope="module")
def target() -> Target:
    return load_target(PAIR / "target", DTYPE)


@pytest.fixture(scope="module")
def drafter(target: Target) -> DFlash2Drafter:
    return load_drafter(PAIR / "drafter", target, DTYPE)


@pytest.fixture(scope="module")
def prompts() -> list[list[int]]:
    """One question of each kind."""
    tokenizer = load_tokenizer(PAIR / "target")
    lines = map(json.loads, Path("prompts/demo5.jsonl").read_text(encoding="utf-8").splitlines())
    return [
        tokenizer.encode_chat(line["messages"], {}) for line in lines if line["id"].endswith("-1")
    ]


def test_the_pair_is_small_enough_to_live_in_the_repository() -> None:
    assert sum(path.stat().st_size for path in PAIR.rglob("*") if path.is_file()) <= MAX_BYTES


def test_it_speaks_the_dense_pairs_language_and_ends_where_that_one_does() -> None:
    dense = Path("engines/demo/dense/target")
    for name in ("tokenizer.json", "tokenizer_config.json", "generation_config.json"):
        assert (PAIR / "target" / name).read_bytes() == (dense / name).read_bytes()
    assert load_stop_ids(PAIR / "target") == load_stop_ids(dense)


def test_transformers_and_the_engine_compute_the_same_logits(
    target: Target, prompts: list[list[int]]
) -> None:
    theirs = AutoModelForCausalLM.from_pretrained(PAIR / "target", dtype=torch.float32)
    ids = torch.tensor([prompts[0]])
    with torch.no_grad():
        difference = theirs(ids).logits - target.logits(target(ids).hidden)
    assert difference.abs().max() < 1e-3


@pytest.fixture(scope="module")
def plain(target: Target, prompts: list[list[int]]) -> list[list[int]]:
    """The first tokens of plain greedy answers."""
    return [
        tokens_of(run(target, None, prompt, max_tokens=NUM_FIRST, kv_len=KV_LEN))
        for prompt in prompts
    ]


@pytest.mark.parametrize("mode", ["MTP-1", "MTP-2", "MTP-3", "DFlash 2"])
def test_drafting_changes_no_token_and_is_often_right(
    target: Target,
    drafter: DFlash2Drafter,
    prompts: list[list[int]],
    plain: list[list[int]],
    mode: str,
) -> None:
    drafting = named(mode, target, drafter)
    num_rounds = num_accepted = 0
    for prompt, answer in zip(prompts, plain, strict=True):
        rounds = run(target, drafting, prompt, max_tokens=NUM_FIRST, kv_len=KV_LEN)
        assert tokens_of(rounds) == answer
        num_rounds += len(rounds) - 1
        num_accepted += sum(step.num_accepted for step in rounds)
    assert 1 + num_accepted / num_rounds > 1.3


def named(mode: str, target: Target, drafter: DFlash2Drafter) -> Drafter:
    if mode == "DFlash 2":
        return drafter
    return load_mtp(PAIR / "target", target, num_proposals=int(mode.removeprefix("MTP-")))


@pytest.mark.slow
def test_500_tokens_stay_the_targets_after_every_number_of_accepted_drafts(
    target: Target, drafter: DFlash2Drafter, prompts: list[list[int]]
) -> None:
    """The trained drafter, the trained head, and oracles right seven and nine times in ten."""
    generator = torch.Generator().manual_seed(71)
    times: Counter[int] = Counter()
    for prompt in prompts:
        plain = tokens_of(run(target, None, prompt, max_tokens=NUM_TOKENS + 8, kv_len=KV_LEN))
        oracles = [
            Oracle([prompt + plain], lambda p=p: float(torch.rand(1, generator=generator)) < p)
            for p in (0.7, 0.9)
        ]
        head = load_mtp(PAIR / "target", target, num_proposals=3)
        for each in (drafter, head, *oracles):
            rounds = run(target, each, prompt, max_tokens=NUM_TOKENS, kv_len=KV_LEN)
            assert tokens_of(rounds) == plain[:NUM_TOKENS], each
            times.update(step.num_accepted for step in rounds[1:])
    assert all(times[num_accepted] >= 50 for num_accepted in range(8)), times
