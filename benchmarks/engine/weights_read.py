"""How much of a model one step has to read, and what that allows: the memory roof.

A step reads every matrix once, however many rows it computes. Of an embedding table it reads the
rows it needs, which count as nothing, unless the table is the head as well. A round with DFlash 2
reads the target, the drafter, and the head a second time; of the selector's codebooks only rows.
Caches of keys and values are left out, so a share of the roof errs on the low side.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

EMBEDDING = "model.embed_tokens.weight"
HEAD = "lm_head.weight"
CODEBOOK = "_codebook"

Shapes = Mapping[str, Sequence[int]]


@dataclass(frozen=True, kw_only=True)
class WeightsRead:
    """Numbers, not bytes: the precision is the candidate's."""

    plain_step: int
    drafted_round: int | None  # None: there is no drafter
    products: int  # of matrices with one row, in the target: weights that are multiplied


def weights_read(target: Shapes, drafter: Shapes | None) -> WeightsRead:
    head = target.get(HEAD, target[EMBEDDING])
    looked_up = {EMBEDDING} if HEAD in target else set()
    read = {name: shape for name, shape in target.items() if name not in looked_up}
    plain_step = sum(map(math.prod, read.values()))
    return WeightsRead(
        plain_step=plain_step,
        drafted_round=None
        if drafter is None
        else plain_step
        + sum(math.prod(shape) for name, shape in drafter.items() if CODEBOOK not in name)
        + math.prod(head),
        products=sum(math.prod(shape) for shape in read.values() if len(shape) == 2),
    )


def weights_read_of(target: Path, drafter: Path | None) -> WeightsRead:
    from engines.dflash2.checkpoint import open_checkpoint

    def shapes(folder: Path) -> Shapes:
        return {name: stored.shape for name, stored in open_checkpoint(folder).tensors.items()}

    return weights_read(shapes(target), None if drafter is None else shapes(drafter))


def share_of_read_roof(num_bytes: float, step_ms: float, read_bytes_per_s: float) -> float:
    """The time that reading alone would take, over the time that the step took."""
    return num_bytes / read_bytes_per_s / (step_ms / 1e3)


def product_flop_per_s(num_rows: int, num_weights: int, step_ms: float) -> float:
    """Rate of a pass of so many rows, its matrix products counted and nothing else."""
    return 2 * num_rows * num_weights / (step_ms / 1e3)
