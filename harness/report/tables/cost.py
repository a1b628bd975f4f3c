"""What a variant costs beside time per token: memory, room for requests, boots, energy; and the
roof that bandwidth puts over decoding.
"""

from collections.abc import Iterator, Mapping, Sequence
from statistics import median
from typing import Any

from harness.analysis.summary import Summary
from harness.measures import full_length_requests, relative_change
from harness.records import Boot
from harness.report import format as fmt
from harness.report.tables.figures import Figures, decoding_sections, variant_label
from harness.report.tables.table import Entry, Table, count, figure, label, missing

COST_NOTE = (
    "In brackets: against the reference. Room: tokens of keys and values that an engine has "
    "place for, as it says itself; over the longest request it takes they are so many "
    "full-length requests. Memory: {memory}."
)


def cost(summary: Summary) -> list[Table]:
    """A row per variant, its reference's figures beside its own in brackets."""
    boots = {
        variant: [boot for boot in summary.data.boots if boot.variant == variant]
        for variant in dict.fromkeys(boot.variant for boot in summary.data.boots)
    }
    references = {
        view.cell.variant: view.reference.cell.variant
        for view in summary.data.views
        if view.reference is not None
    }
    pairs = {
        variant: (own, boots.get(references.get(variant, ""), ())) for variant, own in boots.items()
    }
    return [
        Table(
            name="cost",
            title="Cost",
            columns=(
                "variant",
                "boots",
                "boot time, s (median)",
                "peak memory of a boot, MiB",
                "room, tokens",
                "full-length requests",
            ),
            rows=tuple(_row(variant, *pair) for variant, pair in pairs.items()),
            notes=(
                COST_NOTE.format(memory="; ".join(_memory_words(summary.data.boots))),
                *_why_less_room(pairs),
            ),
        )
    ]


_READ_FROM = {
    "accelerators": "what accelerators hold beyond what they held before the start",
    "host": "what is gone of the memory that host and accelerator share",
    "resident set": "the resident set of the engine's processes",
}


def _memory_words(boots: Sequence[Boot]) -> list[str]:
    return [words for source, words in _READ_FROM.items() if source in map(_memory_source, boots)]


def _memory_source(boot: Boot) -> str:
    """Runs of before others were read have resident sets."""
    return boot.memory_read_from or "resident set"


def _why_less_room(
    pairs: Mapping[str, tuple[Sequence[Boot], Sequence[Boot]]],
) -> Iterator[str]:
    """Where the engine tells it: keys and values of another shape are a group of their own."""
    for variant, (own, reference) in pairs.items():
        ours, theirs = _groups(own), _groups(reference)
        if ours is not None and theirs is not None and ours > theirs:
            yield (
                f"{variant} keeps {ours} groups of keys and values where its reference keeps "
                f"{theirs}: the drafter's attention has its own, and every token takes more room."
            )


def _groups(boots: Sequence[Boot]) -> int | None:
    told = [_fact(boot, "kv_groups") for boot in boots]
    known = [groups for groups in told if groups is not None]
    return int(known[-1]) if known else None


def _row(variant: str, own: Sequence[Boot], reference: Sequence[Boot]) -> tuple[Entry, ...]:
    ready = [boot.ready_s for boot in own if boot.ready_s is not None]
    alike = {*map(_memory_source, own)} == {*map(_memory_source, reference)}
    return (
        label(variant),
        count(len(own)),
        figure(
            median(ready) if ready else None,
            lambda value: fmt.number(value, 3),
            "no boot became ready",
        ),
        _beside(
            _peak_bytes(own),
            _peak_bytes(reference) if alike else None,
            lambda value: fmt.mebibytes(int(value)),
        ),
        _beside(_room(own), _room(reference), fmt.tokens, "the engine does not tell"),
        _beside(_full_length(own), _full_length(reference), fmt.length, "the engine does not tell"),
    )


def _beside(
    value: float | None,
    reference: float | None,
    show: Any,
    reason: str = "not measured",
) -> Entry:
    if value is None:
        return missing(reason)
    text: str = show(value)
    if reference:
        text += f" ({fmt.change(relative_change(value, reference))})"
    return Entry(text=text, value=value)


def _peak_bytes(boots: Sequence[Boot]) -> float | None:
    peaks = [boot.memory_peak_bytes for boot in boots if boot.memory_peak_bytes is not None]
    return float(max(peaks)) if peaks else None


def _room(boots: Sequence[Boot]) -> float | None:
    """The last boot's word: room can differ between boots, as what is left of memory does."""
    told = [_fact(boot, "kv_tokens", "kv_capacity_tokens") for boot in boots]
    known = [room for room in told if room is not None]
    return known[-1] if known else None


def _full_length(boots: Sequence[Boot]) -> float | None:
    told = [_fact(boot, "full_length_requests") for boot in boots]
    known = [requests for requests in told if requests is not None]
    if known:
        return known[-1]
    room = _room(boots)
    contexts = [_fact(boot, "context_per_slot", "max_model_len", "kv_len") for boot in boots]
    context = contexts[-1] if contexts else None
    if room is None or not context:
        return None
    return full_length_requests(int(room), int(context))


def _fact(boot: Boot, *names: str) -> float | None:
    """The first of these that the engine tells."""
    for name in names:
        value = (boot.health or {}).get(name)
        if isinstance(value, int | float) and not isinstance(value, bool):
            return float(value)
    return None


# --- the roof -------------------------------------------------------------------------------------


def roof(summary: Summary) -> list[Table]:
    """How much of the memory's bandwidth decoding uses, where the matrix tells that bandwidth."""
    bandwidth = summary.manifest.device.get("memory_bandwidth_GBps")
    if bandwidth is None:
        return []
    figures = Figures(summary)
    return [
        Table(
            name="roof",
            title=f"Share of {bandwidth:g} GB/s that reading the target's weights uses",
            columns=("workload", "variant", "weights read per step, MiB", "of the roof"),
            rows=tuple(
                (
                    label(section.word),
                    variant_label(section, view.cell.variant),
                    figure(
                        None if view.step_bytes is None else float(view.step_bytes),
                        lambda value: fmt.mebibytes(int(value)),
                        "the target's files are not on this machine",
                    ),
                    figures.entry(view, "roof_fraction", fmt.percent),
                )
                for section in decoding_sections(summary)
                for view in section.views
            ),
            notes=(
                "A plain row above 100 % is a mistake in the bandwidth or the bytes; what the "
                "drafter reads comes on top.",
            ),
            num_labels=2,
        )
    ]


def energy(summary: Summary) -> list[Table]:
    """Joules per token, where an accelerator tells its power."""
    figures = Figures(summary)
    rows = tuple(
        (
            label(section.word),
            label(str(view.cell.concurrency)),
            variant_label(section, view.cell.variant),
            figures.entry(view, "energy_per_token", lambda value: fmt.number(value, 3)),
        )
        for section in summary.sections
        for view in section.views
        if (row := summary.row(view, "energy_per_token")) is not None
        and row.estimate.value is not None
    )
    if not rows:
        return []
    return [
        Table(
            name="energy",
            title="Energy of the accelerators per output token, J",
            columns=("workload", "c", "variant", "J/token"),
            rows=rows,
            num_labels=3,
        )
    ]
