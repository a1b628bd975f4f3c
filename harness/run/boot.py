"""Start an engine, wait until it really answers, stop it for certain.

An engine gets a session of its own, so that Ctrl-C in the terminal does not reach it before we do,
and so that everything it started can be ended with it; on Linux it dies with the harness, whatever
ends that. Ready means: /health says 200 and a real completion of one token came back (servers
answer /v1/models while they still load, and some a completion with an error inside).
"""

import asyncio
import atexit
import os
import re
import shutil
import signal
import socket
import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import httpx
import msgspec
import psutil
from asyncio_throttle.throttler import Throttler

from harness import keys
from harness.adapters import ADAPTERS, Adapter
from harness.adapters.advice import explained
from harness.adapters.base import Ask
from harness.adapters.pages import json_object, told
from harness.errors import BootError, PortInUseError
from harness.records import Boot, Engine, Model, Sampling, Variant, Where
from harness.run import launcher
from harness.run.clock import utc_now
from harness.run.sse import events

PROJECT = Path(__file__).parents[2]
"""Where engines start: `python -m engines.dflash2` is found from here."""

POLLS_PER_S = 5
POLL_TIMEOUT_S = 5.0
GRACE_S = 10.0
"""How long an engine may take to end after SIGTERM."""

_MARK = "--- dflashbench:"
_LAST_WORDS = 12  # lines of a log that an error repeats
_LOGS = ("stderr.log", "stdout.log")  # vLLM writes its own log to stdout, tracebacks to both
_MEASURED_ANEW = ("kv_tokens", "full_length_requests")  # by every boot: no part of what a build is
_SECRET = re.compile(r"key|token|secret|password", re.IGNORECASE)
_PORT_TAKEN = re.compile(
    r"address already in use|EADDRINUSE|couldn't bind HTTP server socket", re.IGNORECASE
)
_live_groups: set[int] = set()


@atexit.register
def _kill_what_is_left() -> None:
    """Only reached with a live group when our own code failed: no engine outlives the harness."""
    for group in tuple(_live_groups):
        _signal_group(group, signal.SIGKILL)


@dataclass(kw_only=True)
class RunningEngine:
    """An engine process (or one that was there before: `process` None) and what is known of it."""

    boot: Boot
    adapter: Adapter
    http: httpx.AsyncClient
    headers: Mapping[str, str]  # for every request; may hold the key, so never written anywhere
    process: asyncio.subprocess.Process | None
    boot_timeout_s: float
    log_folder: Path

    @property
    def died(self) -> bool:
        return self.process is not None and self.process.returncode is not None

    def pids(self) -> list[int]:
        """The process and all it started, as of now."""
        if self.process is None or self.died:
            return []
        return [self.process.pid, *(child.pid for child in _children(self.process.pid))]

    def mark(self, text: str) -> None:
        """A line into the engine's own log, to find a cell's place there."""
        if self.process is not None:
            with open(self.log_folder / "stderr.log", "a", encoding="utf-8") as log:
                log.write(f"{_MARK} {text}\n")

    def last_words(self) -> str:
        """The end of its log, for messages, behind the lines of it that are known."""
        known = "".join(f"{each}; " for each in explained(self.log()) if each.fatal)
        return known + last_words(self.log_folder)

    def log(self) -> str:
        return "\n".join(_log_text(self.log_folder / name) for name in _LOGS)


def last_words(log_folder: Path) -> str:
    quotes = [_last_lines(log_folder / name) for name in _LOGS]
    return "\n".join(filter(None, quotes)) or f"it wrote nothing into {log_folder}"


def _last_lines(path: Path) -> str | None:
    text = _log_text(path)
    lines = [line for line in text.splitlines() if line.strip() and _MARK not in line]
    if not lines:
        return None
    quoted = "\n".join(f"  | {line}" for line in lines[-_LAST_WORDS:])
    return f"the last lines of {path}:\n{quoted}"


def _log_text(path: Path) -> str:
    return path.read_text(encoding="utf-8", errors="replace") if path.exists() else ""


# --- start ----------------------------------------------------------------------------------------


async def launch(
    variant: Variant, settings: Mapping[str, Any], where: Where, log_folder: Path
) -> RunningEngine:
    """Start the engine, or find the one that runs; `wait_ready` comes next, `stop` in any case."""
    adapter = ADAPTERS[variant.engine.adapter]
    headers = _headers(variant.engine)
    argv: tuple[str, ...] = ()
    if variant.engine.kind == "attach":
        url, process = variant.engine.url or "", None
    else:
        port = _free_port()
        url = f"http://127.0.0.1:{port}"
        argv = adapter.command(_as_seen_from_project(variant), settings, port)
        process = await _spawn(argv, variant.engine, log_folder)
    boot = Boot(
        where=where,
        variant=variant.name,
        argv=argv,
        environment=_told_environment(variant.engine.environment),
        pid=process.pid if process else None,
        url=url,
        started_at=utc_now(),
        ready_s=None,
        version=None,
        health=None,
        build=None,
        log_path=f"servers/{log_folder.name}",
        wanted=_wanted(variant, settings),
    )
    return RunningEngine(
        boot=boot,
        adapter=adapter,
        http=httpx.AsyncClient(base_url=url, headers=headers, trust_env=False, timeout=30.0),
        headers=headers,
        process=process,
        boot_timeout_s=variant.engine.boot_timeout_s,
        log_folder=log_folder,
    )


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def _as_seen_from_project(variant: Variant) -> Variant:
    """The engine starts in the project's folder: paths below it are short, others whole."""
    drafter = variant.drafter
    if drafter is not None and drafter.model is not None:
        drafter = replace(drafter, model=_model_from_project(drafter.model))
    return replace(variant, target=_model_from_project(variant.target), drafter=drafter)


def _model_from_project(model: Model) -> Model:
    path = Path(model.path)
    if not path.exists():  # a name that the engine knows
        return model
    whole = path.resolve()
    inside = whole.is_relative_to(PROJECT)
    return replace(model, path=str(whole.relative_to(PROJECT) if inside else whole))


def _runnable(argv: Sequence[str]) -> tuple[str, ...]:
    """`{python}` is this interpreter; the record keeps the word, as folders are no fact of a
    run.
    """
    return tuple(sys.executable if word == "{python}" else word for word in argv)


def _dying_with_us(argv: Sequence[str]) -> tuple[str, ...]:
    """Elsewhere than on Linux an engine may outlive a killed harness, until `resume`."""
    if sys.platform != "linux":
        return tuple(argv)
    return (sys.executable, "-I", "-S", launcher.__file__, str(os.getpid()), *argv)


def _found(program: str, engine: Engine) -> None:
    """Seen from where engines start."""
    path = program if os.path.isabs(program) or os.sep not in program else str(PROJECT / program)
    if shutil.which(path) is None:
        raise BootError(
            f"engine {engine.name!r}: {program!r} cannot be started: no such program; check "
            "`command` in the engine's file and that it is installed"
        )


async def _spawn(
    argv: Sequence[str], engine: Engine, log_folder: Path
) -> asyncio.subprocess.Process:
    runnable = _runnable(argv)
    _found(runnable[0], engine)
    with (
        open(log_folder / "stdout.log", "ab") as stdout,
        open(log_folder / "stderr.log", "ab") as stderr,
    ):
        process = await asyncio.create_subprocess_exec(
            *_dying_with_us(runnable),
            stdin=asyncio.subprocess.DEVNULL,
            stdout=stdout,
            stderr=stderr,
            env={**os.environ, **engine.environment},
            cwd=PROJECT,
            start_new_session=True,
        )
    _live_groups.add(process.pid)
    return process


def _headers(engine: Engine) -> dict[str, str]:
    if engine.api_key_env is None:
        return {}
    key = os.environ.get(engine.api_key_env)
    if not key:
        raise BootError(
            f"engine {engine.name!r}: api_key_env names {engine.api_key_env}, which is not set; "
            f"export {engine.api_key_env}=..."
        )
    return {"Authorization": f"Bearer {key}"}


def _told_environment(environment: Mapping[str, str]) -> dict[str, str]:
    return {
        name: "(left out)" if _SECRET.search(name) else value for name, value in environment.items()
    }


def _wanted(variant: Variant, settings: Mapping[str, Any]) -> dict[str, Any]:
    drafter = variant.drafter
    return {
        "target": variant.target.path,
        "drafter": drafter.method if drafter else None,
        "drafter_model": drafter.model.path if drafter and drafter.model else None,
        "k": drafter.k if drafter else None,
        **settings,
    }


# --- ready ----------------------------------------------------------------------------------------


async def wait_ready(engine: RunningEngine, model: str) -> None:
    """Until health and one real token came; raises BootError that shows the log's end."""
    began_s = time.perf_counter()
    deadline_s = began_s + engine.boot_timeout_s
    throttler = Throttler(rate_limit=1, period=1 / POLLS_PER_S)
    reason = "nothing was asked yet"
    while time.perf_counter() < deadline_s:
        async with throttler:
            answer = await _ask_ready(engine, model)
        if engine.died:  # looked at first: on a port that was taken, somebody else answers
            raise _early_end(engine)
        if answer is None:
            await _note_ready(engine, time.perf_counter() - began_s)
            return
        reason = answer
        if engine.process is None:
            raise BootError(
                f"variant {engine.boot.variant!r}: nothing usable at {engine.boot.url} ({reason}); "
                "start that server first, or correct `url`"
            )
    raise BootError(
        f"the engine of variant {engine.boot.variant!r} was not ready in {engine.boot_timeout_s:g} "
        f"s ({reason}); raise boot_timeout_s if it only needs longer; {engine.last_words()}"
    )


def _early_end(engine: RunningEngine) -> BootError:
    words = engine.last_words()
    if _PORT_TAKEN.search(words):
        return PortInUseError(
            f"another process took the port of {engine.boot.url} just before the engine of variant "
            f"{engine.boot.variant!r} could; `dflashbench resume` takes another one; {words}"
        )
    return BootError(
        f"the engine of variant {engine.boot.variant!r} ended with exit code {_code(engine)} "
        f"before it was ready; {words}"
    )


async def _ask_ready(engine: RunningEngine, model: str) -> str | None:
    """None when it answers a completion, else what is missing."""
    try:
        health = await engine.http.get(engine.adapter.health_path, timeout=POLL_TIMEOUT_S)
        if health.status_code not in (200, 404):  # 404: an OpenAI server without that page
            return f"{engine.adapter.health_path} says HTTP {health.status_code}"
        response = await engine.http.post(
            engine.adapter.chat_path,
            json=engine.adapter.request_body(_one_token(model)),
            timeout=engine.boot_timeout_s,
        )
    except httpx.HTTPError as error:
        return str(error) or type(error).__name__
    if 400 <= response.status_code < 500:
        raise BootError(
            f"the engine of variant {engine.boot.variant!r} refuses a one-token completion with "
            f"HTTP {response.status_code}: {response.text[:300]}"
        )
    if response.status_code != 200:
        return f"a completion says HTTP {response.status_code}"
    return _error_inside(response.content, engine.adapter)


def _error_inside(stream: bytes, adapter: Adapter) -> str | None:
    """What an answer with status 200 says of its own failure."""
    for event in events([(0, stream)]):
        if event.data is None or event.data.strip() == b"[DONE]":
            continue
        try:
            decoded = msgspec.json.decode(event.data)
        except (msgspec.DecodeError, UnicodeDecodeError):
            return f"a completion holds an event that is no JSON: {event.data[:100]!r}"
        error = adapter.read_event(decoded).error if isinstance(decoded, dict) else None
        if error is not None or event.name == b"error":
            return f"a completion says HTTP 200 and inside it: {error or event.data[:100]!r}"
    return None


def _one_token(model: str) -> Ask:
    return Ask(
        model=model,
        messages=({"role": "user", "content": "Hello"},),
        max_tokens=1,
        sampling=Sampling(),
        length="natural",
    )


async def _note_ready(engine: RunningEngine, ready_s: float) -> None:
    adapter = engine.adapter
    found = {path: await _page(engine, path) for path in adapter.fact_paths}
    pages = {path: text for path, text in found.items() if text is not None}
    log = engine.log()
    facts = adapter.read_facts(pages, log)
    version = facts.get("version")
    version = version if isinstance(version, str) else None
    lasting = {name: fact for name, fact in facts.items() if name not in _MEASURED_ANEW}
    engine.boot = replace(
        engine.boot,
        ready_s=ready_s,
        version=version,
        health={
            **json_object(pages.get(adapter.health_path)),
            **facts,
            **told(remarks=[str(each) for each in explained(log)] or None),
        },
        build=keys.build_key(version, lasting),
    )


async def _page(engine: RunningEngine, path: str) -> str | None:
    """None where the engine has no such page."""
    try:
        response = await engine.http.get(path)
    except httpx.HTTPError:
        return None
    return response.text if response.status_code == 200 else None


# --- stop -----------------------------------------------------------------------------------------


async def stop(
    engine: RunningEngine, *, memory_peak_bytes: int | None = None, error: str | None = None
) -> Boot:
    """End the engine and everything it started; returns the boot's last record."""
    await engine.http.aclose()
    if engine.process is not None:
        await _stop_group(engine.process.pid)
        await engine.process.wait()
    engine.boot = replace(
        engine.boot,
        memory_peak_bytes=memory_peak_bytes,
        stopped_at=utc_now(),
        exit_code=_code(engine),
        error=error,
    )
    return engine.boot


def _code(engine: RunningEngine) -> int | None:
    return None if engine.process is None else engine.process.returncode


def left_over(boots: Iterable[Boot]) -> tuple[Boot, ...]:
    """Boots that nobody stopped, as a killed harness leaves them, whose engines still run here."""
    return tuple(boot for boot in boots if boot.stopped_at is None and _still_runs(boot))


def _still_runs(boot: Boot) -> bool:
    """By the whole command line: its number may be another process's by now."""
    if boot.pid is None:
        return False
    try:
        return psutil.Process(boot.pid).cmdline() == list(_runnable(boot.argv))
    except (psutil.NoSuchProcess, psutil.AccessDenied):
        return False


async def stop_left_over(boot: Boot) -> Boot:
    """End the engine of a killed session; returns the boot's last record."""
    assert boot.pid is not None
    await _stop_group(boot.pid)
    return replace(boot, stopped_at=utc_now(), error="outlived its harness; stopped later")


async def _stop_group(group: int) -> None:
    """SIGTERM, time to end, SIGKILL; then make sure that nothing is left."""
    strays = _children(group)  # a child may have left the group; its parent is still known now
    for signal_number, patience_s in ((signal.SIGTERM, GRACE_S), (signal.SIGKILL, GRACE_S)):
        _signal_group(group, signal_number)
        for stray in strays:
            _signal(stray, signal_number)
        if await _all_gone(group, strays, patience_s):
            _live_groups.discard(group)
            return
    raise BootError(f"processes of group {group} cannot be ended, not even by SIGKILL; end them")


async def _all_gone(group: int, strays: Sequence[psutil.Process], patience_s: float) -> bool:
    deadline_s = time.perf_counter() + patience_s
    while _members(group) or any(_lives(stray) for stray in strays):
        if time.perf_counter() > deadline_s:
            return False
        await asyncio.sleep(0.05)
    return True


def _members(group: int) -> list[psutil.Process]:
    return [each for each in psutil.process_iter() if _group_of(each) == group and _lives(each)]


def _group_of(process: psutil.Process) -> int | None:
    try:
        return os.getpgid(process.pid)
    except ProcessLookupError:
        return None


def _lives(process: psutil.Process) -> bool:
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def _children(pid: int) -> list[psutil.Process]:
    try:
        return psutil.Process(pid).children(recursive=True)
    except psutil.NoSuchProcess:
        return []


def _signal_group(group: int, signal_number: int) -> None:
    try:
        os.killpg(group, signal_number)
    except ProcessLookupError:
        return


def _signal(process: psutil.Process, signal_number: int) -> None:
    try:
        process.send_signal(signal_number)
    except psutil.NoSuchProcess:
        return
