"""What Q8 costs a drafter in acceptance: the same prompts drafted in BF16 and converted.

    python benchmarks/convert/acceptance.py [--num-per-kind 20] [--out FILE]

Greedy answers of the demo target to `prompts/demo5_eval.jsonl`, a conversion made for the occasion
in a temporary folder. Every answer is compared with the other's: the drafter must not change it.
The last line is one JSON document.
"""

import argparse
import json
import tempfile
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import torch

from engines.dflash2.conversion.cache import convert_to
from engines.dflash2.conversion.checkpoint import Origin
from engines.dflash2.decode import generate
from engines.dflash2.drafter import DFlash2Drafter
from engines.dflash2.sampling import SamplingParams
from engines.dflash2.tokenizer import load_stop_ids, load_tokenizer
from engines.dflash2.weights import load_drafter, load_target

MAX_TOKENS = 384
KV_LEN = 2048


@dataclass(kw_only=True)
class Sum:
    """What one drafter did over some prompts."""

    num_rounds: int = 0
    num_accepted: int = 0
    draft_s: float = 0.0

    @property
    def acceptance_length(self) -> float:
        return 1 + self.num_accepted / self.num_rounds

    @property
    def draft_ms(self) -> float:
        return 1000 * self.draft_s / self.num_rounds


def main() -> None:
    options = _parser().parse_args()
    torch.set_num_threads(options.threads)
    target = load_target(options.pair / "target")
    with tempfile.TemporaryDirectory() as work:
        converted = Path(work) / "q8"
        origin = Origin(repository="demo", revision="unpublished")
        convert_to(options.pair / "drafter", converted, origin, print, lambda *_: None)
        drafters = {
            "bf16": load_drafter(options.pair / "drafter", target),
            "q8": load_drafter(converted, target),
        }
    sums, num_different = measure(options, target, drafters)
    print(f"{'kind':<12} {'bf16':>6} {'q8':>6}   change")
    for kind, by_name in sums.items():
        bf16, q8 = (by_name[name].acceptance_length for name in drafters)
        print(f"{kind:<12} {bf16:6.3f} {q8:6.3f}   {q8 / bf16 - 1:+.2%}")
    result = {
        "num_different_answers": num_different,
        "acceptance_length": {
            kind: {name: round(each.acceptance_length, 4) for name, each in by_name.items()}
            for kind, by_name in sums.items()
        },
        "draft_ms": {name: round(each.draft_ms, 3) for name, each in sums["all"].items()},
    }
    text = json.dumps(result)
    if options.out is not None:
        options.out.write_text(text + "\n", encoding="utf-8")
    print(text)


def measure(
    options: argparse.Namespace, target: torch.nn.Module, drafters: dict[str, DFlash2Drafter]
) -> tuple[dict[str, dict[str, Sum]], int]:
    """Sums by kind and drafter, "all" last; and how many answers the drafter changed."""
    tokenizer, stop_ids = (
        load_tokenizer(options.pair / "target"),
        load_stop_ids(options.pair / "target"),
    )
    sums: dict[str, dict[str, Sum]] = defaultdict(lambda: {name: Sum() for name in drafters})
    overall = {name: Sum() for name in drafters}
    num_different = 0
    for line in _prompts(options.prompts, options.num_per_kind):
        prompt = tokenizer.encode_chat(line["messages"], {})
        answers = set()
        for name, drafter in drafters.items():
            rounds = list(
                generate(
                    target,
                    drafter,
                    prompt,
                    max_tokens=MAX_TOKENS,
                    sampling=SamplingParams(),
                    stop_ids=stop_ids,
                    kv_len=KV_LEN,
                )
            )
            answers.add(tuple(token for each in rounds for token in each.tokens))
            for each in (sums[line["kind"]][name], overall[name]):
                each.num_rounds += len(rounds) - 1
                each.num_accepted += sum(round_.num_accepted for round_ in rounds)
                each.draft_s += sum(round_.draft_s for round_ in rounds)
        num_different += len(answers) > 1
    return {**sums, "all": overall}, num_different


def _prompts(path: Path, num_per_kind: int) -> Iterable[dict]:
    seen: dict[str, int] = defaultdict(int)
    for line in map(json.loads, path.read_text(encoding="utf-8").splitlines()):
        seen[line["kind"]] += 1
        if seen[line["kind"]] <= num_per_kind:
            yield line


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description="acceptance of the demo drafter in BF16 and Q8")
    parser.add_argument("--pair", type=Path, default=Path("engines/demo/dense"))
    parser.add_argument("--prompts", type=Path, default=Path("prompts/demo5_eval.jsonl"))
    parser.add_argument("--num-per-kind", type=int, default=20)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--out", type=Path)
    return parser


if __name__ == "__main__":
    main()
