"""From a folder of safetensors to a model, with nothing missing and nothing left over.

A tensor that a loader skips costs no error and half the acceptance (an engine that leaves out the
selector drafts like DFlash 1), so the inventory must be exact. Knows no model's arithmetic.
"""

import sys
import time
from collections.abc import Callable, Iterable, Iterator
from itertools import chain
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from engines.dflash2.checkpoint import FLOATS, SCALE_SUFFIX, Checkpoint, open_checkpoint
from engines.dflash2.config import (
    ModelError,
    ModelType,
    TargetConfig,
    check_pair,
    load_drafter_config,
    load_target_config,
)
from engines.dflash2.drafter import DFlash2Drafter, DFlash2DraftModel
from engines.dflash2.mtp import MTPDrafter, MTPHead
from engines.dflash2.quantized import as_computed, quantize_matrices
from engines.dflash2.qwen3_5 import Qwen3_5ForCausalLM
from engines.dflash2.target import LlamaForCausalLM, Qwen3ForCausalLM, Target

TARGETS: dict[ModelType, Callable[[Any], Target]] = {
    "qwen3": Qwen3ForCausalLM,
    "llama": LlamaForCausalLM,
    "qwen3_5": Qwen3_5ForCausalLM,
}
MTP_PREFIX = "mtp."
# Parts of a published qwen3_5 that its target leaves out on purpose.
SKIPPED = {"model.visual.": "of the vision tower (text only)", MTP_PREFIX: "of the MTP head"}
TEXT_PREFIX = "model.language_model."  # what a model that also sees calls its text part
WIDE = (".A_log", ".dt_bias")  # decays are exponentials of these: never below float32
SECONDS_BETWEEN_LINES = 1.0
MAX_NAMES_SHOWN = 8
FIRST_VALUES = (nn.init.normal_, nn.init.uniform_, nn.init.kaiming_uniform_)
FLOATING_DTYPES = (torch.float32, torch.float64, torch.bfloat16)  # float16 overflows in the drafter


class _NoFirstValues(TorchFunctionMode):
    """Modules made inside get shapes and no first values, which the files' would replace.

    Without memory there is nothing to draw anyway, but torch imports its compiler in order to draw
    nothing: a second and a half, half of a start of the demo pair.
    """

    def __torch_function__(
        self,
        func: Any,
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        kwargs = kwargs or {}
        if func in FIRST_VALUES:
            return kwargs["tensor"]
        return func(*args, **kwargs)


def _say_on_stderr(text: str) -> None:
    print(f"[dflash2-load] {text}", file=sys.stderr, flush=True)


def load_target(
    folder: Path | str,
    dtype: torch.dtype = torch.float32,
    *,
    device: torch.device | str = "cpu",
    say: Callable[[str], None] = _say_on_stderr,
) -> Target:
    """The target in a folder, its weights in the dtype it shall compute in.

    The inventory is checked before a weight is read. FP8 weights are multiplied out: they save
    reading, not memory. say: told in words what is skipped and how far reading has come.
    """
    folder = Path(folder)
    _check_computable(dtype)
    config = load_target_config(folder)
    with torch.device("meta"), _NoFirstValues():
        model = TARGETS[config.model_type](config)
    checkpoint = open_checkpoint(folder)
    stored = _stored_names(checkpoint, config, say)
    shapes = {ours: checkpoint.tensors[theirs].shape for ours, theirs in stored.items()}
    _check_inventory(model, shapes, folder)
    tensors = {}
    for name, tensor in _read(checkpoint, stored, dtype, config.fp8_block, say):
        tensors[name] = tensor.to(device)
    model.load_state_dict(tensors, assign=True)
    return model.eval().requires_grad_(False).to(device)


def load_drafter(
    folder: Path | str,
    target: Target,
    dtype: torch.dtype = torch.float32,
    *,
    num_proposals: int | None = None,
) -> DFlash2Drafter:
    """A DFlash 2 drafter for this target; num_proposals: fewer than the block's, None: all."""
    config = load_drafter_config(folder)
    check_pair(config, target.config)
    with torch.device("meta"), _NoFirstValues():
        model = DFlash2DraftModel(config)
        if config.is_quantized:
            quantize_matrices(model)
    checkpoint = open_checkpoint(Path(folder))
    if config.is_quantized:
        tensors = {n: as_computed(n, tensor) for n, tensor in checkpoint.read(checkpoint.tensors)}
    else:
        _check_computable(dtype)
        _refuse_other_formats(checkpoint, checkpoint.tensors)
        tensors = _with_bare_codebooks(dict(checkpoint.read(checkpoint.tensors, dtype)))
    _assign(model, tensors, Path(folder))
    model.to(target.embedding_weight.device)
    return DFlash2Drafter(model, target, num_proposals=num_proposals)


def load_mtp(
    folder: Path | str,
    target: Target,
    *,
    num_proposals: int,
    say: Callable[[str], None] = _say_on_stderr,
) -> MTPDrafter:
    """The MTP head in a target's own folder, in the dtype and on the device of this target."""
    folder = Path(folder)
    config = load_target_config(folder)
    if not config.num_mtp_layers:
        raise ModelError(
            f"{folder}: config.json names no MTP head (mtp_num_hidden_layers); start this "
            "target without --mtp on"
        )
    with torch.device("meta"), _NoFirstValues():
        head = MTPHead(config)
    checkpoint = open_checkpoint(folder)
    stored = _stored_head_names(checkpoint)
    shapes = {ours: checkpoint.tensors[theirs].shape for ours, theirs in stored.items()}
    _check_inventory(head, shapes, folder)
    say(f"reading {len(stored)} tensors of the MTP head")
    weight = target.embedding_weight
    tensors = {
        name: tensor.to(weight.device)
        for name, tensor in _read(checkpoint, stored, weight.dtype, config.fp8_block, say)
    }
    head.load_state_dict(tensors, assign=True)
    head.eval().requires_grad_(False).to(weight.device)
    return MTPDrafter(head, target, num_proposals=num_proposals)


def _stored_head_names(checkpoint: Checkpoint) -> dict[str, str]:
    """The head's name of each of its tensors in the files -> the files' name."""
    names = [name for name in checkpoint.tensors if name.startswith(MTP_PREFIX)]
    scales = {n + SCALE_SUFFIX for n in names if checkpoint.tensors[n].is_fp8}
    stored = {n.removeprefix(MTP_PREFIX): n for n in names if n not in scales}
    _refuse_other_formats(checkpoint, stored.values())
    return stored


def _with_bare_codebooks(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """Published files store the codebooks bare, modules built on embeddings with ".weight"."""
    for name in ("predecessor_codebook", "successor_codebook"):
        bare = f"candidate_selector.{name}"
        if f"{bare}.weight" in tensors and bare not in tensors:
            tensors[bare] = tensors.pop(f"{bare}.weight")
    return tensors


def _assign(model: nn.Module, tensors: dict[str, Tensor], folder: Path) -> None:
    """Give every parameter its tensor."""
    shapes = {name: tuple(tensor.shape) for name, tensor in tensors.items()}
    _check_inventory(model, shapes, folder)
    model.load_state_dict(tensors, assign=True)
    model.eval().requires_grad_(False)


def _check_inventory(model: nn.Module, shapes: dict[str, tuple[int, ...]], folder: Path) -> None:
    """Raise with a list of what is missing, left over or of another shape."""
    expected = {name: tuple(tensor.shape) for name, tensor in model.state_dict().items()}
    problems = [
        *_listed("missing", expected.keys() - shapes.keys()),
        *_listed("not used by this model", shapes.keys() - expected.keys()),
        *_listed(
            "of the wrong shape",
            (
                f"{name} {list(shapes[name])} instead of {list(expected[name])}"
                for name in expected.keys() & shapes.keys()
                if shapes[name] != expected[name]
            ),
        ),
    ]
    if problems:
        raise ModelError(
            f"{folder}: its tensors are not those that its config.json describes: "
            + "; ".join(problems)
            + ". Fetch the checkpoint again, or name the folder of the right one."
        )


def _listed(what: str, names: Iterable[str]) -> list[str]:
    """A problem in words, or nothing where there are no names."""
    ordered = sorted(names)
    if not ordered:
        return []
    more = len(ordered) - MAX_NAMES_SHOWN
    shown = ", ".join(ordered[:MAX_NAMES_SHOWN]) + (f" and {more} more" if more > 0 else "")
    return [f"{len(ordered)} {what} ({shown})"]


def _stored_names(
    checkpoint: Checkpoint, config: TargetConfig, say: Callable[[str], None]
) -> dict[str, str]:
    """The model's name of each tensor in the files -> the files' name."""
    for name in checkpoint.ignored_files:
        say(f"{name} is not named by the index and is ignored")
    names = list(checkpoint.tensors)
    if config.model_type == "qwen3_5":
        for prefix, what in SKIPPED.items():
            if num_skipped := sum(name.startswith(prefix) for name in names):
                say(f"skipping {num_skipped} tensors {what}")
        names = [name for name in names if not name.startswith(tuple(SKIPPED))]
    scales = {n + SCALE_SUFFIX for n in names if checkpoint.tensors[n].is_fp8}
    stored = {_without_text_part(name): name for name in names if name not in scales}
    _refuse_other_formats(checkpoint, stored.values())
    if config.tie_word_embeddings and "lm_head.weight" in stored:
        # Some writers store the tied head once more. It is not used, so it must be no other.
        _check_tied_head(checkpoint, stored)
        del stored["lm_head.weight"]
    return stored


def _without_text_part(name: str) -> str:
    return "model." + name.removeprefix(TEXT_PREFIX) if name.startswith(TEXT_PREFIX) else name


def _refuse_other_formats(checkpoint: Checkpoint, names: Iterable[str]) -> None:
    for name in names:
        if name.startswith("lm_head.weight_"):
            raise ModelError(
                f"{checkpoint.folder}: has {name}; this engine and a DFlash 2 drafter need an "
                "unquantised target head"
            )
        tensor = checkpoint.tensors[name]
        if tensor.dtype not in FLOATS:
            raise ModelError(
                f"{tensor.path}: {name} is {tensor.dtype}; this engine reads "
                f"{', '.join(FLOATS)} here"
            )


def _check_tied_head(checkpoint: Checkpoint, stored: dict[str, str]) -> None:
    embedding = stored.get("model.embed_tokens.weight")
    pair = dict(checkpoint.read([stored["lm_head.weight"], embedding or ""], torch.float32))
    if embedding is not None and not torch.equal(*pair.values()):
        raise ModelError(
            f"{checkpoint.folder}: config.json says tie_word_embeddings, but lm_head.weight "
            "differs from model.embed_tokens.weight. Set tie_word_embeddings to false to use "
            "the head."
        )


def _read(
    checkpoint: Checkpoint,
    stored: dict[str, str],
    dtype: torch.dtype,
    fp8_block: tuple[int, int] | None,
    say: Callable[[str], None],
) -> Iterator[tuple[str, Tensor]]:
    """The tensors under the model's names, one after the other, with a line every second."""
    ours = {theirs: name for name, theirs in stored.items()}
    total_bytes = sum(checkpoint.tensors[name].num_bytes for name in ours)
    done_bytes, said_at_s = 0, time.monotonic()
    wide = [name for name in ours if name.endswith(WIDE)]
    narrow = [name for name in ours if not name.endswith(WIDE)]
    wide_dtype = torch.promote_types(dtype, torch.float32)
    for name, tensor in chain(
        checkpoint.read(wide, wide_dtype), checkpoint.read(narrow, dtype, fp8_block)
    ):
        yield ours[name], tensor
        done_bytes += checkpoint.tensors[name].num_bytes
        if time.monotonic() >= said_at_s + SECONDS_BETWEEN_LINES:
            said_at_s = time.monotonic()
            percent = 100 * done_bytes // total_bytes
            say(f"{done_bytes} of {total_bytes} bytes of weights read, {percent} %")


def _check_computable(dtype: torch.dtype) -> None:
    if dtype not in FLOATING_DTYPES:
        raise ModelError(f"cannot compute in {dtype}; choose one of {FLOATING_DTYPES}")
