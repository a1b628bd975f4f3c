"""What a start costs: whatever takes seconds to import and is not needed to answer stays away."""

from __future__ import annotations

import subprocess
import sys

from .support import CHECKOUT, Pair, environment

SCRIPT = """
import sys
from pathlib import Path

import torch

from engines.dflash2 import commands
from engines.dflash2.engine import load_engine

target, drafter = (Path(folder) for folder in sys.argv[1:])
commands.answer_once(load_engine(target, drafter, dtype=torch.float32, kv_len=64))
print(*sys.modules)
"""
NOT_NEEDED = {"torch._dynamo", "torch._inductor", "sympy", "transformers", "scipy", "pandas"}


def test_a_first_answer_is_given_without_torchs_compiler_and_other_libraries(pair: Pair) -> None:
    imported = subprocess.run(
        [sys.executable, "-c", SCRIPT, pair.target, pair.drafter],
        cwd=CHECKOUT,
        env=environment(),
        capture_output=True,
        text=True,
        check=True,
    ).stdout.split()
    assert "torch" in imported
    assert NOT_NEEDED & {*imported} == set()
