"""Night: what one run leaves for comparisons. Figures per boot and per prompt, and all keys.

A night is small and complete: it can be stored beside the code, reviewed, and compared after the
run's own folder is gone. It knows neither files nor what is a good figure.
"""

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal, TypeAlias

from harness import checks, keys
from harness.analysis.dataset import Dataset
from harness.analysis.metrics import METRICS, Direction
from harness.analysis.summary import workload_word
from harness.cell_view import CellView
from harness.records import Cell, Level, MachineFacts, Verdict

MEMORY = "memory_peak"

GATED: tuple[str, ...] = (
    "decode_rate",
    "aggregate_throughput",
    "ttft_p50",
    "acceptance_length",
    MEMORY,
)
"""The figures that a comparison gives a word on, in the order in which they are shown."""

EXPLAINING: tuple[str, ...] = ("tokens_per_step", "wall_p50")
"""Kept to say why one of the others moved."""

BY_PROMPT: tuple[str, ...] = ("decode_rate", "ttft_p50")

ALL_CELLS = "all cells"
"""The `work` of a memory figure."""

DIGITS = 7
"""A figure is kept with so many: more than any clock knows, and a stored night equals its run."""

ByBoot: TypeAlias = Mapping[str, float]


@dataclass(frozen=True, kw_only=True)
class Figure:
    """`by_prompt`: prompt id -> boot id -> the same figure of that prompt alone."""

    by_boot: ByBoot
    by_prompt: Mapping[str, ByBoot] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Subject:
    """What has figures: a cell, or (memory) a variant with all cells that its boots ran.

    Subjects of equal `key` did the same work in the same way with the same engine, models and
    declared settings. `work` is for reading: "generate", "concurrency c=4", "all cells".
    """

    variant: str
    work: str
    key: str
    level: Level
    verdicts: tuple[str, ...]  # checks that are not ok, invalid ones first
    figures: Mapping[str, Figure]
    reasons: Mapping[str, str]  # metric -> why it has no figure
    builds: tuple[str, ...] = ()
    cell: Cell | None = None
    prompts_sha256: str | None = None


@dataclass(frozen=True, kw_only=True)
class Night:
    run_id: str
    created_at: str
    tool: str
    purpose: Literal["measurement", "smoke"]
    commit: str | None
    dirty: bool | None
    device_key: str
    device: str
    level: Level
    subjects: tuple[Subject, ...]


def unit_of(metric: str) -> str:
    return "byte" if metric == MEMORY else METRICS[metric].unit


def direction_of(metric: str) -> Direction:
    return "lower" if metric == MEMORY else METRICS[metric].direction


Judged: TypeAlias = Mapping[str, tuple[Verdict, ...]]
"""Cell id -> what the checks that are not content say of it, invalid first."""


def night_of(data: Dataset) -> Night:
    manifest, sessions = data.manifest, data.sessions
    judged = {view.cell.cell_id: _accusations(view) for view in data.views}
    works = _works(data.views)
    subjects = [
        _cell(
            view.afresh(),
            work=works[view.cell.cell_id],
            verdicts=judged[view.cell.cell_id],
            prompts_sha256=manifest.prompt_sets[view.cell.prompt_set],
        )
        for view in data.views
    ]
    return Night(
        run_id=manifest.run_id,
        created_at=manifest.created_at,
        tool=manifest.tool,
        purpose="smoke" if manifest.purpose == "smoke" else "measurement",
        commit=sessions[-1].commit if sessions else None,
        dirty=sessions[-1].dirty if sessions else None,
        device_key=sessions[-1].device_key if sessions else "",
        device=device_in_words(sessions[-1].machine) if sessions else "no session",
        level=checks.worst(verdict for verdicts in judged.values() for verdict in verdicts),
        subjects=(*subjects, *_memory(data, judged)),
    )


def _accusations(view: CellView) -> tuple[Verdict, ...]:
    bad = [verdict for verdict in checks.judge(view.afresh()) if verdict.level != "ok"]
    return tuple(sorted(bad, key=lambda verdict: verdict.level != "invalid"))


def device_in_words(machine: MachineFacts) -> str:
    memory = machine.memory_bytes
    size = "unknown memory" if memory is None else f"{memory / 2**30:.0f} GiB"
    return ", ".join((f"{machine.cpu}, {machine.num_cpus} CPUs, {size}", *machine.accelerators))


# --- cells ----------------------------------------------------------------------------------------


def _cell(
    view: CellView, *, work: str, verdicts: Sequence[Verdict], prompts_sha256: str
) -> Subject:
    cell = view.cell
    found = {metric: _figure(view, metric) for metric in _metrics(cell)}
    return Subject(
        variant=cell.variant,
        work=work,
        key=_key(cell),
        level=checks.worst(verdicts),
        verdicts=tuple(dict.fromkeys(verdict.check for verdict in verdicts)),
        figures={metric: got for metric, got in found.items() if isinstance(got, Figure)},
        reasons={metric: got for metric, got in found.items() if isinstance(got, str)},
        builds=tuple(dict.fromkeys(boot.build for boot in view.boots if boot.build is not None)),
        cell=cell,
        prompts_sha256=prompts_sha256,
    )


def _key(cell: Cell) -> str:
    return keys.short_hash([cell.workload_key, cell.subject_key, cell.protocol_id])


def _works(views: Sequence[CellView]) -> Mapping[str, str]:
    """Cell id -> what it is called; workloads of one word are told apart by what differs."""
    names = [_work(view) for view in views]
    for part in ("prompt_set", "max_tokens", "length", "protocol_id"):
        counts = Counter((view.cell.variant, name) for view, name in zip(views, names, strict=True))
        names = [
            f"{name}, {getattr(view.cell, part)}" if counts[view.cell.variant, name] > 1 else name
            for view, name in zip(views, names, strict=True)
        ]
    return {view.cell.cell_id: name for view, name in zip(views, names, strict=True)}


def _work(view: CellView) -> str:
    word = workload_word(view)
    return word if view.cell.load == "single" else f"{word} c={view.cell.concurrency}"


def _metrics(cell: Cell) -> Iterator[str]:
    """Those that such a cell can have: without a drafter nothing is accepted."""
    for metric in (*GATED, *EXPLAINING):
        if metric == MEMORY or cell.workload not in METRICS[metric].workloads:
            continue
        if cell.drafter is None and metric in ("acceptance_length", "tokens_per_step"):
            continue
        yield metric


def _figure(view: CellView, metric: str) -> Figure | str:
    """The figure, or why there is none."""
    if not view.requests:
        return view.unfinished[0] if view.unfinished else "no request was sent"
    by_boot = _by_boot(view, metric)
    if not by_boot:
        return METRICS[metric].compute(view).reason or "no boot has this figure"
    return Figure(by_boot=by_boot, by_prompt=_by_prompt(view, metric))


def _by_boot(view: CellView, metric: str) -> ByBoot:
    """Boots that have the figure; a comparison takes logarithms, so 0 tokens per second is none."""
    compute = METRICS[metric].compute
    values = {boot_id: compute(of_boot).value for boot_id, of_boot in view.by_boot.items()}
    return {
        boot_id: float(f"{value:.{DIGITS}g}")
        for boot_id, value in values.items()
        if value is not None and value > 0
    }


def _by_prompt(view: CellView, metric: str) -> Mapping[str, ByBoot]:
    if metric not in BY_PROMPT:
        return {}
    asked = map(str, view.sent.labels("prompt_id"))
    return {prompt_id: _by_boot(_of_prompt(view, prompt_id), metric) for prompt_id in asked}


def _of_prompt(view: CellView, prompt_id: str) -> CellView:
    return replace(view, requests=view.sent.where("prompt_id", prompt_id))


# --- memory ---------------------------------------------------------------------------------------


def _memory(data: Dataset, judged: Judged) -> Iterator[Subject]:
    """A boot has one peak over all cells that it ran, so it is compared with boots that ran the
    same.
    """
    variants: dict[str, list[CellView]] = defaultdict(list)
    for view in data.views:
        variants[view.cell.variant].append(view)
    for variant, views in variants.items():
        verdicts = [verdict for view in views for verdict in judged[view.cell.cell_id]]
        boots = {boot.where.boot_id: boot for view in views for boot in view.boots}
        peaks = {
            str(boot_id): float(boot.memory_peak_bytes)
            for boot_id, boot in boots.items()
            if boot.memory_peak_bytes
        }
        yield Subject(
            variant=variant,
            work=ALL_CELLS,
            key=keys.short_hash([MEMORY, *sorted(_key(view.cell) for view in views)]),
            level=checks.worst(verdicts),
            verdicts=tuple(dict.fromkeys(verdict.check for verdict in verdicts)),
            figures={MEMORY: Figure(by_boot=peaks)} if peaks else {},
            reasons={} if peaks else {MEMORY: "the memory of the engine could not be read"},
        )
