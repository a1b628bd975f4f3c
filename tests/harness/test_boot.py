"""Engines are started, awaited and stopped for certain; what goes wrong says what to do."""

import asyncio
import os
import re
import socket
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import httpx
import psutil
import pytest

from harness.errors import BootError, PortInUseError
from harness.records import Boot, Engine, Model, Variant, Where
from harness.run import boot, holders, processes
from harness.scripted_server import DONE, Received, Script, chunk, event, page, serving

WHERE = Where(run_id="r", session_id="s1", block_id="b1", boot_id="b1-s1")
SCRIPTED = ("{python}", "-m", "harness.scripted_server")


def variant(*command: str, adapter: str = "dflash2", timeout_s: float = 60.0, **changes) -> Variant:
    facts = {"name": "e", "adapter": adapter, "kind": "process", "command": command}
    engine = Engine(**{**facts, "ready_timeout_s": timeout_s, **changes})
    return Variant(name="plain", engine=engine, target=Model(name="scripted", path="scripted"))


async def booted(of: Variant, folder: Path, model: str = "scripted") -> Boot:
    """Start, wait, stop; the last record."""
    engine = await boot.launch(of, {}, WHERE, folder)
    error = None
    try:
        await boot.wait_ready(engine, model)
    except BootError as failure:
        error = str(failure)
        raise
    finally:
        last = await boot.stop(engine, error=error)
    return last


def lives(pid: int) -> bool:
    return psutil.pid_exists(pid) and psutil.Process(pid).status() != psutil.STATUS_ZOMBIE


async def test_a_boot_is_described_and_leaves_no_process(tmp_path):
    record = await booted(variant(*SCRIPTED), tmp_path)
    assert record.pid is not None
    assert not lives(record.pid)
    assert record.ready_s is not None
    assert record.ready_s > 0
    assert record.argv[0] == "{python}"
    assert record.version == "scripted"
    assert record.health is not None
    assert record.health["block"] == 8
    assert record.exit_code == -15
    assert record.stopped_at is not None
    assert record.build is not None


async def test_an_engine_that_ends_early_is_quoted(tmp_path):
    with pytest.raises(BootError, match="exit code 1 before") as caught:
        await booted(variant(*SCRIPTED, "--refuse-to-boot"), tmp_path)
    assert "| scripted engine: refusing to boot as asked" in str(caught.value)


async def test_a_program_that_is_not_there(tmp_path):
    with pytest.raises(BootError, match="'no-such-engine' cannot be started"):
        await boot.launch(variant("no-such-engine"), {}, WHERE, tmp_path)


async def test_an_engine_that_is_never_ready_is_stopped(tmp_path):
    sleeper = variant(
        "{python}", "-c", "import time; time.sleep(60)", "{port}", adapter="openai", timeout_s=1.0
    )
    with pytest.raises(BootError, match=r"not ready in 1 s.*raise ready_timeout_s"):
        await booted(sleeper, tmp_path)


async def test_another_model_name_is_the_engines_own_words(tmp_path):
    with pytest.raises(BootError, match=re.escape("HTTP 404: ")) as caught:
        await booted(variant(*SCRIPTED), tmp_path, model="other")
    assert "'other' is not served here" in str(caught.value)


async def test_a_port_that_was_taken_meanwhile(tmp_path, monkeypatch):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        monkeypatch.setattr(holders, "free_port", lambda: taken.getsockname()[1])
        with pytest.raises(PortInUseError, match="another process took the port"):
            await booted(variant(*SCRIPTED), tmp_path)


@pytest.fixture
def stranger():
    """A server that the harness did not start, and its port."""
    port = holders.free_port()
    words = [sys.executable, "-m", "harness.scripted_server", "--port", str(port)]
    process = subprocess.Popen(words, cwd=boot.PROJECT)
    while not holders.listeners(port):
        time.sleep(0.05)
    yield process.pid, port
    process.terminate()
    process.wait()


async def test_a_given_port_is_taken(tmp_path):
    port = holders.free_port()
    record = await booted(variant(*SCRIPTED, port=port), tmp_path)
    assert record.url == f"http://127.0.0.1:{port}"
    assert record.argv[-2:] == ("--port", str(port))


async def test_a_given_port_that_somebody_has_is_refused_before_anything_starts(tmp_path, stranger):
    pid, port = stranger
    with pytest.raises(
        PortInUseError, match=rf"`port: {port}` is held by process {pid} \(.*"
    ) as no:
        await boot.launch(variant(*SCRIPTED, port=port), {}, WHERE, tmp_path)
    assert f"-m harness.scripted_server --port {port})" in str(no.value)
    assert list(tmp_path.iterdir()) == []


async def test_an_answer_of_another_process_is_not_the_engines(tmp_path, stranger, monkeypatch):
    """It serves the right model on the right port, and is not what was started."""
    pid, port = stranger
    monkeypatch.setattr(holders, "free_port", lambda: port)
    of = variant("{python}", "-c", "import time; time.sleep(60)", "{port}", adapter="openai")
    with pytest.raises(PortInUseError, match=f"port {port} is answered by process {pid} "):
        await booted(of, tmp_path)


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere sockets are shared otherwise")
async def test_a_second_listener_on_a_shared_port_is_refused():
    """As llama-server lets it happen: half of the requests would be another's."""
    port, pid = holders.free_port(), os.getpid()
    with listening(port), subprocess.Popen([sys.executable, "-c", SHARES, str(port)]) as other:
        while len(holders.listeners(port)) < 2:
            await asyncio.sleep(0.05)
        holders.refuse_foreign(port, [pid, other.pid])
        with pytest.raises(PortInUseError, match=f"answered by process {other.pid} "):
            holders.refuse_foreign(port, [pid])
        other.kill()


def test_a_socket_that_outlives_its_process_for_a_moment_is_nobodys(monkeypatch):
    """As when llama-server aborts between its answer and our question whose it was."""
    monkeypatch.setattr(holders, "_NAMELESS_S", 0.01)
    nameless, seen = holders.Holder(pid=None, command=""), [1, 0]
    monkeypatch.setattr(holders, "listeners", lambda port: (nameless,) * seen.pop(0))
    holders.refuse_foreign(8080, [4711])
    assert seen == []
    monkeypatch.setattr(holders, "listeners", lambda port: (nameless,))
    with pytest.raises(PortInUseError, match="port 8080 is answered by a process of another user"):
        holders.refuse_foreign(8080, [4711])


def listening(port: int) -> socket.socket:
    made = socket.socket()
    made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
    made.bind(("127.0.0.1", port))
    made.listen()
    return made


SHARES = """
import sys, time
from tests.harness.test_boot import listening
server = listening(int(sys.argv[1]))
time.sleep(60)
"""


async def test_a_port_that_stays_held_after_the_stop_is_told(monkeypatch):
    monkeypatch.setattr(holders, "RELEASE_S", 0.1)
    port = holders.free_port()
    with listening(port), pytest.raises(BootError, match=rf"process {os.getpid()} .*still listens"):
        await holders.wait_released(port, [])
    await holders.wait_released(port, [])


ACCELERATORS = """#!/bin/sh
test -e "$0.asked" || echo 4711
touch "$0.asked"
echo 4712
"""


async def test_a_stop_waits_until_no_accelerator_works_for_the_engine(tmp_path, monkeypatch):
    """The driver frees memory a little after the process ended; 4712 is somebody else."""
    tool = tmp_path / "nvidia-smi"
    tool.write_text(ACCELERATORS)
    tool.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    await holders.wait_released(None, [4711])
    assert (tmp_path / "nvidia-smi.asked").exists()
    monkeypatch.setattr(holders, "RELEASE_S", 0.1)
    with pytest.raises(BootError, match="process 4712 still holds memory of an accelerator"):
        await holders.wait_released(None, [4712])


async def test_another_model_than_was_asked_for_is_refused(tmp_path):
    """llama-server answers to any name."""

    def respond(received: Received) -> Script:
        if received.path == "/v1/chat/completions":
            return Script(sends=[(0, DONE)])
        return page('{"data": [{"id": "smollm2", "aliases": ["small"]}]}')

    with serving(respond) as server:
        of = variant(adapter="llamacpp", kind="attach", url=server.url)
        with pytest.raises(BootError, match="serves smollm2, small and not scripted, the target"):
            await booted(of, tmp_path)
        by_alias = replace(of, target=Model(name="small", path="small"))
        await booted(by_alias, tmp_path, model="small")


STUBBORN = """
import os, signal, subprocess, sys, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
child = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); time.sleep(99)"
processes = [
    subprocess.Popen([sys.executable, "-c", child]),
    subprocess.Popen([sys.executable, "-c", child], start_new_session=True),
]
print(*(process.pid for process in processes), flush=True)
time.sleep(99)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux ends a process with its parent")
def test_an_engine_dies_with_a_harness_that_is_killed(tmp_path):
    harness = subprocess.Popen(
        [sys.executable, "-c", HARNESS, str(tmp_path)], cwd=boot.PROJECT, stdout=subprocess.PIPE
    )
    assert harness.stdout is not None
    engine = psutil.Process(int(harness.stdout.readline()))
    try:
        assert engine.is_running()
        harness.kill()
        harness.communicate()
        psutil.wait_procs([engine], timeout=60)
        assert not lives(engine.pid)
    finally:
        harness.kill()


HARNESS = """
import asyncio, sys
from pathlib import Path
from harness.run import boot, holders, processes
from tests.harness.test_boot import WHERE, sleeping, variant

async def main():
    engine = await boot.launch(variant(*sleeping(), adapter="openai"), {}, WHERE, Path(sys.argv[1]))
    print(engine.boot.pid, flush=True)
    await asyncio.sleep(600)

asyncio.run(main())
"""


async def test_whatever_an_engine_started_is_ended_with_it(tmp_path, monkeypatch):
    monkeypatch.setattr(processes, "GRACE_S", 1.5)
    stubborn = variant("{python}", "-c", STUBBORN, "{port}", adapter="openai")
    engine = await boot.launch(stubborn, {}, WHERE, tmp_path)
    log = tmp_path / "stdout.log"
    while not log.read_text():
        await asyncio.sleep(0.05)
    children = [int(pid) for pid in log.read_text().split()]
    assert all(lives(pid) for pid in children)
    record = await boot.stop(engine)
    assert record.pid is not None
    assert not any(lives(pid) for pid in (record.pid, *children))
    assert record.exit_code == -9


RECORDED = Path(__file__).parent / "recorded"
SAYS = "import sys; print(open(sys.argv[1]).read(), flush=True); sys.exit('the end')"


async def test_known_last_words_come_with_advice(tmp_path):
    """And both logs are quoted: vLLM writes its own to stdout."""
    log = RECORDED / "llamacpp" / "memory_failed.log"
    failing = variant("{python}", "-c", SAYS, str(log), "{port}", adapter="llamacpp")
    engine = await boot.launch(failing, {}, WHERE, tmp_path)
    with pytest.raises(BootError) as caught:
        await boot.wait_ready(engine, "demo")
    await boot.stop(engine)
    message = str(caught.value)
    assert "insufficient memory (attempted to allocate 97656.25 MB)': memory ran out: a lower" in (
        message
    )
    assert "stderr.log:\n  | the end\n" in message
    assert message.endswith(
        "  | 0.01.307.873 E srv  llama_server: exiting due to model loading error"
    )


async def test_a_port_that_llama_server_cannot_have_is_named_as_such(tmp_path):
    log = RECORDED / "llamacpp" / "port_failed.log"
    failing = variant("{python}", "-c", SAYS, str(log), "{port}", adapter="llamacpp")
    engine = await boot.launch(failing, {}, WHERE, tmp_path)
    with pytest.raises(PortInUseError, match="another process took the port"):
        await boot.wait_ready(engine, "demo")
    await boot.stop(engine)


async def test_what_a_ready_engine_complains_of_is_recorded(tmp_path):
    """A refused drafter: llama-server goes on without, and what it wrote stands in the record."""

    def respond(received: Received) -> Script:
        if received.path == "/v1/chat/completions":
            return Script(sends=[(0, DONE)])
        return page("{}")

    log = (RECORDED / "llamacpp" / "refused_drafter.log").read_text()
    (tmp_path / "stderr.log").write_text(log)
    with serving(respond) as server:
        of = variant(*sleeping(), adapter="llamacpp")
        engine = await boot.launch(of, {}, WHERE, tmp_path)
        await engine.http.aclose()
        engine.http = httpx.AsyncClient(base_url=server.url, trust_env=False)
        await boot.wait_ready(engine, "scripted")
        record = await boot.stop(engine)
    assert record.health is not None
    (remark,) = record.health["remarks"]
    assert "vocabs are not compatible': llama-server goes on without the drafter" in remark


async def test_secrets_are_used_but_not_recorded(tmp_path, monkeypatch):
    monkeypatch.setenv("MY_KEY", "s3cret")
    environment = {"HF_TOKEN": "s3cret", "LEVEL": "3"}
    of = variant(*SCRIPTED, api_key_env="MY_KEY", environment=environment)
    engine = await boot.launch(of, {}, WHERE, tmp_path)
    record = await boot.stop(engine)
    assert engine.headers == {"Authorization": "Bearer s3cret"}
    assert record.environment == {"HF_TOKEN": "(left out)", "LEVEL": "3"}
    assert "s3cret" not in repr(record)


@pytest.mark.parametrize(
    "of",
    [
        variant(kind="attach", url="http://127.0.0.1:9", api_key_env="NO_SUCH_KEY"),
        variant(*SCRIPTED, api_key_env="NO_SUCH_KEY"),
    ],
    ids=["attach", "process"],
)
async def test_a_key_that_is_not_exported_is_named_before_anything_starts(tmp_path, of):
    with pytest.raises(BootError, match="export NO_SUCH_KEY="):
        await boot.launch(of, {}, WHERE, tmp_path)
    assert list(tmp_path.iterdir()) == []


async def test_what_a_killed_harness_left_running_is_found_and_ended(tmp_path):
    engine = await boot.launch(variant(*SCRIPTED), {}, WHERE, tmp_path)
    await boot.wait_ready(engine, "scripted")
    launched = engine.boot
    try:
        assert boot.left_over([launched]) == (launched,)
        record = await boot.stop_left_over(launched)
        assert record.stopped_at is not None
        assert not lives(launched.pid)
        assert boot.left_over([launched]) == ()
    finally:
        await boot.stop(engine)


async def test_a_process_that_only_has_the_number_of_an_old_engine_is_left_alone(tmp_path):
    engine = await boot.launch(variant(*SCRIPTED), {}, WHERE, tmp_path)
    other = replace(engine.boot, argv=(*engine.boot.argv, "--other"))
    try:
        assert boot.left_over([other]) == ()
    finally:
        await boot.stop(engine)


# --- ready ----------------------------------------------------------------------------------------


async def test_an_error_inside_an_answer_of_status_200_is_not_ready(tmp_path):
    """As a server that still loads its weights may answer."""
    asked: list[str] = []
    loading = event({"error": {"message": "Loading model", "code": 503}}) + DONE

    def respond(received: Received) -> Script:
        if received.path != "/v1/chat/completions":
            return page("{}")
        asked.append(received.path)
        body = loading if len(asked) < 3 else chunk({"content": "a"}, "length") + DONE
        return Script(sends=[(0, body)])

    with serving(respond) as server:
        engine = await boot.launch(variant(*sleeping(), adapter="openai"), {}, WHERE, tmp_path)
        await engine.http.aclose()
        engine.http = httpx.AsyncClient(base_url=server.url, trust_env=False)
        await boot.wait_ready(engine, "scripted")
        await boot.stop(engine)
    assert len(asked) == 3


async def test_an_engine_that_only_ever_answers_with_an_error_inside_says_which(tmp_path):
    broken = event({"error": {"message": "no memory left"}}) + DONE

    def respond(received: Received) -> Script:
        is_chat = received.path == "/v1/chat/completions"
        return Script(sends=[(0, broken)]) if is_chat else page("{}")

    with serving(respond) as server:
        of = variant(adapter="openai", kind="attach", url=server.url)
        with pytest.raises(BootError, match=r"HTTP 200 and inside it: .*no memory"):
            await booted(of, tmp_path)


# --- servers that run already ---------------------------------------------------------------------


async def test_attaching_to_nothing_says_so(tmp_path):
    with pytest.raises(BootError, match=r"nothing usable at http://127.0.0.1:9"):
        await booted(variant(adapter="openai", kind="attach", url="http://127.0.0.1:9"), tmp_path)


async def test_ready_means_a_real_completion_and_not_a_list_of_models(tmp_path):
    asked: list[str] = []

    def respond(received: Received) -> Script:
        asked.append(received.path)
        if received.path == "/health":
            return page("{}")
        if received.path == "/v1/models":
            return page('{"data": [{"id": "scripted"}]}')
        still_loading = asked.count("/v1/chat/completions") < 3
        return page("loading", status=503) if still_loading else Script(sends=[(0, DONE)])

    with serving(respond) as server:
        of = variant(*sleeping(), adapter="openai")
        engine = await boot.launch(of, {}, WHERE, tmp_path)
        await engine.http.aclose()
        engine.http = httpx.AsyncClient(base_url=server.url, trust_env=False)
        await boot.wait_ready(engine, "scripted")
        await boot.stop(engine)
    assert asked.count("/v1/chat/completions") == 3


def sleeping() -> tuple[str, ...]:
    return (sys.executable, "-c", "import time; time.sleep(60)", "{port}")


async def test_attached_servers_are_left_alone(tmp_path):
    def respond(received: Received) -> Script:
        if received.path == "/v1/chat/completions":
            return Script(sends=[(0, DONE)])
        return page('{"data": [{"id": "scripted"}]}')

    with serving(respond) as server:
        of = variant(adapter="openai", kind="attach", url=server.url)
        record = await booted(of, tmp_path)
        assert record.pid is None
        assert record.health == {"id": "scripted", "data": [{"id": "scripted"}]}
