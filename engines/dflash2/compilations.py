"""What compiling has cost this process: what was compiled, and the time that took.

Counted are the C library of `kernels`, which is there before the first request and on disk before
the second start, and graphs of `torch.compile`. None is used, so there are normally none of them;
they are read from torch and not assumed, so that a cold figure is told from a warm one should that
ever change.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass

from engines.dflash2 import kernels

# Each compilation from its first line to its last; what else dynamo times lies within.
WHOLE_COMPILATION = "_compile.compile_inner"


@dataclass(frozen=True, kw_only=True)
class Compilations:
    num_compiled: int = 0
    compile_s: float = 0.0

    def __sub__(self, earlier: Compilations) -> Compilations:
        return Compilations(
            num_compiled=self.num_compiled - earlier.num_compiled,
            compile_s=self.compile_s - earlier.compile_s,
        )


def compilations() -> Compilations:
    """Those of this process so far."""
    num_compiled, compile_s = kernels.num_compiled, kernels.compile_s
    # Where torch compiled nothing dynamo is not even imported, which would take seconds.
    dynamo = sys.modules.get("torch._dynamo.utils")
    if dynamo is not None:
        num_compiled += int(dynamo.counters["stats"]["unique_graphs"])
        compile_s += float(sum(dynamo.compilation_time_metrics.get(WHOLE_COMPILATION, ())))
    return Compilations(num_compiled=num_compiled, compile_s=compile_s)
