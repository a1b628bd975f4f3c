"""Split stamped reads into server-sent events. Pure: it knows no JSON, no token and no socket.

After WHATWG's event stream format: CR, LF and CRLF end a line and nothing else does (U+2028 inside
JSON is text), several `data:` lines of one event are joined by LF, a line that begins with a colon
is a comment. One rule differs: an event that the stream's end cuts off before its blank line is not
thrown away but yielded with `terminated` False, and the caller decides.
"""

from collections.abc import Iterable, Iterator

import msgspec


class Event(msgspec.Struct, frozen=True, kw_only=True):
    """`at_ns` is the time of the read that completed it; `data` is None for a comment."""

    at_ns: int
    data: bytes | None
    name: bytes = b""
    terminated: bool = True


def events(reads: Iterable[tuple[int, bytes]]) -> Iterator[Event]:
    """Events and comments in order. reads: (time, bytes) as they came from the network."""
    data: list[bytes] = []
    name, at_ns = b"", 0
    for number, (at_ns, line) in enumerate(_lines(reads)):
        if number == 0:
            line = line.removeprefix(b"\xef\xbb\xbf")  # a byte order mark may lead the stream
        if not line:
            if data:
                yield Event(at_ns=at_ns, data=b"\n".join(data), name=name)
            data, name = [], b""
            continue
        field, _, value = line.partition(b":")
        if not field:
            yield Event(at_ns=at_ns, data=None)
        elif field == b"data":
            data.append(value.removeprefix(b" "))
        elif field == b"event":
            name = value.removeprefix(b" ")
    if data:
        yield Event(at_ns=at_ns, data=b"\n".join(data), name=name, terminated=False)


def _lines(reads: Iterable[tuple[int, bytes]]) -> Iterator[tuple[int, bytes]]:
    """(time of the read that ended it, line); a last one that is not empty may lack its end."""
    partial: list[bytes] = []  # joined once: a line of megabytes arrives in many reads
    after_cr = False
    at_ns = 0
    for at_ns, data in reads:
        if after_cr and data:
            data = data.removeprefix(b"\n")  # second half of a CRLF that two reads share
            after_cr = False
        if not data:
            continue
        if b"\r" in data:
            after_cr = data.endswith(b"\r")
            data = data.replace(b"\r\n", b"\n").replace(b"\r", b"\n")
        first, *others = data.split(b"\n")
        partial.append(first)
        for following in others:
            yield at_ns, b"".join(partial)
            partial = [following]
    if any(partial):
        yield at_ns, b"".join(partial)
