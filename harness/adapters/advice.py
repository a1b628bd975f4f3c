"""What known lines of an engine's log mean, and what to do about them.

A table of signatures, each with the engine and version that it was seen in. It explains; whether a
boot failed, or a figure may be used, is decided elsewhere.
"""

import re
from dataclasses import dataclass

_QUOTED = 200  # characters of a line: vLLM's hold a whole configuration


@dataclass(frozen=True, kw_only=True)
class Signature:
    """A line that matches `pattern` means what `advice` says. `fatal`: it ends the engine."""

    pattern: re.Pattern[str]
    advice: str
    seen_in: str
    fatal: bool


@dataclass(frozen=True, kw_only=True)
class Explained:
    line: str
    advice: str
    fatal: bool

    def __str__(self) -> str:
        return f"it says {self.line[:_QUOTED]!r}: {self.advice}"


def explained(log: str) -> tuple[Explained, ...]:
    """The first line of each known signature, in the order of the table."""
    lines = log.splitlines()
    found = ((signature, _first(signature, lines)) for signature in KNOWN)
    return tuple(
        Explained(line=line, advice=signature.advice, fatal=signature.fatal)
        for signature, line in found
        if line is not None
    )


def _first(signature: Signature, lines: list[str]) -> str | None:
    return next((line.strip() for line in lines if signature.pattern.search(line)), None)


def _signature(pattern: str, advice: str, *, seen_in: str, fatal: bool = True) -> Signature:
    return Signature(pattern=re.compile(pattern), advice=advice, seen_in=seen_in, fatal=fatal)


KNOWN: tuple[Signature, ...] = (
    # --- the drafter was refused, or is not the one that was asked for
    _signature(
        r"requires an unquantized target LM head",
        "the selector reads its candidates from the target's LM head, which is quantised in this "
        "checkpoint; take one whose safetensors hold lm_head.weight and no lm_head.weight_scale",
        seen_in="vLLM 0.27 with DFlash 2",
    ),
    _signature(
        r"[Nn]o module (or parameter named )?.*candidate_selector",
        "this build reads the drafter as DFlash 1, which has no selector; take one that knows "
        "DFlash2DraftModel",
        seen_in="vLLM 0.27 without DFlash 2",
    ),
    _signature(
        r"Model Runner V2 (requires|does not yet support) .*using the V1 model",
        "this engine runs with V1, on which a DFlash 2 checkpoint drafts as DFlash 1 and DSpark "
        "not at all; n-gram and plain decoding are as they should be",
        seen_in="vLLM 0.32",
        fatal=False,
    ),
    _signature(
        r"require the V2 model runner",
        "this drafter needs vLLM's second runner; write `environment: {VLLM_USE_V2_MODEL_RUNNER: "
        '"1"}`, and leave out what keeps the engine from it',
        seen_in="vLLM 0.32 with a drafter that mixes sliding and full attention",
    ),
    _signature(
        r"method='dflash'.*dtype=torch\.float16",
        "a DFlash 2 drafter overflows in float16: its scores become NaN and every draft is refused "
        "(acceptance 0 %, where bfloat16 had 37 to 41); write `dtype: bfloat16`",
        seen_in="vLLM 0.32, its issue 55250",
        fatal=False,
    ),
    _signature(
        r"scores are not finite|probability tensor contains either `inf`, `nan`",
        "a model computed no numbers (NaN); take float32 or bfloat16 instead of float16, then look "
        "for damaged weights",
        seen_in="the bundled engine, PyTorch 2.13",
    ),
    _signature(
        r"the target and draft vocabs are not compatible",
        "llama-server goes on without the drafter; take one that was made for this target's "
        "tokenizer",
        seen_in="llama.cpp b11434",
        fatal=False,
    ),
    _signature(
        r"DFlash model has no target_layer_ids",
        "the file given as drafter is none of DFlash; `drafter: {model: ...}` names another file",
        seen_in="llama.cpp b11434",
    ),
    _signature(
        r"GGML_ASSERT\(ggml_can_repeat\(b, a\)\) failed",
        "two tensors do not fit: a drafter that was made for a target of another size does this",
        seen_in="llama.cpp b11434",
    ),
    _signature(
        r"exceeds the trained block size \d+ -- clamping to",
        "k is more than the drafter's block holds; write `k` as the block size less one",
        seen_in="llama.cpp b11434",
        fatal=False,
    ),
    _signature(
        r"unknown speculative type",
        "`drafter: {method: ...}` is no word of this build; `llama-server --help` lists them under "
        "--spec-type",
        seen_in="llama.cpp b11434",
    ),
    # --- memory
    _signature(
        r"No available memory for the cache blocks|larger than the available KV cache memory",
        "the KV cache does not fit: a lower `max_model_len`, a higher `gpu_memory_utilization`, or "
        "on a CPU a higher VLLM_CPU_KVCACHE_SPACE",
        seen_in="vLLM 0.32",
    ),
    _signature(
        r"insufficient memory \(attempted to allocate|failed to allocate .*buffer",
        "memory ran out: a lower `ctx_size` or fewer slots (`parallel`), or weights of fewer bits",
        seen_in="llama.cpp b11434",
    ),
    _signature(
        r"CUDA out of memory|OutOfMemoryError|DefaultCPUAllocator: can't allocate memory",
        "memory ran out: nothing else may hold the device, and the settings of weights, context "
        "and batch must leave room",
        seen_in="PyTorch 2.13",
    ),
    # --- what was asked for
    _signature(
        r"error: invalid argument: |unrecognized arguments: ",
        "a setting of `flags` or `held_constant` is no option of this engine; see its --help",
        seen_in="llama.cpp b11434, vLLM 0.32",
    ),
    _signature(
        r"failed to load model from ",
        "the model is not there or no GGUF file; look at its `path` in configs/models",
        seen_in="llama.cpp b11434",
    ),
    _signature(
        r"quantized V cache requires flash_attn",
        'a quantised V cache needs `flash_attn: "on"`; or take a `cache_type_v` of f16 or f32',
        seen_in="llama.cpp b11434",
    ),
    _signature(
        r"No module named '?vllm",
        "the environment that `command` starts has no vLLM in it: tests/external/install vllm",
        seen_in="Python 3.11",
    ),
    _signature(
        r"max_num_scheduled_tokens is set to -?\d+ .*not allow|not have enough slots to schedule",
        "k leaves no room for a token in a step; raise `max_num_batched_tokens`, for plain "
        "decoding too, or lower `k`",
        seen_in="vLLM 0.32",
    ),
    _signature(
        r"could not select device driver",
        "docker knows no GPU here; install nvidia-container-toolkit, or leave `--gpus` out of "
        "`container_options`",
        seen_in="docker 28",
    ),
    # --- what costs speed
    _signature(
        r"max_num_scheduled_tokens is set to \d+ based on .*suboptimal",
        "speculation lowers the tokens of one step, so prefill is not that of plain decoding; "
        "raise `max_num_batched_tokens` for both",
        seen_in="vLLM 0.32",
        fatal=False,
    ),
)
