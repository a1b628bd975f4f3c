"""A Ray cluster of several nodes on this machine, and a project that every node can read."""

import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil
import pytest

ray = pytest.importorskip("ray", reason="Ray is missing: pip install 'dflashbench[ray]'")

from ray.cluster_utils import Cluster  # noqa: E402  (after the skip)

from harness.cluster import head  # noqa: E402
from tests.harness import model_files  # noqa: E402

MATRIX = """
name: tiny
engines:
  scripted:
    adapter: dflash2
    command: ["{{python}}", "-m", "harness.scripted_server"{arguments}]
    resources: {{{resources}}}
variants:
  - {{name: plain, engine: scripted, target: model}}
  - name: DFlash2
    engine: scripted
    target: model
    drafter: {{method: dflash2, model: drafter, k: 7}}
workloads:
  - {{kind: generate, prompts: two, repetitions: {repetitions}, max_tokens: {max_tokens}}}
schedule: {{order: abba, boots: {boots}}}
"""

PROMPTS = {"p1": "Tell me of the sea.", "p2": "Write a loop in C, please."}


class Project:
    """Writes matrices that a cluster can run in seconds."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.results = path / "results"
        (path / "pyproject.toml").write_text("")
        for name in ("model", "drafter"):
            model_files.nothing(path / name)
        (path / "prompts").mkdir()
        rows = [
            {
                "id": prompt_id,
                "kind": "prose",
                "messages": [{"role": "user", "content": text}],
                "source": "made for this test",
                "licence": "CC0-1.0",
            }
            for prompt_id, text in PROMPTS.items()
        ]
        lines = "".join(json.dumps(row) + "\n" for row in rows)
        (path / "prompts" / "two.jsonl").write_text(lines)

    def matrix(
        self,
        *,
        resources: str = "box: 1",
        boots: int = 2,
        repetitions: int = 1,
        max_tokens: int = 8,
        arguments: tuple[str, ...] = (),
    ) -> Path:
        path = self.path / "tiny.yaml"
        path.write_text(
            MATRIX.format(
                resources=resources,
                boots=boots,
                repetitions=repetitions,
                max_tokens=max_tokens,
                arguments="".join(f', "{argument}"' for argument in arguments),
            )
        )
        return path


@pytest.fixture
def project(tmp_path: Path) -> Project:
    return Project(tmp_path)


@pytest.fixture(scope="module")
def ray_head() -> Iterator[Cluster]:
    """A cluster whose head offers nothing."""
    arguments = {"num_cpus": 0, "include_dashboard": False}
    cluster = Cluster(initialize_head=True, head_node_args=arguments)
    yield cluster
    cluster.shutdown()


@pytest.fixture
def add_machine(ray_head: Cluster, tmp_path: Path) -> Iterator[Callable[..., Any]]:
    """Adds a node whose device lock is its own, as on a machine of its own; gone after the test."""
    added = []

    def add(name: str, **resources: float) -> Any:
        folder = tmp_path / name
        folder.mkdir()
        added.append(
            ray_head.add_node(
                num_cpus=1,
                resources=resources,
                env_vars={"DFLASHBENCH_LOCK_DIR": str(folder)},
            )
        )
        return added[-1]

    yield add
    for node in added:
        if node in ray_head.worker_nodes:
            ray_head.remove_node(node)


@pytest.fixture
def _impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """A lost node is noticed within seconds."""
    monkeypatch.setattr(head, "ANSWER_S", 5.0)
    monkeypatch.setattr(head, "LEASE_S", 6.0)
    monkeypatch.setattr(head, "MACHINE_WAIT_S", 15.0)


class FarMachine:
    """A node behind a wire of its own, which can be cut."""

    def __init__(self, wire: str) -> None:
        self._wire = wire

    def cut(self) -> None:
        _ip("link", "set", self._wire, "down")


@pytest.fixture
def far_machine(ray_head: Cluster, tmp_path: Path) -> Iterator[FarMachine]:
    """A host in a network namespace, with resources `box: 1`; skipped where none can be made."""
    name = f"dfb{os.getpid() % 100000}"
    wire, folder = f"{name}a", tmp_path / "far"
    if os.geteuid() != 0 or shutil.which("ip") is None:
        pytest.skip("network namespaces need root and iproute2")
    try:
        _ip("netns", "add", name)
    except subprocess.CalledProcessError as error:
        pytest.skip(f"this machine makes no network namespaces: {error.stderr.decode().strip()}")
    folder.mkdir()
    try:
        _join(name, wire)
        with _ray_node(name, ray_head.address, folder) as node:
            _wait_until_alive(node, ray_head.address, 2)
            yield FarMachine(wire)
    finally:
        _ip("netns", "del", name)


def _join(name: str, wire: str) -> None:
    """10.77.0.1 here, 10.77.0.2 there, and everything there goes through the wire."""
    _ip("link", "add", wire, "type", "veth", "peer", "name", f"{name}b", "netns", name)
    _ip("addr", "add", "10.77.0.1/24", "dev", wire)
    _ip("link", "set", wire, "up")
    for command in (
        ("addr", "add", "10.77.0.2/24", "dev", f"{name}b"),
        ("link", "set", f"{name}b", "up"),
        ("link", "set", "lo", "up"),
        ("route", "add", "default", "via", "10.77.0.1"),
    ):
        _ip("-n", name, *command)


def _ip(*arguments: str) -> None:
    subprocess.run(["ip", *arguments], check=True, capture_output=True)


@contextmanager
def _ray_node(name: str, address: str, folder: Path) -> Iterator[subprocess.Popen[bytes]]:
    start = [
        *("ip", "netns", "exec", name, str(Path(sys.executable).with_name("ray")), "start"),
        *("--address", address, "--node-ip-address", "10.77.0.2", "--num-cpus", "1"),
        *("--resources", '{"box": 1}', "--block"),
    ]
    environment = {**os.environ, "DFLASHBENCH_LOCK_DIR": str(folder)}
    node = subprocess.Popen(start, env=environment, stdout=subprocess.DEVNULL)
    try:
        yield node
    finally:
        family = [*psutil.Process(node.pid).children(recursive=True), psutil.Process(node.pid)]
        for process in family:
            process.kill()
        node.wait()


def _wait_until_alive(
    node: subprocess.Popen[bytes], address: str, count: int, patience_s: float = 60.0
) -> None:
    """Until the cluster has `count` nodes."""
    end = time.monotonic() + patience_s
    while _num_alive(address) < count:
        assert node.poll() is None, "the node in the namespace did not start"
        assert time.monotonic() < end
        time.sleep(0.5)


def _num_alive(address: str) -> int:
    with head._connected(address):
        return len(head.machines())
