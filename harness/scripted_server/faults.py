"""Answers as servers give them on a bad day; each is a `Script`, or makes a `Respond`.

Resets, stalls and truncations need no word of their own: they are the `end` of a script.
"""

import json
import time
import zlib
from collections.abc import Iterator
from dataclasses import replace

from harness.scripted_server.script import DONE, Received, Respond, Script, chunk, event, page


def refused(status: int, message: str, *, retry_after_s: int | None = None) -> Script:
    """An error instead of an answer, as 429 and 503 come."""
    headers = {} if retry_after_s is None else {"Retry-After": str(retry_after_s)}
    return replace(page(_error(message), status=status), headers=headers)


def in_band_error(message: str, *, at_s: float = 0.0) -> Script:
    """An error object in the stream of a response that began with 200."""
    failed = event({"error": {"message": message, "type": "invalid_request_error", "code": 400}})
    return Script(sends=[(at_s, failed), (at_s, DONE)])


def compressed(script: Script) -> Script:
    """The same stream as gzip, each send flushed, although nobody asked for that."""
    press = zlib.compressobj(wbits=31)
    sends = [(at_s, _pressed(press, data)) for at_s, data in _plain(script)]
    return replace(script, sends=sends, headers={**script.headers, "Content-Encoding": "gzip"})


def _plain(script: Script) -> Iterator[tuple[float, bytes]]:
    for at_s, data in script.sends:
        assert isinstance(data, bytes), "only known bytes can be compressed beforehand"
        yield at_s, data


def _pressed(press: "zlib._Compress", data: bytes) -> bytes:
    return press.compress(data) + press.flush(zlib.Z_SYNC_FLUSH)


def oversized_event(num_bytes: int) -> bytes:
    """One event with that many bytes of text."""
    return chunk({"content": "x" * num_bytes})


def in_turn(*scripts: Script) -> Respond:
    """The first request gets the first script, and so on; the last one serves all the others."""
    asked = iter(scripts)
    last = scripts[-1]
    return lambda _: next(asked, last)


def keep_alive_race(script: Script) -> Respond:
    """A connection that looks open serves one request: the next is read, then it closes unheard."""
    unheard = Script(sends=[], end="truncate")
    return lambda request: script if request.nth == 1 else unheard


def loading(respond: Respond, *, for_s: float) -> Respond:
    """A server that still loads its weights: its models page says 200 from the start."""
    ready_s = time.perf_counter() + for_s
    busy = refused(503, "Loading model")

    def gated(request: Received) -> Script:
        early = time.perf_counter() < ready_s and request.path != "/v1/models"
        return busy if early else respond(request)

    return gated


def _error(message: str) -> str:
    return json.dumps({"error": {"message": message}})
