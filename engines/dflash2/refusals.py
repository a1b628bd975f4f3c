"""How a request is refused: an HTTP status and OpenAI's error object, with what to do about it.

Knows the shape of a refusal, not its reasons.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

ErrorType = Literal["invalid_request_error", "authentication_error", "server_error"]


class RefusedError(Exception):
    """A request that gets no answer; becomes an HTTP error in OpenAI's shape."""

    def __init__(
        self,
        message: str,
        *,
        param: str | None = None,
        code: str,
        status: int = 400,
        type_: ErrorType = "invalid_request_error",
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(message)
        self.message = message
        self.param = param
        self.code = code
        self.status = status
        self.type = type_
        self.headers = headers

    def body(self) -> dict[str, Any]:
        return error_object(self.message, type_=self.type, param=self.param, code=self.code)


def error_object(
    message: str, *, type_: ErrorType, param: str | None = None, code: str
) -> dict[str, Any]:
    return {"error": {"message": message, "type": type_, "param": param, "code": code}}
