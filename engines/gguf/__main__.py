"""Write a target, and its drafter if there is one, as GGUF files.

    python -m engines.gguf engines/demo/dense/target .engines/models/demo-dense.f32.gguf \\
        --drafter engines/demo/dense/drafter .engines/models/demo-dense-dflash2.f32.gguf

The user's mistakes end with 2 and one message on stderr.
"""

import argparse
import sys
from collections.abc import Sequence

from engines.dflash2.arguments import add_export_arguments
from engines.dflash2.config import ModelError
from engines.gguf.export import export_drafter, export_target

USAGE_ERROR = 2


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m engines.gguf")
    add_export_arguments(parser)
    try:
        return export_command(parser.parse_args(arguments))
    except ModelError as error:
        print(f"gguf: {error}", file=sys.stderr)
        return USAGE_ERROR


def export_command(options: argparse.Namespace) -> int:
    export_target(options.target, options.out)
    if options.drafter is not None:
        drafter, out = options.drafter
        export_drafter(drafter, options.target, out)
    return 0


if __name__ == "__main__":
    sys.exit(main())
