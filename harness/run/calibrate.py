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
from harness.errors import HarnessError
from harness.records import Engine, Model, Sampling, Variant, Where
from harness.run import boot
from harness.run.client import Endpoint, Exchange, Pool, Timeouts
from harness.run.load import run_load
from harness.run.parse import parse_exchange
from harness.run.raw import Asked, raw_exchange

LEVELS = (1, 4, 16)
RATES = (500, 1000, 2000, 4000, 8000)
"""Events per second over 16 streams."""

CLEAN_S = 0.005
"""A rate is clean while 99 % of its events are seen within this."""

_ADAPTER = ADAPTERS["dflash2"]
_NOWHERE = Where(run_id="calibration", session_id="calibration", request_id="calibration")
_SCRIPTED = Variant(
    name="calibration",
    engine=Engine(
        name="scripted",
        adapter="dflash2",
        kind="process",
        command=("{python}", "-m", "harness.scripted_server"),
        boot_timeout_s=30.0,
    ),
    target=Model(name="scripted", path="scripted"),
)


@dataclass(frozen=True, kw_only=True)
class Lateness:
    """What the client adds to the time to first token at one concurrency."""

    concurrency: int
    num_requests: int
    added_ttft_p50_s: float
    added_ttft_p99_s: float


@dataclass(frozen=True, kw_only=True)
class Calibration:
    lateness: tuple[Lateness, ...]
    clean_events_per_s: (
        int | None
    )  # the highest rate tried that was clean; None: not even the lowest

    def worst_s(self) -> float:
        return max(level.added_ttft_p99_s for level in self.lateness)


async def calibrate(levels: Sequence[int] = LEVELS, rates: Sequence[int] = RATES) -> Calibration:
    """About ten seconds with the defaults; `rates` empty leaves the event rate out."""
    async with _scripted_engine() as url:
        lateness = tuple([await _lateness(url, level) for level in levels])
        clean = None
        for rate in rates:
            if await _event_delay_p99_s(url, rate) > CLEAN_S:
                break
            clean = rate
    return Calibration(lateness=lateness, clean_events_per_s=clean)


async def _lateness(url: str, concurrency: int) -> Lateness:
    """Waves of short answers: 20 ms to the first token, then ten events of 5 ms."""
    waves = max(3, 20 // concurrency)
    added: list[float] = []
    for _ in range(waves):
        seen = await _wave(url, concurrency, num_tokens=11, prefill_ms=20, round_ms=5)
        added += [each.added_ttft_s for each in seen]
    return Lateness(
        concurrency=concurrency,
        num_requests=len(added),
        added_ttft_p50_s=float(np.percentile(added, 50)),
        added_ttft_p99_s=float(np.percentile(added, 99)),
    )


async def _event_delay_p99_s(url: str, rate: int) -> float:
    """One second of 16 streams that together send `rate` events."""
    streams = 16
    seen = await _wave(
        url,
        streams,
        num_tokens=max(2, rate // streams),
        prefill_ms=20,
        round_ms=1e3 * streams / rate,
    )
    return float(np.percentile([delay for each in seen for delay in each.delays_s], 99))


@dataclass(frozen=True, kw_only=True)
class _Seen:
    added_ttft_s: float
    delays_s: tuple[float, ...]


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
        pool.abort()
    return [_seen(exchange, num_tokens) for exchange in load.exchanges]


def _seen(exchange: Exchange, max_tokens: int) -> _Seen:
    asked = Asked(where=_NOWHERE, prompt_id="", kind="", index=0, max_tokens=max_tokens)
    request, row = parse_exchange(raw_exchange(asked, "", exchange), _ADAPTER)
    if request.error is not None or request.ttft_s is None or request.engine_timings is None:
        raise HarnessError(f"calibration: the scripted server did not answer: {request.error}")
    timings = request.engine_timings
    sent_ns = timings["sent_ns"]
    true_ttft_s = (sent_ns[0] - timings["received_ns"]) / 1e9
    return _Seen(
        added_ttft_s=request.ttft_s - true_ttft_s,
        delays_s=tuple(
            (request.t0_ns + offset - sent) / 1e9
            for offset, sent in zip(row.offset_ns, sent_ns, strict=False)
        ),
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
