"""The floor and the libraries that could carry the load path, each as the smallest client with it.

    python candidates.py NAME URL FOLDER --concurrency C --requests N --tokens T

Every one opens its connections before (except where its library cannot), keeps C requests in flight
until N are done, and does nothing with a read but stamp and keep it, as the harness's own client
does. Needs the environment `candidates` of install_peers.sh; knows nothing of the harness.

    floor           asyncio.Protocol that looks only at whether a read ends a response
    httptools       asyncio.Protocol with httptools' framing
    aiohttp         ClientSession, content.iter_any()
    httpx-aiohttp   httpx.AsyncClient over aiohttp, aiter_raw()
"""

import argparse
import asyncio
import gc
import json
import os
import statistics
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import urlsplit

import aiohttp
import httptools
import httpx
import httpx_aiohttp
import uvloop

PATH = "/v1/chat/completions"
HEADERS = {"Content-Type": "application/json", "Accept-Encoding": "identity"}


@dataclass(frozen=True, kw_only=True)
class Work:
    url: str
    concurrency: int
    num_requests: int
    body: bytes


@dataclass(kw_only=True)
class Exchange:
    t0_ns: int
    reads: list[tuple[int, bytes]] = field(default_factory=list)


def body_of(num_tokens: int) -> bytes:
    """The request that the harness's client sends to an engine with running token counts."""
    message = {"role": "user", "content": "Which client adds the least to what it measures?"}
    return json.dumps(
        {
            "model": "m",
            "messages": [message],
            "max_tokens": num_tokens,
            "temperature": 0.0,
            "stream": True,
            "stream_options": {"include_usage": True, "continuous_usage_stats": True},
            "ignore_eos": True,
            "return_token_ids": True,
        }
    ).encode()


# --- protocols ------------------------------------------------------------------------------------


class Places:
    """C connections that share N requests; `done` when the last response ended."""

    def __init__(self, work: Work) -> None:
        parts = urlsplit(work.url)
        head = "".join(f"{name}: {value}\r\n" for name, value in HEADERS.items())
        self.host, self.port = parts.hostname, parts.port
        self.request = (
            f"POST {PATH} HTTP/1.1\r\nHost: {parts.netloc}\r\n{head}"
            f"Content-Length: {len(work.body)}\r\n\r\n"
        ).encode() + work.body
        self.left = work.num_requests
        self.exchanges: list[Exchange] = []
        self.num_done = 0
        self.done = asyncio.get_running_loop().create_future()

    def ended(self) -> None:
        self.num_done += 1
        if self.left == 0 and self.num_done == len(self.exchanges):
            self.done.set_result(None)


class Floor(asyncio.Protocol):
    """As little as can be done: it trusts that the end of a response ends a read."""

    def __init__(self, places: Places) -> None:
        self.places = places

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.descriptor = transport.get_extra_info("socket").fileno()

    def send_next(self) -> None:
        if self.places.left == 0:
            return
        self.places.left -= 1
        self.exchange = Exchange(t0_ns=time.perf_counter_ns())
        self.places.exchanges.append(self.exchange)
        os.write(self.descriptor, self.places.request)  # uvloop's write would wait for its turn

    def data_received(self, data: bytes) -> None:
        self.exchange.reads.append((time.perf_counter_ns(), data))
        if data.endswith(b"0\r\n\r\n"):
            self.places.ended()
            self.send_next()


class Httptools(Floor):
    def send_next(self) -> None:
        self.parser = httptools.HttpResponseParser(self)
        super().send_next()

    def data_received(self, data: bytes) -> None:
        self.at_ns = time.perf_counter_ns()
        self.parser.feed_data(data)

    def on_body(self, body: bytes) -> None:
        self.exchange.reads.append((self.at_ns, body))

    def on_message_complete(self) -> None:
        self.places.ended()
        asyncio.get_running_loop().call_soon(self.send_next)  # its parser is still in feed_data


async def by_protocol(work: Work, protocol: type[Floor]) -> list[Exchange]:
    places, loop = Places(work), asyncio.get_running_loop()
    connections = [
        await loop.create_connection(lambda: protocol(places), places.host, places.port)
        for _ in range(work.concurrency)
    ]
    for _, connection in connections:
        connection.send_next()
    await places.done
    for transport, _ in connections:
        transport.abort()
    return places.exchanges


# --- libraries ------------------------------------------------------------------------------------

Post = Callable[[], AsyncIterator[bytes]]


async def by_library(work: Work, post: Post) -> list[Exchange]:
    exchanges: list[Exchange] = []
    left = iter(range(work.num_requests))

    async def place() -> None:
        for _ in left:
            exchange = Exchange(t0_ns=time.perf_counter_ns())
            exchanges.append(exchange)
            async for data in post():
                exchange.reads.append((time.perf_counter_ns(), data))

    await asyncio.gather(*(place() for _ in range(work.concurrency)))
    return exchanges


async def with_aiohttp(work: Work) -> list[Exchange]:
    connector = aiohttp.TCPConnector(limit=0)
    timeout = aiohttp.ClientTimeout(total=None)
    async with aiohttp.ClientSession(connector=connector, timeout=timeout) as session:

        async def post() -> AsyncIterator[bytes]:
            async with session.post(work.url + PATH, data=work.body, headers=HEADERS) as response:
                async for data in response.content.iter_any():
                    yield data

        return await by_library(work, post)


async def with_httpx_aiohttp(work: Work) -> list[Exchange]:
    limits = httpx.Limits(max_connections=work.concurrency)
    async with httpx.AsyncClient(
        transport=httpx_aiohttp.AiohttpTransport(limits=limits), timeout=None, trust_env=False
    ) as client:

        async def post() -> AsyncIterator[bytes]:
            async with client.stream(
                "POST", work.url + PATH, content=work.body, headers=HEADERS
            ) as response:
                async for data in response.aiter_raw():
                    yield data

        return await by_library(work, post)


CANDIDATES: Mapping[str, Callable[[Work], Awaitable[list[Exchange]]]] = {
    "floor": lambda work: by_protocol(work, Floor),
    "httptools": lambda work: by_protocol(work, Httptools),
    "aiohttp": with_aiohttp,
    "httpx-aiohttp": with_httpx_aiohttp,
}


# --- the process ----------------------------------------------------------------------------------


async def measured(name: str, work: Work) -> tuple[list[Exchange], float]:
    """The exchanges and the processor time they took; the garbage collector rests meanwhile."""
    gc.collect()
    gc.disable()
    cpu_s = time.process_time()
    exchanges = await CANDIDATES[name](work)
    return exchanges, time.process_time() - cpu_s


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("name", choices=CANDIDATES)
    parser.add_argument("url")
    parser.add_argument("folder", type=Path)
    parser.add_argument("--concurrency", type=int, required=True)
    parser.add_argument("--requests", type=int, required=True)
    parser.add_argument("--tokens", type=int, required=True)
    options = parser.parse_args()
    work = Work(
        url=options.url,
        concurrency=options.concurrency,
        num_requests=options.requests,
        body=body_of(options.tokens),
    )
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        exchanges, cpu_s = runner.run(measured(options.name, work))
    ttft_s = [(each.reads[0][0] - each.t0_ns) / 1e9 for each in exchanges]
    percentiles = statistics.quantiles(ttft_s, n=100, method="inclusive")
    details = {"load_path_cpu_s": cpu_s, "num_reads": sum(len(each.reads) for each in exchanges)}
    told = {"ttft_p50_s": percentiles[49], "ttft_p99_s": percentiles[98], "details": details}
    (options.folder / "told.json").write_text(json.dumps(told))


if __name__ == "__main__":
    main()
