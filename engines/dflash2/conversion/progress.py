"""What a conversion tells while it works: lines on stderr, for people and for scripts."""

import sys
from collections.abc import Callable
from typing import Literal, TextIO

Phase = Literal["hash-source", "quantize", "finish"]
Report = Callable[[Phase, int, int], None]  # phase, done, total: bytes, or steps of the finish


class ProgressLines:
    """Writes a line whenever a phase has come a whole percent further."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._shown: tuple[Phase, int] | None = None

    def __call__(self, phase: Phase, done: int, total: int) -> None:
        percent = 100 * done // total if total else 100
        if (phase, percent) == self._shown:
            return
        self._shown = (phase, percent)
        line = f"[dflash2-convert] phase={phase} done={done} total={total} percent={percent}"
        print(line, file=self._stream, flush=True)


def say(text: str) -> None:
    """A decision, in words."""
    print(f"[dflash2-convert] {text}", file=sys.stderr, flush=True)
