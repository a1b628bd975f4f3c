"""Which words the engines have for drafters, and whether one knows the drafter it is asked for.

Nothing is known of engines that are not in the table, and nothing of them is accused.
"""

import difflib
from collections.abc import Mapping

from harness.cell_view import CellView
from harness.checks.checkpoints import at_least, is_dflash2, is_mtp
from harness.checks.finding import OK, Finding, invalid, warning

WORDS: Mapping[str, Mapping[str, tuple[str, ...]]] = {
    # kind of drafter: adapter: its words, the first of which is the one to write
    "DFlash": {"dflash2": ("dflash2",), "vllm": ("dflash",), "llamacpp": ("draft-dflash",)},
    "MTP": {"dflash2": ("mtp",), "vllm": ("mtp",), "llamacpp": ("draft-mtp",)},
    "DSpark": {"vllm": ("dspark",), "llamacpp": ("draft-dspark",)},
    "EAGLE-3": {"vllm": ("eagle3", "eagle"), "llamacpp": ("draft-eagle3",)},
    "draft model": {"vllm": ("draft_model",), "llamacpp": ("draft-simple",)},
    "n-gram": {
        "vllm": ("ngram", "ngram_gpu", "suffix"),
        "llamacpp": ("ngram-simple", "ngram-map-k", "ngram-map-k4v", "ngram-mod", "ngram-cache"),
    },
    "other": {"vllm": ("medusa", "mlp_speculator", "custom_class", "extract_hidden_states")},
}
"""By the bundled engine, vLLM 0.32 and llama.cpp b11434."""

VLLM_HAS_DFLASH2 = (0, 32)
VLLM_LACKS_DFLASH2 = (0, 28)
"""From the first on it is part of vLLM; what is older than the second needs it laid over."""


def kind_of(method: str) -> str | None:
    """The kind that an engine's word stands for; None: no engine here has that word."""
    if is_mtp(method):
        return "MTP"
    found = (kind for kind, adapters in WORDS.items() if method in sum(adapters.values(), ()))
    return next(found, None)


def known_words(adapter: str) -> tuple[str, ...]:
    return tuple(word for words in WORDS.values() for word in words.get(adapter, ()))


def drafter_known(view: CellView) -> Finding:
    method, adapter = view.cell.drafter, view.cell.adapter
    words = known_words(adapter)
    if method is None or not words:
        return OK
    if method not in words and not (adapter == "vllm" and is_mtp(method)):
        near = difflib.get_close_matches(method, words, n=1)
        same = WORDS.get(kind_of(method) or "", {}).get(adapter, near)
        hint = f"; did you mean {same[0]}?" if same else ""
        return invalid(
            f"{view.cell.engine} knows no drafter `{method}`{hint} Its words are "
            f"{', '.join(words)}. Write one of them as `method`."
        )
    if adapter != "vllm" or kind_of(method) not in ("DFlash", "DSpark"):
        return OK
    return _without_a_gpu(view) or (_dflash2_on_vllm(view) if is_dflash2(view) else OK)


def _without_a_gpu(view: CellView) -> Finding | None:
    """Its kernels are Triton's, and without those vLLM runs its first model runner."""
    cpu = [boot.version for boot in view.boots if (boot.version or "").endswith("+cpu")]
    if not cpu:
        return None
    return invalid(
        f"vLLM {cpu[0]} computes on the CPU, where it has no {kind_of(view.cell.drafter or '')}. "
        "Measure this drafter on a GPU, or with an engine that has it on a CPU."
    )


def _dflash2_on_vllm(view: CellView) -> Finding:
    """What is laid over an image may bring it, so nothing is said of such a build."""
    stock = [boot for boot in view.boots if not (boot.container and boot.container.overlaid)]
    versions = sorted({boot.version for boot in stock if boot.version})
    for version in versions:
        if at_least(version, VLLM_HAS_DFLASH2):
            continue
        if at_least(version, VLLM_LACKS_DFLASH2):
            return warning(
                f"vLLM {version} may be older than its DFlash 2, which 0.32 has. Look for the "
                "speculator's name in the server's log before these figures are quoted."
            )
        return invalid(
            f"vLLM {version} has no DFlash 2 and would draft with this checkpoint as if it were "
            "DFlash 1. Take 0.32 or newer, or lay the pull request that brings it over the image "
            "(`overlay`, docs/howto/gpu-study.md)."
        )
    return OK
