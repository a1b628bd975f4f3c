"""Whether contexts are long enough and keys and values have room: as asked for before a start, and
as the engine says after it.
"""

from collections.abc import Mapping
from typing import Any

from harness.cell_view import CellView
from harness.checks.finding import OK, Finding, invalid, warning
from harness.records import Boot


def context_asked(view: CellView) -> Finding:
    for boot in view.boots:
        asked = context_of(boot.wanted)
        if asked is None:
            continue
        if asked <= view.cell.max_tokens:
            return invalid(
                f"A request may hold {asked} tokens, and `max_tokens: {view.cell.max_tokens}` "
                "leaves no room for a prompt. Give the engine a longer context "
                f"({' or '.join(_CONTEXTS)}), or lower `max_tokens`."
            )
        longest = None if _is_stretched(boot) else _own_context(view)
        if longest is not None and asked > longest:
            message = (
                f"The engine is asked for a context of {asked}, and {view.cell.target} was made "
                f"for {longest} (max_position_embeddings). Ask for at most that."
            )
            return invalid(message) if view.cell.adapter == "vllm" else warning(message)
    return OK


_CONTEXTS = ("max_model_len", "ctx_size", "kv_len")


def context_of(wanted: Mapping[str, Any]) -> int | None:
    """Tokens that one request may hold, by the settings; None: the engine's own default.

    llama-server shares its context out among its slots, unless they draw on one pool.
    """
    whole = next((each for name in _CONTEXTS if (each := _whole(wanted.get(name)))), None)
    slots = _whole(wanted.get("parallel"))
    shared = "ctx_size" in wanted and slots and not wanted.get("kv_unified")
    return whole // slots if whole and slots and shared else whole


def _is_stretched(boot: Boot) -> bool:
    """The engine is told to go beyond what the model was made for."""
    settings = {*boot.wanted, *boot.environment}
    return bool(settings & {"hf_overrides", "rope_scaling", "VLLM_ALLOW_LONG_MAX_MODEL_LEN"})


def _own_context(view: CellView) -> int | None:
    config = view.target_files.get("config") or {}
    return _whole((config.get("text_config") or config).get("max_position_embeddings"))


def kv_fits(view: CellView) -> Finding:
    for boot in view.boots:
        found = _as_told(view, boot) if boot.ready_s is not None else _as_planned(view, boot)
        if found is not None:
            return found
    return OK


def _as_told(view: CellView, boot: Boot) -> Finding | None:
    """Requests that find no room wait, or have theirs taken away."""
    told = boot.health or {}
    room = _whole(told.get("kv_tokens")) or _whole(told.get("kv_capacity_tokens"))
    prompts = view.ok.known("prompt_tokens")
    if room is None or not len(prompts):
        return None
    slots = _whole(told.get("max_concurrent_requests")) or view.cell.concurrency
    num, longest = min(slots, view.cell.concurrency), int(prompts.max()) + view.cell.max_tokens
    if num * longest <= room:
        return None
    return warning(
        f"The engine has room for keys and values of {room} tokens, and {num} requests of up to "
        f"{longest} may need {num * longest}: some wait or are computed twice. Give it more "
        "memory, or read the level as one of waiting."
    )


def _as_planned(view: CellView, boot: Boot) -> Finding | None:
    """At the least: weights, and one request of full length; what is computed comes on top."""
    memory_gb, context = view.device.get("memory_GB"), context_of(boot.wanted)
    weights = sum(_weight_bytes(files) for files in (view.target_files, view.drafter_files))
    if not isinstance(memory_gb, int | float) or not weights or context is None:
        return None
    devices = _whole(boot.wanted.get("tensor_parallel_size")) or 1
    have = memory_gb * 1e9 * devices * _share(boot.wanted.get("gpu_memory_utilization"))
    number_bytes = 1 if {"kv_cache_dtype", "cache_type_k"} & boot.wanted.keys() else 2
    need = weights + context * (kv_numbers_per_token(view.target_files) or 0) * number_bytes
    if need <= have:
        return None
    return invalid(
        f"{need / 1e9:.1f} GB are needed at the least (weights {weights / 1e9:.1f}, one request of "
        f"{context} tokens {(need - weights) / 1e9:.1f}), and the engine may take "
        f"{have / 1e9:.1f} of the {memory_gb:g} GB that the matrix gives the device. Lower the "
        "context, raise `gpu_memory_utilization`, or correct `device: {memory_GB: ...}`."
    )


def _share(written: object) -> float:
    """All of it where nothing is written, or what is no number."""
    try:
        return float(str(written))
    except ValueError:
        return 1.0


def _weight_bytes(files: Mapping[str, Any]) -> int:
    return sum(((files.get("weights") or {}).get("bytes") or {}).values())


def kv_numbers_per_token(files: Mapping[str, Any]) -> int | None:
    """Of the layers that keep all of a context; others keep a state or a window of it.

    None where the config does not tell, and where keys and values are kept compressed (MLA).
    """
    config = files.get("config") or {}
    config = config.get("text_config") or config
    if config.get("kv_lora_rank"):
        return None
    heads, layers = _whole(config.get("num_key_value_heads")), _num_full_layers(config)
    size = _whole(config.get("head_dim"))
    queries, hidden = _whole(config.get("num_attention_heads")), _whole(config.get("hidden_size"))
    if size is None and queries and hidden:
        size = hidden // queries
    return 2 * layers * heads * size if heads and layers and size else None


def _num_full_layers(config: Mapping[str, Any]) -> int | None:
    kinds, layers = config.get("layer_types"), _whole(config.get("num_hidden_layers"))
    if kinds:
        return int(kinds.count("full_attention"))
    return layers and layers // (_whole(config.get("full_attention_interval")) or 1)


def _whole(value: object) -> int | None:
    """A setting reaches the engine as it was written, as text maybe."""
    if isinstance(value, bool) or not isinstance(value, int | str):
        return None
    return int(value) if isinstance(value, int) or value.isdecimal() else None
