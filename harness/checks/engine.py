"""Whether the engine is the one that was asked for, and could take the load."""

from harness.cell_view import CellView
from harness.checks.finding import OK, Finding, invalid, warning


def flags_diff(view: CellView) -> Finding:
    """Numbers alone are held against each other: words have too many spellings."""
    for boot in view.boots:
        told = boot.health or {}
        for name, asked in boot.wanted.items():
            if _is_number(asked) and _is_number(told.get(name)) and told[name] != asked:
                return invalid(
                    f"The matrix asks for {name} {asked}, the engine says {told[name]}. Start it "
                    "with what the matrix says, or write what it uses."
                )
    return OK


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


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
        "The engine does not say its version, so nobody can measure this again. Write it into the "
        "engine's name, or use an engine whose /health has `version`."
    )


def slots_ge_c(view: CellView) -> Finding:
    for boot in view.boots:
        slots = (boot.health or {}).get("max_concurrent_requests")
        if isinstance(slots, int) and slots < view.cell.concurrency:
            return warning(
                f"The engine works on {slots} of the {view.cell.concurrency} requests at once, so "
                "TTFT is mostly queue and the aggregate that of fewer streams. Start it with more "
                "slots, or read the level as one of waiting."
            )
    return OK


def cache_state(view: CellView) -> Finding:
    cached = [request for request in view.ok if request.cached_tokens]
    if not cached:
        return OK
    return warning(
        f"{len(cached)} of {len(view.ok)} prompts were partly in the engine's prefix cache, so "
        "TTFT is not a cold one. Switch prefix caching off, or read TTFT as warm."
    )
