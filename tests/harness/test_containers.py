"""Containers are started, identified and removed for certain, by a docker that really serves."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import psutil
import pytest

from harness import keys
from harness.config import load_matrix
from harness.errors import BootError, ConfigError, PortInUseError
from harness.records import Boot, Drafter, Engine, Model, Overlaid, Variant, Where
from harness.run import boot, containers, holders

WHERE = Where(run_id="20261130-night", session_id="s1", block_id="b1", boot_id="b1-s1")
IMAGE = "engines/scripted@sha256:" + "5" * 64
STOCK_ID = "sha256:" + "1" * 64
# printf 'patched\n' | sha256sum
PATCHED = "1094f4a608520e6cd87446d714acc1d2a9fab625af2e03e561bfa50639443eae"
# printf 'also\n' | sha256sum
ALSO = "c0cdfb7c4de8510f22682f9b439c6f5ce30c6c207fa7fa63e7a2eeaf73fe825b"


@pytest.fixture
def stub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The stub's folder; what it holds of containers when a test ends is removed."""
    home = tmp_path / "docker"
    (home / "containers").mkdir(parents=True)
    images = {IMAGE: {"Id": STOCK_ID, "RepoDigests": [IMAGE]}}
    (home / "images.json").write_text(json.dumps(images))
    program = tmp_path / "bin" / "docker"
    program.parent.mkdir()
    stub_docker = Path(__file__).with_name("stub_docker.py")
    program.write_text(f'#!/bin/sh\nexec "{sys.executable}" -I "{stub_docker}" "$@"\n')
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{program.parent}:{os.environ['PATH']}")
    monkeypatch.setenv("STUB_DOCKER", str(home))
    monkeypatch.setenv("PYTHONPATH", str(boot.PROJECT))
    yield home
    for name in kept(home):
        subprocess.run([program, "rm", "--force", name], check=True)


def variant(*command: str, drafter: Drafter | None = None, **changes: object) -> Variant:
    words = ("python", "-m", "harness.scripted_server", *command)
    facts = {"name": "e", "adapter": "dflash2", "kind": "container", "command": words}
    engine = Engine(**{**facts, "image": IMAGE, "ready_timeout_s": 60.0, **changes})  # type: ignore[arg-type]
    target = Model(name="scripted", path="owner/scripted")
    return Variant(name="plain", engine=engine, target=target, drafter=drafter)


def kept(stub: Path) -> list[str]:
    """Containers that docker knows, running or not."""
    return [path.stem for path in (stub / "containers").iterdir()]


def lives(pid: int) -> bool:
    return psutil.pid_exists(pid) and psutil.Process(pid).status() != psutil.STATUS_ZOMBIE


def told(stub: Path) -> dict[str, list[str]]:
    """The options that the one container was run with, as the stub read them."""
    (container,) = (stub / "containers").iterdir()
    options: dict[str, list[str]] = json.loads(container.read_text())["options"]
    return options


async def launched(of: Variant, folder: Path, where: Where = WHERE) -> boot.RunningEngine:
    engine = await boot.launch(of, {}, where, folder)
    try:
        await boot.wait_ready(engine, of.target.name)
    except BootError:
        await boot.stop(engine)
        raise
    return engine


async def booted(of: Variant, folder: Path) -> Boot:
    return await boot.stop(await launched(of, folder))


# --- start and stop -------------------------------------------------------------------------------


async def test_a_container_bears_the_runs_name_and_labels_and_leaves_nothing(stub, tmp_path):
    engine = await launched(variant(container_options=("--gpus", "all")), tmp_path)
    assert kept(stub) == ["dflashbench-20261130-night-b1-s1"]
    port = engine.boot.url.rpartition(":")[2]
    assert told(stub) == {
        "--name": ["dflashbench-20261130-night-b1-s1"],
        "--label": ["dflashbench.run=20261130-night", "dflashbench.boot=b1-s1"],
        "--publish": [f"127.0.0.1:{port}:{port}"],
        "--pull": ["never"],
        "--gpus": ["all"],
    }
    (server,) = engine.pids()
    assert "harness.scripted_server" in psutil.Process(server).cmdline()
    record = await boot.stop(engine)
    assert kept(stub) == []
    assert not lives(server)
    assert holders.listeners(int(port)) == ()
    assert record.version == "scripted"
    assert record.stopped_at is not None
    assert record.argv[:3] == ("python", "-m", "harness.scripted_server")
    assert record.argv[-4:-2] == ("--host", "0.0.0.0")


async def test_what_it_was_run_from_is_recorded(stub, tmp_path):
    cache = tmp_path / "cache"
    cache.mkdir()
    record = await booted(variant(mounts={str(cache): "/root/.cache"}), tmp_path)
    assert record.container is not None
    assert record.container.program == "docker"
    assert record.container.image == IMAGE
    assert record.container.image_id == STOCK_ID
    assert record.container.repo_digests == (IMAGE,)
    assert record.container.mounts == {"/root/.cache": "cache"}
    assert str(tmp_path) not in repr(record)  # folders are no fact of a run


async def test_a_model_that_is_a_folder_here_is_mounted_and_named_by_its_place(stub, tmp_path):
    target, drafter = tmp_path / "t", tmp_path / "d.gguf"
    target.mkdir()
    drafter.touch()
    of = variant(drafter=Drafter(method="dflash2", model=Model(name="d", path=str(drafter)), k=7))
    of = replace(of, target=Model(name="scripted", path=str(target)))
    engine = await launched(of, tmp_path)
    assert told(stub)["--mount"] == [
        f"type=bind,source={target},target=/models/target,readonly",
        f"type=bind,source={drafter},target=/models/drafter.gguf,readonly",
    ]
    words = " ".join((await boot.stop(engine)).argv)
    assert "--model /models/target --dflash2 on --dflash2-model /models/drafter.gguf " in words


async def test_values_of_variables_stand_on_no_command_line(stub, tmp_path):
    engine = await launched(variant(environment={"LEVEL": "3"}), tmp_path)
    assert told(stub)["--env"] == ["LEVEL"]
    assert engine.process is not None
    (server,) = engine.pids()
    assert psutil.Process(server).environ()["LEVEL"] == "3"
    await boot.stop(engine)


async def test_its_output_is_logged_with_the_marks_of_cells(stub, tmp_path):
    with pytest.raises(BootError, match="exit code 1 before it was ready") as caught:
        await launched(variant("--refuse-to-boot"), tmp_path)
    assert "| scripted engine: refusing to boot as asked" in str(caught.value)
    assert kept(stub) == []


async def test_a_mark_stands_in_the_containers_log(stub, tmp_path):
    engine = await launched(variant(), tmp_path)
    engine.mark("cell-1 warm-up")
    await boot.stop(engine)
    assert "--- dflashbench: cell-1 warm-up\n" in (tmp_path / "stderr.log").read_text()


async def test_a_port_that_docker_cannot_publish_is_named_as_such(stub, tmp_path, monkeypatch):
    first = await launched(variant(), tmp_path)
    taken = int(first.boot.url.rpartition(":")[2])
    monkeypatch.setattr(holders, "free_port", lambda: taken)
    where = replace(WHERE, boot_id="b2-s1")
    second = await boot.launch(variant(), {}, where, tmp_path)
    assert second.process is not None
    await second.process.wait()
    with pytest.raises(PortInUseError, match="port is already allocated"):
        await boot.wait_ready(second, "scripted")
    await boot.stop(first)
    await boot.stop(second)


async def test_what_a_killed_harness_left_is_found_by_its_labels_and_removed(stub, tmp_path):
    """Its `docker run` is gone, the container works on: only a daemon's word tells."""
    engine = await launched(variant(), tmp_path)
    other_run = replace(WHERE, run_id="20261201-night")
    other = await launched(variant(), tmp_path, other_run)
    assert engine.process is not None
    (server,) = engine.pids()
    engine.process.send_signal(signal.SIGKILL)
    await engine.process.wait()
    assert lives(server)
    assert boot.left_over([engine.boot]) == (engine.boot,)
    record = await boot.stop_left_over(engine.boot)
    assert record.error is not None
    assert not lives(server)
    assert kept(stub) == ["dflashbench-20261201-night-b1-s1"]  # another run's is not ours to end
    assert boot.left_over([engine.boot]) == ()
    await boot.stop(other)
    await engine.http.aclose()


async def test_a_container_that_ended_by_itself_is_left_over_until_it_is_removed(stub, tmp_path):
    engine = await boot.launch(variant("--refuse-to-boot"), {}, WHERE, tmp_path)
    assert engine.process is not None
    await engine.process.wait()
    assert boot.left_over([engine.boot]) == (engine.boot,)
    await boot.stop(engine)
    assert boot.left_over([engine.boot]) == ()


# --- identity -------------------------------------------------------------------------------------


async def test_a_patched_engine_is_another_one_than_the_stock_one(stub, tmp_path):
    patch = tmp_path / "dflash.py"
    patch.write_text("patched\n")
    place = "/vllm/dflash.py"
    overlaid = (Overlaid(path=str(patch), target=place, sha256=PATCHED),)
    stock, patched = variant(), variant(overlaid=overlaid)
    assert keys.subject_key(stock, {}, {}) != keys.subject_key(patched, {}, {})
    of_stock, of_patched = await booted(stock, tmp_path), await booted(patched, tmp_path)
    assert of_stock.version == of_patched.version
    assert of_stock.build != of_patched.build
    assert of_patched.container is not None
    assert of_patched.container.overlaid == {place: PATCHED}


async def test_another_image_is_another_engine_whatever_it_calls_itself(stub, tmp_path):
    first = await booted(variant(), tmp_path)
    images = {IMAGE: {"Id": "sha256:" + "2" * 64, "RepoDigests": None}}  # one that was built here
    (stub / "images.json").write_text(json.dumps(images))
    second = await booted(variant(), tmp_path)
    assert second.container is not None
    assert second.container.repo_digests == ()
    assert first.version == second.version
    assert first.build != second.build


@pytest.mark.parametrize(
    "change",
    [
        {"image": "engines/scripted@sha256:" + "6" * 64},
        {"overlaid": (Overlaid(path="/x", target="/vllm/dflash.py", sha256=ALSO),)},
        {"mounts": {"/x": "/vllm"}},
    ],
)
def test_image_overlay_and_mounts_enter_the_subject_key(change):
    of = variant(overlaid=(Overlaid(path="/x", target="/vllm/dflash.py", sha256=PATCHED),))
    other = replace(of, engine=replace(of.engine, **change))
    assert keys.subject_key(other, {}, {}) != keys.subject_key(of, {}, {})


def test_where_an_overlay_lies_on_this_machine_does_not_enter_the_subject_key():
    def at(path: str) -> str:
        overlaid = (Overlaid(path=path, target="/vllm/dflash.py", sha256=PATCHED),)
        return keys.subject_key(variant(overlaid=overlaid), {}, {})

    assert at("/here") == at("/there")


async def test_an_overlay_that_changed_since_the_run_began_is_refused(stub, tmp_path):
    patch = tmp_path / "dflash.py"
    patch.write_text("edited\n")
    overlaid = (Overlaid(path=str(patch), target="/vllm/dflash.py", sha256=PATCHED),)
    with pytest.raises(BootError, match="would measure another engine; restore it"):
        await boot.launch(variant(overlaid=overlaid), {}, WHERE, tmp_path)
    assert kept(stub) == []


# --- what is not there ----------------------------------------------------------------------------


async def test_an_image_that_is_not_here_is_not_pulled_but_named(stub, tmp_path):
    missing = "engines/other@sha256:" + "5" * 64
    with pytest.raises(BootError, match=f"fetch the image first: docker pull {missing}"):
        await boot.launch(variant(image=missing), {}, WHERE, tmp_path)


async def test_a_mount_of_nothing_is_refused(stub, tmp_path):
    with pytest.raises(BootError, match=r"`mounts` names /no/cache, and nothing is there"):
        await boot.launch(variant(mounts={"/no/cache": "/cache"}), {}, WHERE, tmp_path)


async def test_neither_docker_nor_podman(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(BootError, match="needs docker or podman, and neither is on the PATH"):
        await boot.launch(variant(), {}, WHERE, tmp_path)


async def test_podman_does_where_there_is_no_docker(stub, tmp_path, monkeypatch):
    docker = tmp_path / "bin" / "docker"
    docker.rename(docker.with_name("podman"))
    monkeypatch.setenv("PATH", f"{docker.parent}:/nowhere")
    assert containers.program() == "podman"


# --- in a matrix ----------------------------------------------------------------------------------


def loaded(folder: Path, engine: str):
    (folder / "pyproject.toml").touch()
    (folder / "prompts").mkdir(exist_ok=True)
    prompt = {"id": "p", "kind": "code", "source": "s", "licence": "l"}
    line = json.dumps({**prompt, "messages": [{"role": "user", "content": "Hi"}]})
    (folder / "prompts" / "one.jsonl").write_text(line + "\n")
    matrix = folder / "m.yaml"
    matrix.write_text(
        "name: m\n"
        f"engines:\n  e: {{adapter: dflash2, command: [x], {engine}}}\n"
        "variants:\n  - {name: v, engine: e, target: owner/model}\n"
        "workloads:\n  - {kind: generate, prompts: one, max_tokens: 9}\n"
    )
    return load_matrix(matrix).variants[0].engine


def test_each_file_of_an_overlay_is_laid_over_its_own_place(tmp_path):
    """A mounted folder would hide all that the image has beside them."""
    patch = tmp_path / "pr" / "vllm"
    (patch / "spec" / "__pycache__").mkdir(parents=True)
    (patch / "one.py").write_text("patched\n")
    (patch / "spec" / "two.py").write_text("also\n")
    (patch / "spec" / "__pycache__" / "two.pyc").touch()
    engine = loaded(tmp_path, f"kind: container, image: {IMAGE!r}, overlay: {{pr/vllm: /lib/vllm}}")
    assert engine.overlaid == (
        Overlaid(path=str(patch / "one.py"), target="/lib/vllm/one.py", sha256=PATCHED),
        Overlaid(path=str(patch / "spec/two.py"), target="/lib/vllm/spec/two.py", sha256=ALSO),
    )


def test_an_overlay_of_one_file(tmp_path):
    (tmp_path / "one.py").write_text("patched\n")
    engine = loaded(tmp_path, f"kind: container, image: {IMAGE!r}, overlay: {{one.py: /lib/x.py}}")
    assert [each.target for each in engine.overlaid] == ["/lib/x.py"]


@pytest.mark.parametrize(
    ("engine", "message"),
    [
        ("kind: container, image: 'vllm/vllm-openai:v0.27.1'", "a tag, which may be another one"),
        ("kind: container", "engine `e` of kind container needs `image`"),
        (f"image: '{IMAGE}'", "`image` means nothing for an engine of kind process"),
        ("mounts: {/x: /y}", "`mounts` means nothing for an engine of kind process"),
        (f"kind: container, image: '{IMAGE}', overlay: {{gone: /y}}", "there is no"),
        (f"kind: container, image: '{IMAGE}', mounts: {{/x: y}}", "a whole path in the container"),
        (f"kind: container, image: '{IMAGE}', mounts: {{/x: '/y,readonly'}}", "hold no comma"),
        (
            f"kind: container, image: '{IMAGE}', container_options: [-v, '/x:/y']",
            "write `mounts` or `overlay`, which count",
        ),
        (
            f"kind: container, image: '{IMAGE}', container_options: ['--network=host']",
            "published on 127.0.0.1 alone",
        ),
        (
            f"kind: container, image: '{IMAGE}', container_options: [-p9000:9000]",
            "write `port`, or leave it out",
        ),
        (
            f"kind: container, image: '{IMAGE}', container_options: [--rm]",
            "the harness finds, logs and removes its containers by it",
        ),
        ("port: 99999", "`port: 99999` must be at most 65535"),
    ],
)
def test_what_a_container_cannot_be_asked_for(tmp_path, engine, message):
    with pytest.raises(ConfigError) as caught:
        loaded(tmp_path, engine)
    assert message in str(caught.value)


def test_an_image_that_was_built_here_is_named_by_its_id(tmp_path):
    image = "sha256:" + "1" * 64
    assert loaded(tmp_path, f"kind: container, image: '{image}'").image == image
