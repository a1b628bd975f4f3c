"""Write a target, and its drafter if there is one, as GGUF files.

    python -m engines.gguf engines/demo/dense/target .engines/models/demo-dense.f32.gguf \\
        --drafter engines/demo/dense/drafter .engines/models/demo-dense-dflash2.f32.gguf

The user's mistakes end with 2 and one message on stderr.
"""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from engines.dflash2.config import ModelError
from engines.gguf.export import export_drafter, export_target

USAGE_ERROR = 2


def main(arguments: Sequence[str] | None = None) -> int:
    options = _parser().parse_args(arguments)
    try:
        export_target(options.target, options.out)
        if options.drafter is not None:
            drafter, out = options.drafter
            export_drafter(drafter, options.target, out)
    except ModelError as error:
        print(f"gguf: {error}", file=sys.stderr)
        return USAGE_ERROR
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m engines.gguf")
    parser.add_argument("target", type=Path, metavar="TARGET", help="folder of a qwen3 target")
    parser.add_argument("out", type=Path, metavar="OUT.gguf")
    parser.add_argument(
        "--drafter",
        type=Path,
        nargs=2,
        metavar=("DRAFTER", "OUT.gguf"),
        help="folder of its DFlash 2 drafter, and its file",
    )
    return parser


if __name__ == "__main__":
    sys.exit(main())
