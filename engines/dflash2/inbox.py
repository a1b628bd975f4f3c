"""An answer on its way out: from the scheduler's thread into the event loop, whole or as a stream.

Knows when nobody reads any more, and gives the request up then; knows nothing of what was asked.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.types import Receive, Scope, Send

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
from engines.dflash2.engine import Finished, GenerationRequest, Piece
from engines.dflash2.refusals import RefusedError
from engines.dflash2.scheduler import Delivery, QueueFull, Scheduler

CLIENT_LEFT = 499  # nginx's number; nobody is there to read it


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


async def whole_response(request: Request, answer: Answer, inbox: Inbox) -> Response:
    """The answer in one piece; given up as soon as the client hangs up.

    Starlette watches the connection of a streamed answer itself, but not of one that is still
    being made.
    """
    try:
        return await _unless_hung_up(request, _whole(answer, inbox))
    finally:
        inbox.close()


async def _whole(answer: Answer, inbox: Inbox) -> Response:
    pieces: list[Piece] = []
    async for item in inbox.read():
        if isinstance(item, Piece):
            pieces.append(item)
        elif isinstance(item, Finished):
            return JSONResponse(whole_body(answer, pieces, item))
        else:
            status = 503 if item.code == "shutting_down" else 500
            return JSONResponse(failure_body(item), status_code=status)
    raise RuntimeError("the scheduler stopped delivering without an end")


async def _events(answer: Answer, inbox: Inbox) -> AsyncGenerator[bytes, None]:
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


class EventStream(StreamingResponse):
    """Server-sent events; however the response ends, its request is given up with it."""

    media_type = "text/event-stream"

    def __init__(self, answer: Answer, inbox: Inbox) -> None:
        super().__init__(_events(answer, inbox), headers={"Cache-Control": "no-cache"})
        self._inbox = inbox

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await super().__call__(scope, receive, send)
        finally:
            self._inbox.close()


async def _unless_hung_up(request: Request, work: Awaitable[Response]) -> Response:
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
