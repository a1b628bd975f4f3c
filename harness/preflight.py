"""What can be said of a matrix before an engine is started: by its plan and the models' files.

The checks are those of docs/checks.md that need no server; they see each cell with the boots that
it is going to have. Pure: what lies on the disk and what else this machine does is told.
"""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, replace
from typing import Any

from harness import checks, eligibility
from harness.adapters import ADAPTERS
from harness.cell_view import CellView
from harness.errors import ConfigError
from harness.records import (
    Boot,
    Cell,
    Container,
    Engine,
    Level,
    Matrix,
    Plan,
    Variant,
    Where,
)

ON_PURPOSE = ("synthetic_acceptance",)
"""Invalid as a measurement, and asked for by who wants no measurement: no reason not to start."""


@dataclass(frozen=True, kw_only=True)
class Concern:
    """One sentence of a check, and the variants that it is said of."""

    variants: tuple[str, ...]
    check: str
    level: Level
    message: str


@dataclass(frozen=True, kw_only=True)
class Preflight:
    num_checks: int
    concerns: tuple[Concern, ...]
    rows: tuple[eligibility.Row, ...]
    occupants: tuple[str, ...]  # what else uses this machine now

    @property
    def refused(self) -> tuple[Concern, ...]:
        """What would end, or void, hours of measuring."""
        return tuple(
            concern
            for concern in self.concerns
            if concern.level == "invalid" and concern.check not in ON_PURPOSE
        )


def preflight(
    matrix: Matrix,
    plan: Plan,
    models: Mapping[str, Mapping[str, Any]],
    *,
    versions: Mapping[str, str | None],
    occupants: Sequence[str] = (),
    unstartable: Mapping[str, str] | None = None,
) -> Preflight:
    """models: name -> the identity of its files; versions: engine -> which one would be started;
    unstartable: engine -> why its container cannot be on this machine.
    """
    boots = {
        variant.name: _boots(variant, matrix, plan, versions.get(variant.engine.name))
        for variant in matrix.variants
    }
    views = _views(matrix, plan, models, boots)
    first = {variant.engine.name: boots[variant.name][0] for variant in reversed(matrix.variants)}
    return Preflight(
        num_checks=2 + sum(check.before_start for check in checks.CHECKS.values()),
        concerns=_gathered(
            [*_commands(matrix), *_containers(matrix, unstartable or {}), *_judged(views)]
        ),
        rows=eligibility.eligible(plan.cells, models, first),
        occupants=tuple(occupants),
    )


def refuse(found: Preflight, started: Set[str] | None = None) -> None:
    """Nothing is started that cannot become what its row is named by. started: the variants that
    would be; None: all.
    """
    refused = [e for e in found.refused if started is None or not started.isdisjoint(e.variants)]
    if refused:
        told = "\n".join(f"{', '.join(e.variants)}: {e.check}: {e.message}" for e in refused)
        raise ConfigError(
            f"{told}\nNothing was started. Mend this or take the variant out of the matrix; "
            "`dflashbench preflight MATRIX` asks again and says what could run instead"
        )


# --- the boots that are to come -------------------------------------------------------------------


def wanted(variant: Variant, settings: Mapping[str, Any]) -> dict[str, Any]:
    """Models and settings that an engine is asked for; `settings`: the matrix's and its own."""
    drafter = variant.drafter
    return {
        "target": variant.target.path,
        "drafter": drafter.method if drafter else None,
        "drafter_model": drafter.model.path if drafter and drafter.model else None,
        "k": drafter.k if drafter else None,
        **settings,
    }


def _boots(variant: Variant, matrix: Matrix, plan: Plan, version: str | None) -> tuple[Boot, ...]:
    engine = variant.engine
    return tuple(
        Boot(
            where=Where(
                run_id="planned",
                session_id="planned",
                block_id=block.block_id,
                boot_id=block.block_id,
            ),
            variant=variant.name,
            argv=engine.command,
            environment=engine.environment,
            pid=None,
            url=engine.url or "",
            started_at="",
            ready_s=None,
            version=version,
            health=None,
            build=None,
            log_path="",
            wanted=wanted(variant, _settings(variant, matrix)),
            attached=engine.kind == "attach",
            container=_container(engine),
        )
        for block in plan.blocks
        if block.variant == variant.name
    )


def _settings(variant: Variant, matrix: Matrix) -> Mapping[str, Any]:
    return {**matrix.held_constant, **variant.flags}


def _container(engine: Engine) -> Container | None:
    if engine.kind != "container":
        return None
    return Container(
        program="",
        name="",
        image=engine.image or "",
        image_id="",
        repo_digests=(),
        options=engine.container_options,
        mounts={},
        overlaid={each.target: each.sha256 for each in engine.overlaid},
    )


# --- judging --------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class _Said:
    variant: str
    check: str
    level: Level
    message: str


def _views(
    matrix: Matrix,
    plan: Plan,
    models: Mapping[str, Mapping[str, Any]],
    boots: Mapping[str, tuple[Boot, ...]],
) -> tuple[CellView, ...]:
    def view(cell: Cell) -> CellView:
        planned = boots[cell.variant]
        return CellView(
            cell=cell,
            prompt_kinds={},
            models=eligibility.known_of(models, planned[0]),
            boots=planned,
            device=matrix.device,
        )

    alone = {cell.cell_id: view(cell) for cell in plan.cells if cell.control_of is None}
    return tuple(
        replace(each, reference=alone.get(each.cell.reference_cell_id or ""))
        for each in alone.values()
    )


def _commands(matrix: Matrix) -> Iterator[_Said]:
    """Some combinations have no words in an engine's language."""
    for variant in (each for each in matrix.variants if each.engine.kind != "attach"):
        try:
            ADAPTERS[variant.engine.adapter].command(variant, _settings(variant, matrix), 0)
        except ConfigError as error:
            yield _Said(variant=variant.name, check="command", level="invalid", message=str(error))


def _containers(matrix: Matrix, unstartable: Mapping[str, str]) -> Iterator[_Said]:
    for variant in matrix.variants:
        message = unstartable.get(variant.engine.name)
        if message is not None:
            yield _Said(variant=variant.name, check="container", level="invalid", message=message)


def _judged(views: Iterable[CellView]) -> Iterator[_Said]:
    for view in views:
        for verdict in checks.judge_plan(view):
            if verdict.level != "ok":
                yield _Said(
                    variant=view.cell.variant,
                    check=verdict.check,
                    level=verdict.level,
                    message=verdict.message,
                )


def _gathered(said: Iterable[_Said]) -> tuple[Concern, ...]:
    """Each sentence once, the worst first; it is said of every cell that it fits."""
    variants: dict[tuple[str, Level, str], dict[str, None]] = defaultdict(dict)
    for each in said:
        variants[each.check, each.level, each.message][each.variant] = None
    concerns = [
        Concern(variants=tuple(named), check=check, level=level, message=message)
        for (check, level, message), named in variants.items()
    ]
    return tuple(sorted(concerns, key=lambda concern: concern.level != "invalid"))
