"""What an answer is: bytes at moments and how the response ends; and the words of event streams.

Plain data. It knows no socket and no clock.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias

End: TypeAlias = Literal[
    "complete",  # the response is ended as HTTP wants it
    "truncate",  # the connection is closed in mid-response; without sends, without a byte
    "reset",  # the same by RST
    "stall",  # nothing more comes, the connection stays open
    "exit",  # complete, and then the whole server is gone, as when its process ends
]


@dataclass(frozen=True, kw_only=True)
class Received:
    method: str
    path: str
    headers: Mapping[str, str]
    body: bytes
    at_ns: int  # perf_counter_ns when it was read completely
    connection: int  # number of the connection it came on
    nth: int  # its number on that connection, from 1

    def json(self) -> dict[str, Any]:
        decoded = json.loads(self.body or b"{}")
        return decoded if isinstance(decoded, dict) else {}


Sent: TypeAlias = bytes | Callable[[Sequence[int]], bytes]
"""Bytes, or what makes them from the moments (perf_counter_ns) of all sends before."""


@dataclass(frozen=True, kw_only=True)
class Script:
    """An answer: bytes at moments (seconds after the request was read completely).

    The head goes out with the first send; one of no bytes lets it go alone. `over` is called once,
    with True when the response went out whole and False when the client left before.
    """

    sends: Sequence[tuple[float, Sent]]
    status: int = 200
    content_type: str = "text/event-stream"
    headers: Mapping[str, str] = field(default_factory=dict)
    end: End = "complete"
    over: Callable[[bool], None] | None = None


Respond: TypeAlias = Callable[[Received], Script]


def page(text: str, status: int = 200, content_type: str = "application/json") -> Script:
    """An answer that comes at once."""
    return Script(sends=[(0.0, text.encode())], status=status, content_type=content_type)


# --- server-sent events ---------------------------------------------------------------------------

DONE = b"data: [DONE]\n\n"


def event(payload: Mapping[str, Any]) -> bytes:
    return b"data: " + json.dumps(payload, separators=(",", ":")).encode() + b"\n\n"


def chunk(delta: Mapping[str, Any], finish: str | None = None, **others: Any) -> bytes:
    """One event of a streamed chat completion."""
    choice = {"index": 0, "delta": delta, "finish_reason": finish}
    return event({"object": "chat.completion.chunk", "choices": [choice], **others})


def usage(prompt_tokens: int, completion_tokens: int) -> dict[str, int]:
    return {
        "prompt_tokens": prompt_tokens,
        "completion_tokens": completion_tokens,
        "total_tokens": prompt_tokens + completion_tokens,
    }
