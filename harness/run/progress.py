"""Say where a run is: a bar with the time left on a terminal, plain lines elsewhere."""

import sys
import time
from typing import Protocol

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeElapsedColumn


class Reporter(Protocol):
    """`done` and `total` are work, not repetitions: a repetition of long answers counts for
    more.
    """

    def begin(self, title: str, total: float) -> None: ...

    def at(self, what: str) -> None: ...

    def advance(self, work: float) -> None: ...

    def note(self, message: str) -> None: ...

    def end(self) -> None: ...


class Pace:
    """The time left, from the work done so far in this session."""

    def __init__(self, total: float) -> None:
        self.total = total
        self.done = 0.0
        self._began_s = time.monotonic()

    def left_s(self) -> float | None:
        if self.done <= 0:
            return None
        return (time.monotonic() - self._began_s) * (self.total - self.done) / self.done


def time_left(left_s: float | None) -> str:
    if left_s is None:
        return ""
    return f"about {left_s / 60:.0f} min left" if left_s >= 90 else f"about {left_s:.0f} s left"


class PlainLines:
    """One line per repetition, for logs."""

    def __init__(self) -> None:
        self._pace = Pace(0.0)
        self._what = ""

    def begin(self, title: str, total: float) -> None:
        self._pace = Pace(total)
        self.note(title)

    def at(self, what: str) -> None:
        self._what = what

    def advance(self, work: float) -> None:
        self._pace.done += work
        share = self._pace.done / self._pace.total
        self.note(f"{share:4.0%}  {self._what}  {time_left(self._pace.left_s())}".rstrip())

    def note(self, message: str) -> None:
        print(message, file=sys.stderr, flush=True)

    def end(self) -> None:
        pass


class Bar:
    """A line that changes in place; notes stay above it."""

    def __init__(self, console: Console) -> None:
        self._pace = Pace(0.0)
        self._task: TaskID | None = None
        self._progress = Progress(
            TextColumn("{task.description}"),
            BarColumn(bar_width=24),
            TextColumn("{task.percentage:3.0f} %"),
            TimeElapsedColumn(),
            TextColumn("{task.fields[left]}"),
            console=console,
            auto_refresh=False,  # nothing is drawn while requests run
        )

    def begin(self, title: str, total: float) -> None:
        self._pace = Pace(total)
        self._task = self._progress.add_task(title, total=total, left="")
        self._progress.start()

    def at(self, what: str) -> None:
        assert self._task is not None
        self._progress.update(self._task, description=what, refresh=True)

    def advance(self, work: float) -> None:
        assert self._task is not None
        self._pace.done += work
        left = time_left(self._pace.left_s())
        self._progress.update(self._task, advance=work, left=left, refresh=True)

    def note(self, message: str) -> None:
        self._progress.console.print(message, markup=False, highlight=False)

    def end(self) -> None:
        self._progress.stop()


def reporter() -> Reporter:
    """On stderr, so that stdout can be one line of JSON."""
    console = Console(stderr=True)
    return Bar(console) if console.is_terminal else PlainLines()
