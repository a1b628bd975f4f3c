"""Measure every client side by side: `python -m benchmarks.client.measure [PEERS] --raw FILE`.

The scripted server has core 0, the client core 1, and one client runs at a time. A round is every
load by every client; rounds follow one another, so that a machine that drifts drifts for all. Each
run becomes one line of FILE at once; `results` makes the tables. The machine must do nothing else.

A run's truth is what the server says that it received and sent. The difference of a client's TTFT
percentile and the true one is what the client adds: its own lateness in sending and in reading,
and the way of the bytes through the kernel.
"""

import argparse
import json
import os
import sys
import time
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

from benchmarks.client.clients import CLIENTS, HERE, Place
from benchmarks.client.loads import LOADS
from benchmarks.client.processes import Usage, run_pinned
from benchmarks.client.server import CLIENT_CORE, SERVER_CORE, Truth, scripted_server
from benchmarks.client.told import Told, percentile
from harness.run.limits import allow_open_files

REPOSITORY = HERE.parent.parent
START_LIMIT_S = 90.0
"""What a client may need beside the load itself, at the slowest."""

SLOWEST = 6.0
"""How many times the ideal time of a load it may take."""

SETTLED_S = 10.0
"""Memory is compared between this moment of a load and its end."""


@dataclass(frozen=True, kw_only=True)
class Run:
    """One client under one load, once; a line of the raw file. None: not told, or it failed."""

    client: str
    load: str
    round: int
    failed: str | None
    true_ttft_p50_s: float | None = None
    true_ttft_p99_s: float | None = None
    true_decode_rate_tok_per_s: float | None = None
    num_whole: int | None = None
    num_events: int | None = None
    in_flight_max: int | None = None
    window_s: float | None = None
    ideal_s: float | None = None
    cpu_s: float | None = None  # of the client's processes in that window
    resident_max_bytes: int | None = None
    resident_growth_bytes: int | None = None  # from SETTLED_S into the load to its end, if later
    told: Told | None = None


def measure(client_name: str, load_name: str, round_number: int, peers: Path) -> Run:
    client, load = CLIENTS[client_name], LOADS[load_name]
    with TemporaryDirectory() as folder, scripted_server(load) as server:
        place = Place(load_name=load_name, url=server.url, folder=Path(folder), peers=peers)
        output = place.folder / "output.txt"
        usage = run_pinned(
            client.command(load, place),
            core=CLIENT_CORE,
            environment=_environment(peers),
            output=output,
            limit_s=START_LIMIT_S + SLOWEST * max(load.ideal_s, 3.0),
        )
        try:
            return _run(client_name, load_name, round_number, server.truth(load), usage, place)
        except (OSError, LookupError, ValueError) as error:
            return Run(
                client=client_name,
                load=load_name,
                round=round_number,
                failed=f"exit code {usage.exit_code}, {error!r}: {_last_words(output)}",
            )


def _run(
    client_name: str, load_name: str, round_number: int, truth: Truth, usage: Usage, place: Place
) -> Run:
    load = LOADS[load_name]
    return Run(
        client=client_name,
        load=load_name,
        round=round_number,
        failed=None,
        true_ttft_p50_s=percentile(truth.ttft_s, 50),
        true_ttft_p99_s=percentile(truth.ttft_s, 99),
        true_decode_rate_tok_per_s=truth.decode_rate_strict_tok_per_s(load),
        num_whole=truth.num_whole,
        num_events=truth.num_events,
        in_flight_max=truth.in_flight_max,
        window_s=truth.window_s,
        ideal_s=load.ideal_s,
        cpu_s=usage.cpu_s(truth.window_ns),
        resident_max_bytes=usage.resident_max_bytes,
        resident_growth_bytes=_growth_bytes(truth, usage),
        told=CLIENTS[client_name].read(place.folder),
    )


def _growth_bytes(truth: Truth, usage: Usage) -> int | None:
    begin_ns, end_ns = truth.window_ns
    settled_ns = begin_ns + int(SETTLED_S * 1e9)
    if end_ns < settled_ns:
        return None
    return usage.resident_bytes(end_ns) - usage.resident_bytes(settled_ns)


def _environment(peers: Path) -> Mapping[str, str]:
    home = str(peers / "home")
    return {
        "PYTHONPATH": str(REPOSITORY),
        "HOME": home,
        "HF_HOME": home,
        "HF_HUB_OFFLINE": "1",
        "TRANSFORMERS_OFFLINE": "1",
        "TOKENIZERS_PARALLELISM": "false",
        "NO_PROXY": "127.0.0.1",
    }


def _last_words(output: Path) -> str:
    return output.read_text(errors="replace").strip()[-300:]


def _plan(clients: list[str], loads: list[str], num_rounds: int) -> Iterator[tuple[str, str, int]]:
    for number in range(num_rounds):
        for load in loads:
            for name in clients:
                client = CLIENTS[name]
                wanted = min(client.num_rounds, LOADS[load].num_rounds)
                if load in client.loads and number < wanted:
                    yield name, load, number


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("peers", type=Path, nargs="?", default=REPOSITORY / "build/peers")
    parser.add_argument("--raw", type=Path, required=True)
    parser.add_argument("--clients", nargs="+", choices=CLIENTS, default=list(CLIENTS))
    parser.add_argument("--loads", nargs="+", choices=LOADS, default=list(LOADS))
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    os.sched_setaffinity(0, {SERVER_CORE})
    # whatever it samples must not stand before the server; server and clients run as usual
    os.sched_setscheduler(0, os.SCHED_IDLE | os.SCHED_RESET_ON_FORK, os.sched_param(0))
    allow_open_files(max(load.concurrency for load in LOADS.values()))
    for client, load, number in _plan(options.clients, options.loads, options.rounds):
        began_s = time.monotonic()
        run = measure(client, load, number, options.peers.resolve())
        with options.raw.open("a") as file:
            file.write(json.dumps(asdict(run)) + "\n")
        told = run.failed or "done"
        sys.stderr.write(f"{number} {load} {client}: {told}, {time.monotonic() - began_s:.1f} s\n")


if __name__ == "__main__":
    main()
