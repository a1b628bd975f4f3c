"""Clients that share a repetition: every request once, one begin, moments on one clock."""

import asyncio
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
import ray

from harness.cluster import clients, head
from harness.cluster.clients import ClientLostError, Clock, RayFleet, shares_of
from harness.records import RepetitionEnd, Request, Timeouts
from harness.run import commands
from harness.run.client import Endpoint
from harness.run.load import Load, Patience
from harness.run.progress import PlainLines
from harness.run.spool import Spool, read_frames
from harness.scripted_server import Received, Script, serving

from .conftest import Project

# --- by hand --------------------------------------------------------------------------------------


def test_requests_and_places_are_dealt_out_whole() -> None:
    requests = [bytes([n]) for n in range(7)]
    shares = shares_of("closed", requests, 3, 5, [], 1)
    assert [share.numbers for share in shares] == [(0, 3, 6), (1, 4), (2, 5)]
    assert [share.requests for share in shares] == [
        (b"\0", b"\3", b"\6"),
        (b"\1", b"\4"),
        (b"\2", b"\5"),
    ]
    assert [share.concurrency for share in shares] == [2, 2, 1]


def test_each_client_keeps_the_arrivals_of_its_own_requests() -> None:
    shares = shares_of("constant", [b"a", b"b", b"c"], 2, 4, [0.0, 0.5, 1.0], 0)
    assert [share.arrivals_s for share in shares] == [(0.0, 1.0), (0.5,)]


def test_a_clock_is_translated_there_and_back() -> None:
    ahead = Clock(offset_ns=1500, bound_ns=10)  # it shows 1500 when ours shows 0
    assert ahead.theirs(100) == 1600
    assert ahead.ours(1600) == 100


def test_the_middle_of_two_readings_owns_up_to_the_drift_between_them() -> None:
    found = clients._between(Clock(offset_ns=100, bound_ns=30), Clock(offset_ns=160, bound_ns=20))
    assert found == Clock(offset_ns=130, bound_ns=60)  # 30, and half of 60


@pytest.mark.parametrize(
    ("spans", "most"),
    [([(0, 10), (10, 20)], 1), ([(0, 11), (10, 20)], 2), ([(0, 9), (1, 8), (2, 3), (4, 5)], 3)],
)
def test_the_most_at_once_is_counted_over_all_clients(
    spans: list[tuple[int, int]], most: int
) -> None:
    assert clients._most_at_once(spans) == most


# --- against a server -----------------------------------------------------------------------------


@pytest.fixture
def _connected(ray_head: Any) -> Iterator[None]:
    ray.init(address=ray_head.address, log_to_driver=False)
    yield
    ray.shutdown()


def slow_answer(received: Received) -> Script:
    """The request's own body back after 0.2 s."""
    return Script(sends=[(0.2, b"data: " + received.body + b"\n\n")])


async def load_by(
    fleet: RayFleet, address: str, spool: Path, num_requests: int, num_clients: int
) -> Load:
    endpoint = Endpoint.of(address, "/v1/chat/completions", {})
    file = Spool(spool)
    load = await fleet.run_load(
        "closed",
        [endpoint.encode(b'{"n": %d}' % n) for n in range(num_requests)],
        clients=num_clients,
        endpoint=endpoint,
        timeouts=Timeouts(),
        concurrency=num_clients * 2,
        arrivals_s=(),
        retries=0,
        patience=Patience(limit=99),
        spool=file,
    )
    await asyncio.to_thread(file.finish, b"")
    return load


@pytest.mark.usefixtures("_connected")
async def test_two_clients_send_every_request_once_and_begin_together(tmp_path: Path) -> None:
    fleet = RayFleet(transport_name="asyncio", near=None)
    with serving(slow_answer) as server:
        before_ns = time.perf_counter_ns()
        load = await load_by(fleet, server.url, tmp_path / "spool", 11, 2)
        after_ns = time.perf_counter_ns()
    fleet.close()
    asked = Counter(answer.received.body for answer in server.answers)
    assert asked == {b'{"n": %d}' % n: 1 for n in range(11)}
    assert [exchange.number for exchange in load.exchanges] == list(range(11))
    assert all(before_ns < each.t0_ns < each.end_ns < after_ns for each in load.exchanges)
    first = sorted(exchange.t0_ns for exchange in load.exchanges)[:4]
    assert first[-1] - first[0] < 100e6  # four places; the fifth waits for an answer of 200 ms
    assert len({exchange.t_sched_ns for exchange in load.exchanges[:4]}) <= 2
    assert load.in_flight_max == 4
    reads = {number: data for number, _, data in read_frames(tmp_path / "spool") if data}
    assert reads[7] == b'data: {"n": 7}\n\n'


@pytest.mark.usefixtures("_connected")
async def test_a_clock_on_this_machine_is_found_to_be_ours_within_its_bound(
    tmp_path: Path,
) -> None:
    """perf_counter counts from one moment in all processes of a machine."""
    fleet = RayFleet(transport_name="asyncio", near=None)
    with serving(slow_answer) as server:
        load = await load_by(fleet, server.url, tmp_path / "spool", 4, 2)
    fleet.close()
    assert [share.num_requests for share in load.clients] == [2, 2]
    for share in load.clients:
        assert abs(share.clock_offset_s) <= share.clock_bound_s
        assert share.clock_bound_s < 0.05


@pytest.mark.usefixtures("_connected")
async def test_a_client_that_dies_ends_the_repetition_in_bounded_time(tmp_path: Path) -> None:
    fleet = RayFleet(transport_name="asyncio", near=None)

    others = {process.pid for process in _clients()}

    async def kill_one() -> None:
        while not (ours := [each for each in _clients() if each.pid not in others]):
            await asyncio.sleep(0.5)
        ours[0].kill()

    with serving(lambda _: Script(sends=[(60.0, b"data: late\n\n")])) as server:
        killing = asyncio.create_task(kill_one())
        with pytest.raises(ClientLostError, match="one of 2 clients was lost"):
            async with asyncio.timeout(60.0):
                await load_by(fleet, server.url, tmp_path / "spool", 4, 2)
        await killing


def _clients() -> list[psutil.Process]:
    """Of any cluster on this machine."""
    return [
        each for each in psutil.process_iter() if "ray::Client" in " ".join(_command_line(each))
    ]


def _command_line(process: psutil.Process) -> list[str]:
    try:
        return process.cmdline()
    except psutil.Error:
        return []


# --- in a matrix ----------------------------------------------------------------------------------

SHARED = """
name: shared
engines:
  scripted:
    adapter: dflash2
    command: ["{python}", "-m", "harness.scripted_server"]
variants:
  - {name: plain, engine: scripted, target: model}
workloads:
  - kind: concurrency
    load: closed
    prompts: two
    levels: [1, 4]
    num_requests: 8
    repetitions: 1
    max_tokens: 8
    clients: 3
schedule: {order: listed, boots: 1}
"""


def test_a_matrix_says_how_many_clients_share_a_load(
    ray_head: Any, add_machine: Any, project: Project
) -> None:
    add_machine("only")
    path = project.path / "shared.yaml"
    path.write_text(SHARED)
    folder = head.run_matrix(
        path, results_dir=project.results, progress=PlainLines(), address=ray_head.address
    )
    assert commands.exit_code(folder) == 0
    measured = [end for end in folder.read(RepetitionEnd) if (end.where.repetition or 0) >= 0]
    shares = sorted([s.concurrency for s in end.clients or ()] for end in measured)
    assert shares == [[1], [2, 1, 1]]  # at most c clients
    requests = [r for r in folder.usable(Request) if (r.where.repetition or 0) >= 0]
    assert Counter(request.status for request in requests) == {"ok": 16}
    assert all(0 < (r.ttft_s or 0) < r.wall_s for r in requests)


def test_without_a_cluster_such_a_load_is_refused(project: Project) -> None:
    path = project.path / "shared.yaml"
    path.write_text(SHARED)
    with pytest.raises(commands.UsageError, match="add --on ray"):
        commands.run_matrix(path, results_dir=project.results, progress=PlainLines())
