"""The command line: serve a model over HTTP, answer one prompt, check or convert a folder.

    python -m engines.dflash2 serve --model DIR --dflash2 on --dflash2-model DIR --port 8080
    python -m engines.dflash2 generate --model DIR --prompt "def add(a, b):"
    python -m engines.dflash2 check --model DIR --dflash2-model DIR
    python -m engines.dflash2 convert SRC DST --source-repository NAME --source-revision REV
    python -m engines.dflash2 verify DIR --reference DIR
    python -m engines.dflash2 export-gguf TARGET OUT.gguf --drafter DRAFTER OUT.gguf

Knows exit codes. The user's mistakes end with 2 and one message on stderr; a traceback is a
defect of ours.
"""

import argparse
import sys
from collections.abc import Callable, Sequence

from engines.dflash2.arguments import INTERRUPTED, USAGE_ERROR, UsageError, parser
from engines.dflash2.config import ModelError


def main(arguments: Sequence[str] | None = None) -> int:
    options = parser().parse_args(arguments)
    try:
        return _command(options.command)(options)
    except (UsageError, ModelError) as error:
        print(f"dflash2: {error}", file=sys.stderr)
        return USAGE_ERROR
    except KeyboardInterrupt:
        return INTERRUPTED


def _command(name: str) -> Callable[[argparse.Namespace], int]:
    if name in ("convert", "verify"):
        # These run with NumPy alone; torch would more than double their memory.
        from engines.dflash2.conversion import commands as conversion

        return {"convert": conversion.convert_command, "verify": conversion.verify_command}[name]
    if name == "export-gguf":
        return _export_command()
    from engines.dflash2 import commands

    return {
        "serve": commands.serve_command,
        "generate": commands.generate_command,
        "check": commands.check_command,
    }[name]


def _export_command() -> Callable[[argparse.Namespace], int]:
    try:
        from engines.gguf.__main__ import export_command
    except ModuleNotFoundError as error:
        if error.name != "gguf":
            raise
        raise UsageError("export-gguf needs the package gguf: pip install '.[gguf]'") from error
    return export_command


if __name__ == "__main__":
    sys.exit(main())
