"""How late this client is on this machine, found with the scripted server in a process of its own.

The server tells in `timings` when a request had arrived and when each event was sent, so what the
client adds is a difference of two durations for the first token, and of two readings of the same
monotonic clock for the other events (one machine, one clock). It includes the scripted server's own
share of the sockets: an upper bound of the client's.
"""

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

import msgspec
import numpy as np

from harness.adapters import ADAPTERS
from harness.adapters.base import Ask
from harness.errors import BootError
from harness.records import (
    Calibration,
    Engine,
    Lateness,
    Model,
    Sampling,
    Timeouts,
    Variant,
    Where,
)
from harness.run import boot
from harness.run.client import Endpoint, Exchange, Pool
from harness.run.load import run_load
from harness.run.parse import parse_exchange
from harness.run.raw import Asked, raw_exchange

LEVELS = (1, 16, 64, 256)
RATES = (1000, 2000, 4000, 8000, 16_000, 32_000, 64_000)
"""Events per second over 16 streams."""

CLEAN_ERROR = 0.01
"""A rate is clean while every stream's time from first to last event is right within this."""

_STREAMS = 16
_REACHED_SHARE = 0.9  # below, the scripted server itself could not send at the rate that was tried
_TRIES = 2  # a machine that does other things may disturb one

_ADAPTER = ADAPTERS["dflash2"]
_NOWHERE = Where(run_id="calibration", session_id="calibration", request_id="calibration")
_SCRIPTED = Variant(
    name="calibration",
    engine=Engine(
        name="scripted",
        adapter="dflash2",
        kind="process",
        command=("{python}", "-m", "harness.scripted_server"),
        ready_timeout_s=30.0,
    ),
    target=Model(name="scripted", path="scripted"),
)


async def calibrate(levels: Sequence[int] = LEVELS, rates: Sequence[int] = RATES) -> Calibration:
    """A quarter of a minute with the defaults; the rates are tried upwards until one is unclean."""
    async with _scripted_engine() as url:
        lateness = tuple([await _lateness(url, level) for level in levels])
        clean, unclean = await _event_rates(url, rates)
    return Calibration(lateness=lateness, clean_events_per_s=clean, unclean_events_per_s=unclean)


def worst_s(calibration: Calibration) -> float:
    """The p99 of what the client adds, where it adds most."""
    return max(level.added_ttft_p99_s for level in calibration.lateness)


async def _lateness(url: str, concurrency: int) -> Lateness:
    """Waves of short answers: 30 ms to the first token, then four events of 20 ms."""
    waves = max(3, 12 // concurrency)
    added: list[float] = []
    for _ in range(waves):
        seen = await _wave(url, concurrency, num_tokens=5, prefill_ms=30, round_ms=20)
        added += [each.added_ttft_s for each in seen]
    return Lateness(
        concurrency=concurrency,
        num_requests=len(added),
        added_ttft_p50_s=float(np.percentile(added, 50)),
        added_ttft_p99_s=float(np.percentile(added, 99)),
    )


async def _event_rates(url: str, rates: Sequence[int]) -> tuple[int | None, int | None]:
    """The highest rate that was clean and the one above it that was not; None: there was none."""
    clean = None
    for rate in rates:
        tries = [await _at_rate(url, rate)]
        while tries[-1].error > CLEAN_ERROR and len(tries) < _TRIES:
            tries.append(await _at_rate(url, rate))
        if tries[-1].error > CLEAN_ERROR:
            return clean, rate
        clean = round(tries[-1].events_per_s)
        if clean < _REACHED_SHARE * rate:
            break
    return clean, None


@dataclass(frozen=True, kw_only=True)
class _Try:
    """`events_per_s` is what the server really sent, `error` that of the worst stream."""

    events_per_s: float
    error: float


async def _at_rate(url: str, rate: int) -> _Try:
    """Half a second of streams that together send `rate` events per second."""
    num_tokens = max(3, rate // 2 // _STREAMS)
    round_ms = 1e3 * _STREAMS / rate
    seen = await _wave(url, _STREAMS, num_tokens=num_tokens, prefill_ms=30, round_ms=round_ms)
    return _Try(
        events_per_s=sum((num_tokens - 1) / each.true_span_s for each in seen),
        error=max(abs(each.span_s / each.true_span_s - 1) for each in seen),
    )


@dataclass(frozen=True, kw_only=True)
class _Seen:
    """One stream, by the client and by the server; a span is from first to last output."""

    added_ttft_s: float
    span_s: float
    true_span_s: float


async def _wave(url: str, concurrency: int, *, num_tokens: int, **timetable: float) -> list[_Seen]:
    pool = Pool(Endpoint.of(url, _ADAPTER.chat_path, {}), Timeouts())
    ask = Ask(
        model="scripted",
        messages=({"role": "user", "content": "calibration"},),
        max_tokens=num_tokens,
        sampling=Sampling(),
        length="forced",
    )
    body = {**_ADAPTER.request_body(ask), "scripted": timetable}
    request = pool.endpoint.encode(msgspec.json.encode(body))
    try:
        load = await run_load("wave", [request] * concurrency, pool, concurrency=concurrency)
    finally:
        await pool.aclose()
    return [_seen(exchange, num_tokens) for exchange in load.exchanges]


def _seen(exchange: Exchange, max_tokens: int) -> _Seen:
    asked = Asked(where=_NOWHERE, prompt_id="", kind="", index=0, max_tokens=max_tokens)
    request, row = parse_exchange(raw_exchange(asked, "", exchange), _ADAPTER)
    if request.error is not None or request.ttft_s is None or request.engine_timings is None:
        reason = request.error.message if request.error else "its answer has no timings"
        raise BootError(
            f"calibration: the scripted server did not answer ({reason}); look for what ends "
            "processes on this machine, and try again"
        )
    timings = request.engine_timings
    sent_ns = timings["sent_ns"]
    true_ttft_s = (sent_ns[0] - timings["received_ns"]) / 1e9
    return _Seen(
        added_ttft_s=request.ttft_s - true_ttft_s,
        span_s=(row.offset_ns[-1] - row.offset_ns[0]) / 1e9,
        true_span_s=(sent_ns[-1] - sent_ns[0]) / 1e9,
    )


@asynccontextmanager
async def _scripted_engine() -> AsyncIterator[str]:
    """Started and stopped like any engine."""
    with TemporaryDirectory() as folder:
        engine = await boot.launch(_SCRIPTED, {}, _NOWHERE, Path(folder))
        try:
            await boot.wait_ready(engine, _SCRIPTED.target.name)
            yield engine.boot.url
        finally:
            await boot.stop(engine)
