"""Answers like an engine with a drafter, by law instead of by model.

What it emits, when, and what its counters say afterwards follow from the request and the `Law`
alone, so a test can know every figure beforehand. It speaks the chat and the completions API.
"""

import json
import os
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from typing import Any

from harness.scripted_server import pages
from harness.scripted_server.faults import refused
from harness.scripted_server.script import DONE, Received, Script, Sent, event, page, usage

OTHER = 500  # what a token of an engine that parts is numbered above the others
ACCEPTED = (3, 1, 7, 0, 2)  # accepted drafts of the 1st, 2nd, ... round, then from the front again
DEPTH = 7


@dataclass(frozen=True, kw_only=True)
class Law:
    """The first output comes `prefill_ms` after the request, each further one `round_ms` later."""

    served_name: str = "scripted"
    drafting: bool = False
    kv_len: int = 2048
    prefill_ms: float = 4.0
    round_ms: float = 2.0
    num_tokens: int | None = None  # of every answer; None: `natural_length` of its prompt
    tokens_per_event: int | None = None  # None: an event per round
    slots: int | None = None  # requests worked on at once; None: as many as come
    loading_s: float = 0.0  # how long only the models page is right
    dialect: pages.Dialect = "dflash2"
    die_at_request: int | None = None  # exit when this many were asked
    die_after_answers: int | None = None  # exit when this many were answered
    hang_at_request: int | None = None  # answer nothing from this one on
    parts_at: int | None = None  # the first token that is another than every other engine's
    odds_gap_nats: float = 0.1  # how much likelier it finds a token than what a parted one says


@dataclass(frozen=True, kw_only=True)
class Round:
    """What one decode step emits. `accepted` is None for a step without a drafter."""

    tokens: int
    accepted: int | None
    trimmed: int


def rounds_of(num_tokens: int, *, drafting: bool) -> list[Round]:
    """The rounds behind the first token, which prefill emits, until `num_tokens` are out."""
    found: list[Round] = []
    left = num_tokens - 1
    while left > 0:
        accepted = ACCEPTED[len(found) % len(ACCEPTED)] if drafting else None
        emitted = 1 + (accepted or 0)
        kept = min(emitted, left)
        found.append(Round(tokens=kept, accepted=accepted, trimmed=emitted - kept))
        left -= kept
    return found


def natural_length(prompt: str) -> int:
    """How many tokens the fake engine answers to a prompt if nothing cuts it."""
    return 20 + len(prompt) % 13


@dataclass(frozen=True, kw_only=True)
class _Wish:
    """What a request asks for, as far as the law goes by it."""

    law: Law
    prompt_tokens: int  # a character is a token
    num_tokens: int
    finish: str
    form: "_Form"


@dataclass(frozen=True, kw_only=True)
class _Form:
    """How an event is written."""

    chat: bool
    running_usage: bool
    token_ids: bool


class FakeEngine:
    """Its `respond` serves a `ScriptedServer`."""

    def __init__(self, law: Law) -> None:
        self.law = law
        self._start_s = time.time()
        self._num_asked = 0
        self._num_answered = 0
        self._running = 0
        self._counts = pages.Counts(accepted_at=[0] * DEPTH)
        self._slots_free_ns = [0] * (law.slots or 0)

    def respond(self, request: Received) -> Script:
        answers: dict[str, Callable[[], Script]] = {
            "/health": lambda: page(json.dumps(self._health())),
            "/metrics": lambda: page(self._metrics(), content_type="text/plain"),
            "/slots": lambda: page(pages.slots(self._slots_busy(), kv_len=self.law.kv_len)),
            "/props": lambda: page(self._props()),
            "/v1/models": lambda: page(json.dumps({"data": [{"id": self.law.served_name}]})),
            "/v1/chat/completions": lambda: self._complete(request),
            "/v1/completions": lambda: self._complete(request),
            "/tokenize": lambda: page(json.dumps(_tokenized(request.json()))),
        }
        if self._is_loading() and request.path != "/v1/models":
            return refused(503, "Loading model")
        return answers.get(request.path, lambda: refused(404, "no such page"))()

    # --- pages ------------------------------------------------------------------------------------

    def _is_loading(self) -> bool:
        return time.time() - self._start_s < self.law.loading_s

    def _slots_busy(self) -> list[bool]:
        now_ns = time.perf_counter_ns()
        return [free_ns > now_ns for free_ns in self._slots_free_ns]

    def _working(self) -> tuple[int, int]:
        """Running and waiting. A slot goes on with what its client has given up."""
        if self.law.slots is None:
            return self._running, 0
        running = sum(self._slots_busy())
        return running, max(0, self._running - running)

    def _health(self) -> dict[str, Any]:
        running, waiting = self._working()
        return {
            "status": "ok",
            "model": self.law.served_name,
            "drafter": "dflash2" if self.law.drafting else "none",
            "depth": DEPTH if self.law.drafting else 0,
            "block": DEPTH + 1,
            "running": running,
            "waiting": waiting,
            "quiet": running + waiting == 0,
            "kv_len": self.law.kv_len,
            "version": "scripted",
        }

    def _metrics(self) -> str:
        running, waiting = self._working()
        return pages.metrics(
            self.law.dialect,
            self._counts,
            model=self.law.served_name,
            running=running,
            waiting=waiting,
            process_start_s=self._start_s,
        )

    def _props(self) -> str:
        return pages.props(self.law.slots or 1, model=self.law.served_name, kv_len=self.law.kv_len)

    # --- completions ------------------------------------------------------------------------------

    def _complete(self, request: Received) -> Script:
        body = request.json()
        if body.get("model") != self.law.served_name:
            return refused(404, f"model {body.get('model')!r} is not served here")
        if body.get("logprobs"):
            return page(json.dumps(_odds(body["prompt"], self.law)))
        self._num_asked += 1
        if self._num_asked == self.law.die_at_request:
            _die()
        if self.law.hang_at_request is not None and self._num_asked >= self.law.hang_at_request:
            print("scripted engine: hanging as asked", file=sys.stderr, flush=True)
            return Script(sends=[], end="stall")
        wish = _wish(body, self.law, chat=request.path == "/v1/chat/completions")
        self._running += 1
        return Script(
            sends=self._sends(wish, request.at_ns), over=lambda whole: self._over(wish, whole)
        )

    def _sends(self, wish: _Wish, at_ns: int) -> list[tuple[float, Sent]]:
        outputs = _outputs(wish)
        wait_s = self._wait_for_slot(at_ns, outputs[-1][0])
        sends: list[tuple[float, Sent]] = [(wait_s + at_s, data) for at_s, data in outputs]
        return [*sends, (sends[-1][0], partial(self._last, wish, at_ns))]

    def _wait_for_slot(self, at_ns: int, work_s: float) -> float:
        if not self._slots_free_ns:
            return 0.0
        free_ns = min(self._slots_free_ns)
        start_ns = max(at_ns, free_ns)
        self._slots_free_ns[self._slots_free_ns.index(free_ns)] = start_ns + int(work_s * 1e9)
        return (start_ns - at_ns) / 1e9

    def _last(self, wish: _Wish, at_ns: int, sent_ns: Sequence[int]) -> bytes:
        """The ledger first: who has seen the end finds it in the counters."""
        self._book(wish)
        total = usage(wish.prompt_tokens, wish.num_tokens)
        timings = {"received_ns": at_ns, "sent_ns": list(sent_ns)}
        kind = _object(wish.form)
        end = event({"object": kind, "choices": [_choice(wish.form, "", finish=wish.finish)]})
        totals = {"object": kind, "choices": [], "usage": total, "timings": timings}
        return end + event(totals) + DONE

    def _over(self, wish: _Wish, whole: bool) -> None:
        self._running -= 1
        if not whole:
            return
        self._num_answered += 1
        if self._num_answered == self.law.die_after_answers:
            _die()

    def _book(self, wish: _Wish) -> None:
        counts = self._counts
        counts.requests += 1
        counts.request_success += 1
        counts.prompt_tokens += wish.prompt_tokens
        counts.generation_tokens += wish.num_tokens
        counts.add(_drafting_of(wish.num_tokens, drafting=self.law.drafting))


# What the requests of a load have in common is made once: made for each of a burst, it would stand
# between the arrival of the last one and its answer.


@lru_cache(maxsize=256)
def _drafting_of(num_tokens: int, *, drafting: bool) -> pages.Counts:
    """What the rounds of one answer add to the ledger; not to be changed."""
    counts = pages.Counts(accepted_at=[0] * DEPTH)
    for step in rounds_of(num_tokens, drafting=drafting):
        counts.trimmed_tokens += step.trimmed
        if step.accepted is None:
            counts.plain_steps += 1
            continue
        counts.drafts += 1
        counts.draft_tokens += DEPTH
        counts.accepted_tokens += step.accepted
        counts.tested_tokens += min(step.accepted + 1, DEPTH)
        for position in range(step.accepted):
            counts.accepted_at[position] += 1
    return counts


def _die() -> None:
    sys.stderr.write("scripted engine: dying as asked\n")
    sys.stderr.flush()
    os._exit(1)  # as a crash does: nothing is closed, nobody is told


def _wish(body: Mapping[str, Any], law: Law, *, chat: bool) -> _Wish:
    law = replace(law, **body.get("scripted", {}))  # a request may bring a timetable of its own
    prompt = _rendered(body) if chat else _text(body["prompt"])
    limit = body.get("max_tokens") or body.get("max_completion_tokens") or law.kv_len
    wanted = law.num_tokens or natural_length(prompt)
    num_tokens = limit if body.get("ignore_eos") else min(wanted, limit)
    running_usage = (body.get("stream_options") or {}).get("continuous_usage_stats", False)
    return _Wish(
        law=law,
        prompt_tokens=len(prompt),
        num_tokens=num_tokens,
        finish="length" if num_tokens == limit else "stop",
        form=_Form(
            chat=chat,
            running_usage=running_usage,
            token_ids=body.get("return_token_ids", False),
        ),
    )


def _rendered(body: Mapping[str, Any]) -> str:
    """A chat as its messages' texts; there are no roles and no thinking."""
    return "".join(_text(message["content"]) for message in body["messages"])


def _tokenized(body: Mapping[str, Any]) -> dict[str, Any]:
    tokens = [ord(sign) for sign in _rendered(body)]
    return {"count": len(tokens), "tokens": tokens}


def _odds(prompt: Sequence[int], law: Law) -> dict[str, Any]:
    """Of the token behind some others: words are numbered, and a prompt's characters come before
    the first.
    """
    following = prompt[-1] + 1
    tops = {
        f"token_id:{following}": -0.1,
        f"token_id:{following + OTHER}": -0.1 - law.odds_gap_nats,
    }
    return {"choices": [{"index": 0, "text": "", "logprobs": {"top_logprobs": [tops]}}]}


def _text(content: Any) -> str:
    """Some clients send a list of parts (vLLM's), some tokens."""
    if isinstance(content, str):
        return content
    return "".join(chr(part) if isinstance(part, int) else part["text"] for part in content)


def _timetable(wish: _Wish) -> list[tuple[float, int]]:
    """(seconds, tokens) of each output: by round, or as many tokens each time."""
    each = wish.law.tokens_per_event
    if each is None:
        rounds = rounds_of(wish.num_tokens, drafting=wish.law.drafting)
        counts = [1, *(step.tokens for step in rounds)]
    else:
        full, rest = divmod(wish.num_tokens, each)
        counts = [each] * full + [rest] * bool(rest)
    prefill_s, round_s = wish.law.prefill_ms / 1e3, wish.law.round_ms / 1e3
    return [(prefill_s + round_s * number, count) for number, count in enumerate(counts)]


@lru_cache(maxsize=256)
def _outputs(wish: _Wish) -> tuple[tuple[float, bytes], ...]:
    """(seconds, event) of each output."""
    outputs: list[tuple[float, bytes]] = []
    total = 0
    for at_s, num_tokens in _timetable(wish):
        outputs.append((at_s, _output(total, num_tokens, wish)))
        total += num_tokens
    return tuple(outputs)


def _output(before: int, num_tokens: int, wish: _Wish) -> bytes:
    """One output: the words w0 w1 w2 ..., one per token, so that nothing ever repeats."""
    form, parts_at = wish.form, wish.law.parts_at
    ids = [
        token if parts_at is None or token < parts_at else token + OTHER
        for token in range(before, before + num_tokens)
    ]
    choice = _choice(form, "".join(f"w{token} " for token in ids))
    if form.token_ids:
        choice["token_ids"] = ids
    payload: dict[str, Any] = {"object": _object(form), "choices": [choice]}
    if form.running_usage:
        payload["usage"] = usage(wish.prompt_tokens, before + num_tokens)
    return event(payload)


def _object(form: _Form) -> str:
    """Some clients read no event without it (aiperf 0.13)."""
    return "chat.completion.chunk" if form.chat else "text_completion"


def _choice(form: _Form, text: str, *, finish: str | None = None) -> dict[str, Any]:
    said = {"delta": {"content": text} if text else {}} if form.chat else {"text": text}
    return {"index": 0, **said, "finish_reason": finish}
