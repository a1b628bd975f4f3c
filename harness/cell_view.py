"""The recorded facts of one cell, gathered: what checks judge and metrics are computed from.

A view holds records and selects among them. It computes no figure, judges nothing and does not know
where the records came from: a results folder, a run that is still going on, or a test.
"""

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from harness.measures import (
    CountersDelta,
    NotMeasured,
    counters_delta,
    pooled,
    with_plain_steps,
)
from harness.records import (
    Boot,
    Cell,
    LosslessnessRules,
    MachineSample,
    RepetitionEnd,
    Request,
    Rescore,
    Session,
    Snapshot,
    Where,
)
from harness.requests import Requests

T = TypeVar("T")

ONE_PASS_PROMPT_TOKENS = 512
"""A prompt up to this long takes one forward pass: engines cut at 2048 tokens and up (vLLM 0.32,
llama.cpp b11434).
"""


@dataclass(frozen=True, kw_only=True)
class LedgerEntry:
    """What the engine's counters gained over one scope; `reason` says why they cannot tell.

    `contaminated`: they hold work that none of the scope's requests asked for.
    """

    where: Where | None  # None: summed over scopes
    delta: CountersDelta | None
    reason: str | None
    contaminated: bool = False


@dataclass(frozen=True, kw_only=True)
class Asked:
    """What ran between two readings of the counters. `tokens`: of those that succeeded; None where
    an engine does not say how many.
    """

    num_requests: int
    num_ok: int
    tokens: int | None
    takes_one_pass: bool  # every prompt of it

    @property
    def num_failed(self) -> int:
        return self.num_requests - self.num_ok


NOTHING = Asked(num_requests=0, num_ok=0, tokens=0, takes_one_pass=True)


@dataclass(frozen=True, kw_only=True)
class Readings:
    """The counters before a scope and after it; None: not read then."""

    before: Snapshot | None = None
    after: Snapshot | None = None


@dataclass(frozen=True, kw_only=True)
class OutputEvents:
    """One request's output as it arrived: nanoseconds after `t0`, and tokens where the engine
    tells.
    """

    offsets_ns: tuple[int, ...]
    tokens: tuple[int | None, ...]
    text: str | None
    token_ids: tuple[int, ...] | None


@dataclass(frozen=True, kw_only=True)
class CellView:
    """One cell over its boots. `kind` is set in a view that is narrowed to one kind of prompt.

    A view remembers what was asked of it. Whoever walks many cells asks copies (`afresh`), so that
    what they remember goes with them.
    """

    cell: Cell
    prompt_kinds: Mapping[str, str]  # every prompt of the cell's set, its kind
    requests: Sequence[Request] = ()  # measured ones, the failed among them
    warmups: tuple[Request, ...] = ()  # of the same boots
    snapshots: Sequence[Snapshot] = ()  # of the whole cell
    boots: tuple[Boot, ...] = ()
    ends: tuple[RepetitionEnd, ...] = ()
    sessions: tuple[Session, ...] = ()
    events: Mapping[str, OutputEvents] = field(default_factory=dict)  # by request id
    unfinished: tuple[str, ...] = ()  # per block of the plan that did not finish it, why
    machine: tuple[MachineSample, ...] = ()  # of the seconds in which it was measured
    models: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)  # name -> its files
    device: Mapping[str, Any] = field(default_factory=dict)  # what the matrix says of it
    reference: "CellView | None" = None
    kind: str | None = None
    controls: tuple["CellView", ...] = ()  # of the same work; their reference is what they repeat
    rescores: Mapping[str, Rescore] = field(default_factory=dict)  # by the differing output's id
    losslessness: LosslessnessRules | None = None  # None: a run of before it was asked
    whole: "CellView | None" = None  # what this view was narrowed from

    def afresh(self) -> "CellView":
        """A copy that remembers nothing yet."""
        return replace(self)

    def remembered(self, key: Hashable, make: Callable[[], T]) -> T:
        """Made once for this view."""
        if key not in self._memory:
            self._memory[key] = make()
        found: T = self._memory[key]
        return found

    @cached_property
    def _memory(self) -> dict[Hashable, Any]:
        return {}

    @property
    def root(self) -> "CellView":
        """The whole cell that this view is a part of, if only of itself."""
        return self if self.whole is None else self.whole.root

    @cached_property
    def sent(self) -> Requests:
        """All requests, in columns."""
        requests = self.requests
        return requests if isinstance(requests, Requests) else Requests.of(requests)

    @cached_property
    def ok(self) -> Requests:
        return self.sent.where("status", "ok")

    @property
    def kinds(self) -> tuple[str, ...]:
        """In the order of the prompt set."""
        return tuple(dict.fromkeys(self.prompt_kinds.values()))

    @property
    def prompt_ids(self) -> tuple[str, ...]:
        """Of the narrowed kind, when there is one."""
        return tuple(
            prompt_id for prompt_id, kind in self.prompt_kinds.items() if self.kind in (None, kind)
        )

    @property
    def boot_ids(self) -> tuple[str, ...]:
        return tuple(str(boot.where.boot_id) for boot in self.boots)

    @cached_property
    def by_boot(self) -> Mapping[str, "CellView"]:
        """A view per boot. A server that we attach to was never started anew: all that was measured
        on it is one boot, under the first one's name.
        """
        if self.boots and all(boot.attached for boot in self.boots):
            return {self.boot_ids[0]: self}
        return {boot_id: self.of_boot(boot_id) for boot_id in self.boot_ids}

    @property
    def target_files(self) -> Mapping[str, Any]:
        """Empty where nothing is known of them."""
        return self.models.get(self.cell.target, {})

    @property
    def drafter_files(self) -> Mapping[str, Any]:
        return self.models.get(self.cell.drafter_model or "", {})

    @property
    def step_bytes(self) -> int | None:
        """What every step of the target reads of its weights, at the least: all layers and the
        head, which may be the embedding; of experts, towers and an embedding only some rows.
        """
        weights = self.target_files.get("weights")
        if weights is None:
            return None
        parts = weights["bytes"]
        head: int = parts.get("head") or parts.get("embedding", 0)
        layers: int = parts.get("layers", 0)
        return layers + head

    @property
    def counters_are_shared(self) -> bool:
        """Requests of several kinds ran between two readings: a kind has no counters of its own."""
        return self.cell.workload == "concurrency"

    @cached_property
    def readings(self) -> Mapping[Where, Readings]:
        """By scope, in recorded order."""
        found: dict[Where, Readings] = {}
        for snapshot in self.snapshots:
            pair = found.get(snapshot.where, Readings())
            if snapshot.moment == "before":
                found[snapshot.where] = replace(pair, before=snapshot)
            else:
                found[snapshot.where] = replace(pair, after=snapshot)
        return found

    @cached_property
    def gains(self) -> Mapping[Where, CountersDelta | NotMeasured]:
        """What the counters gained, by scope; of a scope that has readings before and after."""
        return {
            where: counters_delta(pair.before.counters, pair.after.counters)
            for where, pair in self.readings.items()
            if pair.before and pair.after and pair.before.counters and pair.after.counters
        }

    @cached_property
    def ledger(self) -> tuple[LedgerEntry, ...]:
        """One entry per scope that has a reading before and one after, in recorded order."""
        if self.kind is not None and self.counters_are_shared:
            return ()
        if self.whole is None:
            return tuple(self._entry(where, pair) for where, pair in self.readings.items())
        return tuple(entry for entry in self.whole.ledger if self._holds(entry.where))

    def _holds(self, where: Where | None) -> bool:
        """Whether a scope of the view that this one was narrowed from is one of this one's."""
        assert where is not None
        assert self.whole is not None
        if self.kind != self.whole.kind:
            return where.request_id in self._rows
        return where.boot_id in self.boot_ids

    def _entry(self, where: Where, pair: Readings) -> LedgerEntry:
        delta = _difference(pair.before, pair.after, self.gains.get(where))
        if isinstance(delta, str):
            return LedgerEntry(where=where, delta=None, reason=delta)
        asked = self.asked_in(where)
        foreign = _foreign_work(delta, asked, self.cell.max_tokens)
        missing = None if foreign else _missing_work(delta, asked)
        if foreign or missing:
            return LedgerEntry(
                where=where, delta=None, reason=foreign or missing, contaminated=bool(foreign)
            )
        alone = self.cell.concurrency == 1 and asked.takes_one_pass
        if alone and self.cell.drafter is not None:
            delta = with_plain_steps(delta, asked.num_requests)
        return LedgerEntry(where=where, delta=delta, reason=None)

    @cached_property
    def total(self) -> LedgerEntry:
        """The ledger summed; without a delta as soon as one scope has none, for a partial sum would
        mislead.
        """
        return _sum(self.ledger, self.counters_are_shared and self.kind is not None)

    def asked_in(self, where: Where) -> Asked:
        """What ran between the two readings of a scope."""
        if self.whole is not None and self.kind == self.whole.kind:
            return self.whole.asked_in(where)  # a boot holds its repetitions whole
        if where.request_id is None:
            return self._asked_by_place.get(where, NOTHING)
        row = self._rows.get(where.request_id)
        return NOTHING if row is None else self._asked_by_row[row]

    @cached_property
    def _rows(self) -> Mapping[str, int]:
        return {request_id: row for row, request_id in enumerate(self.sent.ids())}

    @cached_property
    def _asked_by_row(self) -> Sequence[Asked]:
        rows = zip(
            self.sent.words("status"),
            self.sent.values("output_tokens"),
            self.sent.values("prompt_tokens"),
            strict=True,
        )
        return [
            Asked(
                num_requests=1,
                num_ok=int(status == "ok"),
                tokens=tokens if status == "ok" else 0,
                takes_one_pass=prompt is not None and prompt <= ONE_PASS_PROMPT_TOKENS,
            )
            for status, tokens, prompt in rows
        ]

    @cached_property
    def _asked_by_place(self) -> Mapping[Where, Asked]:
        places, numbers = self.sent.places()
        tokens, prompts = self.sent.column("output_tokens"), self.sent.column("prompt_tokens")
        ok = self.sent.has("status", "ok")
        short = prompts.known & (prompts.values <= ONE_PASS_PROMPT_TOKENS)

        def count(of: NDArray[Any]) -> list[int]:
            # sums of tokens stay below 2**53, where a float is exact
            sums = np.bincount(numbers, weights=of, minlength=len(places))
            return [int(each) for each in sums]

        rows = zip(
            places,
            count(np.ones(len(numbers))),
            count(ok),
            count(ok & ~tokens.known),
            count(np.where(ok & tokens.known, tokens.values, 0)),
            count(~short),
            strict=True,
        )
        return {
            place: Asked(
                num_requests=num_requests,
                num_ok=num_ok,
                tokens=None if unknown else total,
                takes_one_pass=not long,
            )
            for place, num_requests, num_ok, unknown, total, long in rows
        }

    def of_kind(self, kind: str) -> "CellView":
        """The reference is narrowed along, so that like is compared with like."""
        if kind not in self._of_kinds:
            self._of_kinds[kind] = replace(
                self,
                kind=kind,
                reference=self.reference.of_kind(kind) if self.reference else None,
                requests=self.sent.where("kind", kind),
                snapshots=(),
                whole=self,
            )
        return self._of_kinds[kind]

    @cached_property
    def _of_kinds(self) -> dict[str, "CellView"]:
        return {}

    def of_boot(self, boot_id: str) -> "CellView":
        return replace(
            self,
            requests=self.sent.where("boot_id", boot_id),
            warmups=tuple(item for item in self.warmups if item.where.boot_id == boot_id),
            snapshots=(),
            boots=tuple(item for item in self.boots if item.where.boot_id == boot_id),
            ends=tuple(item for item in self.ends if item.where.boot_id == boot_id),
            machine=tuple(item for item in self.machine if item.where.boot_id == boot_id),
            whole=self,
        )


def _difference(
    before: Snapshot | None, after: Snapshot | None, gained: CountersDelta | NotMeasured | None
) -> CountersDelta | str:
    """What a scope gained, or why its two readings cannot tell."""
    if before is None or after is None:
        moment = "before" if before is None else "after"
        return f"unavailable: no counters were read {moment} it"
    if gained is None:
        told = before.error or after.error or "the engine keeps no counters that we know"
        return f"unavailable: {told}"
    if before.quiet is False or after.quiet is False:
        return "unavailable: the engine was not quiet when its counters were read"
    if isinstance(gained, NotMeasured):
        return f"unavailable: {gained.reason.replace('_', ' ')}, {gained.message}"
    return gained


def _foreign_work(delta: CountersDelta, asked: Asked, max_tokens: int) -> str | None:
    """What the engine did beyond these requests. A failed one may have had all of its tokens."""
    if asked.tokens is None:
        return None
    most = asked.tokens + max_tokens * asked.num_failed
    counted = (delta.requests or 0, delta.generation_tokens or 0)
    if counted[0] <= asked.num_requests and counted[1] <= most:
        return None
    return f"contaminated by other traffic: {_told(delta)} counted, {_ours(asked)}"


def _missing_work(delta: CountersDelta, asked: Asked) -> str | None:
    """What these requests got and the counters do not have: another server's, or one of several."""
    if asked.tokens is None:
        return None
    has_requests = delta.requests is None or delta.requests >= asked.num_ok
    has_tokens = delta.generation_tokens is None or delta.generation_tokens >= asked.tokens
    if has_requests and has_tokens:
        return None
    return (
        f"unavailable: the counters lack work of ours, {_told(delta)} counted, "
        f"{_ours(asked)}; check `metrics_urls`"
    )


def _told(delta: CountersDelta) -> str:
    requests = "" if delta.requests is None else f" of {delta.requests} requests"
    return f"{delta.generation_tokens} tokens{requests}"


def _ours(asked: Asked) -> str:
    return f"{asked.tokens} of {asked.num_requests} received"


def _sum(entries: Sequence[LedgerEntry], shared: bool) -> LedgerEntry:
    if not entries:
        reason = "counters are shared" if shared else "unavailable: no counters were read"
        return LedgerEntry(where=None, delta=None, reason=reason)
    for entry in entries:
        if entry.delta is None:
            return LedgerEntry(where=None, delta=None, reason=entry.reason)
    deltas = [entry.delta for entry in entries if entry.delta is not None]
    return LedgerEntry(where=None, delta=pooled(deltas), reason=None)
