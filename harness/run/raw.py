"""What a repetition left in memory, as it goes to the spool file and from there to the parser.

Plain data: bytes with stamps and the facts that the parser cannot know. MessagePack carries bytes
as they are.
"""

from dataclasses import dataclass
from pathlib import Path

import msgspec

from harness.errors import ResultsError
from harness.records import RepetitionEnd, RequestError, Snapshot, Where
from harness.run.client import Exchange


@dataclass(frozen=True, kw_only=True)
class Asked:
    """What is known of a request before it is sent."""

    where: Where
    prompt_id: str
    kind: str
    index: int
    max_tokens: int


@dataclass(frozen=True, kw_only=True)
class RawExchange:
    """Times are perf_counter_ns of the session. `http_status` is None when no answer's head
    came.
    """

    asked: Asked
    started_at: str
    t_sched_ns: int
    t0_ns: int
    end_ns: int
    connect_s: float | None
    http_status: int | None
    content_type: str
    content_encoding: str
    reads: tuple[tuple[int, bytes], ...]
    error: RequestError | None


@dataclass(frozen=True, kw_only=True)
class RawRepetition:
    end: RepetitionEnd  # num_failed and window_s are the parser's to correct
    exchanges: tuple[RawExchange, ...]
    snapshots: tuple[Snapshot, ...]  # with it, for requests without their counters say half


def raw_exchange(asked: Asked, started_at: str, exchange: Exchange) -> RawExchange:
    headers = exchange.response.headers
    return RawExchange(
        asked=asked,
        started_at=started_at,
        t_sched_ns=exchange.t_sched_ns,
        t0_ns=exchange.t0_ns,
        end_ns=exchange.end_ns,
        connect_s=exchange.connect_s,
        http_status=exchange.response.status,
        content_type=headers.get("content-type", ""),
        content_encoding=headers.get("content-encoding", "identity"),
        reads=tuple(exchange.reads),
        error=exchange.error,
    )


def encoded(repetition: RawRepetition) -> bytes:
    return msgspec.msgpack.encode(repetition)


def read_spool(path: Path) -> RawRepetition:
    try:
        return msgspec.msgpack.decode(path.read_bytes(), type=RawRepetition)
    except msgspec.DecodeError as error:
        raise ResultsError(
            f"{path}: no repetition that this dflashbench wrote ({error}); remove the file, its "
            "cell is then measured again"
        ) from error
