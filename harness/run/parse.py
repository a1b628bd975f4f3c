"""From stamped reads to a `Request` and its events, after the repetition, in a worker process.

Definitions: docs/terms.md. This module knows bytes and an adapter's words; it has no clock and no
socket, and decides nothing about whether a figure is good. Policy for an event that the stream's
end cut off before its blank line: it counts if its JSON is whole, and the request carries the flag
`unterminated_final_event` either way.
"""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal, TypeAlias

import msgspec

from harness.adapters import ADAPTERS, Adapter, OutputPiece
from harness.errors import ResultsError
from harness.measures import BURST_S, bursts, distinct_4gram_share
from harness.records import RepetitionEnd, Request, RequestError, Snapshot
from harness.run.raw import RawExchange, read_spool
from harness.run.sse import Event, events
from harness.store import EventRow, RunFolder

_BURST_NS = round(BURST_S * 1e9)
_HELD_BACK_SHARE = 0.01  # a single burst shorter than this part of its stream was held back
# RecursionError: an event of nothing but brackets is no JSON that anybody means
_NO_JSON = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)
_QUOTED = 300  # characters of an error body that a message repeats


CountSource: TypeAlias = Literal["usage", "token_ids"]


@dataclass(frozen=True, kw_only=True)
class ParsedRepetition:
    end: RepetitionEnd
    requests: tuple[Request, ...]
    snapshots: tuple[Snapshot, ...]


def parse_spool(spool: Path, run: Path, adapter_name: str) -> ParsedRepetition:
    """Write the events file of a spooled repetition and return its records; runs in the worker."""
    repetition = read_spool(spool)
    parsed = [parse_exchange(raw, ADAPTERS[adapter_name]) for raw in repetition.exchanges]
    requests = tuple(request for request, _ in parsed)
    where = repetition.end.where
    assert where.cell_id is not None
    assert where.boot_id is not None
    assert where.repetition is not None
    RunFolder.open(run).write_events(
        where.cell_id, where.boot_id, where.repetition, [row for _, row in parsed]
    )
    num_failed = sum(request.status == "failed" for request in requests)
    window_s = _window_s(repetition.exchanges, requests)
    return ParsedRepetition(
        end=replace(repetition.end, num_failed=num_failed, window_s=window_s),
        requests=requests,
        snapshots=repetition.snapshots,
    )


def _window_s(exchanges: Sequence[RawExchange], requests: Sequence[Request]) -> float:
    """First send to last end of a stream, by [DONE]: a server may close its response later."""
    ends_ns = [
        raw.end_ns if request.wall_s is None else raw.t0_ns + round(request.wall_s * 1e9)
        for raw, request in zip(exchanges, requests, strict=True)
    ]
    return (max(ends_ns) - min(raw.t0_ns for raw in exchanges)) / 1e9


def parse_exchange(raw: RawExchange, adapter: Adapter) -> tuple[Request, EventRow]:
    stream = _read_stream(raw, adapter) if _is_stream(raw) else _Stream()
    error = _failure(raw, stream)
    return _request(raw, stream, error), _event_row(raw, stream)


# --- the stream -----------------------------------------------------------------------------------


class _Output(msgspec.Struct, kw_only=True):
    """An event that carried generated output."""

    at_ns: int
    tokens: int | None  # None: the engine does not tell
    source: CountSource | None
    total: int | None  # the engine's running total after it


@dataclass(kw_only=True)
class _Stream:
    """What the events said, gathered in one pass."""

    first_ns: int | None = None
    first_answer_ns: int | None = None
    done_ns: int | None = None
    outputs: list[_Output] = field(default_factory=list)
    text: list[str] = field(default_factory=list)
    token_ids: list[int] = field(default_factory=list)
    completion_tokens: int | None = None
    running_total: int | None = None  # the last that an event with choices told
    total_is_whole: bool = True  # it covers every output so far
    prompt_tokens: int | None = None
    cached_tokens: int | None = None
    finish_reason: str | None = None
    timings: Any = None
    error: RequestError | None = None
    unterminated: bool = False


def _is_stream(raw: RawExchange) -> bool:
    return raw.http_status == 200 and raw.content_encoding in ("", "identity")


def _read_stream(raw: RawExchange, adapter: Adapter) -> _Stream:
    stream = _Stream()
    for event in events(raw.reads):
        if stream.first_ns is None:
            stream.first_ns = event.at_ns
        if event.data is not None and stream.done_ns is None:
            _take_event(stream, event, event.data, adapter)
    return stream


def _take_event(stream: _Stream, event: Event, data: bytes, adapter: Adapter) -> None:
    stream.unterminated = not event.terminated
    if data.strip() == b"[DONE]":
        stream.done_ns = event.at_ns
        return
    try:
        decoded = msgspec.json.decode(data)
    except _NO_JSON:
        if event.terminated:
            message = f"an event is no JSON: {_quoted(data)}"
            stream.error = stream.error or RequestError(kind="parse", message=message)
        return  # half an event at the end: the flag tells
    piece = adapter.read_event(decoded) if isinstance(decoded, dict) else OutputPiece()
    if piece.error is not None or event.name == b"error":
        message = piece.error or _quoted(data)
        stream.error = stream.error or RequestError(kind="in_band", message=message)
        return
    _take_piece(stream, piece, event.at_ns)


def _take_piece(stream: _Stream, piece: OutputPiece, at_ns: int) -> None:
    text = piece.reasoning + piece.answer
    total = piece.completion_tokens if piece.has_choices else None
    is_output = bool(text or piece.calls_tool or piece.token_ids) or _dates_a_token(stream, piece)
    if is_output:
        stream.outputs.append(_output(stream, piece, at_ns))
    if total is not None:
        stream.running_total = total
    if is_output or total is not None:
        stream.total_is_whole = total is not None
    if piece.answer and stream.first_answer_ns is None:
        stream.first_answer_ns = at_ns
    stream.text.append(text)
    stream.token_ids += piece.token_ids or ()
    _keep_latest(stream, piece)


def _dates_a_token(stream: _Stream, piece: OutputPiece) -> bool:
    """A token without text shows in the running total alone. A first total in the event that ends
    the choice is no running one but the final usage, told early.
    """
    if not piece.has_choices or piece.completion_tokens is None:
        return False
    if stream.running_total is None and piece.finish_reason is not None:
        return False
    return piece.completion_tokens > (stream.running_total or 0)


def _output(stream: _Stream, piece: OutputPiece, at_ns: int) -> _Output:
    """Its tokens by their ids, else by the rise of a total that covered every output before."""
    total = piece.completion_tokens if piece.has_choices else None
    if piece.token_ids:
        return _Output(at_ns=at_ns, tokens=len(piece.token_ids), source="token_ids", total=total)
    before = (stream.running_total or 0) if stream.total_is_whole else None
    if total is None or before is None or total < before:
        return _Output(at_ns=at_ns, tokens=None, source=None, total=total)
    return _Output(at_ns=at_ns, tokens=total - before, source="usage", total=total)


def _keep_latest(stream: _Stream, piece: OutputPiece) -> None:
    """Totals are running totals: the last one said stands, and nothing is ever added up."""
    for name in ("completion_tokens", "prompt_tokens", "cached_tokens", "finish_reason", "timings"):
        value = getattr(piece, name)
        if value is not None:
            setattr(stream, name, value)


def _failure(raw: RawExchange, stream: _Stream) -> RequestError | None:
    """Why the request failed; None for a complete answer."""
    if raw.http_status is not None and raw.http_status != 200:
        return RequestError(kind="http", message=_body_error(raw), http_status=raw.http_status)
    if raw.http_status == 200 and not _is_stream(raw):
        message = f"the answer is {raw.content_encoding} although identity was asked for"
        return RequestError(kind="parse", message=message, http_status=200)
    if stream.error is not None:
        return stream.error
    if stream.done_ns is None and raw.error is not None:
        return raw.error  # after [DONE] the answer is complete, whatever becomes of the connection
    if stream.done_ns is None and stream.finish_reason is None:
        message = f"the stream ended without finish reason and [DONE] ({_what_came(raw)})"
        return RequestError(kind="truncated", message=message, http_status=raw.http_status)
    if not stream.outputs:
        message = f"the stream ended in order but held no output ({_what_came(raw)})"
        return RequestError(kind="empty", message=message, http_status=raw.http_status)
    n, _ = _output_tokens(stream)
    if raw.asked.forced and n is not None and n < raw.asked.max_tokens:
        message = f"{n} tokens came where exactly {raw.asked.max_tokens} were asked for"
        return RequestError(kind="short", message=message, http_status=raw.http_status)
    return None


def _what_came(raw: RawExchange) -> str:
    return f"content type {raw.content_type or 'unknown'}, body begins {_quoted(_body(raw))}"


def _body(raw: RawExchange) -> bytes:
    return b"".join(data for _, data in raw.reads)


def _body_error(raw: RawExchange) -> str:
    body = _body(raw)
    try:
        error = msgspec.json.decode(body, type=dict[str, Any]).get("error")
    except _NO_JSON:
        return _quoted(body)
    message = error.get("message") if isinstance(error, dict) else error
    return str(message) if message else _quoted(body)


def _quoted(data: bytes) -> str:
    return repr(data[:_QUOTED].decode(errors="replace"))


# --- records --------------------------------------------------------------------------------------


def _request(raw: RawExchange, stream: _Stream, error: RequestError | None) -> Request:
    def after_t0(at_ns: int | None) -> float | None:
        return None if at_ns is None else _seconds(raw, raw.t0_ns, at_ns)

    n, n_source = _output_tokens(stream)
    first, first_source = _first_tokens(stream)
    text = "".join(stream.text)
    return Request(
        where=raw.asked.where,
        prompt_id=raw.asked.prompt_id,
        kind=raw.asked.kind,
        index=raw.asked.index,
        started_at=raw.started_at,
        t0_ns=raw.t0_ns,
        send_lateness_s=_seconds(raw, raw.t_sched_ns, raw.t0_ns),
        connect_s=raw.connect_s,
        status="ok" if error is None else "failed",
        error=error,
        http_status=raw.http_status,
        ttfr_s=after_t0(stream.first_ns),
        ttft_s=after_t0(stream.outputs[0].at_ns if stream.outputs else None),
        ttfa_s=after_t0(stream.first_answer_ns),
        t_last_s=after_t0(stream.outputs[-1].at_ns if stream.outputs else None),
        wall_s=after_t0(stream.done_ns or raw.end_ns) if error is None else None,
        output_tokens=n,
        output_tokens_source=n_source,
        first_tokens=first,
        first_tokens_source=first_source,
        prompt_tokens=stream.prompt_tokens,
        cached_tokens=stream.cached_tokens,
        num_output_events=len(stream.outputs),
        num_reads=len(raw.reads),
        finish_reason=stream.finish_reason,
        distinct_4gram_share=distinct_4gram_share(stream.token_ids or text.split()),
        text_sha256=hashlib.sha256(text.encode()).hexdigest() if stream.outputs else None,
        engine_timings=stream.timings,
        flags=_flags(raw, stream, n),
        attempts=raw.attempts,
        throttled=raw.throttled,
        since_first_attempt_s=_since_first_attempt_s(raw),
        reconnects=raw.reconnects,
        event_tokens_source=_event_tokens_source(stream),
        salt=raw.asked.salt,
    )


def _since_first_attempt_s(raw: RawExchange) -> float | None:
    return None if raw.first_t0_ns is None else _seconds(raw, raw.first_t0_ns, raw.t0_ns)


def _seconds(raw: RawExchange, since_ns: int, until_ns: int) -> float:
    """Never negative, and never cut to 0: a clock that steps back has measured nothing."""
    if until_ns < since_ns:
        raise ResultsError(
            f"{raw.asked.where.request_id}: a duration of {(until_ns - since_ns) / 1e9:g} s; the "
            "clock went backwards, so the repetition measured nothing; remove its file in spool/, "
            "and `dflashbench resume` measures the cell again"
        )
    return (until_ns - since_ns) / 1e9


def _event_row(raw: RawExchange, stream: _Stream) -> EventRow:
    request_id = raw.asked.where.request_id
    assert request_id is not None
    return EventRow(
        request_id=request_id,
        offset_ns=tuple(output.at_ns - raw.t0_ns for output in stream.outputs),
        tokens=tuple(output.tokens for output in stream.outputs),
        text="".join(stream.text) if stream.outputs else None,
        token_ids=tuple(stream.token_ids) or None,
    )


def _output_tokens(stream: _Stream) -> tuple[int | None, CountSource | None]:
    """The engine's own total, else the ids it sent with every output; never a number of events."""
    if stream.completion_tokens is not None:
        return stream.completion_tokens, "usage"
    if stream.outputs and all(output.source == "token_ids" for output in stream.outputs):
        return len(stream.token_ids), "token_ids"
    return None, None


def _event_tokens_source(stream: _Stream) -> CountSource | Literal["mixed"] | None:
    """None as soon as one event does not tell its tokens."""
    sources = {output.source for output in stream.outputs}
    if not sources or None in sources:
        return None
    if len(sources) > 1:
        return "mixed"
    return "usage" if "usage" in sources else "token_ids"


def _first_tokens(stream: _Stream) -> tuple[int | None, CountSource | Literal["events"] | None]:
    """Tokens within 1 ms of the first output: by running total, by ids, else events (lower
    bound).
    """
    if not stream.outputs:
        return None, None
    limit_ns = stream.outputs[0].at_ns + _BURST_NS
    window = [output for output in stream.outputs if output.at_ns <= limit_ns]
    if window[-1].total is not None:
        return window[-1].total, "usage"
    counts = [output.tokens for output in window]
    known = [count for count in counts if count is not None]
    if len(known) == len(counts):
        return sum(known), "token_ids"
    return len(window), "events"


def _flags(raw: RawExchange, stream: _Stream, n: int | None) -> tuple[str, ...]:
    limit = raw.asked.max_tokens
    marks = {
        "unterminated_final_event": stream.unterminated,
        "buffered_stream": _came_at_once(raw, stream.outputs),
        "possible_cap": stream.finish_reason == "stop" and n == limit,
        "after_failure": raw.after_failure,
        "reconnected": raw.reconnects > 0,
        "over_cap": n is not None and n > limit,
    }
    return tuple(name for name, holds in marks.items() if holds)


def _came_at_once(raw: RawExchange, outputs: Sequence[_Output]) -> bool:
    """Several outputs in a single burst: something held the stream back, and no rate can be read.

    A long answer that is let go at once takes more than one read, so its burst may last longer than
    1 ms; but then it is short beside the time that the stream took.
    """
    if len(outputs) < 2:
        return False
    at_s = [(output.at_ns - raw.t0_ns) / 1e9 for output in outputs]
    lasted_s = at_s[-1] - at_s[0]
    if lasted_s <= BURST_S:
        return True
    is_short = lasted_s < _HELD_BACK_SHARE * at_s[-1]
    return is_short and len(bursts(at_s, [None] * len(at_s))) == 1
