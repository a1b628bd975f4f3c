"""Cut one HTTP/1.1 response out of a connection's bytes: RFC 9112 framing and nothing else.

This runs inside the timed loop, where h11 costs about as much as the read itself and httpx several
times that; it does only what is needed to know where the body lies and when it is complete. Tests
hold it against h11 at every cut of the bytes.
"""

from collections.abc import Mapping


class FramingError(ValueError):
    """The bytes are no HTTP/1.1 response."""


class Response:
    """Fed with reads in order; `complete` once the last byte of the body was seen."""

    def __init__(self) -> None:
        self.status: int | None = None
        self.headers: Mapping[str, str] = {}
        self.complete = False
        self._pending = b""  # bytes whose meaning the next read decides
        self._chunked = False
        self._left: int | None = None  # body bytes to come, of the chunk or of all; None: till EOF
        self._after_chunk = False
        self._in_trailer = False

    @property
    def begun(self) -> bool:
        """Whether any byte of it came."""
        return self.status is not None or bool(self._pending)

    @property
    def keeps_connection(self) -> bool:
        framed = self._chunked or self._left is not None
        return framed and self.headers.get("connection", "").lower() != "close"

    def feed(self, data: bytes) -> bytes:
        """The body bytes among `data`."""
        if self._pending:
            data, self._pending = self._pending + data, b""
        if self.status is None:
            rest = self._read_head(data)
            if rest is None:
                return b""
            data = rest
        return self._dechunk(data) if self._chunked else self._plain(data)

    def end(self) -> bool:
        """The connection ended; whether the response ended with it in good order."""
        if self.status is not None and not self._chunked and self._left is None:
            self.complete = True  # a body without a declared length ends with its connection
        return self.complete

    # --- head -------------------------------------------------------------------------------------

    def _read_head(self, data: bytes) -> bytes | None:
        """What follows the head; None when it is not complete yet."""
        while True:
            head, end, rest = data.partition(b"\r\n\r\n")
            if not end:
                self._pending = data
                return None
            status, headers = _parse_head(head)
            if status >= 200:  # 1xx only announces the response
                break
            data = rest
        self.status, self.headers = status, headers
        self._chunked = headers.get("transfer-encoding", "").lower().endswith("chunked")
        if self._chunked:
            self._left = 0
        elif "content-length" in headers:
            self._left = _number(headers["content-length"].encode(), 10)
        return rest

    # --- body -------------------------------------------------------------------------------------

    def _plain(self, data: bytes) -> bytes:
        if self._left is None:
            return data
        body = data[: self._left]
        self._left -= len(body)
        self.complete = self._left == 0
        return body

    def _dechunk(self, data: bytes) -> bytes:
        """Lines and chunk data in turn. Nearly always a read is one whole chunk or several."""
        pieces: list[bytes] = []
        at = 0
        while not self.complete and at < len(data):
            if self._left:
                piece = data[at : at + self._left]
                at += len(piece)
                self._left -= len(piece)
                pieces.append(piece)
                continue
            end = data.find(b"\r\n", at)
            if end < 0:
                self._pending = data[at:]
                break
            self._take_line(data[at:end])
            at = end + 2
        return pieces[0] if len(pieces) == 1 else b"".join(pieces)

    def _take_line(self, line: bytes) -> None:
        if self._after_chunk:
            if line:
                raise FramingError(f"a chunk is longer than its declared size: {line[:40]!r}")
            self._after_chunk = False
        elif self._in_trailer:
            self.complete = not line
        else:
            self._left = _number(line.partition(b";")[0], 16)
            self._in_trailer, self._after_chunk = self._left == 0, self._left > 0


def _parse_head(head: bytes) -> tuple[int, dict[str, str]]:
    first, *lines = head.split(b"\r\n")
    version, _, rest = first.partition(b" ")
    if not version.startswith(b"HTTP/1."):
        raise FramingError(f"the answer does not begin like HTTP/1.1: {first[:60]!r}")
    headers = {}
    for line in lines:
        name, _, value = line.partition(b":")
        headers[name.decode("latin-1").lower()] = value.strip().decode("latin-1")
    return _number(rest[:3], 10), headers


def _number(text: bytes, base: int) -> int:
    try:
        number = int(text, base)
    except ValueError:
        number = -1
    if number < 0:
        raise FramingError(f"expected a number in the HTTP framing, got {text[:40]!r}")
    return number
