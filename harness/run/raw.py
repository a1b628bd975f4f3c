"""A repetition between the socket and the parser: bytes with stamps, and the facts that the parser
cannot know.

Reads lie in the spool as they came; what belongs to them stands in its trailer, as MessagePack.
"""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import msgspec

from harness.errors import ResultsError
from harness.records import RepetitionEnd, RequestError, Snapshot, Where
from harness.run.client import Exchange
from harness.run.spool import TRAILER, Spool, read_frames


@dataclass(frozen=True, kw_only=True)
class Asked:
    """What is known of a request before it is sent."""

    where: Where
    prompt_id: str
    kind: str
    index: int
    max_tokens: int
    forced: bool = False  # exactly max_tokens were asked for
    salt: str | None = None


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
    number: int = 0  # of its reads in the spool
    attempts: int = 1
    throttled: int = 0
    first_t0_ns: int | None = None
    reconnects: int = 0
    after_failure: bool = False


@dataclass(frozen=True, kw_only=True)
class RawRepetition:
    end: RepetitionEnd  # num_failed and window_s are the parser's to correct
    exchanges: tuple[RawExchange, ...]
    snapshots: tuple[Snapshot, ...]  # with it, for requests without their counters say half


def raw_exchange(
    asked: Asked, started_at: str, exchange: Exchange, *, after_failure: bool = False
) -> RawExchange:
    headers = exchange.headers
    return RawExchange(
        asked=asked,
        started_at=started_at,
        t_sched_ns=exchange.t_sched_ns,
        t0_ns=exchange.t0_ns,
        end_ns=exchange.end_ns,
        connect_s=exchange.connect_s,
        http_status=exchange.http_status,
        content_type=headers.get("content-type", ""),
        content_encoding=headers.get("content-encoding", "identity"),
        reads=tuple(exchange.reads),
        error=exchange.error,
        number=exchange.number,
        attempts=exchange.attempts,
        throttled=exchange.throttled,
        first_t0_ns=exchange.first_t0_ns,
        reconnects=exchange.reconnects,
        after_failure=after_failure,
    )


def finish_spool(spool: Spool, repetition: RawRepetition) -> Path:
    """Bring a repetition whose reads `spool` took to the disk, whole or not at all."""
    return spool.finish(msgspec.msgpack.encode(repetition))


def read_spool(path: Path) -> RawRepetition:
    """The repetition with its reads. Those of attempts that were given up belong to nobody."""
    reads: defaultdict[int, list[tuple[int, bytes]]] = defaultdict(list)
    for number, at_ns, data in read_frames(path):
        reads[number].append((at_ns, data))
    trailer = _trailer(path, reads.pop(TRAILER, ()))
    exchanges = tuple(
        replace(raw, reads=tuple(reads.pop(raw.number, ()))) for raw in trailer.exchanges
    )
    return replace(trailer, exchanges=exchanges)


def _trailer(path: Path, frames: Sequence[tuple[int, bytes]]) -> RawRepetition:
    try:
        ((_, data),) = frames
        return msgspec.msgpack.decode(data, type=RawRepetition)
    except (ValueError, msgspec.DecodeError) as error:
        raise ResultsError(
            f"{path}: no repetition that this dflashbench wrote ({error}); remove the file, its "
            "cell is then measured again"
        ) from error
