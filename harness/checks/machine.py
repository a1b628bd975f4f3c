"""Whether the machine ran at its full speed, and no faster than it can."""

from collections.abc import Sequence
from itertools import pairwise
from statistics import median

from harness import measures
from harness.cell_view import CellView
from harness.checks.finding import OK, Finding, invalid, warning
from harness.records import AcceleratorSample, MachineSample
from harness.requests import middle

STEAL_LIMIT = 0.05


def throttled(view: CellView) -> Finding:
    return _slow_accelerators(view) or _hot_cpu(view) or _stolen_cpu(view) or OK


def _slow_accelerators(view: CellView) -> Finding | None:
    seconds = [slow for sample in view.machine if (slow := _slowed(sample))]
    if not seconds:
        return None
    found = [each for slow in seconds for each in slow]
    reasons = sorted({reason for each in found for reason in each.slowed_by or ()})
    heats = [each.temperature_c for each in found if each.temperature_c is not None]
    heat = f", at up to {max(heats):.0f} degrees Celsius" if heats else ""
    return warning(
        f"An accelerator was slowed down in {len(seconds)} of {len(view.machine)} seconds "
        f"({', '.join(reasons)}{heat}), so this is not its full speed. Cool it, or set "
        "`cooldown_s`, then measure the cell again."
    )


def _slowed(sample: MachineSample) -> Sequence[AcceleratorSample]:
    return [each for each in sample.accelerators if each.slowed_by]


def _hot_cpu(view: CellView) -> Finding | None:
    """The count only grows; the samples of two boots may lie far apart, so each is asked alone."""
    rises = [
        later - earlier
        for boot_id in view.boot_ids
        for earlier, later in pairwise(_throttle_counts(view.machine, boot_id))
    ]
    if sum(rises) <= 0:
        return None
    return warning(
        f"The CPU slowed itself down {sum(rises)} times because of its temperature, so this is not "
        "its full speed. Cool it, or set `cooldown_s`, then measure the cell again."
    )


def _throttle_counts(samples: Sequence[MachineSample], boot_id: str) -> list[int]:
    return [
        sample.cpu_throttle_count
        for sample in samples
        if sample.where.boot_id == boot_id and sample.cpu_throttle_count is not None
    ]


def _stolen_cpu(view: CellView) -> Finding | None:
    stolen = [s.cpu_steal_share for s in view.machine if s.cpu_steal_share is not None]
    if not stolen or median(stolen) <= STEAL_LIMIT:
        return None
    return warning(
        f"The hypervisor took {median(stolen) * 100:.0f} % of this virtual machine's CPU time "
        "(median over seconds), so another tenant is in the figures. Measure when the host is "
        "quiet, or on a machine of its own."
    )


def roof(view: CellView) -> Finding:
    """Nothing decodes faster than its weights can be read, except from a cache."""
    bandwidth = view.device.get("memory_bandwidth_GBps")
    if view.cell.drafter is not None or view.cell.load != "single" or bandwidth is None:
        return OK
    fraction = measures.roof_fraction(view.step_bytes, _steps_per_s(view), bandwidth * 1e9)
    if fraction is None or fraction <= 1:
        return OK
    return invalid(
        f"Plain decoding would have to read its weights at {fraction:.2f} times the "
        f"{bandwidth:g} GB/s that the matrix gives the device. Correct `memory_bandwidth_GBps`; "
        "if that is right, the engine drafts, quantises while it loads, or its weights lie in a "
        "cache."
    )


def _steps_per_s(view: CellView) -> float | None:
    """Of a plain stream a step is a token; the middle request's."""
    known = view.ok.known("decode_rate_strict")
    return middle(known) if len(known) else None
