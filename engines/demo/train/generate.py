"""The drafters' training data: the target's own greedy answers and the features behind them.

Prompts come from the training side of the split, with seeds the target never trained on. A batch
holds prompts of one length, so no row is padded and every row computes what serving computes.
Writes `answers_<kind>.<part>.pt` into the work directory; another part asks other questions.

    python -m engines.demo.train.generate --work build/demo --minutes 9
    python -m engines.demo.train.generate --work build/demo --minutes 9 --part 1
    python -m engines.demo.train.generate --pair hybrid --work build/demo-hybrid --minutes 9
"""

import argparse
import json
import time
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from random import Random

import torch
from tokenizers import Tokenizer
from torch import Tensor

from engines.demo.train import tokenizer as demo_tokenizer
from engines.demo.train.corpus.document import Document
from engines.demo.train.corpus.split import (
    KINDS,
    LONG_GENERATORS,
    SEED,
    generated,
    generated_long,
    package_documents,
)
from engines.demo.train.pairs import add_pair
from engines.dflash2.cache import KVCache
from engines.dflash2.target import Qwen3ForCausalLM
from engines.dflash2.weights import load_target

PART_NUMBERS = 1_000_000  # a part's seeds; far behind the documents that trained the target
BATCH = 64
MAX_ANSWER_TOKENS = 400
PACKAGE_SHARE = 0.25  # of the prose prompts
PROMPTS_AT_A_TIME = 1500
MIN_BATCH = 24
PADDING_ID = 0  # behind an answer's end, where nobody looks


@dataclass(frozen=True, kw_only=True)
class Answers:
    """Greedy answers to prompts of one length.

    tokens: [batch, length] prompt and answer; num_tokens: [batch], up to the end-of-turn token;
    features: [batch, length - 1, taps * hidden] and hidden: [batch, length - 1, hidden], what the
    head reads, of every token but the last, in bfloat16; what stands behind an answer's end is
    padding. Answers stored before there was an MTP head to train have no `hidden`.
    """

    num_prompt: int
    tokens: Tensor
    num_tokens: Tensor
    features: Tensor
    hidden: Tensor | None = None


def keep(cache: KVCache, rows: Tensor) -> None:
    """Forget every sequence but these, which move together into the first slots."""
    for slot, row in enumerate(rows.nonzero().flatten().tolist()):
        if slot != row:
            cache.move(row, slot)


@torch.inference_mode()
def answer(
    target: Qwen3ForCausalLM,
    prompts: Sequence[Sequence[int]],
    stop: set[int],
    target_layer_ids: tuple[int, ...],
    max_tokens: int = MAX_ANSWER_TOKENS,
) -> Answers:
    """Greedy answers. Rows that ended leave the batch once they are half of it."""
    ids = torch.tensor(prompts)
    batch, num_prompt = ids.shape
    cache = target.new_cache(batch, num_prompt + max_tokens)
    stops = torch.tensor(sorted(stop))
    tokens = torch.full((batch, num_prompt + max_tokens), PADDING_ID)
    tokens[:, :num_prompt] = ids
    num_tokens = torch.zeros(batch, dtype=torch.long)
    size = target.config.hidden_size
    hidden = torch.zeros(batch, num_prompt + max_tokens, size, dtype=torch.bfloat16)
    features = hidden.repeat(1, 1, len(target_layer_ids))
    rows, new = torch.arange(batch), ids
    for length in range(num_prompt, num_prompt + max_tokens):
        view = cache.view(range(len(new)))
        output = target(new, cache=view, tap_layer_ids=target_layer_ids)
        view.commit([new.shape[1]] * len(new))
        assert output.features is not None
        features[rows, length - new.shape[1] : length] = output.features.to(torch.bfloat16)
        hidden[rows, length - new.shape[1] : length] = output.hidden.to(torch.bfloat16)
        new = target.logits(output.hidden[:, -1:]).argmax(-1)
        tokens[rows, length] = new[:, 0]
        ended = torch.isin(new[:, 0], stops) & (num_tokens[rows] == 0)
        num_tokens[rows[ended]] = length + 1
        going_on = num_tokens[rows] == 0
        if not going_on.any():
            break
        if 2 * int(going_on.sum()) <= len(rows):
            keep(cache, going_on)
            rows, new = rows[going_on], new[going_on]
    num_tokens[num_tokens == 0] = num_prompt + max_tokens
    longest = int(num_tokens.max())
    return Answers(
        num_prompt=num_prompt,
        tokens=tokens[:, :longest].clone(),
        num_tokens=num_tokens,
        features=features[:, : longest - 1].clone(),
        hidden=hidden[:, : longest - 1].clone(),
    )


def prompts(kind: str, part: int) -> Iterator[Document]:
    """Endless fresh questions of a kind, a share of the prose ones about packages."""
    random = Random(f"{SEED}:drafter:{kind}:{part}" if part else f"{SEED}:drafter:{kind}")
    packages = package_documents("train") if kind == "prose" else []
    for number in count((part + 1) * PART_NUMBERS):
        if packages and random.random() < PACKAGE_SHARE:
            yield random.choice(packages)
        else:
            long = kind in LONG_GENERATORS and number % 3
            yield (generated_long if long else generated)(kind, "train", number)


def batches(kind: str, part: int, tokenizer: Tokenizer) -> Iterator[list[list[int]]]:
    """Batches of prompts that have the same number of tokens."""
    source = prompts(kind, part)
    by_length: dict[int, list[list[int]]] = defaultdict(list)
    while True:
        texts = [demo_tokenizer.question(next(source)) for _ in range(PROMPTS_AT_A_TIME)]
        for encoded in tokenizer.encode_batch(texts):
            by_length[len(encoded.ids)].append(encoded.ids)
        for length in sorted(by_length, key=lambda size: -len(by_length[size])):
            rows = by_length[length]
            if len(rows) < MIN_BATCH:
                break
            yield rows[:BATCH]
            by_length[length] = rows[BATCH:]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    add_pair(parser)
    parser.add_argument("--work", type=Path, required=True)
    parser.add_argument("--target", type=Path, help="default: the pair's")
    parser.add_argument("--minutes", type=float, required=True)
    parser.add_argument("--part", type=int, default=0)
    parser.add_argument("--threads", type=int, default=2)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    folder = options.target or options.pair.target
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    target = load_target(folder)
    stop = {
        tokenizer.token_to_id(name)
        for name in (demo_tokenizer.TURN_END, demo_tokenizer.END_OF_TEXT)
    }
    for kind in KINDS:
        began_s, found = time.monotonic(), []
        for rows in batches(kind, options.part, tokenizer):
            found.append(answer(target, rows, stop, options.pair.target_layer_ids))
            if time.monotonic() - began_s > options.minutes * 60 / len(KINDS):
                break
        torch.save(found, options.work / f"answers_{kind}.{options.part}.pt")
        num = sum(int((a.num_tokens - a.num_prompt).sum()) for a in found)
        rows_of = sum(len(a.num_tokens) for a in found)
        print(json.dumps({"kind": kind, "answers": rows_of, "answer_tokens": num}), flush=True)


if __name__ == "__main__":
    main()
