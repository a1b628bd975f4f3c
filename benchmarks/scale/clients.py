"""What several clients carry: `python -m benchmarks.scale.clients --raw FILE [--rounds 3]`.

A local Ray cluster, the scripted server on a core of its own, and 1, 2 or 4 client actors on the
other. A machine of two cores has no four hosts, so each client gets a share of a core from the
kernel (`cpu.cfs_quota_us`, which needs root and cgroup v1), as if its host were that small. Loads
are arrivals at a constant rate, so that a client that falls behind cannot slow the load down.
Rounds alternate; each run is one line of FILE. `results.py` makes the table.
"""

import argparse
import asyncio
import json
import os
import sys
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

import psutil
import ray
from ray.cluster_utils import Cluster

from benchmarks.client.loads import Load
from benchmarks.client.server import CLIENT_CORE, MODEL, Truth, scripted_server
from benchmarks.client.told import percentile
from harness.cluster.clients import RayFleet
from harness.records import Timeouts
from harness.run.client import Endpoint
from harness.run.load import Load as Carried
from harness.run.load import Patience
from harness.run.spool import Spool, read_frames

CPU_SHARE = 0.1  # of a core, for each client
PERIOD_US = 10_000
CGROUP = Path("/sys/fs/cgroup/cpu/dflashbench")

NUM_EVENTS = 100
RATES_PER_S = {"light": 15.0, "heavy": 120.0}  # 32 and 260 in flight
DURATION_S = 6.0
NUM_CLIENTS = (1, 2, 4)
MOST_IN_FLIGHT = 320


@dataclass(frozen=True, kw_only=True)
class Run:
    """One load by so many clients, once. Times are seconds; `true_...` is what the server says."""

    load: str
    clients: int
    round: int
    num_requests: int
    num_failed: int
    ttft_p50: float
    ttft_p99: float
    true_ttft_p50: float
    sent_late_p99: float
    throughput_tok_per_s: float
    true_throughput_tok_per_s: float
    cpu_share_worst: float | None
    clock_bound_worst: float


def main() -> None:
    options = _options()
    with TemporaryDirectory() as folder, _cluster():
        for number in range(options.rounds):
            for load in RATES_PER_S:
                for clients in NUM_CLIENTS:
                    run = asyncio.run(measure(load, clients, number, Path(folder)))
                    with open(options.raw, "a", encoding="utf-8") as raw:
                        raw.write(json.dumps(asdict(run)) + "\n")
                    print(run, file=sys.stderr)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--raw", type=Path, required=True)
    parser.add_argument("--rounds", type=int, default=3)
    return parser.parse_args()


@contextmanager
def _cluster() -> Iterator[None]:
    cluster = Cluster(initialize_head=True, head_node_args={"include_dashboard": False})
    ray.init(address=cluster.address, log_to_driver=False)
    try:
        yield
    finally:
        ray.shutdown()
        cluster.shutdown()
        for group in CGROUP.parent.glob(f"{CGROUP.name}-*"):
            group.rmdir()  # its process has ended


# --- one run --------------------------------------------------------------------------------------


async def measure(name: str, clients: int, number: int, folder: Path) -> Run:
    rate_per_s = RATES_PER_S[name]
    count = round(rate_per_s * DURATION_S)
    load = Load(concurrency=MOST_IN_FLIGHT, num_requests=count, num_events=NUM_EVENTS)
    spool = folder / f"{name}.{clients}.{number}"
    fleet = RayFleet(transport_name="asyncio", near=None)
    with scripted_server(load) as server, _small_hosts():
        carried = await _carry(fleet, server.url, clients, rate_per_s, count, spool)
        truth = server.truth(load)
    fleet.close()
    return _told(name, clients, number, carried, truth, spool)


async def _carry(
    fleet: RayFleet, url: str, clients: int, rate_per_s: float, count: int, path: Path
) -> Carried:
    endpoint = Endpoint.of(url, "/v1/chat/completions", {})
    body = {"model": MODEL, "stream": True, "max_tokens": NUM_EVENTS}
    body["messages"] = [{"role": "user", "content": "a"}]
    spool = Spool(path)
    carried = await fleet.run_load(
        "constant",
        [endpoint.encode(json.dumps(body).encode())] * count,
        clients=clients,
        endpoint=endpoint,
        timeouts=Timeouts(),
        concurrency=MOST_IN_FLIGHT,
        arrivals_s=[n / rate_per_s for n in range(count)],
        retries=0,
        patience=Patience(limit=count),
        spool=spool,
    )
    await asyncio.to_thread(spool.finish, b"")
    return carried


def _told(name: str, clients: int, number: int, carried: Carried, truth: Truth, spool: Path) -> Run:
    first_ns: dict[int, int] = {}
    last_ns: defaultdict[int, int] = defaultdict(int)
    for exchange, at_ns, data in read_frames(spool):
        if data:
            first_ns.setdefault(exchange, at_ns)
            last_ns[exchange] = max(last_ns[exchange], at_ns)
    whole = [each for each in carried.exchanges if each.error is None]
    ttft_s = [(first_ns[each.number] - each.t0_ns) / 1e9 for each in whole]
    window_s = (max(last_ns.values()) - min(each.t0_ns for each in whole)) / 1e9
    cpu_shares = [share.cpu_share for share in carried.clients if share.cpu_share is not None]
    return Run(
        load=name,
        clients=clients,
        round=number,
        num_requests=len(carried.exchanges),
        num_failed=len(carried.exchanges) - len(whole),
        ttft_p50=percentile(ttft_s, 50),
        ttft_p99=percentile(ttft_s, 99),
        true_ttft_p50=percentile(truth.ttft_s, 50),
        sent_late_p99=percentile([(each.t0_ns - each.t_sched_ns) / 1e9 for each in whole], 99),
        throughput_tok_per_s=len(whole) * NUM_EVENTS / window_s,
        true_throughput_tok_per_s=truth.num_events / truth.window_s,
        cpu_share_worst=max(cpu_shares, default=None),
        clock_bound_worst=max(share.clock_bound_s for share in carried.clients),
    )


# --- small hosts ----------------------------------------------------------------------------------


@contextmanager
def _small_hosts() -> Iterator[None]:
    """Give every client that appears its share of the client core."""
    watching = asyncio.get_running_loop().create_task(_limit_clients())
    try:
        yield
    finally:
        watching.cancel()


async def _limit_clients() -> None:
    seen: set[int] = set()
    while True:
        for process in psutil.process_iter(["cmdline"]):  # Ray renames a worker, names are cached
            words = process.info["cmdline"] or [""]
            if process.pid not in seen and words[0].startswith("ray::Client"):
                seen.add(process.pid)
                _limit(process.pid)
        await asyncio.sleep(0.05)


def _limit(pid: int) -> None:
    group = CGROUP.with_name(f"{CGROUP.name}-{pid}")
    group.mkdir(exist_ok=True)
    (group / "cpu.cfs_period_us").write_text(str(PERIOD_US))
    (group / "cpu.cfs_quota_us").write_text(str(round(PERIOD_US * CPU_SHARE)))
    (group / "cgroup.procs").write_text(str(pid))
    os.sched_setaffinity(pid, {CLIENT_CORE})


if __name__ == "__main__":
    main()
