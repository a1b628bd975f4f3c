"""Facts about the machine and about files: stable, and silent about who and where."""

import asyncio
import json
import os
import socket
import subprocess
from collections.abc import Callable
from pathlib import Path

import msgspec
import psutil
import pytest

from harness.adapters.vllm_memory import memory_facts
from harness.records import Model, Where
from harness.run import files
from harness.run.machine import MemoryPeak, Sampler, commit_of, machine_facts, memory_now


def test_the_hosts_name_is_only_hashed():
    facts = machine_facts()
    assert socket.gethostname() not in msgspec.json.encode(facts).decode()
    assert facts.hostname_hash == machine_facts().hostname_hash
    assert facts.num_cpus >= 1
    assert facts.packages["httpx"]


def test_samples_hold_client_and_engine_and_the_peak_is_kept():
    sampler = Sampler(Where(run_id="r", session_id="s1"), [psutil.Process().pid])
    sampler.sample()
    (sample,) = sampler.take()
    assert sample.engine_rss_bytes == sampler.engine_peak_bytes
    assert sample.client_rss_bytes
    assert sampler.take() == []


def test_without_an_engine_process_there_is_no_engine_memory():
    sampler = Sampler(Where(run_id="r", session_id="s1"), [])
    sampler.sample()
    assert sampler.take()[0].engine_rss_bytes is None
    assert sampler.engine_peak_bytes is None


# --- where an engine's memory is ------------------------------------------------------------------

GIB = 2**30
NVIDIA_SMI = """#!/bin/sh
case "$*" in
*--loop*)
    while :; do
        echo "0, 1980, 600.0, 61, $(cat {used}), 0x0000000000000000"
        sleep 0.1
    done ;;
*) cat {used} ;;
esac
"""


@pytest.fixture
def host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[int], None]:
    """Sets the gibibytes that the host has available, of 128: a /proc with a meminfo of ours."""
    proc = tmp_path / "proc"
    proc.mkdir()
    for name in ("stat", str(os.getpid())):
        (proc / name).symlink_to(Path("/proc", name))
    monkeypatch.setattr(psutil, "PROCFS_PATH", str(proc))

    def available(gibibytes: int) -> None:
        none = dict.fromkeys(("Buffers", "Cached", "Shmem", "Active", "Inactive", "Slab"), 0)
        kib = gibibytes << 20
        lines = {"MemTotal": 128 << 20, "MemFree": kib, "MemAvailable": kib, **none}
        text = "".join(f"{name}: {value} kB\n" for name, value in lines.items())
        (proc / "meminfo").write_text(text)

    available(128)
    return available


@pytest.fixture
def accelerator(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """Sets what nvidia-smi says of the memory in use, in MiB."""
    used, program = tmp_path / "used", tmp_path / "bin" / "nvidia-smi"
    program.parent.mkdir()
    program.write_text(NVIDIA_SMI.format(used=used))
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{program.parent}{os.pathsep}{os.environ['PATH']}")

    def says(text: str) -> None:
        used.write_text(text + "\n")

    return says


async def peak_of(
    sampler: Sampler, monkeypatch: pytest.MonkeyPatch, change: Callable[[], None]
) -> MemoryPeak | None:
    """After the engine took what it takes."""
    monkeypatch.setattr("harness.run.machine.SAMPLE_EVERY_S", 0.05)
    sampling = asyncio.create_task(sampler.run())
    change()
    for _ in range(100):
        await asyncio.sleep(0.05)
        if any(sample.accelerators for sample in sampler.take()):
            break
    await asyncio.sleep(0.5)
    sampling.cancel()
    await asyncio.gather(sampling, return_exceptions=True)
    return sampler.memory_peak


async def test_an_accelerator_that_tells_its_memory_tells_what_the_engine_took(
    accelerator, host, monkeypatch
):
    accelerator("1024")
    sampler = Sampler(Where(run_id="r", session_id="s1"), [], memory_now())

    peak = await peak_of(sampler, monkeypatch, lambda: accelerator("71680"))

    assert peak == MemoryPeak(peak_bytes=69 * GIB, read_from="accelerators")


async def test_where_memory_is_shared_the_host_tells_for_the_accelerator_does_not(
    accelerator, host, monkeypatch
):
    accelerator("[N/A]")
    before = memory_now()
    assert before.accelerators_bytes is None
    sampler = Sampler(Where(run_id="r", session_id="s1"), [], before)

    peak = await peak_of(sampler, monkeypatch, lambda: host(48))

    assert peak == MemoryPeak(peak_bytes=80 * GIB, read_from="host")


def test_without_an_accelerator_the_engines_processes_tell():
    sampler = Sampler(Where(run_id="r", session_id="s1"), [psutil.Process().pid], memory_now())
    sampler.sample()

    (sample,) = sampler.take()
    assert sampler.memory_peak == MemoryPeak(
        peak_bytes=sample.engine_rss_bytes, read_from="resident set"
    )


def test_an_engine_that_was_there_before_has_no_memory_of_its_own():
    sampler = Sampler(Where(run_id="r", session_id="s1"), [])
    sampler.sample()

    assert sampler.memory_peak is None


def test_vllms_log_says_why_a_drafter_leaves_less_room():
    """The lines of vLLM 0.32 on a GPU, by its source; the groups are of target and drafter."""
    log = (
        "INFO [model_runner.py:425] Model loading took 28.61 GiB memory and 61.2 seconds\n"
        "INFO [gpu_worker.py:759] Available KV cache memory: 61.5 GiB\n"
        "INFO [kv_cache_utils.py:853] kv cache group sizes (16, 16)\n"
    )

    assert memory_facts(log) == {
        "weights_memory_bytes": round(28.61 * GIB),
        "kv_memory_bytes": round(61.5 * GIB),
        "kv_groups": 2,
    }
    assert memory_facts("kv cache group sizes (16,)") == {"kv_groups": 1}
    assert memory_facts("") == {}


def git(folder: Path, *arguments: str) -> None:
    identity = ["-c", "user.name=t", "-c", "user.email=t@example.org"]
    subprocess.run(["git", "-C", str(folder), *identity, *arguments], check=True)


def test_commit_and_dirtiness(tmp_path):
    assert commit_of(tmp_path) == (None, None)
    git(tmp_path, "init", "-q")
    (tmp_path / "a").write_text("1")
    git(tmp_path, "add", "a")
    git(tmp_path, "commit", "-qm", "one")
    commit, dirty = commit_of(tmp_path)
    assert commit is not None
    assert dirty is False
    (tmp_path / "new results").write_text("")  # untracked files are no change
    assert commit_of(tmp_path) == (commit, False)
    (tmp_path / "a").write_text("2")
    assert commit_of(tmp_path) == (commit, True)


# --- model files ----------------------------------------------------------------------------------


def model_folder(path: Path, *, byte: int = 0, size: int = 3 << 20) -> Model:
    path.mkdir(exist_ok=True)
    header = json.dumps({"w": {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}}).encode()
    body = bytearray(size)
    body[-1] = byte
    (path / "model.safetensors").write_bytes(len(header).to_bytes(8, "little") + header + body)
    (path / "config.json").write_text('{"hidden_size": 8}')
    (path / "README.md").write_text("not part of it")
    return Model(name="m", path=str(path))


def test_a_model_is_its_files_and_not_its_folder(tmp_path):
    here, there = model_folder(tmp_path / "a"), model_folder(tmp_path / "b")
    assert files.identity(here)["hash"] == files.identity(there)["hash"]
    assert files.identity(here)["config"] == {"hidden_size": 8}
    assert set(files.identity(here)["files"]) == {"model.safetensors", "config.json"}


def test_one_other_byte_at_the_end_is_another_model(tmp_path):
    before = files.identity(model_folder(tmp_path / "a"))
    after = files.identity(model_folder(tmp_path / "a", byte=1))
    assert before["hash"] != after["hash"]


def test_a_model_elsewhere_is_known_by_name():
    entry = files.identity(Model(name="q", path="org/q"))
    assert entry["hash"] is None
    assert files.hashes({"q": entry}) == {}
