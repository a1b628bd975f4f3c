"""What an engine really says, kept as files that an adapter is tested against.

The engine is started or attached to, asked a few fixed requests one after another, and left: its
pages before, while and after it worked, the streams with the time of every read, an answer to a
request that it must refuse, the log of its start. Nothing is judged and nothing is read into it;
that is what the adapter is for. Secrets, folders, ports and names of the machine are taken out.
"""

import json
import os
import re
import socket
import tempfile
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx

from harness.adapters.base import Ask, Post
from harness.errors import ConfigError, EngineError, UsageError
from harness.records import Matrix, Sampling, Variant, Where
from harness.run import boot
from harness.run.boot import PROJECT, RunningEngine
from harness.run.counters import CounterReader

_WHERE = Where(run_id="recording", session_id="s1", block_id="b1", boot_id="b1-s1")
_SHOWN_PORT = "8000"
_SECRET_NAME = re.compile(r"key|token|secret|password", re.IGNORECASE)
_SECRET_VALUE = re.compile(r"\b(sk-|hf_)[A-Za-z0-9_-]{8,}|(?<=Bearer )\S{8,}")
_SECRET_LENGTH = 8  # a shorter value of such a variable is a word, and may stand anywhere
_OCTET = r"(25[0-5]|2[0-4]\d|1\d\d|[1-9]?\d)"
# not where a line begins: llama.cpp's times look like addresses
_ADDRESS = re.compile(rf"(?m)(?<!^)\b(?!127\.|0\.0\.0\.0){_OCTET}(\.{_OCTET}){{3}}\b")
_PATH = re.compile(r"(?<![\w.:/])/(?:[\w.@+-]+/)+")


@dataclass(frozen=True, kw_only=True)
class _Question:
    name: str
    text: str
    max_tokens: int


QUESTIONS = (
    _Question(name="prose", text="Explain in three sentences why the sky is blue.", max_tokens=64),
    _Question(  # what n-gram drafters find drafts in
        name="copy",
        text="Write these lines once more, word by word:\n"
        "def area(width, height):\n    return width * height\n"
        "def volume(width, height, depth):\n    return area(width, height) * depth\n",
        max_tokens=96,
    ),
    _Question(name="cut", text="Count from one to fifty, in words.", max_tokens=8),
)
_REFUSED = {"temperature": "hot"}  # which no server may take for a number


def variant_of(matrix: Matrix, engine: str, name: str | None) -> Variant:
    """The variant of that name, else the engine's first that drafts, else its first."""
    found = [each for each in matrix.variants if each.engine.name == engine]
    if not found:
        known = ", ".join(dict.fromkeys(each.engine.name for each in matrix.variants))
        raise ConfigError(f"{matrix.path} has no engine {engine!r} that a variant uses: {known}")
    if name is None:
        return next((each for each in found if each.drafter is not None), found[0])
    named = [each for each in found if each.name == name]
    if not named:
        known = ", ".join(each.name for each in found)
        raise UsageError(f"engine {engine!r} has no variant {name!r} in {matrix.path}: {known}")
    return named[0]


async def record(variant: Variant, settings: Mapping[str, Any], out: Path) -> None:
    """Files, written into `out`, which must not hold anything yet."""
    if out.exists() and any(out.iterdir()):
        raise UsageError(f"{out} holds files already; remove them, or write elsewhere with --out")
    with tempfile.TemporaryDirectory() as logs:
        engine = await boot.launch(variant, settings, _WHERE, Path(logs))
        try:
            await boot.wait_ready(engine, variant.target.name)
            start_log = engine.log()
            said = await _asked(engine, variant)
        finally:
            await boot.stop(engine)
    out.mkdir(parents=True, exist_ok=True)
    clean = _Scrubber.of(engine, variant)
    for name, content in said.items():
        data = clean.stream(content) if isinstance(content, bytes) else clean(content).encode()
        (out / name).write_bytes(data)
    texts = {"README.md": _readme(engine, variant)}
    if engine.process is not None:
        texts["start.log"] = start_log
    for name, text in texts.items():
        (out / name).write_text(clean.log(text), encoding="utf-8")


# --- asking ---------------------------------------------------------------------------------------


async def _asked(engine: RunningEngine, variant: Variant) -> dict[str, str | bytes]:
    """On connections of their own: a server may close one that it kept just as it is used again."""
    async with httpx.AsyncClient(
        base_url=engine.boot.url,
        headers=dict(engine.headers),
        trust_env=False,
        timeout=variant.engine.timeouts.first_event_s,
        limits=httpx.Limits(max_keepalive_connections=0),
    ) as http:
        try:
            return await _Interview(engine=engine, variant=variant, http=http).hold()
        except httpx.HTTPError as error:
            raise EngineError(
                f"{engine.boot.url} did not answer to the end ({error or type(error).__name__}); "
                f"{engine.last_words()}"
            ) from error


@dataclass(kw_only=True)
class _Interview:
    engine: RunningEngine
    variant: Variant
    http: httpx.AsyncClient

    async def hold(self) -> dict[str, str | bytes]:
        """By file name: text, which may hold what nobody else is to know, or a stream."""
        adapter, http = self.engine.adapter, self.http
        reader = CounterReader(http, adapter, metrics_urls=self.variant.engine.metrics_urls)
        files: dict[str, str | bytes] = dict(await self._pages(adapter.fact_paths))
        files |= await self._metrics(reader, "before")
        asked: list[dict[str, Any]] = []
        for question in QUESTIONS:
            told, reads, busy = await self._stream(question)
            asked.append({"name": question.name, **told})
            files[f"{question.name}.sse"] = b"".join(data for _, data in reads)
            times = [[at_ns, len(data)] for at_ns, data in reads]
            files[f"{question.name}.reads.json"] = f"{json.dumps(times)}\n"
            files |= busy
        files |= await self._metrics(reader, "after")
        posted = [each async for each in self._posted(QUESTIONS[0])]
        if posted:
            files["posted.json"] = _as_json(posted)
        refused = await http.post(adapter.chat_path, json={**self._body(QUESTIONS[-1]), **_REFUSED})
        files["refused.json"] = refused.text
        files["recording.json"] = _as_json(
            {
                "adapter": adapter.name,
                "version": self.engine.boot.version,
                "target": self.variant.target.name,
                "drafter": self.variant.drafter and self.variant.drafter.method,
                "k": self.variant.drafter and self.variant.drafter.k,
                "requests": asked,
                "refused": {"asked": _REFUSED, "http_status": refused.status_code},
            }
        )
        return files

    async def _pages(self, paths: Sequence[str], mark: str = "") -> dict[str, str]:
        """Those that are there; the metrics have files of their own."""
        found: dict[str, str] = {}
        for path in paths:
            answer = await self.http.get(path)
            if answer.status_code == 200 and path != self.engine.adapter.metrics_path:
                found[f"{path.strip('/').replace('/', '_')}{mark}.json"] = answer.text
        return found

    async def _posted(self, question: _Question) -> AsyncIterator[dict[str, Any]]:
        """What it makes of a question, and what it finds likely behind it: each as it was asked
        and answered.
        """
        adapter = self.engine.adapter
        if adapter.render is None:
            return
        yield (told := await self._post(adapter.render.request(self._ask(question))))
        tokens = adapter.render.read(told["answer"])
        if isinstance(tokens, str) and adapter.tokenize is not None:
            yield (told := await self._post(adapter.tokenize.request(tokens, True)))
            tokens = adapter.tokenize.read(told["answer"])
        if isinstance(tokens, tuple) and adapter.score is not None:
            yield await self._post(adapter.score.request(self.variant.target.name, tokens))

    async def _post(self, asked: Post) -> dict[str, Any]:
        answer = await self.http.post(asked.path, json=asked.body)
        return {
            "path": asked.path,
            "body": asked.body,
            "http_status": answer.status_code,
            "answer": _json_or_text(answer),
        }

    async def _metrics(self, reader: CounterReader, moment: str) -> dict[str, str]:
        """Read when the engine is quiet, as a run reads them."""
        await reader.snapshot(_WHERE, "repetition", "before")
        return {} if reader.last_page is None else {f"metrics_{moment}.txt": reader.last_page}

    async def _stream(
        self, question: _Question
    ) -> tuple[dict[str, Any], list[tuple[int, bytes]], dict[str, str]]:
        """What was asked and how it was answered, the reads with nanoseconds after it was sent, and
        the page that tells quiet meanwhile.
        """
        adapter, body = self.engine.adapter, self._body(question)
        reads: list[tuple[int, bytes]] = []
        busy: dict[str, str] = {}
        sent_ns = time.perf_counter_ns()
        async with self.http.stream("POST", adapter.chat_path, json=body) as answer:
            async for data in answer.aiter_raw():
                reads.append((time.perf_counter_ns() - sent_ns, data))
                if len(reads) == 1 and adapter.quiet_path != adapter.metrics_path:
                    busy = await self._pages([adapter.quiet_path], mark="_busy")
        told = {
            "body": body,
            "http_status": answer.status_code,
            "content_type": answer.headers.get("content-type"),
        }
        return told, reads, busy

    def _body(self, question: _Question) -> dict[str, Any]:
        return self.engine.adapter.request_body(self._ask(question))

    def _ask(self, question: _Question) -> Ask:
        return Ask(
            model=self.variant.target.name,
            messages=({"role": "user", "content": question.text},),
            max_tokens=question.max_tokens,
            sampling=Sampling(),
            length="natural",
        )


def _json_or_text(answer: httpx.Response) -> Any:
    try:
        return answer.json()
    except ValueError:
        return answer.text


def _as_json(value: Any) -> str:
    return json.dumps(value, indent=1) + "\n"


# --- what stays here ------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class _Scrubber:
    """Takes out of a text what belongs to this machine or its user alone."""

    secrets: tuple[str, ...]
    words: Mapping[str, str]
    port: int | None

    @classmethod
    def of(cls, engine: RunningEngine, variant: Variant) -> "_Scrubber":
        url = httpx.URL(engine.boot.url)
        environment = {**os.environ, **variant.engine.environment}
        secrets = tuple(
            value
            for name, value in environment.items()
            if _SECRET_NAME.search(name) and len(value) >= _SECRET_LENGTH
        )
        words = {
            **dict.fromkeys(secrets, "(left out)"),
            f"{url.host}:{url.port}": f"127.0.0.1:{_SHOWN_PORT}",
            f"{PROJECT}/": "",
            socket.gethostname(): "host",
        }
        return cls(secrets=secrets, words=words, port=url.port)

    def __call__(self, text: str) -> str:
        for word, instead in self.words.items():
            text = text.replace(word, instead)
        text = _SECRET_VALUE.sub("(left out)", text)
        return _PATH.sub(lambda found: _folder(found[0]), text)

    def stream(self, data: bytes) -> bytes:
        """Of the same length, for its reads are counted in bytes."""
        for secret in self.secrets:
            data = data.replace(secret.encode(), b"x" * len(secret.encode()))
        return data

    def log(self, text: str) -> str:
        """Ports and addresses too: among a page's figures their digits may be a count."""
        shown = re.sub(rf"\b{self.port}\b", _SHOWN_PORT, self(text))
        return _ADDRESS.sub("(address)", shown)


def _folder(path: str) -> str:
    """Of a folder of this machine, its last name; /v1/chat/ is a page and none."""
    return f"/.../{Path(path).name}/" if Path(path).is_dir() else path


def _readme(engine: RunningEngine, variant: Variant) -> str:
    asked = ", ".join(f"`{each.name}` ({each.max_tokens} tokens at most)" for each in QUESTIONS)
    version = f" {engine.boot.version}" if engine.boot.version else ""
    return (
        f"{engine.adapter.name}{version}, recorded by `dflashbench record {variant.engine.name}` "
        f"on {engine.boot.started_at[:10]}; {_origin(engine)}.\n\n"
        f"Asked one after another, greedy: {asked}. `recording.json` has what was sent, `*.sse` "
        "what came, `*.reads.json` of each read the nanoseconds after the request and the number "
        "of bytes. Other pages are as they were before anything was asked, `*_busy` "
        "after the first read of the last stream; `refused.json` answers a temperature that is no "
        "number. `posted.json`, where it is, tells what was made of `prose` and found likely "
        "behind it. Secrets, folders, ports and the machine's name are taken out.\n"
    )


def _origin(engine: RunningEngine) -> str:
    if not engine.boot.argv:
        return "a server that ran already"
    return f"started as `{' '.join(engine.boot.argv)}`"
