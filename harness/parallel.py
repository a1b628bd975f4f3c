"""The same function of many things, on as many cores as there are; results in the things' order.

It knows nothing of what is computed. Processes are started anew: a fork would copy locks that other
threads hold, and `multiprocessing` would run the caller's main module again.
"""

import gc
import os
import pickle
import subprocess
import sys
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack
from itertools import chain, islice
from typing import Any, TypeVar

T = TypeVar("T")
R = TypeVar("R")

MOST_PROCESSES = 8  # each holds an interpreter and its libraries
FEWEST_THINGS = 12  # below, a start costs more than it saves
_WORK = "import sys; sys.path[:] = sys.argv[1:]; from harness.parallel import work; work()"


def in_order(function: Callable[[T], R], things: Iterable[T]) -> Iterator[R]:
    """`function` lies in a module. Things are taken as processes become free for them; a few are
    done here.
    """
    others = iter(things)
    first = list(islice(others, FEWEST_THINGS))
    processes = min(os.cpu_count() or 1, MOST_PROCESSES)
    if len(first) < FEWEST_THINGS or processes < 2:
        yield from map(function, chain(first, others))
        return
    with ExitStack() as stack:
        busy: deque[_Worker] = deque()
        for thing in chain(first, others):
            if len(busy) < processes:
                worker, found = stack.enter_context(_Worker()), []
            else:
                worker = busy.popleft()
                found = [worker.result()]
            worker.begin(function, thing)
            busy.append(worker)
            yield from found
        while busy:
            yield busy.popleft().result()


class _Worker:
    """A process that does one thing at a time."""

    def __init__(self) -> None:
        command = [sys.executable, "-c", _WORK, *sys.path]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)

    def __enter__(self) -> "_Worker":
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.communicate()

    def begin(self, function: Callable[[Any], Any], thing: object) -> None:
        assert self._process.stdin is not None
        pickle.dump((function, thing), self._process.stdin, pickle.HIGHEST_PROTOCOL)
        self._process.stdin.flush()

    def result(self) -> Any:
        assert self._process.stdout is not None
        try:
            succeeded, result = pickle.load(self._process.stdout)
        except EOFError:
            code = self._process.wait()
            raise RuntimeError(f"a process ended with code {code} before its result") from None
        if not succeeded:
            raise result
        return result


def work() -> None:
    """What a worker does until it is ended."""
    gc.disable()  # records are trees, and looking for cycles in them takes half of the time
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # what is printed by the way is no answer
    while True:
        function, thing = pickle.load(sys.stdin.buffer)
        try:
            answer = (True, function(thing))
        except Exception as error:  # whatever it is, the caller raises it
            answer = (False, error)
        pickle.dump(answer, answers, pickle.HIGHEST_PROTOCOL)
        answers.flush()
