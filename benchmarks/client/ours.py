"""dflashbench's client as its harness uses it, as a process of its own for a benchmark of clients.

    python -m benchmarks.client.ours LOAD URL FOLDER [--transport httpx]

The load path (`run_load` over a transport, reads to a spool) and the parsing afterwards, which the
harness does in a worker process, are timed apart. FOLDER gets the spool and `told.json`.
"""

import argparse
import asyncio
import json
import resource
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, get_args

import msgspec
import numpy as np

from benchmarks.client.loads import LOADS, Load
from benchmarks.client.server import MODEL
from benchmarks.client.told import percentile
from harness import measures
from harness.adapters import ADAPTERS
from harness.adapters.base import Ask
from harness.records import RepetitionEnd, Request, Sampling, Timeouts, TransportName, Where
from harness.run import load as client
from harness.run.client import Endpoint
from harness.run.loops import loop_factory
from harness.run.parse import parse_exchange
from harness.run.raw import Asked, RawRepetition, finish_spool, raw_exchange, read_spool
from harness.run.spool import Spool
from harness.run.transports import TRANSPORTS
from harness.store import EventRow

_ADAPTER = ADAPTERS["dflash2"]
_WHERE = Where(run_id="benchmark", session_id="benchmark", request_id="benchmark")


@dataclass(frozen=True, kw_only=True)
class _LoadPath:
    spool: Path
    load: client.Load
    cpu_s: float


async def _run(load: Load, url: str, transport_name: TransportName, spool_path: Path) -> _LoadPath:
    endpoint = Endpoint.of(url, _ADAPTER.chat_path, {})
    transport = TRANSPORTS[transport_name](endpoint, Timeouts())
    request = transport.encode(msgspec.json.encode(_ADAPTER.request_body(_ask(load))))
    spool = Spool(spool_path)
    cpu_s = time.process_time()
    done = await client.run_load(
        "closed",
        [request] * load.num_requests,
        transport,
        concurrency=load.concurrency,
        spool=spool,
    )
    cpu_s = time.process_time() - cpu_s
    await transport.aclose()
    path = await asyncio.to_thread(finish_spool, spool, _repetition(done, load))
    return _LoadPath(spool=path, load=done, cpu_s=cpu_s)


def _ask(load: Load) -> Ask:
    return Ask(
        model=MODEL,
        messages=({"role": "user", "content": "Which client adds the least to what it measures?"},),
        max_tokens=load.num_tokens,
        sampling=Sampling(),
        length="forced",
    )


def _repetition(done: client.Load, load: Load) -> RawRepetition:
    asked = Asked(where=_WHERE, prompt_id="", kind="", index=0, max_tokens=load.num_tokens)
    end = RepetitionEnd(
        where=_WHERE,
        started_at="",
        window_s=done.window_s,
        num_requests=load.num_requests,
        num_failed=0,
        in_flight_max=done.in_flight_max,
        cpu_share=done.cpu_share,
        loop_lag_max_s=done.loop_lag_max_s,
    )
    exchanges = tuple(raw_exchange(asked, "", exchange) for exchange in done.exchanges)
    return RawRepetition(end=end, exchanges=exchanges, snapshots=())


def _told(path: _LoadPath) -> dict[str, Any]:
    cpu_s = time.process_time()
    parsed = [parse_exchange(raw, _ADAPTER) for raw in read_spool(path.spool).exchanges]
    parse_cpu_s = time.process_time() - cpu_s
    requests = [request for request, _ in parsed]
    failed = [request.error for request in requests if request.error is not None]
    if failed:
        raise SystemExit(f"{len(failed)} of {len(requests)} requests failed: {failed[0]}")
    ttft_s = [request.ttft_s for request in requests if request.ttft_s is not None]
    rates = [_strict_rate(request) for request in requests]
    return {
        "ttft_p50_s": percentile(ttft_s, 50),
        "ttft_p99_s": percentile(ttft_s, 99),
        "num_tokens": sum(request.output_tokens or 0 for request in requests),
        "decode_rate_tok_per_s": float(np.median([rate for rate in rates if rate is not None])),
        "details": {
            "load_path_cpu_s": path.cpu_s,
            "parse_cpu_s": parse_cpu_s,
            "num_output_events": sum(request.num_output_events for request in requests),
            "num_reads": sum(request.num_reads for request in requests),
            "in_flight_max": path.load.in_flight_max,
            "loop_lag_max_s": path.load.loop_lag_max_s,
            "resident_max_bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
            **_lateness(requests, [row for _, row in parsed]),
        },
    }


def _strict_rate(request: Request) -> float | None:
    return measures.decode_rate_strict(
        request.output_tokens, request.first_tokens, request.ttft_s, request.t_last_s
    )


def _lateness(requests: Sequence[Request], rows: Sequence[EventRow]) -> dict[str, float]:
    """Of sends behind their schedule, and of events behind the moments at which they were sent."""
    delays_s = [
        delay_s
        for request, row in zip(requests, rows, strict=True)
        for delay_s in _delays_s(request, row)
    ]
    sends_s = [request.send_lateness_s for request in requests]
    return {
        "send_lateness_p50_s": percentile(sends_s, 50),
        "send_lateness_p99_s": percentile(sends_s, 99),
        "event_delay_p50_s": percentile(delays_s, 50),
        "event_delay_p99_s": percentile(delays_s, 99),
    }


def _delays_s(request: Request, row: EventRow) -> list[float]:
    """The scripted server tells in its last event when it sent the others; one clock for both."""
    assert request.engine_timings is not None
    sent_ns: list[int] = request.engine_timings["sent_ns"]
    return [
        (request.t0_ns + offset_ns - at_ns) / 1e9
        for offset_ns, at_ns in zip(row.offset_ns, sent_ns, strict=False)  # the last is the end
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("load", choices=LOADS)
    parser.add_argument("url")
    parser.add_argument("folder", type=Path)
    parser.add_argument("--transport", choices=get_args(TransportName), default="asyncio")
    options = parser.parse_args()
    load = LOADS[options.load]
    with asyncio.Runner(loop_factory=loop_factory()) as runner:
        path = runner.run(_run(load, options.url, options.transport, options.folder / "spool"))
    told = _told(path)
    path.spool.unlink()
    (options.folder / "told.json").write_text(json.dumps(told))


if __name__ == "__main__":
    main()
