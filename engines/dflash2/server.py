"""The HTTP face of the engine: OpenAI's completions and chat, /tokenize, /health, /metrics.

Knows requests and routes; knows nothing about how tokens come to be. All decoding happens in the
scheduler's thread, so no handler here blocks.
"""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, PlainTextResponse, Response, StreamingResponse
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

from engines.dflash2 import api
from engines.dflash2.answers import (
    DONE,
    Answer,
    event,
    failure_body,
    final_chunks,
    piece_chunk,
    role_chunk,
    whole_body,
)
from engines.dflash2.compilations import compilations
from engines.dflash2.engine import Engine, Finished, GenerationRequest, Piece
from engines.dflash2.fields import quoted
from engines.dflash2.gate import KeyGuard, RequestIds, read_json_body
from engines.dflash2.limits import MAX_BODY_BYTES
from engines.dflash2.metrics import Capacity, render_page
from engines.dflash2.openapi import openapi_document
from engines.dflash2.refusals import RefusedError, error_object
from engines.dflash2.sampling import SamplingParams
from engines.dflash2.scheduler import Delivery, QueueFull, Scheduler
from engines.dflash2.tokenizer import ChatTemplateError

METRICS_CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
CLIENT_LEFT = 499  # nginx's number; nobody is there to read it


@dataclass(frozen=True, kw_only=True)
class Facts:
    """What /health and /v1/models say about this process beside the engine's own limits."""

    served_name: str
    model_dir: Path
    drafter_dir: Path | None  # the folder that was loaded: the one given, or its conversion
    drafter_weights: str | None  # "q8g64", or the dtype its config names; None: it names none
    uses_mtp: bool = False  # the target's own head drafts
    dtype: str
    num_threads: int
    version: str | None
    commit: str | None
    started_at_s: float = field(default_factory=time.time)

    @property
    def drafter(self) -> Literal["dflash2", "mtp", "none"]:
        if self.uses_mtp:
            return "mtp"
        return "none" if self.drafter_dir is None else "dflash2"


class Server:
    """The routes over one engine and its scheduler."""

    def __init__(
        self,
        engine: Engine,
        scheduler: Scheduler,
        facts: Facts,
        *,
        api_key: str | None = None,
        max_body_bytes: int = MAX_BODY_BYTES,
    ) -> None:
        self.engine = engine
        self.scheduler = scheduler
        self.facts = facts
        self._api_key = api_key
        self._max_body_bytes = max_body_bytes
        self._openapi = openapi_document(
            served_name=facts.served_name,
            version=facts.version,
            vocab_size=engine.vocab_size,
            wants_key=api_key is not None,
        )

    def app(self) -> ASGIApp:
        app: ASGIApp = self._routes()
        if self._api_key is not None:
            app = KeyGuard(app, self._api_key)
        return RequestIds(app)

    def _routes(self) -> Starlette:
        app = Starlette(
            routes=[
                Route("/v1/completions", self.completions, methods=["POST"]),
                Route("/v1/chat/completions", self.chat_completions, methods=["POST"]),
                Route("/v1/models", self.models),
                Route("/v1/models/{name:path}", self.model),
                Route("/tokenize", self.tokenize, methods=["POST"]),
                Route("/detokenize", self.detokenize, methods=["POST"]),
                Route("/health", self.health),
                Route("/metrics", self.metrics),
                Route("/openapi.json", self.openapi),
            ],
            exception_handlers={
                RefusedError: _refused,
                HTTPException: _http_error,
                ClientDisconnect: _hung_up_while_sending,
                Exception: _internal_error,
            },
        )
        app.router.redirect_slashes = False
        return app

    # --- generation ---

    async def completions(self, request: Request) -> Response:
        parsed = api.parse_completion(await self._body(request), self.facts.served_name)
        prompt_ids = await run_in_threadpool(self._prompt_ids, parsed.prompt)
        generation = self._generation(
            prompt_ids, parsed.settings, default_tokens=api.DEFAULT_COMPLETION_TOKENS
        )
        return await self._answer(request, generation, parsed.delivery, chat=False)

    async def chat_completions(self, request: Request) -> Response:
        parsed = api.parse_chat(await self._body(request), self.facts.served_name)
        prompt_ids = await run_in_threadpool(
            self._chat_ids, parsed.messages, parsed.template_variables
        )
        generation = self._generation(prompt_ids, parsed.settings, default_tokens=None)
        return await self._answer(request, generation, parsed.delivery, chat=True)

    async def _body(self, request: Request) -> bytes:
        return await read_json_body(request, self._max_body_bytes)

    def _prompt_ids(self, prompt: str | tuple[int, ...]) -> tuple[int, ...]:
        if isinstance(prompt, str):
            return tuple(self.engine.tokenizer.encode(prompt))
        self._check_ids("prompt", prompt)
        return prompt

    def _chat_ids(
        self, messages: tuple[Mapping[str, Any], ...], template_variables: Mapping[str, Any]
    ) -> tuple[int, ...]:
        try:
            return tuple(self.engine.tokenizer.encode_chat(messages, template_variables))
        except ChatTemplateError as error:
            raise RefusedError(str(error), param="messages", code="chat_template") from error

    def _check_ids(self, name: str, token_ids: tuple[int, ...]) -> None:
        vocab_size = self.engine.vocab_size
        for index, token_id in enumerate(token_ids):
            if not 0 <= token_id < vocab_size:
                raise RefusedError(
                    f"{name}[{index}] is {quoted(token_id)}; the model's token ids go from 0 "
                    f"to {vocab_size - 1}",
                    param=name,
                    code="invalid_token_id",
                )

    def _generation(
        self, prompt_ids: tuple[int, ...], settings: api.Settings, default_tokens: int | None
    ) -> GenerationRequest:
        """The checked request; `default_tokens` None: as many as still fit."""
        if not prompt_ids:
            raise RefusedError(
                "the prompt has no tokens; give at least one", param="prompt", code="empty_prompt"
            )
        self._check_ids("stop_token_ids", settings.stop_token_ids)
        max_tokens = self._max_tokens(len(prompt_ids), settings.max_tokens, default_tokens)
        if settings.min_tokens > max_tokens:
            raise RefusedError(
                f"min_tokens is {settings.min_tokens} and max_tokens is {max_tokens}; "
                "min_tokens must not be the larger one",
                param="min_tokens",
                code="conflicting_fields",
            )
        return GenerationRequest(
            prompt_ids=prompt_ids,
            max_tokens=max_tokens,
            min_tokens=settings.min_tokens,
            sampling=SamplingParams(
                temperature=settings.temperature,
                top_p=settings.top_p,
                top_k=settings.top_k,
                seed=settings.seed,
            ),
            stop=settings.stop,
            ignore_eos=settings.ignore_eos,
            stop_token_ids=frozenset(settings.stop_token_ids),
        )

    def _max_tokens(
        self, num_prompt_tokens: int, asked: int | None, default_tokens: int | None
    ) -> int:
        """How many tokens may be generated: prompt and answer must fit --kv-len together.

        What was asked for is granted or refused, never shortened in silence; only a default is.
        """
        kv_len = self.engine.kv_len
        room = kv_len - num_prompt_tokens
        if room < 1:
            raise RefusedError(
                f"the prompt has {num_prompt_tokens} tokens and the engine was started with "
                f"--kv-len {kv_len}, which has to hold the answer, too; shorten the prompt or "
                "start the engine with a larger --kv-len",
                param="prompt",
                code="context_length_exceeded",
            )
        if asked is None:
            return room if default_tokens is None else min(room, default_tokens)
        if asked > room:
            raise RefusedError(
                f"the prompt has {num_prompt_tokens} tokens and max_tokens is {asked}, together "
                f"{num_prompt_tokens + asked}, and the engine was started with --kv-len {kv_len}; "
                f"ask for at most {room} tokens or start the engine with a larger --kv-len",
                param="max_tokens",
                code="context_length_exceeded",
            )
        return asked

    async def _answer(
        self, request: Request, generation: GenerationRequest, delivery: api.Delivery, chat: bool
    ) -> Response:
        answer = Answer(
            chat=chat,
            request=generation,
            delivery=delivery,
            model=self.facts.served_name,
            id=f"{'chatcmpl' if chat else 'cmpl'}-{secrets.token_hex(12)}",
            created=int(time.time()),
        )
        # Before the first byte of any answer, so that a full queue can still be a status.
        inbox = Inbox(self.scheduler, generation)
        if delivery.stream:
            return _EventStream(inbox, _stream(answer, inbox))
        try:
            return await _unless_hung_up(request, _whole(answer, inbox))
        finally:
            inbox.close()

    # --- everything else ---

    async def tokenize(self, request: Request) -> Response:
        parsed = api.parse_tokenize(await self._body(request), self.facts.served_name)
        token_ids = await run_in_threadpool(self._tokenized, parsed)
        return JSONResponse(
            {
                "tokens": list(token_ids),
                "count": len(token_ids),
                "max_model_len": self.engine.kv_len,
            }
        )

    def _tokenized(self, parsed: api.TokenizeRequest) -> Sequence[int]:
        if parsed.messages is not None:
            return self._chat_ids(parsed.messages, parsed.template_variables)
        return self.engine.tokenizer.encode(
            parsed.text or "", add_special_tokens=parsed.add_special_tokens
        )

    async def detokenize(self, request: Request) -> Response:
        token_ids = api.parse_detokenize(await self._body(request), self.facts.served_name)
        self._check_ids("tokens", token_ids)
        return JSONResponse({"prompt": self.engine.tokenizer.decode(token_ids)})

    async def models(self, request: Request) -> Response:
        return JSONResponse({"object": "list", "data": [self._model()]})

    async def model(self, request: Request) -> Response:
        api.check_model(request.path_params["name"], self.facts.served_name)
        return JSONResponse(self._model())

    def _model(self) -> dict[str, Any]:
        return {
            "id": self.facts.served_name,
            "object": "model",
            "created": int(self.facts.started_at_s),
            "owned_by": "dflash2",
            "root": str(self.facts.model_dir),
            "max_model_len": self.engine.kv_len,
        }

    async def health(self, request: Request) -> Response:
        status = self.scheduler.status()
        facts = self.facts
        has_drafter = facts.drafter_dir is not None
        return JSONResponse(
            {
                "status": "ok",
                "model": facts.served_name,
                "drafter": facts.drafter,
                "drafter_model": str(facts.drafter_dir) if has_drafter else None,
                "drafter_weights": facts.drafter_weights,
                "selector": "on" if has_drafter else None,
                "depth": self.engine.depth,
                "block": self.engine.block_size,
                "running": status.num_running,
                "waiting": status.num_waiting,
                "quiet": status.quiet,
                "kv_len": self.engine.kv_len,
                "max_concurrent_requests": self.engine.max_concurrent_requests,
                "max_waiting": self.scheduler.max_waiting,
                "draft_until_batch": self.engine.draft_until_batch,
                "kv_capacity_tokens": self.engine.kv_capacity_tokens,
                "kv_bytes": self.engine.kv_bytes,
                "weights_bytes": self.engine.weights_bytes,
                "dtype": facts.dtype,
                "threads": facts.num_threads,
                "version": facts.version,
                "commit": facts.commit,
            }
        )

    async def metrics(self, request: Request) -> Response:
        status = self.scheduler.status()
        page = render_page(
            status.ledger,
            capacity=self._capacity(),
            compiled_in_all=compilations(),
            finished=status.finished,
            num_running=status.num_running,
            num_waiting=status.num_waiting,
            depth=self.engine.depth,
            model_name=self.facts.served_name,
            started_at_s=self.facts.started_at_s,
        )
        return PlainTextResponse(page, headers={"Content-Type": METRICS_CONTENT_TYPE})

    def _capacity(self) -> Capacity:
        engine = self.engine
        return Capacity(
            num_slots=engine.max_concurrent_requests,
            kv_capacity_tokens=engine.kv_capacity_tokens,
            kv_used_tokens=engine.kv_used_tokens,
            kv_bytes=engine.kv_bytes,
            weights_bytes=engine.weights_bytes,
        )

    async def openapi(self, request: Request) -> Response:
        return JSONResponse(self._openapi)


# --- from the scheduler's thread to an answer ---


class Inbox:
    """What the scheduler delivers for one request, carried over into the event loop."""

    def __init__(self, scheduler: Scheduler, generation: GenerationRequest) -> None:
        loop = asyncio.get_running_loop()
        # It holds at most one answer, so a client that reads slowly delays nobody else.
        self._items: asyncio.Queue[Delivery] = asyncio.Queue()

        def deliver(item: Delivery) -> None:
            loop.call_soon_threadsafe(self._items.put_nowait, item)

        self._scheduler = scheduler
        try:
            self._job = scheduler.submit(generation, deliver)
        except QueueFull as full:
            raise RefusedError(
                str(full),
                code="queue_full",
                status=503,
                type_="server_error",
                headers={"Retry-After": str(full.retry_after_s)},
            ) from full

    async def read(self) -> AsyncGenerator[Delivery, None]:
        """Every item up to the one that ends the answer."""
        while True:
            item = await self._items.get()
            yield item
            if not isinstance(item, Piece):
                return

    def close(self) -> None:
        """Nobody reads any more: an answer that is not finished is given up."""
        self._scheduler.cancel(self._job)


async def _whole(answer: Answer, inbox: Inbox) -> Response:
    text, token_ids = "", tuple[int, ...]()
    async for item in inbox.read():
        if isinstance(item, Piece):
            text, token_ids = text + item.text, token_ids + item.token_ids
        elif isinstance(item, Finished):
            return JSONResponse(whole_body(answer, text, token_ids, item))
        else:
            status = 503 if item.code == "shutting_down" else 500
            return JSONResponse(failure_body(item), status_code=status)
    raise RuntimeError("the scheduler stopped delivering without an end")


async def _stream(answer: Answer, inbox: Inbox) -> AsyncGenerator[bytes, None]:
    """The answer as server-sent events: one for each round, then the end, usage and [DONE]."""
    num_tokens, first = 0, True
    async for item in inbox.read():
        if isinstance(item, Piece):
            if first and answer.chat:
                yield event(role_chunk(answer))
            num_tokens += len(item.token_ids)
            yield event(piece_chunk(answer, item, num_tokens, first=first))
            first = False
        elif isinstance(item, Finished):
            for chunk in final_chunks(answer, item, num_tokens):
                yield event(chunk)
        else:
            yield event(failure_body(item))
    yield DONE


class _EventStream(StreamingResponse):
    """Server-sent events; however the response ends, its request is given up with it."""

    media_type = "text/event-stream"

    def __init__(self, inbox: Inbox, events: AsyncGenerator[bytes, None]) -> None:
        super().__init__(events, headers={"Cache-Control": "no-cache"})
        self._inbox = inbox

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await super().__call__(scope, receive, send)
        finally:
            self._inbox.close()


async def _unless_hung_up(request: Request, work: Awaitable[Response]) -> Response:
    """The response, given up as soon as the client hangs up.

    Starlette watches the connection of a streamed answer itself, but not of one that is still
    being made.
    """
    working = asyncio.ensure_future(work)
    hanging_up = asyncio.ensure_future(_hung_up(request.receive))
    try:
        await asyncio.wait({working, hanging_up}, return_when=asyncio.FIRST_COMPLETED)
        if working.done():
            return working.result()
        return Response(status_code=CLIENT_LEFT)
    finally:
        await _cancel(working)
        await _cancel(hanging_up)


async def _hung_up(receive: Callable[[], Awaitable[Mapping[str, Any]]]) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


async def _cancel(task: asyncio.Future[Any]) -> None:
    """Cancel and wait until the task has cleaned up behind itself."""
    task.cancel()
    await asyncio.wait({task})


# --- refusals and failures ---


async def _refused(request: Request, error: Exception) -> Response:
    assert isinstance(error, RefusedError)
    return JSONResponse(error.body(), status_code=error.status, headers=error.headers)


async def _http_error(request: Request, error: Exception) -> Response:
    """Starlette's own refusals (no such path, wrong method) in the API's error shape."""
    assert isinstance(error, HTTPException)
    message = (
        f"{request.method} {request.url.path}: {error.detail}; docs/engine.md has the endpoints"
    )
    body = error_object(message, type_="invalid_request_error", code="no_such_endpoint")
    return JSONResponse(body, status_code=error.status_code, headers=error.headers)


async def _internal_error(request: Request, error: Exception) -> Response:
    """A defect of ours outside of decoding; Starlette lets the traceback reach stderr as well."""
    message = f"internal error: {type(error).__name__}: {error}"
    body = error_object(message, type_="server_error", code="internal_error")
    return JSONResponse(body, status_code=500)


async def _hung_up_while_sending(request: Request, error: Exception) -> Response:
    return Response(status_code=CLIENT_LEFT)
