"""Real engines, started by the harness from the matrices in configs/."""

from pathlib import Path

import pytest

from harness.run import commands
from harness.run.progress import PlainLines
from harness.store import RunFolder

CHECKOUT = Path(__file__).parents[2]


def run_matrix(name: str, needs: tuple[str, ...], results_dir: Path) -> RunFolder:
    """Measure configs/matrices/<name>.yaml; skips where a file that it needs is not there."""
    for path in needs:
        if not (CHECKOUT / path).exists():
            pytest.skip(f"{path} is not there: run tests/external/install")
    matrix = CHECKOUT / "configs" / "matrices" / f"{name}.yaml"
    return commands.run_matrix(matrix, results_dir=results_dir, progress=PlainLines())
