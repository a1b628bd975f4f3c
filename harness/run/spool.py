"""Reads on their way to the disk while a repetition runs: the loop appends, a thread writes.

The loop packs a read's head and keeps a reference to its bytes, nothing more; a few times per
second it hands over what has gathered. The thread joins that in one go and writes it: it holds the
interpreter's lock for no longer than a copy takes, so no stamp waits for it, and memory does not
grow with the repetition.

Layout: frames of (number of the exchange, perf_counter_ns, length, bytes); the last frame, numbered
`TRAILER`, says what belongs to the reads. A file without it is no whole repetition: it keeps its
name `.part` and is thrown away. This module knows no HTTP and no JSON.
"""

import os
import threading
from collections.abc import Iterator
from pathlib import Path
from queue import SimpleQueue
from struct import Struct

from harness.errors import ResultsError
from harness.store import told

TRAILER = 2**32 - 1

_HEAD = Struct("<IqQ")


class Spool:
    """One repetition's file. `append` and `hand_over` are the loop's; the rest may block."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._part = path.with_name(path.name + ".part")
        self._gathered: list[bytes] = []
        self._handed_over: SimpleQueue[list[bytes] | None] = SimpleQueue()
        self._error: OSError | None = None
        self._writer = threading.Thread(target=self._write, name="spool", daemon=True)
        self._writer.start()

    def append(self, number: int, at_ns: int, data: bytes) -> None:
        self._gathered += (_HEAD.pack(number, at_ns, len(data)), data)

    def hand_over(self) -> None:
        """Only the loop swaps the list: a thread that did would race with `append`."""
        gathered, self._gathered = self._gathered, []
        if gathered and self._error is None:  # after an error nobody takes it, and memory is short
            self._handed_over.put(gathered)

    def finish(self, trailer: bytes) -> Path:
        """Bring everything to the disk under its own name."""
        self.append(TRAILER, 0, trailer)
        self._end_writer()
        if self._error is not None:
            self._part.unlink(missing_ok=True)
            with told(self._part):
                raise self._error
        os.replace(self._part, self._path)
        return self._path

    def discard(self) -> None:
        """The repetition was not finished."""
        self._end_writer()
        self._part.unlink(missing_ok=True)

    def _end_writer(self) -> None:
        self.hand_over()
        self._handed_over.put(None)
        self._writer.join()

    def _write(self) -> None:
        try:
            with open(self._part, "wb", buffering=0) as file:
                while (frames := self._handed_over.get()) is not None:
                    _write_all(file.fileno(), b"".join(frames))
                os.fsync(file.fileno())
        except OSError as error:
            self._error = error


def _write_all(descriptor: int, data: bytes) -> None:
    left = memoryview(data)
    while left:
        left = left[os.write(descriptor, left) :]


def read_frames(path: Path) -> Iterator[tuple[int, int, bytes]]:
    """(number, perf_counter_ns, bytes) in the order of arrival, the trailer last."""
    data = path.read_bytes()
    at = 0
    while at < len(data):
        number, at_ns, length = _unpack(path, data, at)
        at += _HEAD.size + length
        yield number, at_ns, data[at - length : at]


def _unpack(path: Path, data: bytes, at: int) -> tuple[int, int, int]:
    if len(data) - at >= _HEAD.size:
        number, at_ns, length = _HEAD.unpack_from(data, at)
        if at + _HEAD.size + length <= len(data):
            return number, at_ns, length
    raise ResultsError(
        f"{path}: no repetition that this dflashbench wrote; remove the file, its cell is then "
        "measured again"
    )
