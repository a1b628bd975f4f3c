"""The import packages are this checkout's: `harness` and `engines` are never published names."""

import subprocess
import sys
from pathlib import Path

import engines
import harness

CHECKOUT = Path(__file__).parents[1]


def test_harness_and_engines_come_from_this_checkout():
    for package in (harness, engines):
        assert package.__file__ is not None
        assert Path(package.__file__).is_relative_to(CHECKOUT)


def test_the_harness_alone_needs_no_torch():
    """`pip install .` without extras must be able to plan, run and report."""
    script = (
        "import sys, harness.cli, harness.run.commands, harness.report.build\n"
        "sys.exit(', '.join({'torch', 'transformers', 'engines'} & sys.modules.keys()) or 0)"
    )
    done = subprocess.run([sys.executable, "-c", script], cwd=CHECKOUT, capture_output=True)
    assert done.returncode == 0, done.stderr.decode()
