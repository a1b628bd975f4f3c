"""Whether the engine is the one that was asked for, and could take the load."""

import numpy as np

from harness.cell_view import CellView
from harness.checks.finding import OK, Finding, invalid, warning
from harness.records import Boot

CACHED_LIMIT = 0.01


def flags_diff(view: CellView) -> Finding:
    """Numbers alone are held against each other: words have too many spellings."""
    for boot in view.boots:
        told = boot.health or {}
        for name, asked in boot.wanted.items():
            wanted, found = _number(asked), _number(told.get(name))
            if None not in (wanted, found) and wanted != found:
                return invalid(
                    f"The matrix asks for {name} {asked}, the engine says {told[name]}. Start it "
                    "with what the matrix says, or write what it uses."
                )
    return OK


def _number(value: object) -> float | None:
    """A setting reaches the engine as it was written, so `0.80` is text here and a number there."""
    if not isinstance(value, int | float | str) or isinstance(value, bool):
        return None
    try:
        return float(value)
    except ValueError:
        return None


def build_known(view: CellView) -> Finding:
    builds = {boot.build for boot in view.boots if boot.build is not None}
    if len(builds) > 1:
        return invalid(
            f"The cell's boots ran {len(builds)} builds of the engine, so its figures are of no "
            "one engine. Measure it again with one build."
        )
    if all(boot.version is not None for boot in view.boots):
        return OK
    return warning(
        f"{view.cell.engine} does not say which version it is, so nobody can tell what would have "
        "to be measured again. Write the version into the engine's name; the bundled engine says "
        "its own once the package is installed."
    )


def slots_ge_c(view: CellView) -> Finding:
    for boot in view.boots:
        slots = _slots(boot)
        if slots is not None and slots < view.cell.concurrency:
            return warning(
                f"The engine works on {slots:g} of the {view.cell.concurrency} requests at once, "
                "so TTFT is mostly queue and the aggregate that of fewer streams. Start it with "
                "more slots, or read the level as one of waiting."
            )
    return OK


def _slots(boot: Boot) -> float | None:
    """As the engine says; vLLM does not, and has those it was asked for, as others have before they
    are started.
    """
    asked = (boot.wanted.get(name) for name in _SLOTS)
    known = (_number(each) for each in ((boot.health or {}).get("max_concurrent_requests"), *asked))
    return next((number for number in known if number is not None), None)


# of the bundled engine, llama.cpp and vLLM
_SLOTS = ("max_concurrent_requests", "parallel", "max_num_seqs")


def preemptions(view: CellView) -> Finding:
    total = view.total.delta
    count = total.preemptions if total else None
    if not count:
        return OK
    return invalid(
        f"The engine gave up the keys and values of running requests {count} times and computed "
        "them again, so what was timed is not decoding alone. Give it more KV memory, or lower "
        "the concurrency or its context length."
    )


def cache_state(view: CellView) -> Finding:
    """Cold prompts unless warm ones were asked for; a run of before that was asked counts as
    cold.
    """
    cached = _cached_share(view)
    if cached is None:
        return OK
    if view.cell.cache == "warm":
        return OK if cached else _never_warm()
    hits = int(np.count_nonzero(view.ok.known("cached_tokens")))
    if not hits and cached < CACHED_LIMIT:
        return OK
    whose = f", of {hits} of {len(view.ok)} prompts," if hits else ""
    return warning(
        f"{cached * 100:.0f} % of the prompt tokens{whose} came out of the engine's prefix cache, "
        "so TTFT is not a cold one. Switch prefix caching off, or read TTFT as warm."
    )


def _never_warm() -> Finding:
    return warning(
        "The cell asks for warm prompts, and the engine took none of them out of a prefix cache, "
        "so TTFT is a cold one. Switch its prefix caching on, or write `cache: cold`."
    )


def _cached_share(view: CellView) -> float | None:
    """Of the prompt tokens: as told with each request, else as counted."""
    prompts = int(view.ok.known("prompt_tokens").sum())
    told = int(view.ok.known("cached_tokens").sum())
    counted = view.total.delta.cached_prompt_tokens if view.total.delta else None
    cached = counted if view.ok.lacks("cached_tokens") else told
    return cached / prompts if prompts and cached is not None else None
