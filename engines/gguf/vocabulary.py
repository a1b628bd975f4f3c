"""A tokenizer as llama.cpp keeps it: tokens by id, their kinds, merges, stop ids, chat template.

llama.cpp has the cutting of text into words in its own code and knows it by a name. Only GPT-2's
is written here, since another rule under that name would give other tokens in silence.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from engines.dflash2.config import ModelError

NORMAL, CONTROL, USER_DEFINED, UNUSED = 1, 3, 4, 5  # kinds of tokens, as GGUF numbers them
_GPT2_CUTS = {"type": "ByteLevel", "add_prefix_space": False, "use_regex": True}


@dataclass(frozen=True, kw_only=True)
class Vocabulary:
    tokens: tuple[str, ...]
    kinds: tuple[int, ...]
    merges: tuple[str, ...]


def read_vocabulary(folder: Path, num_tokens: int) -> Vocabulary:
    """num_tokens: of the model, which may have more rows than its tokenizer has tokens."""
    path = folder / "tokenizer.json"
    if not path.is_file():
        raise ModelError(f"{path}: no such file; the target's folder must hold its tokenizer.json")
    values = json.loads(path.read_text(encoding="utf-8"))
    _require_gpt2(path, values)
    kinds_of_added = {
        entry["id"]: CONTROL if entry["special"] else USER_DEFINED
        for entry in values["added_tokens"]
    }
    token_of = {index: token for token, index in values["model"]["vocab"].items()}
    token_of |= {entry["id"]: entry["content"] for entry in values["added_tokens"]}
    beyond = [index for index in token_of if index >= num_tokens]
    if beyond:
        raise ModelError(
            f"{path}: has token {max(beyond)}, but the model's vocab_size is {num_tokens}; the two "
            "do not belong together"
        )
    return Vocabulary(
        tokens=tuple(token_of.get(index, f"[PAD{index}]") for index in range(num_tokens)),
        kinds=tuple(
            kinds_of_added.get(index, NORMAL if index in token_of else UNUSED)
            for index in range(num_tokens)
        ),
        merges=tuple(_merge(pair) for pair in values["model"]["merges"]),
    )


def _merge(pair: str | Sequence[str]) -> str:
    """tokenizers writes pairs since 0.20, and `left right` before."""
    return pair if isinstance(pair, str) else " ".join(pair)


def _require_gpt2(path: Path, values: dict[str, Any]) -> None:
    cuts = values.get("pre_tokenizer") or {}
    is_gpt2 = all(cuts.get(key) == value for key, value in _GPT2_CUTS.items())
    if values["model"]["type"] != "BPE" or not is_gpt2 or values.get("normalizer") is not None:
        raise ModelError(
            f"{path}: is no byte-level BPE tokenizer that cuts as GPT-2's does (pre_tokenizer "
            f"{json.dumps(cuts)}); use llama.cpp's own convert_hf_to_gguf.py, which knows others"
        )


def read_stop_ids(folder: Path) -> tuple[int, ...]:
    """In the order of generation_config.json, where chat models list all; else config.json's."""
    for name in ("generation_config.json", "config.json"):
        found = _object(folder / name).get("eos_token_id")
        if found is not None:
            return tuple(found) if isinstance(found, list) else (found,)
    return ()


def read_chat_template(folder: Path) -> str | None:
    """chat_template.jinja, where transformers writes it today, else tokenizer_config.json's."""
    path = folder / "chat_template.jinja"
    if path.is_file():
        return path.read_text(encoding="utf-8")
    found = _object(folder / "tokenizer_config.json").get("chat_template")
    return found if isinstance(found, str) else None


def _object(path: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}
    return found
