"""Facts about the machine and about files: stable, and silent about who and where."""

import json
import socket
import subprocess
from pathlib import Path

import msgspec
import psutil

from harness.records import Model, Where
from harness.run import files
from harness.run.machine import Sampler, commit_of, machine_facts


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
