"""The process on a node that measures a part: `python -m harness.cluster.part`, started by the node
actor, which writes the job as the first line of its stdin and one more line for every time that the
head asked. No line for `lease_s`, or the end of stdin, means that nobody is going to use what it
measures: it stops in good order, and its engine with it.

It is an ordinary session of the ordinary runner. Ray is imported for loads of several clients
alone.
"""

import asyncio
import logging
import os
import select
import signal
import sys
import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import msgspec

from harness.errors import HarnessError, ResultsError, UsageError
from harness.records import Block, Cell, Manifest, Matrix, Plan
from harness.run import commands, machine, runner
from harness.run.load import Fleet
from harness.run.processes import PROJECT
from harness.store import RunFolder

STOPPED = 130


@dataclass(frozen=True, kw_only=True)
class Job:
    """What a node is asked to measure. `work_dir` is where its folder of the run is made,
    `cluster` the address at which clients are found."""

    manifest: Manifest  # the head's, with the whole plan
    commit: str | None  # of the head's checkout
    session_id: str
    blocks: tuple[Block, ...]  # with the cells that are still to do
    lease_s: float
    work_dir: str = ""  # its node's to choose
    cluster: str = ""  # and where its node says that the cluster is


def main() -> int:
    # unbuffered: `select` must see every line that was not read yet
    lines = os.fdopen(0, "rb", buffering=0)
    job = msgspec.json.decode(lines.readline(), type=Job)
    threading.Thread(
        target=_stop_without_word, args=(lines.fileno(), job.lease_s), daemon=True
    ).start()
    try:
        measure(job)
    except HarnessError as error:
        print(error, file=sys.stderr)
        return error.exit_code
    except KeyboardInterrupt:
        return STOPPED
    return 0


def measure(job: Job) -> None:
    _refuse_other_commit(job.commit)
    matrix = commands.same_matrix(job.manifest)
    plan = replace(
        job.manifest.plan, blocks=job.blocks, cells=_cells(job.manifest.plan, job.blocks)
    )
    _end_left_over(Path(job.work_dir).parent)
    folder = RunFolder.create(Path(job.work_dir), replace(job.manifest, plan=plan))
    with _fleet(matrix, plan, job) as fleet:
        commands.measure(matrix, plan, folder, Silent(), job.session_id, fleet)


@contextmanager
def _fleet(matrix: Matrix, plan: Plan, job: Job) -> Iterator[Fleet | None]:
    """What shares the requests of cells that name `clients`; None where none does."""
    if not any(cell.clients for cell in plan.cells):
        yield None
        return
    import ray

    from harness.cluster.clients import RayFleet

    starts_engines = any(
        variant.engine.kind != "attach"
        for variant in matrix.variants
        if variant.name in {cell.variant for cell in plan.cells}
    )
    ray.init(address=job.cluster, log_to_driver=False, logging_level=logging.ERROR)
    near = ray.get_runtime_context().get_node_id() if starts_engines else None
    fleet = RayFleet(transport_name=matrix.transport, near=near)
    try:
        yield fleet
    finally:
        fleet.close()
        ray.shutdown()


def _cells(plan: Plan, blocks: Iterable[Block]) -> tuple[Cell, ...]:
    wanted = {cell_id for block in blocks for cell_id in block.cell_ids}
    return tuple(cell for cell in plan.cells if cell.cell_id in wanted)


def _refuse_other_commit(wanted: str | None) -> None:
    here, _ = machine.commit_of(PROJECT)
    if here is not None and wanted is not None and here != wanted:
        raise UsageError(
            f"{PROJECT} is at commit {here[:12]}, the head at {wanted[:12]}: bring this node to "
            "the same commit, and `dflashbench resume` goes on"
        )


def _end_left_over(parts: Path) -> None:
    """Engines of parts that were killed here. One that still lives is waited for by the lock."""

    async def end(folder: RunFolder) -> None:
        try:
            await runner.end_left_over(folder, Silent())
        finally:
            folder.close()

    for manifest in parts.glob("*/*/manifest.json"):
        try:
            asyncio.run(end(RunFolder.open(manifest.parent)))
        except ResultsError as error:
            print(error, file=sys.stderr)


def _stop_without_word(descriptor: int, lease_s: float) -> None:
    while select.select([descriptor], [], [], lease_s)[0]:
        if not os.read(descriptor, 4096):
            break
    os.kill(os.getpid(), signal.SIGTERM)


class Silent:
    """A reporter whose listener reads the folder instead."""

    def begin(self, title: str, total: float) -> None: ...

    def at(self, what: str) -> None: ...

    def advance(self, work: float) -> None: ...

    def note(self, message: str) -> None: ...

    def end(self) -> None: ...


if __name__ == "__main__":
    sys.exit(main())
