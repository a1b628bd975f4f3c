"""Split stamped reads into server-sent events. Pure: it knows no JSON, no token and no socket.

After WHATWG's event stream format: CR, LF and CRLF end a line and nothing else does (U+2028 inside
JSON is text), several `data:` lines of one event are joined by LF, a line that begins with a colon
is a comment. One rule differs: an event that the stream's end cuts off before its blank line is not
thrown away but yielded with `terminated` False, and the caller decides.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Event:
    """`at_ns` is the time of the read that completed it; `data` is None for a comment."""

    at_ns: int
    data: bytes | None
    name: bytes = b""
    terminated: bool = True


def events(reads: Iterable[tuple[int, bytes]]) -> Iterator[Event]:
    """Events and comments in order. reads: (time, bytes) as they came from the network."""
    fields: list[tuple[bytes, bytes]] = []
    at_ns = 0
    for number, (at_ns, line, ended) in enumerate(_lines(reads)):
        if number == 0:
            line = line.removeprefix(b"\xef\xbb\xbf")  # a byte order mark may lead the stream
        if line.startswith(b":"):
            yield Event(at_ns=at_ns, data=None)
        elif line:
            name, _, value = line.partition(b":")
            fields.append((name, value.removeprefix(b" ")))
        if fields and ended and not line:
            yield from _event(at_ns, fields, terminated=True)
            fields = []
    yield from _event(at_ns, fields, terminated=False)


def _event(at_ns: int, fields: list[tuple[bytes, bytes]], *, terminated: bool) -> Iterator[Event]:
    data = [value for name, value in fields if name == b"data"]
    names = [value for name, value in fields if name == b"event"]
    if data:
        yield Event(
            at_ns=at_ns,
            data=b"\n".join(data),
            name=names[-1] if names else b"",
            terminated=terminated,
        )


def _lines(reads: Iterable[tuple[int, bytes]]) -> Iterator[tuple[int, bytes, bool]]:
    """(time of the read that ended it, line, True); a last line without an end comes with False."""
    partial: list[bytes] = []  # joined once: a line of megabytes arrives in many reads
    after_cr = False
    at_ns = 0
    for at_ns, data in reads:
        if after_cr and data:
            data = data.removeprefix(b"\n")  # second half of a CRLF that two reads share
            after_cr = False
        if not data:
            continue
        after_cr = data.endswith(b"\r")
        first, *others = data.replace(b"\r\n", b"\n").replace(b"\r", b"\n").split(b"\n")
        partial.append(first)
        for following in others:
            yield at_ns, b"".join(partial), True
            partial = [following]
    if any(partial):
        yield at_ns, b"".join(partial), False
