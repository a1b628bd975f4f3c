"""Measures the pair on held-out prompts with the engine's own decode loop, and stores all it saw.

Plain greedy decoding and DFlash 2 of every prompt, their outputs compared token by token; with
`--drafter-without selector|convolutions`, the same drafter with that part switched off; with
`--mtp-k K`, the target's own MTP head in its place.

    python -m engines.demo.train.evaluate --prompts demo5_eval --out engines/demo/eval/full.json
    python -m engines.demo.train.evaluate --pair hybrid --mtp-k 2 --out engines/demo/eval/mtp2.json
"""

import argparse
import json
from collections.abc import Sequence
from pathlib import Path
from statistics import fmean

import torch

from engines.demo.train.answers import agrees, loops, parses
from engines.demo.train.corpus.split import KINDS, generated
from engines.demo.train.pairs import add_pair
from engines.dflash2.decode import Round, generate
from engines.dflash2.drafter import DFlash2Drafter
from engines.dflash2.drafting import Drafter
from engines.dflash2.sampling import SamplingParams
from engines.dflash2.target import Target
from engines.dflash2.tokenizer import Tokenizer, load_stop_ids, load_tokenizer
from engines.dflash2.weights import load_drafter, load_mtp, load_target

MAX_TOKENS = 384
KV_LEN = 2048
MODES = ("dflash2", "mtp")  # who drafted
PARSED_KINDS = ("code", "refactor", "edit")


def switch_off(drafter: DFlash2Drafter, part: str) -> None:
    """Without the selector no edge counts; without convolutions every row passes as it is."""
    if part == "selector":
        drafter.model.candidate_selector.successor_codebook.zero_()
        return
    for layer in drafter.model.layers:
        for conv in (layer.attention_conv, layer.mlp_conv):
            conv.kernel_projection.weight.zero_()
            conv.base_kernel.zero_()
            conv.base_kernel[:, 0] = 1.0


def reference(source: str) -> str | None:
    """The generator's own answer, where the prompt is a generated one."""
    if not source.startswith("generated: "):
        return None
    _seed, split, kind, number = source.removeprefix("generated: ").split(":")
    return generated(kind, split, int(number)).answer  # type: ignore[arg-type]


def decoded(rounds: Sequence[Round]) -> dict[str, object]:
    """What one request's rounds add up to; the prefill's token is no round."""
    steps = [r for r in rounds if not r.is_prefill]
    positions = max((r.num_drafted for r in steps), default=0)
    return {
        "num_tokens": sum(len(r.tokens) for r in rounds),
        "num_rounds": len(steps),
        "num_accepted": sum(r.num_accepted for r in steps),
        "accepted_at": [sum(r.num_accepted > at for r in steps) for at in range(positions)],
        "draft_s": round(sum(r.draft_s for r in steps), 4),
        "verify_s": round(sum(r.verify_s for r in steps), 4),
        "finish_reason": rounds[-1].finish_reason,
    }


def run(
    target: Target,
    drafter: Drafter | None,
    prompt: Sequence[int],
    stop: frozenset[int],
) -> tuple[list[int], dict[str, object]]:
    rounds = list(
        generate(
            target,
            drafter,
            prompt,
            max_tokens=MAX_TOKENS,
            sampling=SamplingParams(),
            stop_ids=stop,
            kv_len=KV_LEN,
        )
    )
    return [token for r in rounds for token in r.tokens], decoded(rounds)


def judge(line: dict, tokenizer: Tokenizer, tokens: list[int], stop: frozenset[int]) -> dict:
    """What is said about an answer whoever drafted it."""
    text = tokenizer.decode([token for token in tokens if token not in stop])
    expected = reference(line["source"])
    return {
        "text": text,
        "ended": tokens[-1] in stop,
        "loops": loops(tokens),
        "parses": parses(text) if line["kind"] in PARSED_KINDS else None,
        "agrees": None if expected is None else agrees(line["kind"], text, expected),
    }


def measure(
    line: dict,
    target: Target,
    drafter: Drafter | None,
    tokenizer: Tokenizer,
    stop: frozenset[int],
    with_plain: bool,
    mode: str,
) -> dict[str, object]:
    prompt = tokenizer.encode_chat(line["messages"], {})
    result: dict[str, object] = {"id": line["id"], "kind": line["kind"], "source": line["source"]}
    plain: list[int] | None = None
    if with_plain or drafter is None:
        plain, result["plain"] = run(target, None, prompt, stop)
        result |= judge(line, tokenizer, plain, stop)
    if drafter is not None:
        tokens, result[mode] = run(target, drafter, prompt, stop)
        if plain is not None:
            result["equal_to_plain"] = tokens == plain
    return result


def share(values: Sequence[object]) -> float | None:
    """Share of the true ones among those that are known."""
    known = [bool(value) for value in values if value is not None]
    return round(fmean(known), 3) if known else None


def summary(results: Sequence[dict]) -> dict[str, object]:
    """One kind's figures, or all kinds'."""
    values: dict[str, object] = {"num_prompts": len(results)}
    for name in ("ended", "loops", "parses", "agrees", "equal_to_plain"):
        values[name] = share([r.get(name) for r in results])
    plain = [r["plain"] for r in results if "plain" in r]
    mode = next((mode for mode in MODES if mode in results[0]), "none")
    drafted = [r[mode] for r in results if mode in r]
    if plain:
        values["mean_tokens"] = round(fmean(p["num_tokens"] for p in plain), 1)
    if drafted:
        rounds = sum(d["num_rounds"] for d in drafted)
        values["acceptance_length"] = round(1 + sum(d["num_accepted"] for d in drafted) / rounds, 3)
        columns = zip(*(d["accepted_at"] for d in drafted if d["accepted_at"]), strict=True)
        values["acceptance_by_position"] = [round(sum(c) / rounds, 3) for c in columns]
    if plain and drafted:
        seconds = [
            sum(each["draft_s"] + each["verify_s"] for each in side) for side in (plain, drafted)
        ]
        values["decode_speedup"] = round(seconds[0] / seconds[1], 3)
        values["plain_step_ms"] = round(1000 * seconds[0] / sum(p["num_rounds"] for p in plain), 2)
        values[f"{mode}_round_ms"] = round(1000 * seconds[1] / rounds, 2)
    return values


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    add_pair(parser)
    parser.add_argument("--target", type=Path, help="default: the pair's")
    parser.add_argument("--drafter", type=Path, help="default: the pair's")
    parser.add_argument("--plain-only", action="store_true")
    parser.add_argument("--mtp-k", type=int, help="draft with the MTP head, so many tokens")
    parser.add_argument("--without-plain", action="store_true")
    parser.add_argument("--drafter-without", choices=("selector", "convolutions"))
    parser.add_argument("--prompts", default="demo5_eval")
    parser.add_argument("--num-per-kind", type=int, default=20)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    folder = options.target or options.pair.target
    tokenizer, stop = load_tokenizer(folder), load_stop_ids(folder)
    target = load_target(folder)
    drafter: Drafter | None = None
    mode = "dflash2" if options.mtp_k is None else "mtp"
    if options.mtp_k is not None:
        drafter = load_mtp(folder, target, num_proposals=options.mtp_k)
    elif not options.plain_only:
        drafter = load_drafter(options.drafter or options.pair.drafter, target)
        if options.drafter_without:
            switch_off(drafter, options.drafter_without)
    text = Path("prompts", f"{options.prompts}.jsonl").read_text(encoding="utf-8")
    lines = [json.loads(line) for line in text.splitlines()]
    results: list[dict] = []
    for kind in KINDS:
        for line in [each for each in lines if each["kind"] == kind][: options.num_per_kind]:
            results.append(
                measure(line, target, drafter, tokenizer, stop, not options.without_plain, mode)
            )
        print(kind, json.dumps(summary([r for r in results if r["kind"] == kind])), flush=True)
    by_kind = {kind: summary([r for r in results if r["kind"] == kind]) for kind in KINDS}
    command = {key: str(value) for key, value in vars(options).items()}
    record = {"options": command, "all": summary(results), "by_kind": by_kind, "requests": results}
    print("all", json.dumps(record["all"]))
    options.out.parent.mkdir(parents=True, exist_ok=True)
    options.out.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
