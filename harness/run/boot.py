"""Start an engine, wait until it really answers, stop it for certain.

An engine is a process, a container, or a server that is there already (`attach`), of which nothing
but its address is known. Ready means: /health says 200, a real completion of one token came back
(servers answer /v1/models while they still load, and some a completion with an error inside), from
a process of ours, under the name of the model that was asked for.
"""

import asyncio
import os
import re
import time
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import httpx
import msgspec
from asyncio_throttle.throttler import Throttler

from harness import keys
from harness.adapters import ADAPTERS, Adapter
from harness.adapters.advice import explained
from harness.adapters.base import Ask
from harness.adapters.openai import served_names
from harness.adapters.pages import json_object, told
from harness.errors import BootError, PortInUseError
from harness.preflight import wanted
from harness.records import Boot, Container, Engine, Model, Sampling, Variant, Where
from harness.run import containers, holders, processes
from harness.run.clock import utc_now
from harness.run.sse import events

PROJECT = processes.PROJECT

POLLS_PER_S = 5
POLL_TIMEOUT_S = 5.0

_MARK = "--- dflashbench:"
_LAST_WORDS = 12  # lines of a log that an error repeats
_LOGS = ("stderr.log", "stdout.log")  # vLLM writes its own log to stdout, tracebacks to both
_MEASURED_ANEW = (  # by every boot: no part of what a build is
    "kv_tokens",
    "full_length_requests",
    "kv_memory_bytes",
    "weights_memory_bytes",
)
_SECRET = re.compile(r"key|token|secret|password", re.IGNORECASE)
_PORT_TAKEN = re.compile(
    r"address already in use|EADDRINUSE|couldn't bind HTTP server socket|port is already allocated",
    re.IGNORECASE,
)


@dataclass(kw_only=True)
class RunningEngine:
    """An engine and what is known of it.

    `process` is the engine's, or of the command that runs its container; None: it was there before.
    """

    boot: Boot
    adapter: Adapter
    http: httpx.AsyncClient
    headers: Mapping[str, str]  # for every request; may hold the key, so never written anywhere
    process: asyncio.subprocess.Process | None
    port: int | None  # that it is to give back when it ends; None: it has none of ours
    ready_timeout_s: float
    log_folder: Path

    @property
    def died(self) -> bool:
        return self.process is not None and self.process.returncode is not None

    def pids(self) -> list[int]:
        """All processes of it, as of now."""
        if self.process is None or self.died:
            return []
        if self.boot.container is None:
            return processes.family(self.process.pid)
        inside = containers.pid(self.boot.container)
        return [] if inside is None else processes.family(inside)

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
    start = _STARTS[variant.engine.kind]
    headers = _headers(variant.engine)
    started = await start(variant, settings, where, log_folder)
    boot = Boot(
        where=where,
        variant=variant.name,
        argv=started.argv,
        environment=_told_environment(variant.engine.environment),
        pid=started.process.pid if started.process else None,
        url=started.url,
        started_at=utc_now(),
        ready_s=None,
        version=None,
        health=None,
        build=None,
        log_path=f"servers/{log_folder.name}",
        wanted=wanted(variant, settings),
        attached=started.process is None,
        container=started.container,
    )
    return RunningEngine(
        boot=boot,
        adapter=ADAPTERS[variant.engine.adapter],
        http=httpx.AsyncClient(
            base_url=started.url, headers=headers, trust_env=False, timeout=30.0
        ),
        headers=headers,
        process=started.process,
        port=started.port,
        ready_timeout_s=variant.engine.ready_timeout_s,
        log_folder=log_folder,
    )


@dataclass(frozen=True, kw_only=True)
class _Started:
    url: str
    argv: tuple[str, ...] = ()
    process: asyncio.subprocess.Process | None = None
    port: int | None = None
    container: Container | None = None


async def _found(
    variant: Variant, settings: Mapping[str, Any], where: Where, log_folder: Path
) -> _Started:
    """A server that is there: its address is all there is to it."""
    return _Started(url=variant.engine.url or "")


async def _process(
    variant: Variant, settings: Mapping[str, Any], where: Where, log_folder: Path
) -> _Started:
    engine, port = variant.engine, _port(variant.engine)
    argv = _command(_with_models(variant, _seen_from_project), settings, port)
    process = await processes.spawn(argv, engine.environment, log_folder, engine_name=engine.name)
    return _Started(url=_local(port), argv=argv, process=process, port=port)


async def _container(
    variant: Variant, settings: Mapping[str, Any], where: Where, log_folder: Path
) -> _Started:
    engine, port, models = variant.engine, _port(variant.engine), _model_files(variant)
    container = await asyncio.to_thread(containers.described, engine, where, models)
    argv = _command(_with_models(variant, _seen_in_container), settings, port)
    process = await processes.spawn(
        (*containers.run_words(container, engine, where, models, port), *argv),
        engine.environment,
        log_folder,
        engine_name=engine.name,
    )
    return _Started(url=_local(port), argv=argv, process=process, port=port, container=container)


_STARTS = {"process": _process, "container": _container, "attach": _found}


def _command(variant: Variant, settings: Mapping[str, Any], port: int) -> tuple[str, ...]:
    return ADAPTERS[variant.engine.adapter].command(variant, settings, port)


def _local(port: int) -> str:
    return f"http://127.0.0.1:{port}"


def _port(engine: Engine) -> int:
    """The given one, which nobody may hold, or a free one."""
    if engine.port is None:
        return holders.free_port()
    holders.refuse_held(engine.port)
    return engine.port


def _with_models(variant: Variant, seen: Callable[[str, Model], Model]) -> Variant:
    """Models as the engine is to name them; `seen` is told their part: target or drafter."""
    drafter = variant.drafter
    if drafter is not None and drafter.model is not None:
        drafter = replace(drafter, model=seen("drafter", drafter.model))
    return replace(variant, target=seen("target", variant.target), drafter=drafter)


def _seen_from_project(part: str, model: Model) -> Model:
    """A process starts in the project's folder: paths below it are short, others whole."""
    del part
    path = Path(model.path)
    if not path.exists():  # a name that the engine knows
        return model
    whole = path.resolve()
    inside = whole.is_relative_to(PROJECT)
    return replace(model, path=str(whole.relative_to(PROJECT) if inside else whole))


def _seen_in_container(part: str, model: Model) -> Model:
    path = Path(model.path)
    return replace(model, path=containers.place_of(part, path)) if path.exists() else model


def _model_files(variant: Variant) -> dict[str, Path]:
    """Place in a container: the file or folder here."""
    drafter = variant.drafter.model if variant.drafter else None
    models = {"target": variant.target, "drafter": drafter}
    paths = {part: Path(model.path) for part, model in models.items() if model is not None}
    return {containers.place_of(part, path): path for part, path in paths.items() if path.exists()}


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


# --- ready ----------------------------------------------------------------------------------------


async def wait_ready(engine: RunningEngine, model: str) -> None:
    """Until health and one real token came; raises BootError that shows the log's end."""
    began_s = time.perf_counter()
    deadline_s = began_s + engine.ready_timeout_s
    throttler = Throttler(rate_limit=1, period=1 / POLLS_PER_S)
    reason = "nothing was asked yet"
    while time.perf_counter() < deadline_s:
        async with throttler:
            answer = await _ask_ready(engine, model)
        if engine.died:  # looked at first: on a port that was taken, somebody else answers
            raise _early_end(engine)
        if answer is None:
            await _note_ready(engine, model, time.perf_counter() - began_s)
            return
        reason = answer
        if engine.process is None:
            raise BootError(
                f"variant {engine.boot.variant!r}: nothing usable at {engine.boot.url} ({reason}); "
                "start that server first, or correct `url`"
            )
    raise BootError(
        f"the engine of variant {engine.boot.variant!r} was not ready in "
        f"{engine.ready_timeout_s:g} s ({reason}); raise ready_timeout_s if it only needs longer; "
        f"{engine.last_words()}"
    )


def _early_end(engine: RunningEngine) -> BootError:
    words = engine.last_words()
    if _PORT_TAKEN.search(words):
        engine.port = None
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
        await _refuse_foreign(engine)
        if health.status_code not in (200, 404):  # 404: an OpenAI server without that page
            return f"{engine.adapter.health_path} says HTTP {health.status_code}"
        response = await engine.http.post(
            engine.adapter.chat_path,
            json=engine.adapter.request_body(_one_token(model)),
            timeout=engine.ready_timeout_s,
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


async def _refuse_foreign(engine: RunningEngine) -> None:
    """An answer proves nothing of whose it is. A container's port is its program's, which opens it
    for that container alone.
    """
    if engine.port is None or engine.boot.container is not None or engine.died:
        return
    try:
        await asyncio.to_thread(holders.refuse_foreign, engine.port, engine.pids())
    except PortInUseError:
        engine.port = None
        raise


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


async def _note_ready(engine: RunningEngine, model: str, ready_s: float) -> None:
    adapter = engine.adapter
    found = {path: await _page(engine, path) for path in adapter.fact_paths}
    pages = {path: text for path, text in found.items() if text is not None}
    _refuse_other_model(engine, model, served_names(pages.get("/v1/models")))
    log = engine.log()
    facts = adapter.read_facts(pages, log)
    version = facts.get("version")
    version = version if isinstance(version, str) else None
    engine.boot = replace(
        engine.boot,
        ready_s=ready_s,
        version=version,
        health={
            **json_object(pages.get(adapter.health_path)),
            **facts,
            **told(remarks=[str(each) for each in explained(log)] or None),
        },
        build=keys.build_key(version, _lasting(engine, facts)),
    )


def _refuse_other_model(engine: RunningEngine, model: str, served: Collection[str]) -> None:
    """Some servers answer to any name, with the model that they have."""
    if served and model not in served:
        raise BootError(
            f"{engine.boot.url} serves {', '.join(served)} and not {model}, the target of variant "
            f"{engine.boot.variant!r}; start it with that model under that name, or name what it "
            "serves as `target`"
        )


def _lasting(engine: RunningEngine, facts: Mapping[str, Any]) -> Mapping[str, Any]:
    """What a build is: the engine's own facts, and of a container the image and what lies over
    it.
    """
    container = engine.boot.container
    own = {name: fact for name, fact in facts.items() if name not in _MEASURED_ANEW}
    if container is None:
        return own
    return {**own, "image_id": container.image_id, "overlaid": dict(container.overlaid)}


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
    """End the engine and everything it started, until its port and its device are free again;
    returns the boot's last record.
    """
    await engine.http.aclose()
    if engine.process is not None:
        pids = await asyncio.to_thread(engine.pids)
        await _end(engine.boot, engine.process.pid)
        await engine.process.wait()
        await holders.wait_released(engine.port, pids)
    engine.boot = replace(
        engine.boot,
        memory_peak_bytes=memory_peak_bytes,
        stopped_at=utc_now(),
        exit_code=_code(engine),
        error=error,
    )
    return engine.boot


async def _end(boot: Boot, group: int) -> None:
    """The container first: the command that runs it ends by itself then."""
    if boot.container is not None:
        await asyncio.to_thread(
            containers.remove, boot.container, boot.where, grace_s=processes.GRACE_S
        )
    await processes.stop_group(group)


def _code(engine: RunningEngine) -> int | None:
    return None if engine.process is None else engine.process.returncode


def left_over(boots: Iterable[Boot]) -> tuple[Boot, ...]:
    """Boots that nobody stopped, as a killed harness leaves them, whose engines are still here."""
    return tuple(boot for boot in boots if boot.stopped_at is None and _is_here(boot))


def _is_here(boot: Boot) -> bool:
    if boot.container is not None:
        return containers.is_there(boot.container, boot.where)
    return boot.pid is not None and processes.runs(boot.pid, boot.argv)


async def stop_left_over(boot: Boot) -> Boot:
    """End the engine of a killed session; returns the boot's last record."""
    if boot.container is not None:
        await asyncio.to_thread(
            containers.remove, boot.container, boot.where, grace_s=processes.GRACE_S
        )
    else:
        assert boot.pid is not None
        await processes.stop_group(boot.pid)
    return replace(boot, stopped_at=utc_now(), error="outlived its harness; stopped later")
