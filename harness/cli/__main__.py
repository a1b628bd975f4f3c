"""`python -m harness.cli` is `dflashbench`."""

import sys

from harness.cli import main

sys.exit(main())
