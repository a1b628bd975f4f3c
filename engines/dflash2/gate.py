"""What every request passes before a route sees it: its id, the API key, what its body may be.

ASGI wrappers and one reader of bodies. Knows HTTP; knows nothing of what is served.
"""

from __future__ import annotations

import hashlib
import hmac
import re
import secrets

from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from engines.dflash2.refusals import RefusedError

REQUEST_ID_HEADER = "x-request-id"
# What may stand in a header, a log and a shell without harm.
_REQUEST_ID = re.compile(r"[A-Za-z0-9._:/+=-]{1,128}")
# As in vLLM, whoever watches the process needs no key; here everything else does.
OPEN_PATHS = frozenset({"/health", "/metrics", "/openapi.json"})


class RequestIds:
    """Names every answer: by the client's own x-request-id where it is a plain one, else anew."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        request_id = _request_id(Headers(scope=scope).get(REQUEST_ID_HEADER))

        async def send_named(message: Message) -> None:
            if message["type"] == "http.response.start":
                MutableHeaders(scope=message)[REQUEST_ID_HEADER] = request_id
            await send(message)

        await self._app(scope, receive, send_named)


def _request_id(given: str | None) -> str:
    if given is not None and _REQUEST_ID.fullmatch(given):
        return given
    return f"req-{secrets.token_hex(12)}"


class KeyGuard:
    """Lets pass whoever has the key; compared in constant time, and never quoted."""

    def __init__(self, app: ASGIApp, key: str) -> None:
        self._app = app
        # Digests have one length, so that not even the key's is told by the time it takes.
        self._digest = _digest(key)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["path"] in OPEN_PATHS or self._has_key(Headers(scope=scope)):
            await self._app(scope, receive, send)
        else:
            response = JSONResponse(
                _NO_KEY.body(), status_code=_NO_KEY.status, headers=_NO_KEY.headers
            )
            await response(scope, receive, send)

    def _has_key(self, headers: Headers) -> bool:
        scheme, _, given = headers.get("authorization", "").partition(" ")
        return scheme.lower() == "bearer" and hmac.compare_digest(
            _digest(given.strip()), self._digest
        )


def _digest(key: str) -> bytes:
    return hashlib.sha256(key.encode()).digest()


_NO_KEY = RefusedError(
    "this server wants its API key, and the request has none or another one; "
    "send the header Authorization: Bearer KEY",
    code="invalid_api_key",
    status=401,
    type_="authentication_error",
    headers={"WWW-Authenticate": "Bearer"},
)


async def read_json_body(request: Request, max_bytes: int) -> bytes:
    """The body, refused before it is read where its type or its length already tells."""
    _check_media_type(request.headers.get("content-type", ""))
    length = request.headers.get("content-length", "0")
    if int(length) > max_bytes:
        raise _too_large(f"{length} bytes long", max_bytes)
    body = bytearray()
    async for part in request.stream():
        body += part
        if len(body) > max_bytes:
            raise _too_large("longer than that", max_bytes)
    return bytes(body)


def _check_media_type(content_type: str) -> None:
    # A page in somebody's browser may send other types to a server on the same machine unasked,
    # but this one only after a question (CORS) that is never answered here.
    if content_type.partition(";")[0].strip().lower() != "application/json":
        raise RefusedError(
            f"the body's Content-Type is {content_type[:80]!r}; send application/json",
            code="unsupported_media_type",
            status=415,
        )


def _too_large(what_it_is: str, max_bytes: int) -> RefusedError:
    return RefusedError(
        f"a body may have {max_bytes} bytes, and this one is {what_it_is}; shorten the prompt, or "
        "start the engine with a larger --max-body-bytes",
        code="body_too_large",
        status=413,
    )
