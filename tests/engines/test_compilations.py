"""Compilations are counted by what torch really does, in a process that has done nothing else."""

import subprocess
import sys
from pathlib import Path

SCRIPT = """
import sys, time
import torch
from engines.dflash2.compilations import compilations

assert compilations().num_graphs == 0 and compilations().compile_s == 0.0
assert "torch._dynamo.utils" not in sys.modules  # to ask must not cost what is asked about

plus_one = torch.compile(lambda x: x + 1, backend="eager")
began_s = time.perf_counter()
plus_one(torch.ones(3))
cold, took_s = compilations(), time.perf_counter() - began_s
assert cold.num_graphs == 1
assert 0 < cold.compile_s <= took_s

plus_one(torch.ones(3))
warm = compilations() - cold
assert (warm.num_graphs, warm.compile_s) == (0, 0.0)

plus_one(torch.ones(2, 2))  # another shape, another graph
assert (compilations() - cold).num_graphs == 1
"""


def test_a_cold_call_compiles_one_graph_and_a_warm_one_none() -> None:
    subprocess.run([sys.executable, "-c", SCRIPT], check=True, cwd=Path(__file__).parents[2])
