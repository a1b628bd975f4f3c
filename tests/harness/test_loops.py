"""The client's loop and the limits of its process."""

import asyncio
import resource
import socket
from importlib import util

import pytest

from harness.errors import UsageError
from harness.records import Timeouts
from harness.run import limits, loops
from harness.run.client import Endpoint, Exchange, Pool, new_exchange
from harness.scripted_server import DONE, Script, serving


def test_without_uvloop_the_loop_is_asyncios_own(monkeypatch):
    monkeypatch.setattr(util, "find_spec", lambda _: None)
    assert loops.loop_factory() is None


@pytest.fixture(params=["asyncio", "uvloop"])
def loop_runner(request):
    if request.param == "uvloop":
        pytest.importorskip("uvloop")
    factory = loops.loop_factory() if request.param == "uvloop" else None
    with asyncio.Runner(loop_factory=factory) as runner:
        yield runner


def test_a_request_is_in_the_kernel_when_its_send_returns(loop_runner):
    """uvloop's own write would keep it until the loop's turn is over, long after `t0` in a wave."""

    async def send() -> bytes:
        with socket.create_server(("127.0.0.1", 0)) as listener:
            url = f"http://127.0.0.1:{listener.getsockname()[1]}"
            pool = Pool(Endpoint.of(url, "/", {}), Timeouts())
            await pool.prepare(1)
            server, _ = listener.accept()
            exchange = new_exchange(pool.encode(b"{}"))
            assert pool.start(exchange)
            with server:
                server.setblocking(False)
                seen = server.recv(65536)  # nothing was awaited since
            await pool.aclose()
            await asyncio.sleep(0)
            assert seen == exchange.request
            return seen

    assert loop_runner.run(send())


def test_a_request_larger_than_the_sockets_buffer_arrives_whole(loop_runner):
    body = b"x" * 20_000_000

    async def ask(url: str) -> Exchange:
        pool = Pool(Endpoint.of(url, "/", {}), Timeouts())
        exchange = new_exchange(pool.encode(body))
        await pool.start_anyhow(exchange)
        await exchange.done
        await pool.aclose()
        return exchange

    with serving(lambda _: Script(sends=[(0, DONE)])) as server:
        assert loop_runner.run(ask(server.url)).error is None
    assert server.received[0].body == body


def test_the_loops_name_is_its_library_and_class(loop_runner):
    async def name() -> str:
        return loops.loop_name(asyncio.get_running_loop())

    assert loop_runner.run(name()) in ("asyncio._UnixSelectorEventLoop", "uvloop.Loop")


@pytest.fixture
def _limits_as_they_were():
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, before)


@pytest.mark.usefixtures("_limits_as_they_were")
def test_the_limit_of_open_files_is_raised_as_far_as_the_connections_need():
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (300, hard))
    limits.allow_open_files(16)
    assert resource.getrlimit(resource.RLIMIT_NOFILE)[0] == 300
    limits.allow_open_files(100)
    assert resource.getrlimit(resource.RLIMIT_NOFILE)[0] == 100 + limits.BESIDE_CONNECTIONS


def test_a_level_beyond_the_hard_limit_is_refused_before_the_run(monkeypatch):
    monkeypatch.setattr(resource, "getrlimit", lambda _: (1024, 1024))
    with pytest.raises(UsageError, match=r"c = 1024 needs 1280 open files.*may have 1024"):
        limits.allow_open_files(1024)
