"""Compilations are counted by what torch really does, in a process that has done nothing else."""

import os
import subprocess
import sys
from pathlib import Path

SCRIPT = """
import sys, time
import torch
from engines.dflash2 import kernels
from engines.dflash2.compilations import compilations

assert compilations().num_compiled == 0 and compilations().compile_s == 0.0
assert "torch._dynamo.utils" not in sys.modules  # to ask must not cost what is asked about

kernels.library()
assert (compilations().num_compiled, kernels.num_compiled) == (1, 1)
assert compilations().compile_s == kernels.compile_s > 0
library = compilations()

plus_one = torch.compile(lambda x: x + 1, backend="eager")
began_s = time.perf_counter()
plus_one(torch.ones(3))
cold, took_s = compilations(), time.perf_counter() - began_s
assert (cold - library).num_compiled == 1
assert 0 < (cold - library).compile_s <= took_s

plus_one(torch.ones(3))
warm = compilations() - cold
assert (warm.num_compiled, warm.compile_s) == (0, 0.0)

plus_one(torch.ones(2, 2))  # another shape, another graph
assert (compilations() - cold).num_compiled == 1
"""


def test_the_library_and_each_graph_are_counted_once_and_a_warm_call_not_at_all(
    tmp_path: Path,
) -> None:
    subprocess.run(
        [sys.executable, "-c", SCRIPT],
        check=True,
        cwd=Path(__file__).parents[2],
        env={**os.environ, "DFLASH2_KERNELS": "1", "DFLASH2_CACHE_DIR": str(tmp_path)},
    )
