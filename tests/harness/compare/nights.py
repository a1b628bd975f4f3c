"""Nights as a run would leave them, from numbers written in the test: no folder, no engine."""

from collections.abc import Mapping, Sequence
from dataclasses import replace

from harness.compare.night import ALL_CELLS, MEMORY, Figure, Night, Subject
from harness.plan import make_plan
from harness.records import Cell, Level
from tests.harness import synthetic

Values = Mapping[str, Sequence[float]]
"""Metric -> its figure of each boot."""


def cells(levels: Sequence[int] = ()) -> tuple[Cell, ...]:
    """`plain` and `DFlash2`, each generate and, at every level, waves and closed loads."""
    return make_plan(synthetic.matrix(levels=levels)).cells


def subject(cell: Cell, figures: Values, *, work: str = "generate", level: Level = "ok") -> Subject:
    return Subject(
        variant=cell.variant,
        work=work,
        key=f"{cell.workload_key} {cell.subject_key} {cell.protocol_id}",
        level=level,
        verdicts=() if level == "ok" else ("foreign_traffic",),
        figures={metric: figure(values) for metric, values in figures.items()},
        reasons={},
        cell=cell,
        prompts_sha256="5" * 64,
    )


def figure(values: Sequence[float]) -> Figure:
    return Figure(by_boot={f"b{number}-s1": value for number, value in enumerate(values, start=1)})


def memory(variant: str, peaks: Sequence[float]) -> Subject:
    return Subject(
        variant=variant,
        work=ALL_CELLS,
        key=f"memory of {variant}",
        level="ok",
        verdicts=(),
        figures={MEMORY: figure(peaks)},
        reasons={},
    )


def night(number: int, *subjects: Subject, level: Level = "ok", device: str = "d" * 12) -> Night:
    """Number 1, 2, ... of November; the run under test may be number 30."""
    return Night(
        run_id=f"202611{number:02}-020000-nightly",
        created_at=f"2026-11-{number:02}T02:00:00Z",
        tool="dflashbench 0.1.0",
        purpose="measurement",
        commit="0123456789abcdef0123456789abcdef01234567",
        dirty=False,
        device_key=device,
        device=f"device {device[0]}",
        level=level,
        subjects=subjects,
    )


def plain_nights(*rates: Sequence[float], metric: str = "decode_rate") -> tuple[Night, ...]:
    """The plain cell of one request at a time: a night per argument, a figure per boot."""
    cell = cells()[0]
    return tuple(
        night(number, subject(cell, {metric: values}))
        for number, values in enumerate(rates, start=1)
    )


def tonight(values: Sequence[float], *, metric: str = "decode_rate") -> Night:
    return night(30, subject(cells()[0], {metric: values}))


def changed(cell: Cell, **fields: object) -> Cell:
    """The same cell with other work: a key of its own, as keys.py would give it."""
    return replace(cell, workload_key="other work", **fields)  # type: ignore[arg-type]
