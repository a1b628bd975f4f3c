"""The scripted server as a process on a core of its own, and what it says that it really sent."""

import json
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from benchmarks.client.loads import Load

SERVER_CORE = 0
CLIENT_CORE = 1
MODEL = "m"

_BOOT_TIMEOUT_S = 20.0
_DIRECT = urllib.request.build_opener(urllib.request.ProxyHandler({}))


@dataclass(frozen=True, kw_only=True)
class Truth:
    """What the server saw and sent, by its own clock (perf_counter_ns)."""

    received_ns: Sequence[int]  # by request
    sent_ns: Sequence[Sequence[int]]  # of its events; the end of the stream is not among them
    num_whole: int
    in_flight_max: int

    @property
    def num_events(self) -> int:
        return sum(map(len, self.sent_ns))

    @property
    def window_ns(self) -> tuple[int, int]:
        """First request received to last event sent."""
        return min(self.received_ns), max(sent[-1] for sent in self.sent_ns)

    @property
    def window_s(self) -> float:
        begin_ns, end_ns = self.window_ns
        return (end_ns - begin_ns) / 1e9

    @cached_property
    def ttft_s(self) -> list[float]:
        pairs = zip(self.received_ns, self.sent_ns, strict=True)
        return [(sent[0] - received) / 1e9 for received, sent in pairs]

    def decode_rate_strict_tok_per_s(self, load: Load) -> float:
        """Median over the requests of the tokens after the first event over their time."""
        tokens = load.num_tokens - load.tokens_per_event
        return float(np.median([tokens * 1e9 / (sent[-1] - sent[0]) for sent in self.sent_ns]))


@dataclass(frozen=True, kw_only=True)
class Server:
    url: str

    def truth(self, load: Load) -> Truth:
        """Of the load's last `num_requests`: some clients send one of their own before."""
        log = json.loads(self._get("/log"))
        answers: list[dict[str, Any]] = sorted(
            (answer for answer in log["answers"] if len(answer["sent_ns"]) > 1),
            key=lambda answer: answer["received_ns"],
        )[-load.num_requests :]
        return Truth(
            received_ns=[answer["received_ns"] for answer in answers],
            sent_ns=[answer["sent_ns"][:-1] for answer in answers],
            num_whole=sum(answer["whole"] for answer in answers),
            in_flight_max=log["in_flight_max"],
        )

    def answers(self) -> bool:
        try:
            self._get("/health")
        except OSError:
            return False
        return True

    def _get(self, path: str) -> bytes:
        with _DIRECT.open(self.url + path, timeout=60) as response:
            page: bytes = response.read()
        return page


@contextmanager
def scripted_server(load: Load) -> Iterator[Server]:
    port = _free_port()
    process = subprocess.Popen(_command(load, port))
    server = Server(url=f"http://127.0.0.1:{port}")
    try:
        _wait_until_it_answers(server, process)
        yield server
    finally:
        process.terminate()
        process.wait()


def _command(load: Load, port: int) -> list[str]:
    options: dict[str, object] = {
        "--port": port,
        "--core": SERVER_CORE,
        "--served-name": MODEL,
        "--prefill-ms": load.prefill_ms,
        "--round-ms": load.round_ms,
        "--num-tokens": load.num_tokens,
        "--tokens-per-event": load.tokens_per_event,
    }
    words = [str(word) for option in options.items() for word in option]
    return [sys.executable, "-m", "harness.scripted_server", *words]


def _wait_until_it_answers(server: Server, process: subprocess.Popen[bytes]) -> None:
    deadline_s = time.monotonic() + _BOOT_TIMEOUT_S
    while not server.answers():
        if process.poll() is not None or time.monotonic() > deadline_s:
            raise RuntimeError(f"the scripted server did not come up at {server.url}")
        time.sleep(0.05)


def _free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        port: int = found.getsockname()[1]
    return port
