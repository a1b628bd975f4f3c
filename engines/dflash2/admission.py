"""From what a request says to what the engine is asked for: tokens, and lengths that fit.

Knows the engine's limits and its tokenizer; knows nothing of HTTP, and decodes nothing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from engines.dflash2 import api
from engines.dflash2.engine import Engine, GenerationRequest
from engines.dflash2.fields import quoted
from engines.dflash2.refusals import RefusedError
from engines.dflash2.sampling import SamplingParams
from engines.dflash2.tokenizer import ChatTemplateError


class Admission:
    """Turns parsed requests into generation requests of one engine, or refuses them."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    def prompt_ids(self, prompt: str | tuple[int, ...]) -> tuple[int, ...]:
        if isinstance(prompt, str):
            return tuple(self._engine.tokenizer.encode(prompt))
        self.check_ids("prompt", prompt)
        return prompt

    def chat_ids(
        self, messages: tuple[Mapping[str, Any], ...], template_variables: Mapping[str, Any]
    ) -> tuple[int, ...]:
        try:
            return tuple(self._engine.tokenizer.encode_chat(messages, template_variables))
        except ChatTemplateError as error:
            raise RefusedError(str(error), param="messages", code="chat_template") from error

    def tokenized(self, parsed: api.TokenizeRequest) -> Sequence[int]:
        if parsed.messages is not None:
            return self.chat_ids(parsed.messages, parsed.template_variables)
        return self._engine.tokenizer.encode(
            parsed.text or "", add_special_tokens=parsed.add_special_tokens
        )

    def check_ids(self, name: str, token_ids: tuple[int, ...]) -> None:
        vocab_size = self._engine.vocab_size
        for index, token_id in enumerate(token_ids):
            if not 0 <= token_id < vocab_size:
                raise RefusedError(
                    f"{name}[{index}] is {quoted(token_id)}; the model's token ids go from 0 "
                    f"to {vocab_size - 1}",
                    param=name,
                    code="invalid_token_id",
                )

    def generation(
        self,
        prompt_ids: tuple[int, ...],
        settings: api.Settings,
        default_tokens: int | None,
        num_likeliest: int = 0,
    ) -> GenerationRequest:
        """The checked request; `default_tokens` None: as many as still fit."""
        if not prompt_ids:
            raise RefusedError(
                "the prompt has no tokens; give at least one", param="prompt", code="empty_prompt"
            )
        self.check_ids("stop_token_ids", settings.stop_token_ids)
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
            num_likeliest=num_likeliest,
        )

    def _max_tokens(
        self, num_prompt_tokens: int, asked: int | None, default_tokens: int | None
    ) -> int:
        """How many tokens may be generated: prompt and answer must fit --kv-len together.

        What was asked for is granted or refused, never shortened in silence; only a default is.
        """
        kv_len = self._engine.kv_len
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
