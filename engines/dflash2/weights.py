"""From a folder of safetensors to a model, with nothing missing and nothing left over.

A tensor that a loader skips costs no error and half the acceptance (an engine that leaves out the
selector drafts like DFlash 1), so the inventory must be exact. Knows no model's arithmetic.
"""

import json
from collections.abc import Iterable
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor, nn

from engines.dflash2.config import (
    ModelError,
    check_pair,
    load_drafter_config,
    load_target_config,
)
from engines.dflash2.drafter import DFlash2Drafter, DFlash2DraftModel
from engines.dflash2.quantized import as_computed, quantize_matrices
from engines.dflash2.target import Qwen3ForCausalLM

MAX_NAMES_SHOWN = 8
FLOATING_DTYPES = (torch.float32, torch.float64, torch.bfloat16)  # float16 overflows in the drafter


def load_target(folder: Path | str, dtype: torch.dtype = torch.float32) -> Qwen3ForCausalLM:
    """A dense qwen3 target, its weights cast to the dtype it shall compute in."""
    config = load_target_config(folder)
    with torch.device("meta"):
        model = Qwen3ForCausalLM(config)
    tensors = _read_tensors(Path(folder), dtype)
    if config.tie_word_embeddings:
        # Some writers store the tied head once more. It is not used, so it must be no other.
        _drop_tied_head(tensors, Path(folder))
    _assign(model, tensors, Path(folder))
    return model


def load_drafter(
    folder: Path | str,
    target: Qwen3ForCausalLM,
    dtype: torch.dtype = torch.float32,
    *,
    num_proposals: int | None = None,
) -> DFlash2Drafter:
    """A DFlash 2 drafter for this target; num_proposals: fewer than the block's, None: all."""
    config = load_drafter_config(folder)
    check_pair(config, target.config)
    with torch.device("meta"):
        model = DFlash2DraftModel(config)
        if config.is_quantized:
            quantize_matrices(model)
    if config.is_quantized:
        tensors = _read_quantized(Path(folder))
    else:
        tensors = _with_bare_codebooks(_read_tensors(Path(folder), dtype))
    _assign(model, tensors, Path(folder))
    return DFlash2Drafter(model, target, num_proposals=num_proposals)


def _with_bare_codebooks(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """Published files store the codebooks bare, modules built on embeddings with ".weight"."""
    for name in ("predecessor_codebook", "successor_codebook"):
        bare = f"candidate_selector.{name}"
        if f"{bare}.weight" in tensors and bare not in tensors:
            tensors[bare] = tensors.pop(f"{bare}.weight")
    return tensors


def _assign(model: nn.Module, tensors: dict[str, Tensor], folder: Path) -> None:
    """Give every parameter its tensor; list what is missing, left over or of another shape."""
    expected = {name: tuple(tensor.shape) for name, tensor in model.state_dict().items()}
    problems = [
        *_listed("missing", expected.keys() - tensors.keys()),
        *_listed("not used by this model", tensors.keys() - expected.keys()),
        *_listed(
            "of the wrong shape",
            (
                f"{name} {list(tensors[name].shape)} instead of {list(expected[name])}"
                for name in expected.keys() & tensors.keys()
                if tuple(tensors[name].shape) != expected[name]
            ),
        ),
    ]
    if problems:
        raise ModelError(
            f"{folder}: its tensors are not those that its config.json describes: "
            + "; ".join(problems)
            + ". Fetch the checkpoint again, or name the folder of the right one."
        )
    model.load_state_dict(tensors, assign=True)
    model.eval().requires_grad_(False)


def _listed(what: str, names: Iterable[str]) -> list[str]:
    """A problem in words, or nothing where there are no names."""
    ordered = sorted(names)
    if not ordered:
        return []
    more = len(ordered) - MAX_NAMES_SHOWN
    shown = ", ".join(ordered[:MAX_NAMES_SHOWN]) + (f" and {more} more" if more > 0 else "")
    return [f"{len(ordered)} {what} ({shown})"]


def _drop_tied_head(tensors: dict[str, Tensor], folder: Path) -> None:
    head = tensors.pop("lm_head.weight", None)
    embedding = tensors.get("model.embed_tokens.weight")
    if head is not None and embedding is not None and not torch.equal(head, embedding):
        raise ModelError(
            f"{folder}: config.json says tie_word_embeddings, but lm_head.weight differs from "
            "model.embed_tokens.weight. Set tie_word_embeddings to false to use the head."
        )


def _read_tensors(folder: Path, dtype: torch.dtype) -> dict[str, Tensor]:
    if dtype not in FLOATING_DTYPES:
        raise ModelError(f"cannot compute in {dtype}; choose one of {FLOATING_DTYPES}")
    tensors: dict[str, Tensor] = {}
    for path in _weight_files(folder):
        try:
            with safe_open(path, framework="pt") as file:
                for name in file.keys():  # noqa: SIM118 - not a dict
                    tensor = _floating(file.get_tensor(name), name, path)
                    # A copy, because the tensor is the mapped file itself, which may be replaced
                    # under a running server.
                    tensors[name] = tensor.to(dtype, copy=True)
        except SafetensorError as error:
            raise ModelError(f"{path}: {error}; fetch the file again") from error
    return tensors


def _read_quantized(folder: Path) -> dict[str, Tensor]:
    """A converted drafter's tensors: codes, scales and biases as stored, the rest in float32."""
    tensors: dict[str, Tensor] = {}
    for path in _weight_files(folder):
        try:
            with safe_open(path, framework="pt") as file:
                for name in file.keys():  # noqa: SIM118 - not a dict
                    tensors[name] = as_computed(name, file.get_tensor(name)).clone()
        except SafetensorError as error:
            raise ModelError(f"{path}: {error}; fetch the file again") from error
    return tensors


def _floating(tensor: Tensor, name: str, path: Path) -> Tensor:
    if not tensor.is_floating_point():
        raise ModelError(
            f"{path}: {name} is {tensor.dtype}; this engine reads unquantised checkpoints only"
        )
    return tensor


def _weight_files(folder: Path) -> list[Path]:
    """The one file, or the shards that an index names."""
    single, index = folder / "model.safetensors", folder / "model.safetensors.index.json"
    if single.is_file():
        return [single]
    if not index.is_file():
        raise ModelError(f"{folder}: has neither {single.name} nor {index.name}")
    shards = sorted(set(json.loads(index.read_text(encoding="utf-8"))["weight_map"].values()))
    absent = [name for name in shards if not (folder / name).is_file()]
    if absent:
        raise ModelError(f"{index}: names files that are not there: {', '.join(absent)}")
    return [folder / name for name in shards]
