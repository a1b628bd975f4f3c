"""The JSON of an answer: OpenAI's objects for a whole one and for the events of a stream.

Knows what is written where; knows neither HTTP nor how tokens come to be.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from engines.dflash2 import api
from engines.dflash2.engine import Finished, GenerationRequest, Piece
from engines.dflash2.refusals import error_object
from engines.dflash2.scheduler import Failed

DONE = b"data: [DONE]\n\n"


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


def event(value: Mapping[str, Any]) -> bytes:
    return b"data: " + _json_bytes(value) + b"\n\n"


def _json_bytes(value: Mapping[str, Any]) -> bytes:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode()


def role_chunk(answer: Answer) -> dict[str, Any]:
    choice = {
        "index": 0,
        "delta": {"role": "assistant", "content": ""},
        "logprobs": None,
        "finish_reason": None,
    }
    return _chunk(answer, [choice], _running_usage(answer, 0))


def piece_chunk(answer: Answer, piece: Piece, num_tokens: int, *, first: bool) -> dict[str, Any]:
    """A round's event. It is sent even where its text is held back: its tokens have come."""
    text = piece.text
    content: dict[str, Any] = {"delta": {"content": text}} if answer.chat else {"text": text}
    choice = {"index": 0, **content, "logprobs": None, "finish_reason": None}
    if answer.delivery.return_token_ids:
        choice["token_ids"] = list(piece.token_ids)
    chunk = _chunk(answer, [choice], _running_usage(answer, num_tokens))
    if first and answer.delivery.return_token_ids:
        chunk["prompt_token_ids"] = list(answer.request.prompt_ids)
    return chunk


def final_chunks(answer: Answer, end: Finished, num_tokens: int) -> list[dict[str, Any]]:
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


def _chunk(
    answer: Answer, choices: list[dict[str, Any]], usage: dict[str, Any] | None
) -> dict[str, Any]:
    chunk = answer.envelope(choices=choices, chunk=True)
    return chunk if usage is None else {**chunk, "usage": usage}


def _running_usage(answer: Answer, num_tokens: int) -> dict[str, Any] | None:
    return answer.usage(num_tokens) if answer.delivery.continuous_usage_stats else None


def whole_body(answer: Answer, pieces: Sequence[Piece], end: Finished) -> dict[str, Any]:
    text = "".join(piece.text for piece in pieces)
    token_ids = [token_id for piece in pieces for token_id in piece.token_ids]
    message = {"role": "assistant", "content": text}
    content: dict[str, Any] = {"message": message} if answer.chat else {"text": text}
    choice = {
        "index": 0,
        **content,
        "logprobs": _logprobs(pieces[0]) if pieces[0].likeliest else None,
        "finish_reason": end.finish_reason,
    }
    body = answer.envelope(choices=[choice], chunk=False)
    if answer.delivery.return_token_ids:
        choice["token_ids"] = token_ids
        body["prompt_token_ids"] = list(answer.request.prompt_ids)
    return {**body, "usage": answer.usage(len(token_ids)), "timings": end.timings}


def _logprobs(piece: Piece) -> dict[str, Any]:
    """OpenAI's object of a completion, with tokens named as vLLM names them by id."""
    odds = {f"token_id:{each.token}": each.logprob for each in piece.likeliest}
    tokens = [f"token_id:{token_id}" for token_id in piece.token_ids]
    return {
        "tokens": tokens,
        "token_logprobs": [odds.get(token) for token in tokens],
        "top_logprobs": [odds],
        "text_offset": [0],
    }


def failure_body(failure: Failed) -> dict[str, Any]:
    return error_object(failure.message, type_="server_error", code=failure.code)
