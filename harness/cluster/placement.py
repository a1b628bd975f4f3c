"""Which blocks of a plan belong together on one machine. Knows no Ray and no time.

Figures are compared within one machine only. So a part holds all variants of equal resources, and
of their boots whole there-and-backs (A B B A): each part is a comparison of its own, and several
machines of one kind may take a plan's parts in any order. A server that runs already is one device,
wherever its requests come from: all that asks such servers is one part.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from harness.plan import resources_of
from harness.records import Block, Matrix, Plan

Resources = tuple[tuple[str, float], ...]  # sorted by name


@dataclass(frozen=True, kw_only=True)
class Part:
    """Blocks in running order, for one machine that has `resources`."""

    part_id: str
    resources: Resources
    blocks: tuple[Block, ...]


def parts_of(matrix: Matrix, plan: Plan) -> tuple[Part, ...]:
    """Every block of `plan` once; parts in the order of their first blocks."""
    needed = {variant.name: _sorted(resources_of(variant)) for variant in matrix.variants}
    attached = {variant.name for variant in matrix.variants if variant.engine.kind == "attach"}
    by_resources: dict[tuple[Resources, bool], list[Block]] = {}
    for block in plan.blocks:
        key = (needed[block.variant], block.variant in attached)
        by_resources.setdefault(key, []).append(block)
    boots_each = 2 if matrix.schedule.order == "abba" else 1
    cycles = [
        (resources, cycle)
        for (resources, is_attached), blocks in by_resources.items()
        for cycle in ([tuple(blocks)] if is_attached else _cycles(blocks, boots_each))
    ]
    return tuple(
        Part(part_id=f"p{number}", resources=resources, blocks=cycle)
        for number, (resources, cycle) in enumerate(cycles, start=1)
    )


def _sorted(resources: Mapping[str, float]) -> Resources:
    return tuple(sorted(resources.items()))


def _cycles(blocks: Sequence[Block], boots_each: int) -> Iterable[tuple[Block, ...]]:
    """Cut where every variant has had `boots_each` more boots: its turns come round by round."""
    size = boots_each * len({block.variant for block in blocks})
    return (tuple(blocks[first : first + size]) for first in range(0, len(blocks), size))


def fits(part: Part, offered: Mapping[str, float]) -> bool:
    """Whether a node with these resources, all of them free, could run the part."""
    return all(offered.get(name, 0.0) >= amount for name, amount in part.resources)
