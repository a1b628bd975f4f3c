"""Whether the checkpoints fit each other, the depth and the engine, by their configs and headers.

Nothing is known of a model whose files are not on this machine, and nothing of it is accused.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from harness.cell_view import CellView
from harness.checks.finding import OK, Finding, invalid, warning

PLAIN_TYPES = ("BF16", "F16", "F32")
VLLM_TAKES_ANY_HEAD = (0, 32)
READS_GGUF = ("llamacpp",)


def checkpoint_complete(view: CellView) -> Finding:
    """A download that broke off, or a copy that left the index behind."""
    for name, files in view.models.items():
        if name not in (view.cell.target, view.cell.drafter_model):
            continue
        missing = [*((files.get("weights") or {}).get("missing") or ())]
        if files.get("weights") and files.get("config") is None:
            missing.append("config.json")
        if missing:
            more = f" and {len(missing) - 3} more" if len(missing) > 3 else ""
            place = "" if files["path"] == name else f" ({files['path']})"
            return invalid(
                f"{name}{place} lacks {', '.join(missing[:3])}{more}. Fetch it again, "
                "whole; the index of a model in several files belongs to it."
            )
    return OK


def checkpoint_format(view: CellView) -> Finding:
    """GGUF is llama.cpp's own; every other engine here reads folders of safetensors."""
    adapter = view.cell.adapter
    if adapter not in ("dflash2", "vllm", "sglang", *READS_GGUF):
        return OK
    for name, config in (
        (view.cell.target, _config(view.target_files)),
        (view.cell.drafter_model, _config(view.drafter_files)),
    ):
        is_gguf = config.get("format") == "gguf"
        if config and is_gguf != (adapter in READS_GGUF):
            wants, has = ("a folder of safetensors", "a GGUF file")
            if adapter in READS_GGUF:
                wants, has = "a GGUF file", "a folder of safetensors"
            return invalid(
                f"{name} is {has}, and {view.cell.engine} reads {wants}. Name the same weights in "
                "that form; docs/howto/real-engines.md says how a GGUF file is made."
            )
    return OK


def mtp_head(view: CellView) -> Finding:
    """An MTP head is part of its target's checkpoint, and some quantised ones left it out."""
    config = _text_config(_config(view.target_files))
    if not is_mtp(view.cell.drafter) or view.cell.drafter_model or not config:
        return OK
    told = [config.get(name) for name in _MTP_LAYERS]
    weights = (view.target_files.get("weights") or {}).get("bytes") or {}
    if any(told) or "mtp" in weights:
        return OK
    return invalid(
        f"{view.cell.target} has no MTP head: neither its config.json nor its tensors name one. "
        "Take a checkpoint that kept it, or another drafter."
    )


# Qwen3.5 and Qwen3-Next; DeepSeek, GLM, MiMo and what llama.cpp writes; Qwen3-Next's older name
_MTP_LAYERS = ("mtp_num_hidden_layers", "num_nextn_predict_layers", "num_mtp_layers")


def is_mtp(method: str | None) -> bool:
    """vLLM has a word per family besides (`qwen3_5_mtp`), llama.cpp says `draft-mtp`."""
    return method is not None and re.search(r"(^|[-_])mtp$", method) is not None


def k_le_block(view: CellView) -> Finding:
    """A block is the drafted tokens and the one they follow."""
    for block in _blocks(view):
        if view.cell.k is not None and view.cell.k > block - 1 > 0:
            return invalid(
                f"k = {view.cell.k}, but the drafter's block of {block} holds {block - 1} drafted "
                f"tokens. Write k: {block - 1} or less."
            )
    return OK


def _blocks(view: CellView) -> Iterator[int]:
    """As the engine says, and as the checkpoint does."""
    told = [(boot.health or {}).get("block") for boot in view.boots]
    written = _dflash(_config(view.drafter_files)).get("block_size")
    return (block for block in (*told, written) if isinstance(block, int))


def lm_head_plain(view: CellView) -> Finding:
    """DFlash 2 reads its candidates off the target's LM head; vLLM before 0.32 refuses one that is
    quantised. llama.cpp and the bundled engine call whatever head there is.
    """
    head = _head_types(view.target_files)
    is_plain = len(head) == 1 and set(head.values()) <= {*PLAIN_TYPES, _BY_INDEX}
    if view.cell.adapter != "vllm" or not is_dflash2(view) or not head or is_plain:
        return OK
    versions = {boot.version for boot in view.boots}
    if versions and all(at_least(version, VLLM_TAKES_ANY_HEAD) for version in versions):
        return OK
    told = ", ".join(f"{name} {dtype}" for name, dtype in sorted(head.items()))
    message = (
        f"The LM head of {view.cell.target} is quantised ({told}), and vLLM before 0.32 refuses "
        "DFlash 2 on it. Take a newer vLLM, or a target with a plain head (FP8 ones often have it)."
    )
    return warning(message) if not versions or None in versions else invalid(message)


def _head_types(files: Mapping[str, Any]) -> Mapping[str, str]:
    """Empty for a tied head, which is the embedding and never quantised, and where nothing is
    known. Where the shard that has it is not here, its index tells the names alone: of a quantised
    head there are several.
    """
    weights = files.get("weights") or {}
    named = dict.fromkeys(weights.get("head_by_index") or (), _BY_INDEX)
    return {**named, **(weights.get("head") or {})}


_BY_INDEX = "by its index"


def at_least(version: str | None, wanted: tuple[int, int]) -> bool:
    found = re.match(r"v?(\d+)\.(\d+)", version or "")
    return found is not None and (int(found[1]), int(found[2])) >= wanted


def is_dflash2(view: CellView) -> bool:
    """By the checkpoint where it can be read: vLLM calls the method of both kinds `dflash`."""
    architectures = drafter_architectures(view)
    if architectures:
        return "DFlash2DraftModel" in architectures
    return view.cell.drafter == "dflash2"


def drafter_architectures(view: CellView) -> Sequence[str]:
    return _config(view.drafter_files).get("architectures") or ()


def drafter_geometry(view: CellView) -> Finding:
    """A DFlash drafter reads the target's hidden states, embedding and LM head: it fits one target.

    Other draft models read tokens alone.
    """
    drafter, target = _config(view.drafter_files), _text_config(_config(view.target_files))
    if not _dflash(drafter) or not target:
        return OK
    misfits = list(_misfits(drafter, target))
    if not misfits:
        return OK
    return invalid(
        f"{view.cell.drafter_model} was not made for {view.cell.target}: {'; '.join(misfits)}. "
        "Take the drafter that was trained with this target."
    )


def _misfits(drafter: Mapping[str, Any], target: Mapping[str, Any]) -> Iterator[str]:
    for own, theirs in (
        ("hidden_size", "hidden_size"),
        ("vocab_size", "vocab_size"),
        ("num_target_layers", "num_hidden_layers"),
    ):
        wants, has = drafter.get(own), target.get(theirs)
        if wants is not None and has is not None and wants != has:
            yield f"its {own} is {wants}, the target's {theirs} {has}"
    layers, vocabulary = target.get("num_hidden_layers"), target.get("vocab_size")
    taps = _dflash(drafter).get("target_layer_ids") or []
    if layers is not None and any(tap >= layers for tap in taps):
        yield f"it reads layer {max(taps)} of a target with {layers}"
    mask = _dflash(drafter).get("mask_token_id")
    if vocabulary is not None and mask is not None and mask >= vocabulary:
        yield f"its mask token is {mask}, in a vocabulary of {vocabulary}"


def drafter_differs(view: CellView) -> Finding:
    """Another checkpoint than the one whose figures were published."""
    files = view.drafter_files
    published = files.get("published")
    if published is None or published in (view.cell.drafter_model, files["path"], files["hash"]):
        return OK
    return warning(
        f"{view.cell.drafter_model} ({files['path']}) is another checkpoint than {published}, "
        "whose figures were published. Do not hold this cell against those; name both where you "
        "quote them."
    )


def _config(files: Mapping[str, Any]) -> Mapping[str, Any]:
    return files.get("config") or {}


def _text_config(config: Mapping[str, Any]) -> Mapping[str, Any]:
    """A model that also sees keeps its language model's sizes one level deeper."""
    return config.get("text_config") or config


def _dflash(config: Mapping[str, Any]) -> Mapping[str, Any]:
    return config.get("dflash_config") or {}
