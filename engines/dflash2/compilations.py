"""What `torch.compile` has cost this process: graphs compiled, and the time that took.

Everything here runs eagerly, so both are normally 0; they are read from torch and not assumed, so
that a cold figure is told from a warm one should that ever change.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass

# Each compilation from its first line to its last; what else dynamo times lies within.
WHOLE_COMPILATION = "_compile.compile_inner"


@dataclass(frozen=True, kw_only=True)
class Compilations:
    num_graphs: int = 0
    compile_s: float = 0.0

    def __sub__(self, earlier: Compilations) -> Compilations:
        return Compilations(
            num_graphs=self.num_graphs - earlier.num_graphs,
            compile_s=self.compile_s - earlier.compile_s,
        )


def compilations() -> Compilations:
    """Those of this process so far."""
    # Where nothing was compiled dynamo is not even imported, which would take seconds.
    dynamo = sys.modules.get("torch._dynamo.utils")
    if dynamo is None:
        return Compilations()
    return Compilations(
        num_graphs=int(dynamo.counters["stats"]["unique_graphs"]),
        compile_s=float(sum(dynamo.compilation_time_metrics.get(WHOLE_COMPILATION, ()))),
    )
