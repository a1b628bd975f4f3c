"""The HTTP face of the engine: OpenAI's completions and chat, /tokenize, /health, /metrics.

Knows requests and routes; knows nothing about how tokens come to be. All decoding happens in the
scheduler's thread, so no handler here blocks.
"""

from __future__ import annotations

import secrets
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, PlainTextResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp

from engines.dflash2 import api
from engines.dflash2.admission import Admission
from engines.dflash2.answers import Answer
from engines.dflash2.compilations import compilations
from engines.dflash2.engine import Engine, GenerationRequest
from engines.dflash2.gate import KeyGuard, RequestIds, read_json_body
from engines.dflash2.inbox import CLIENT_LEFT, EventStream, Inbox, whole_response
from engines.dflash2.limits import MAX_BODY_BYTES
from engines.dflash2.metrics import Capacity, render_page
from engines.dflash2.openapi import openapi_document
from engines.dflash2.refusals import RefusedError, error_object
from engines.dflash2.scheduler import Scheduler

METRICS_CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"


@dataclass(frozen=True, kw_only=True)
class Facts:
    """What /health and /v1/models say about this process beside the engine's own limits."""

    served_name: str
    model_dir: Path
    drafter_dir: Path | None  # the folder that was loaded: the one given, or its conversion
    drafter_weights: str | None  # "q8g64", or the dtype its config names; None: it names none
    uses_mtp: bool = False  # the target's own head drafts
    dtype: str
    kernels: str  # what computes: "c (...)" or "torch (why)"
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
        self._admission = Admission(engine)
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
        prompt_ids = await run_in_threadpool(self._admission.prompt_ids, parsed.prompt)
        generation = self._admission.generation(
            prompt_ids,
            parsed.settings,
            default_tokens=api.DEFAULT_COMPLETION_TOKENS,
            num_likeliest=parsed.num_likeliest,
        )
        return await self._answer(request, generation, parsed.delivery, chat=False)

    async def chat_completions(self, request: Request) -> Response:
        parsed = api.parse_chat(await self._body(request), self.facts.served_name)
        prompt_ids = await run_in_threadpool(
            self._admission.chat_ids, parsed.messages, parsed.template_variables
        )
        generation = self._admission.generation(prompt_ids, parsed.settings, default_tokens=None)
        return await self._answer(request, generation, parsed.delivery, chat=True)

    async def _body(self, request: Request) -> bytes:
        return await read_json_body(request, self._max_body_bytes)

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
            return EventStream(answer, inbox)
        return await whole_response(request, answer, inbox)

    # --- everything else ---

    async def tokenize(self, request: Request) -> Response:
        parsed = api.parse_tokenize(await self._body(request), self.facts.served_name)
        token_ids = await run_in_threadpool(self._admission.tokenized, parsed)
        return JSONResponse(
            {
                "tokens": list(token_ids),
                "count": len(token_ids),
                "max_model_len": self.engine.kv_len,
            }
        )

    async def detokenize(self, request: Request) -> Response:
        token_ids = api.parse_detokenize(await self._body(request), self.facts.served_name)
        self._admission.check_ids("tokens", token_ids)
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
                "kv_used_tokens": self.engine.kv_used_tokens,
                "kv_bytes": self.engine.kv_bytes,
                "weights_bytes": self.engine.weights_bytes,
                "dtype": facts.dtype,
                "kernels": facts.kernels,
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
