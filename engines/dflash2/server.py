"""The HTTP face of the engine: OpenAI's completions and chat, /tokenize, /health, /metrics.

Knows requests, answers and server-sent events; knows nothing about how tokens come to be. All
decoding happens in the scheduler's thread, so no handler here blocks.
"""

from __future__ import annotations

import asyncio
import json
import secrets
import socket
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import uvicorn
from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, PlainTextResponse, Response, StreamingResponse
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from engines.dflash2 import api
from engines.dflash2.api import BadRequestError
from engines.dflash2.engine import Engine, Finished, GenerationRequest, Piece
from engines.dflash2.metrics import render_page
from engines.dflash2.sampling import SamplingParams
from engines.dflash2.scheduler import Delivery, Failed, Job, Scheduler
from engines.dflash2.tokenizer import ChatTemplateError

METRICS_CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
# Between the requests of a benchmark a connection may idle for minutes; a server that closes it
# just then makes the next request fail through no fault of anybody.
KEEP_ALIVE_S = 600
SHUTDOWN_S = 2
CLIENT_LEFT = 499  # nginx's number; nobody is there to read it


@dataclass(frozen=True, kw_only=True)
class Facts:
    """What /health and /v1/models say about this process beside the engine's own limits."""

    served_name: str
    model_dir: Path
    drafter_dir: Path | None  # the folder that was loaded: the one given, or its conversion
    drafter_weights: str | None  # "q8g64", or the dtype its config names; None: it names none
    dtype: str
    num_threads: int
    version: str | None
    commit: str | None
    started_at_s: float = field(default_factory=time.time)


@dataclass(frozen=True, kw_only=True)
class Answer:
    """How one answer is labelled and written: which endpoint's objects, which extras."""

    chat: bool
    request: GenerationRequest
    delivery: api.Delivery
    model: str
    id: str
    created: int

    def usage(self, num_tokens: int) -> dict[str, Any]:
        num_prompt_tokens = len(self.request.prompt_ids)
        return {
            "prompt_tokens": num_prompt_tokens,
            "completion_tokens": num_tokens,
            "total_tokens": num_prompt_tokens + num_tokens,
            # There is no prefix cache: every prompt token is computed every time.
            "prompt_tokens_details": {"cached_tokens": 0},
        }

    def envelope(self, *, choices: list[dict[str, Any]], chunk: bool) -> dict[str, Any]:
        kind = "chat.completion" if self.chat else "text_completion"
        return {
            "id": self.id,
            # Of the two endpoints only chat has a name of its own for a streamed part.
            "object": f"{kind}.chunk" if self.chat and chunk else kind,
            "created": self.created,
            "model": self.model,
            "choices": choices,
        }


class Server:
    """The routes over one engine and its scheduler."""

    def __init__(self, engine: Engine, scheduler: Scheduler, facts: Facts) -> None:
        self.engine = engine
        self.scheduler = scheduler
        self.facts = facts

    def app(self) -> Starlette:
        return Starlette(
            routes=[
                Route("/v1/completions", self.completions, methods=["POST"]),
                Route("/v1/chat/completions", self.chat_completions, methods=["POST"]),
                Route("/v1/models", self.models),
                Route("/tokenize", self.tokenize, methods=["POST"]),
                Route("/detokenize", self.detokenize, methods=["POST"]),
                Route("/health", self.health),
                Route("/metrics", self.metrics),
            ],
            exception_handlers={
                BadRequestError: _bad_request,
                HTTPException: _http_error,
                ClientDisconnect: _hung_up_while_sending,
                Exception: _internal_error,
            },
        )

    # --- generation ---

    async def completions(self, request: Request) -> Response:
        parsed = api.parse_completion(await request.body(), self.facts.served_name)
        prompt_ids = await run_in_threadpool(self._prompt_ids, parsed.prompt)
        generation = self._generation(
            prompt_ids, parsed.settings, default_tokens=api.DEFAULT_COMPLETION_TOKENS
        )
        return await self._answer(request, generation, parsed.delivery, chat=False)

    async def chat_completions(self, request: Request) -> Response:
        parsed = api.parse_chat(await request.body(), self.facts.served_name)
        prompt_ids = await run_in_threadpool(
            self._chat_ids, parsed.messages, parsed.template_variables
        )
        generation = self._generation(prompt_ids, parsed.settings, default_tokens=None)
        return await self._answer(request, generation, parsed.delivery, chat=True)

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
            raise BadRequestError(str(error), param="messages", code="chat_template") from error

    def _check_ids(self, name: str, token_ids: tuple[int, ...]) -> None:
        vocab_size = self.engine.vocab_size
        for index, token_id in enumerate(token_ids):
            if not 0 <= token_id < vocab_size:
                raise BadRequestError(
                    f"{name}[{index}] is {token_id}; the model's token ids go from 0 to "
                    f"{vocab_size - 1}",
                    param=name,
                    code="invalid_token_id",
                )

    def _generation(
        self, prompt_ids: tuple[int, ...], settings: api.Settings, default_tokens: int | None
    ) -> GenerationRequest:
        """The checked request; `default_tokens` None: as many as still fit."""
        if not prompt_ids:
            raise BadRequestError(
                "the prompt has no tokens; give at least one", param="prompt", code="empty_prompt"
            )
        max_tokens = self._max_tokens(len(prompt_ids), settings.max_tokens, default_tokens)
        if settings.min_tokens > max_tokens:
            raise BadRequestError(
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
            raise BadRequestError(
                f"the prompt has {num_prompt_tokens} tokens and the engine was started with "
                f"--kv-len {kv_len}, which has to hold the answer, too; shorten the prompt or "
                "start the engine with a larger --kv-len",
                param="prompt",
                code="context_length_exceeded",
            )
        if asked is None:
            return room if default_tokens is None else min(room, default_tokens)
        if asked > room:
            raise BadRequestError(
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
        if delivery.stream:
            return _EventStream(self._stream(answer))
        return await _unless_hung_up(request, self._whole(answer))

    async def _deliveries(self, generation: GenerationRequest) -> AsyncGenerator[Delivery, None]:
        """What the scheduler delivers for one request; leaving early cancels it."""
        loop = asyncio.get_running_loop()
        inbox: asyncio.Queue[Delivery] = asyncio.Queue()

        def deliver(item: Delivery) -> None:
            loop.call_soon_threadsafe(inbox.put_nowait, item)

        job: Job = self.scheduler.submit(generation, deliver)
        try:
            while True:
                item = await inbox.get()
                yield item
                if not isinstance(item, Piece):
                    return
        finally:
            self.scheduler.cancel(job)

    async def _whole(self, answer: Answer) -> Response:
        text, token_ids = "", tuple[int, ...]()
        async with aclosing(self._deliveries(answer.request)) as deliveries:
            async for item in deliveries:
                if isinstance(item, Piece):
                    text, token_ids = text + item.text, token_ids + item.token_ids
                elif isinstance(item, Finished):
                    return JSONResponse(_whole_body(answer, text, token_ids, item))
                else:
                    status = 503 if item.code == "shutting_down" else 500
                    return JSONResponse(_failure_body(item), status_code=status)
        raise RuntimeError("the scheduler stopped delivering without an end")

    async def _stream(self, answer: Answer) -> AsyncGenerator[bytes, None]:
        """The answer as server-sent events: one for each round, then the end, usage and [DONE]."""
        num_tokens, first = 0, True
        async with aclosing(self._deliveries(answer.request)) as deliveries:
            async for item in deliveries:
                if isinstance(item, Piece):
                    if first and answer.chat:
                        yield _event(_role_chunk(answer))
                    num_tokens += len(item.token_ids)
                    yield _event(_piece_chunk(answer, item, num_tokens, first=first))
                    first = False
                elif isinstance(item, Finished):
                    for chunk in _final_chunks(answer, item, num_tokens):
                        yield _event(chunk)
                else:
                    yield _event(_failure_body(item))
        yield b"data: [DONE]\n\n"

    # --- everything else ---

    async def tokenize(self, request: Request) -> Response:
        parsed = api.parse_tokenize(await request.body(), self.facts.served_name)
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
        token_ids = api.parse_detokenize(await request.body(), self.facts.served_name)
        self._check_ids("tokens", token_ids)
        return JSONResponse({"prompt": self.engine.tokenizer.decode(token_ids)})

    async def models(self, request: Request) -> Response:
        model = {
            "id": self.facts.served_name,
            "object": "model",
            "created": int(self.facts.started_at_s),
            "owned_by": "dflash2",
            "root": str(self.facts.model_dir),
            "max_model_len": self.engine.kv_len,
        }
        return JSONResponse({"object": "list", "data": [model]})

    async def health(self, request: Request) -> Response:
        status = self.scheduler.status()
        facts = self.facts
        has_drafter = facts.drafter_dir is not None
        return JSONResponse(
            {
                "status": "ok",
                "model": facts.served_name,
                "drafter": "dflash2" if has_drafter else "none",
                "drafter_model": str(facts.drafter_dir) if has_drafter else None,
                "drafter_weights": facts.drafter_weights,
                "selector": "on" if has_drafter else None,
                "depth": self.engine.depth,
                "block": self.engine.block_size,
                "running": status.num_running,
                "waiting": status.num_waiting,
                "quiet": status.quiet,
                "kv_len": self.engine.kv_len,
                "max_concurrent_requests": 1,
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
            finished=status.finished,
            num_running=status.num_running,
            num_waiting=status.num_waiting,
            depth=self.engine.depth,
            model_name=self.facts.served_name,
            started_at_s=self.facts.started_at_s,
        )
        return PlainTextResponse(page, headers={"Content-Type": METRICS_CONTENT_TYPE})


# --- the objects of an answer ---


def _event(value: Mapping[str, Any]) -> bytes:
    return b"data: " + _json_bytes(value) + b"\n\n"


def _json_bytes(value: Mapping[str, Any]) -> bytes:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode()


def _chunk(
    answer: Answer, choices: list[dict[str, Any]], usage: dict[str, Any] | None
) -> dict[str, Any]:
    chunk = answer.envelope(choices=choices, chunk=True)
    return chunk if usage is None else {**chunk, "usage": usage}


def _running_usage(answer: Answer, num_tokens: int) -> dict[str, Any] | None:
    return answer.usage(num_tokens) if answer.delivery.continuous_usage_stats else None


def _role_chunk(answer: Answer) -> dict[str, Any]:
    choice = {
        "index": 0,
        "delta": {"role": "assistant", "content": ""},
        "logprobs": None,
        "finish_reason": None,
    }
    return _chunk(answer, [choice], _running_usage(answer, 0))


def _piece_chunk(answer: Answer, piece: Piece, num_tokens: int, *, first: bool) -> dict[str, Any]:
    """A round's event. It is sent even where its text is held back: its tokens have come."""
    choice = _text_choice(answer, piece.text, finish_reason=None)
    if answer.delivery.return_token_ids:
        choice["token_ids"] = list(piece.token_ids)
    chunk = _chunk(answer, [choice], _running_usage(answer, num_tokens))
    if first and answer.delivery.return_token_ids:
        chunk["prompt_token_ids"] = list(answer.request.prompt_ids)
    return chunk


def _text_choice(answer: Answer, text: str, *, finish_reason: str | None) -> dict[str, Any]:
    content: dict[str, Any] = {"delta": {"content": text}} if answer.chat else {"text": text}
    return {"index": 0, **content, "logprobs": None, "finish_reason": finish_reason}


def _final_chunks(answer: Answer, end: Finished, num_tokens: int) -> list[dict[str, Any]]:
    """The event with the finish reason and, if asked for, the one with the usage.

    `timings` stand in whichever comes last, as in llama.cpp.
    """
    content: dict[str, Any] = {"delta": {}} if answer.chat else {"text": ""}
    choice = {"index": 0, **content, "logprobs": None, "finish_reason": end.finish_reason}
    chunks = [_chunk(answer, [choice], _running_usage(answer, num_tokens))]
    if answer.delivery.include_usage:
        chunks.append(_chunk(answer, [], answer.usage(num_tokens)))
    chunks[-1]["timings"] = end.timings
    return chunks


def _whole_body(
    answer: Answer, text: str, token_ids: tuple[int, ...], end: Finished
) -> dict[str, Any]:
    message = {"role": "assistant", "content": text}
    content: dict[str, Any] = {"message": message} if answer.chat else {"text": text}
    choice = {"index": 0, **content, "logprobs": None, "finish_reason": end.finish_reason}
    body = answer.envelope(choices=[choice], chunk=False)
    if answer.delivery.return_token_ids:
        choice["token_ids"] = list(token_ids)
        body["prompt_token_ids"] = list(answer.request.prompt_ids)
    return {**body, "usage": answer.usage(len(token_ids)), "timings": end.timings}


def _failure_body(failure: Failed) -> dict[str, Any]:
    return api.error_object(failure.message, type_="server_error", code=failure.code)


async def _bad_request(request: Request, error: Exception) -> Response:
    assert isinstance(error, BadRequestError)
    body = api.error_object(
        error.message, type_="invalid_request_error", param=error.param, code=error.code
    )
    return JSONResponse(body, status_code=error.status)


async def _http_error(request: Request, error: Exception) -> Response:
    """Starlette's own refusals (no such path, wrong method) in the API's error shape."""
    assert isinstance(error, HTTPException)
    message = (
        f"{request.method} {request.url.path}: {error.detail}; docs/engine.md has the endpoints"
    )
    body = api.error_object(message, type_="invalid_request_error", code="no_such_endpoint")
    return JSONResponse(body, status_code=error.status_code, headers=error.headers)


async def _internal_error(request: Request, error: Exception) -> Response:
    """A defect of ours outside of decoding; Starlette lets the traceback reach stderr as well."""
    message = f"internal error: {type(error).__name__}: {error}"
    body = api.error_object(message, type_="server_error", code="internal_error")
    return JSONResponse(body, status_code=500)


async def _hung_up_while_sending(request: Request, error: Exception) -> Response:
    return Response(status_code=CLIENT_LEFT)


class _EventStream(StreamingResponse):
    """Server-sent events; their source is closed, and so its job cancelled, with the response."""

    media_type = "text/event-stream"

    def __init__(self, events: AsyncGenerator[bytes, None]) -> None:
        super().__init__(events, headers={"Cache-Control": "no-cache"})
        self._events = events

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async with aclosing(self._events):
            await super().__call__(scope, receive, send)


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


# --- running it ---


class _StoppableServer(uvicorn.Server):
    """uvicorn waits for open answers to end before it stops; this one first ends them."""

    def __init__(self, config: uvicorn.Config, scheduler: Scheduler) -> None:
        super().__init__(config)
        self._scheduler = scheduler

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        self._scheduler.stop()
        await super().shutdown(sockets)


def http_server(server: Server) -> uvicorn.Server:
    """The process's server: `run(sockets=[listener])` returns after SIGINT or SIGTERM."""
    config = uvicorn.Config(
        server.app(),
        http="h11",
        loop="asyncio",
        lifespan="off",
        log_level="warning",
        access_log=False,
        timeout_keep_alive=KEEP_ALIVE_S,
        timeout_graceful_shutdown=SHUTDOWN_S,
    )
    return _StoppableServer(config, server.scheduler)
