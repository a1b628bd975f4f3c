"""`run`, `resume`, `status` and `doctor`: what the command line calls.

The user's Ctrl-C, SIGTERM and SIGHUP end a run in good order and come out as KeyboardInterrupt.
"""

import asyncio
import os
import platform
import shutil
import signal
from collections.abc import Callable, Collection, Coroutine, Iterable, Set
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from importlib import util
from pathlib import Path
from typing import Any, Literal

import psutil

from harness import keys
from harness.amend import Amended, amended, identity
from harness.budget import applied, within
from harness.config import load_matrix
from harness.config.tree import nearest
from harness.errors import ConfigError, UsageError
from harness.plan import counted, make_plan
from harness.records import (
    SCHEMA,
    Amendment,
    Calibration,
    CellEnd,
    MachineFacts,
    Manifest,
    Matrix,
    Plan,
    PlannedCell,
    PromptSet,
    Session,
    Where,
)
from harness.run import before, files, machine, rescore, runner
from harness.run.boot import PROJECT
from harness.run.calibrate import calibrate, worst_s
from harness.run.clock import utc_now
from harness.run.device_lock import devices_of, measuring_alone
from harness.run.history import known_durations
from harness.run.limits import allow_open_files
from harness.run.load import Fleet
from harness.run.loops import loop_factory, loop_name
from harness.run.progress import Reporter
from harness.store import RunFolder, new_run_id
from harness.turns import Place, asked_of

SESSION_RATES = (2000, 8000)
"""Events per second that a session's calibration tries; `doctor` tries more."""

UNAVAILABLE = 3
"""What a run ends with when a variant's engine did not boot, or died."""


def run_matrix(
    path: Path, *, results_dir: Path, progress: Reporter, budget_s: float | None = None
) -> RunFolder:
    """Measure everything in `path`; the folder is closed and complete as far as engines let it
    be.
    """
    matrix, folder = begin(path, results_dir=results_dir, tell=progress.note, budget_s=budget_s)
    measure(matrix, folder.manifest.plan, folder, progress)
    return folder


def begin(
    path: Path,
    *,
    results_dir: Path,
    tell: Callable[[str], None],
    budget_s: float | None = None,
) -> tuple[Matrix, RunFolder]:
    """A new run of what `path` says, with its plan and nothing measured.

    budget_s: how long it may take; what does not fit into it is cut.
    """
    matrix = load_matrix(path)
    identities = {name: files.identity(m) for name, m in files.models_of(matrix).items()}
    hashes, budget = files.hashes(identities), None
    if budget_s is not None:
        durations = known_durations(matrix, hashes, results_dir, tell)
        budget = within(matrix, budget_s, durations, hashes)
        matrix = applied(matrix, budget)
        for cut in budget.cuts:
            tell(f"cut by the budget: {cut}")
    plan = make_plan(matrix, identities=hashes)
    run_id = new_run_id(results_dir, matrix.name, datetime.now(UTC))
    manifest = replace(_manifest(matrix, path, plan, identities, run_id), budget=budget)
    before.refuse_unfit(matrix, plan, identities, tell)
    return matrix, RunFolder.create(results_dir, manifest)


def run_into(path: Path, run: Path, *, only: str | None, progress: Reporter) -> RunFolder:
    """Measure what `path` wants and the stored run has not: cells whose keys changed, boots and
    repetitions that are missing. only: one variant alone, anew if it is there already.

    Where new figures will stand beside kept ones, a control of the kept ones goes first.
    """
    folder = RunFolder.open(run)
    matrix = _as_cut(load_matrix(path), folder.manifest)
    _refuse_another_subject(folder.manifest, matrix, only)
    _refuse_other_device(folder)
    identities = {name: files.identity(m) for name, m in files.models_of(matrix).items()}
    wanted = make_plan(without_control(matrix), identities=files.hashes(identities))
    found = amended(
        folder.manifest.plan,
        matrix,
        wanted,
        folder.measured(whatever_plan=True),
        only,
        [planned.cell for planned in folder.read(PlannedCell)],
    )
    before.refuse_unfit(matrix, wanted, identities, progress.note, found.started)
    manifest = _amended_manifest(folder.manifest, matrix, path, found.plan, identities)
    progress.note(_told_amendment(found, folder.manifest.run_id))
    if not _same_but_comments(manifest, folder.manifest):
        where = Where(run_id=manifest.run_id, session_id=_next_session_id(folder))
        folder.amend(Amendment(where=where, at=utc_now(), manifest=manifest))
    if found.todo:
        measure(matrix, found.plan, folder, progress)
    folder.close()
    return folder


def resume(run: Path, *, progress: Reporter) -> RunFolder:
    """Do what `run` left undone: every torn or unavailable (block, cell), in new boots, and the
    odds of differences that no engine was asked for.
    """
    folder = RunFolder.open(run)
    todo = {cell_id for _, cell_id in _undone(folder)} | rescore.cells_left(folder)
    matrix = same_matrix(folder.manifest, todo)
    _refuse_other_device(folder)
    if not todo:
        progress.note(f"{folder.manifest.run_id} is complete, nothing is left to do")
    else:
        measure(matrix, folder.manifest.plan, folder, progress)
    return folder


def exit_code(folder: RunFolder) -> int:
    """0 when every planned cell of every block is finished, else 3."""
    return UNAVAILABLE if _undone(folder) else 0


def _undone(folder: RunFolder) -> Set[Place]:
    return asked_of(folder.manifest.plan).keys() - folder.finished_cells()


def unavailable(folder: RunFolder) -> tuple[CellEnd, ...]:
    """The cells of the plan that could not be measured and were not measured since, with the last
    reason.
    """
    undone = _undone(folder)
    last = {
        (end.where.block_id, end.where.cell_id): end
        for end in folder.read(CellEnd)
        if end.outcome == "unavailable"
    }
    return tuple(end for place, end in last.items() if place in undone)


def told_unavailable(folder: RunFolder) -> tuple[str, ...]:
    """A line per reason, with the cells it kept from being measured."""
    cells: dict[str, list[str]] = {}
    for end in unavailable(folder):
        cells.setdefault(end.message or "no reason was recorded", []).append(str(end.where.cell_id))
    return tuple(
        f"{', '.join(dict.fromkeys(named))}: {message}" for message, named in cells.items()
    )


# --- a run ----------------------------------------------------------------------------------------


def measure(
    matrix: Matrix,
    plan: Plan,
    folder: RunFolder,
    progress: Reporter,
    session_id: str | None = None,
    fleet: Fleet | None = None,
) -> None:
    """What of `plan` is not finished in `folder`, as a session of its own; None: the next one."""
    _refuse_clients_without_fleet(plan, fleet)
    allow_open_files(_highest_level(plan))

    async def session() -> None:
        facts = machine.machine_facts()
        run_id = folder.manifest.run_id
        engines = [variant.engine for variant in matrix.variants]
        devices = devices_of(engines, len(facts.accelerators), os.environ)
        async with measuring_alone(devices, run_id, progress.note):
            await runner.end_left_over(folder, progress)
            await runner.recover(folder, progress)
            calibration = await calibrate(_levels(plan), rates=SESSION_RATES)
            begun = _session(matrix, plan, folder, calibration, facts, session_id)
            folder.append(begun)
            await runner.run(matrix, plan, folder, begun, progress, fleet)

    try:
        run_until_stopped(session())
    finally:
        folder.close()


def _refuse_clients_without_fleet(plan: Plan, fleet: Fleet | None) -> None:
    asking = next((cell for cell in plan.cells if cell.clients), None)
    if asking is not None and fleet is None:
        raise UsageError(
            f"{asking.cell_id} is to be measured by {asking.clients} clients, which are processes "
            "on a Ray cluster: add --on ray, or leave `clients` out of the workload"
        )


def run_until_stopped(work: Coroutine[Any, Any, object]) -> None:
    """Run `work`; the first signal cancels it, and it may take its time to clean up."""

    async def main() -> None:
        task = asyncio.current_task()
        assert task is not None
        stopping = False

        def stop() -> None:
            nonlocal stopping
            if not stopping:  # a second Ctrl-C must not interrupt the clean-up
                stopping = True
                task.cancel()

        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            loop.add_signal_handler(number, stop)
        await work

    try:
        with asyncio.Runner(loop_factory=loop_factory()) as loop_runner:
            loop_runner.run(main())
    except asyncio.CancelledError:
        raise KeyboardInterrupt from None


def _highest_level(plan: Plan) -> int:
    return max(cell.concurrency for cell in plan.cells)


def _levels(plan: Plan) -> tuple[int, ...]:
    """Lowest, middle and highest concurrency of the plan: calibration is to take seconds."""
    levels = sorted({cell.concurrency for cell in plan.cells})
    return tuple(sorted({levels[0], levels[len(levels) // 2], levels[-1]}))


def _session(
    matrix: Matrix,
    plan: Plan,
    folder: RunFolder,
    calibration: Calibration,
    facts: MachineFacts,
    session_id: str | None,
) -> Session:
    # another part of a cluster's run may have asked the same server before
    resumed = bool(folder.read(Session)) or session_id not in (None, "s1")
    commit, dirty = machine.commit_of(PROJECT)
    return Session(
        where=Where(
            run_id=folder.manifest.run_id, session_id=session_id or _next_session_id(folder)
        ),
        started_at=utc_now(),
        commit=commit,
        dirty=dirty,
        matrix_yaml=Path(matrix.path).read_text(encoding="utf-8"),  # commands may have been edited
        plan_hash=plan.plan_hash,
        machine=facts,
        device_key=keys.device_key(facts),
        client_lateness_s=worst_s(calibration),
        resumed=resumed,
        calibration=calibration,
        transport=matrix.transport,
        event_loop=loop_name(asyncio.get_running_loop()),
    )


def _next_session_id(folder: RunFolder) -> str:
    return f"s{len(folder.read(Session)) + 1}"


def _manifest(
    matrix: Matrix,
    path: Path,
    plan: Plan,
    identities: dict[str, dict[str, Any]],
    run_id: str,
) -> Manifest:
    measured = [workload.prompts for workload in matrix.workloads]
    warmups = [workload.warmup for workload in matrix.workloads if workload.warmup is not None]
    return Manifest(
        schema=SCHEMA,
        run_id=run_id,
        created_at=utc_now(),
        tool=f"dflashbench {_version()}",
        matrix_yaml=path.read_text(encoding="utf-8"),
        matrix_path=_from_project(path),
        name=matrix.name,
        purpose=matrix.purpose,
        prompt_sets={prompts.name: prompts.sha256 for prompts in measured},
        prompt_kinds={prompts.name: _kinds(prompts) for prompts in [*measured, *warmups]},
        models=identities,
        held_constant=matrix.held_constant,
        plan=plan,
        warmup_sets={prompts.name: prompts.sha256 for prompts in warmups},
        device=matrix.device,
        goals=matrix.goals,
        key_variables=_key_variables(matrix),
        losslessness=matrix.losslessness,
        prompt_sources={prompts.name: _sources(prompts) for prompts in [*measured, *warmups]},
        unpublished={prompts.name: _unpublished(prompts) for prompts in [*measured, *warmups]},
    )


def _key_variables(matrix: Matrix) -> tuple[str, ...]:
    names = {variant.engine.api_key_env for variant in matrix.variants}
    return tuple(sorted(name for name in names if name is not None))


def _kinds(prompts: PromptSet) -> dict[str, str]:
    return {prompt.prompt_id: prompt.kind for prompt in prompts.prompts}


def _sources(prompts: PromptSet) -> tuple[str, ...]:
    """Each source and licence once, in the set's order."""
    said = (f"{prompt.source}, {prompt.licence}" for prompt in prompts.prompts)
    return tuple(dict.fromkeys(said))


def _unpublished(prompts: PromptSet) -> tuple[str, ...]:
    return tuple(prompt.prompt_id for prompt in prompts.prompts if not prompt.publish)


def _version() -> str:
    return machine.installed("dflashbench") or "(from the checkout, not installed)"


def _from_project(path: Path) -> str:
    whole = path.resolve()
    return str(whole.relative_to(PROJECT) if whole.is_relative_to(PROJECT) else whole)


def same_matrix(manifest: Manifest, cell_ids: Collection[str] | None = None) -> Matrix:
    """The matrix of a stored run, when it still says what it said of these cells; None: of all."""
    path = PROJECT / manifest.matrix_path  # an absolute path stays as it is
    if not path.exists():
        raise ConfigError(f"{path}, from which {manifest.run_id} was made, is gone; put it back")
    matrix = _as_cut(load_matrix(path), manifest)
    identities = {name: files.identity(m) for name, m in files.models_of(matrix).items()}
    there = {
        (cell.variant, identity(cell))
        for cell in make_plan(matrix, identities=files.hashes(identities)).cells
    }
    gone = [
        cell.cell_id
        for cell in manifest.plan.cells
        if (cell_ids is None or cell.cell_id in cell_ids)
        and (cell.variant, identity(cell)) not in there
    ]
    if gone:
        raise ConfigError(
            f"{path}, its prompts or its models changed since {manifest.run_id} began, so the rest "
            f"would measure something else ({', '.join(gone)}); restore them (manifest.json holds "
            "the matrix), measure what changed with `dflashbench run MATRIX --into RUN`, or start "
            "a new run"
        )
    return matrix


def _as_cut(matrix: Matrix, manifest: Manifest) -> Matrix:
    return matrix if manifest.budget is None else applied(matrix, manifest.budget)


# --- a stored run and another matrix --------------------------------------------------------------


def without_control(matrix: Matrix) -> Matrix:
    """A control tells of the session in which it is measured: a stored run keeps what it has."""
    return replace(matrix, schedule=replace(matrix.schedule, control=None))


def _refuse_another_subject(manifest: Manifest, matrix: Matrix, only: str | None) -> None:
    for key in ("name", "purpose"):
        if getattr(matrix, key) != getattr(manifest, key):
            raise UsageError(
                f"{manifest.run_id} was made by a matrix with `{key}: {getattr(manifest, key)}`, "
                f"{matrix.path} has `{key}: {getattr(matrix, key)}`: start a new run of it"
            )
    names = [variant.name for variant in matrix.variants]
    if only is not None and only not in names:
        raise UsageError(
            f"--only {only!r}: {matrix.path} has no such variant{nearest(only, names)}; it has: "
            f"{', '.join(names)}"
        )


def _amended_manifest(
    stored: Manifest,
    matrix: Matrix,
    path: Path,
    plan: Plan,
    identities: dict[str, dict[str, Any]],
) -> Manifest:
    """As if the run had been made by `matrix`; what kept cells need of before stays."""
    new = _manifest(matrix, path, plan, identities, run_id=stored.run_id)
    return replace(
        new,
        created_at=stored.created_at,
        tool=stored.tool,
        budget=stored.budget,
        prompt_sets={**stored.prompt_sets, **new.prompt_sets},
        prompt_kinds={**stored.prompt_kinds, **new.prompt_kinds},
        warmup_sets={**stored.warmup_sets, **new.warmup_sets},
        models={**stored.models, **new.models},
    )


def _same_but_comments(one: Manifest, other: Manifest) -> bool:
    """The file's text is no part of what it says; nor is how long it was expected to take."""
    bare = [
        replace(each, matrix_yaml="", matrix_path="", plan=replace(each.plan, estimated_s=None))
        for each in (one, other)
    ]
    return bare[0] == bare[1]


def _told_amendment(found: Amended, run_id: str) -> str:
    cells = dict.fromkeys(
        cell_id
        for block in found.plan.blocks
        if block != found.control
        for cell_id in block.cell_ids
        if (block.block_id, cell_id) in found.todo
    )
    if not cells:
        return f"{run_id} has all that the matrix asks for, nothing is left to do"
    kept = {c.cell_id for c in found.plan.cells if c.control_of is None} - cells.keys()
    control = f", after the control {found.control.variant}" if found.control else ""
    return (
        f"{run_id}: {counted(len(cells), 'cell')} to measure{control}, {len(kept)} kept: "
        f"{', '.join(cells)}"
    )


def _refuse_other_device(folder: RunFolder) -> None:
    here = keys.device_key(machine.machine_facts())
    there = [session.device_key for session in folder.read(Session)]
    if there and there[0] != here:
        raise UsageError(
            f"{folder.manifest.run_id} was begun on another kind of machine (device {there[0]}, "
            f"here {here}); resume it there, or start a new run here"
        )


# --- status ---------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Status:
    """Where a run is. `interrupted`: it says running, but its process is gone."""

    run_id: str
    state: Literal["not started", "running", "finished", "stopped", "failed", "interrupted"]
    at: str | None
    share_done: float | None  # of the session's work
    left_s: float | None
    doing: str | None  # cell and repetition
    cells_finished: int
    cells_planned: int
    unavailable: tuple[str, ...]  # cells: reason


def status(run: Path) -> Status:
    folder = RunFolder.open(run)
    found = folder.read_status() or {"state": "not started"}
    state = found["state"]
    if state == "running" and not psutil.pid_exists(found["pid"]):
        state = "interrupted"
    return Status(
        run_id=folder.manifest.run_id,
        state=state,
        at=found.get("at"),
        share_done=found.get("share_done"),
        left_s=found.get("left_s") if state == "running" else None,
        doing=_doing(found) if state == "running" else None,
        cells_finished=len(folder.finished_cells()),
        cells_planned=sum(len(block.cell_ids) for block in folder.manifest.plan.blocks),
        unavailable=told_unavailable(folder),
    )


def _doing(found: dict[str, Any]) -> str | None:
    if found.get("block_id") is None:
        return None
    if found.get("cell_id") is None:
        return f"block {found['block_id']}, its engine starts"
    repetition = found["repetition"]
    what = f"warm-up, pass {-repetition}" if repetition < 0 else f"repetition {repetition + 1}"
    return f"block {found['block_id']}, {found['cell_id']}, {what}"


# --- doctor ---------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class DoctorReport:
    """What this machine is, how late the client is on it, and what is missing (with what to do)."""

    machine: MachineFacts
    calibration: Calibration
    missing: tuple[str, ...]

    def lines(self) -> tuple[str, ...]:
        facts, found = self.machine, self.calibration
        memory = f"{facts.memory_bytes / 2**30:.1f} GiB" if facts.memory_bytes else "unknown memory"
        return (
            f"{facts.cpu}, {facts.num_cpus} CPUs, {memory}, {facts.system}, Python {facts.python}",
            *(f"accelerator: {name}" for name in facts.accelerators),
            *(
                f"client at c = {level.concurrency}: adds {level.added_ttft_p50_s * 1e3:.2f} ms to "
                f"the time to first token (p99 {level.added_ttft_p99_s * 1e3:.2f} ms, "
                f"{level.num_requests} requests)"
                for level in found.lateness
            ),
            _rate_line(found),
            *(f"missing: {what}" for what in self.missing),
        )


def _rate_line(found: Calibration) -> str:
    clean, unclean = found.clean_events_per_s, found.unclean_events_per_s
    reached = "none of the rates tried" if clean is None else f"{clean} events per second"
    beyond = "the most that was tried" if unclean is None else f"not at {unclean}"
    return f"client at 16 streams: decode rates right within 1 % at {reached}, {beyond}"


def doctor() -> DoctorReport:
    found: list[Calibration] = []

    async def measure() -> None:
        found.append(await calibrate())

    run_until_stopped(measure())
    return DoctorReport(
        machine=machine.machine_facts(), calibration=found[0], missing=tuple(_missing())
    )


def _missing() -> Iterable[str]:
    if tuple(map(int, platform.python_version_tuple()[:2])) < (3, 11):
        yield "Python 3.11 or newer; on Debian and Ubuntu: apt install python3 python3-venv"
    if util.find_spec("torch") is None:
        yield "PyTorch, which the bundled engine needs: pip install 'dflashbench[engine]'"
    for program, package in (("gcc", "gcc"), ("make", "make"), ("git", "git")):
        if shutil.which(program) is None:
            yield f"{program}: apt install {package}"
    if not os.access(Path.cwd(), os.W_OK):
        yield f"the right to write into {Path.cwd()}, where results/ would lie"
