"""The recorded facts of one cell, gathered: what checks judge and metrics are computed from.

A view holds records and selects among them. It computes no figure, judges nothing and does not know
where the records came from: a results folder, a run that is still going on, or a test.
"""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

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
    """One cell over its boots. `kind` is set in a view that is narrowed to one kind of prompt."""

    cell: Cell
    prompt_kinds: Mapping[str, str]  # every prompt of the cell's set, its kind
    requests: tuple[Request, ...] = ()  # measured ones, the failed among them
    warmups: tuple[Request, ...] = ()  # of the same boots
    snapshots: tuple[Snapshot, ...] = ()
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

    @cached_property
    def ok(self) -> tuple[Request, ...]:
        return tuple(request for request in self.requests if request.status == "ok")

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
    def ledger(self) -> tuple[LedgerEntry, ...]:
        """One entry per scope that has a reading before and one after, in recorded order."""
        if self.kind is not None and self.counters_are_shared:
            return ()
        pairs: dict[Where, dict[str, Snapshot]] = defaultdict(dict)
        for snapshot in self.snapshots:
            pairs[snapshot.where][snapshot.moment] = snapshot
        return tuple(self._entry(where, pair) for where, pair in pairs.items())

    def _entry(self, where: Where, pair: Mapping[str, Snapshot]) -> LedgerEntry:
        delta = _difference(pair.get("before"), pair.get("after"))
        if isinstance(delta, str):
            return LedgerEntry(where=where, delta=None, reason=delta)
        requests = self.requests_in(where)
        foreign = _foreign_work(delta, requests, self.cell.max_tokens)
        missing = None if foreign else _missing_work(delta, requests)
        if foreign or missing:
            return LedgerEntry(
                where=where, delta=None, reason=foreign or missing, contaminated=bool(foreign)
            )
        alone = self.cell.concurrency == 1 and all(map(_takes_one_pass, requests))
        if alone and self.cell.drafter is not None:
            delta = with_plain_steps(delta, len(requests))
        return LedgerEntry(where=where, delta=delta, reason=None)

    @cached_property
    def total(self) -> LedgerEntry:
        """The ledger summed; without a delta as soon as one scope has none, for a partial sum would
        mislead.
        """
        return _sum(self.ledger, self.counters_are_shared and self.kind is not None)

    def requests_in(self, where: Where) -> tuple[Request, ...]:
        """The requests that ran between the two readings of a scope."""
        if where.request_id is not None:
            return tuple(item for item in self.requests if item.where == where)
        return tuple(
            item for item in self.requests if replace(item.where, request_id=None) == where
        )

    def of_kind(self, kind: str) -> "CellView":
        """The reference is narrowed along, so that like is compared with like."""
        requests = tuple(request for request in self.requests if request.kind == kind)
        ids = {request.where.request_id for request in requests}
        return replace(
            self,
            kind=kind,
            reference=self.reference.of_kind(kind) if self.reference else None,
            requests=requests,
            snapshots=tuple(item for item in self.snapshots if item.where.request_id in ids),
        )

    def of_boot(self, boot_id: str) -> "CellView":
        return replace(
            self,
            requests=tuple(item for item in self.requests if item.where.boot_id == boot_id),
            warmups=tuple(item for item in self.warmups if item.where.boot_id == boot_id),
            snapshots=tuple(item for item in self.snapshots if item.where.boot_id == boot_id),
            boots=tuple(item for item in self.boots if item.where.boot_id == boot_id),
            ends=tuple(item for item in self.ends if item.where.boot_id == boot_id),
            machine=tuple(item for item in self.machine if item.where.boot_id == boot_id),
        )


def _difference(before: Snapshot | None, after: Snapshot | None) -> CountersDelta | str:
    """What a scope gained, or why its two readings cannot tell."""
    if before is None or after is None:
        moment = "before" if before is None else "after"
        return f"unavailable: no counters were read {moment} it"
    if before.counters is None or after.counters is None:
        told = before.error or after.error or "the engine keeps no counters that we know"
        return f"unavailable: {told}"
    if before.quiet is False or after.quiet is False:
        return "unavailable: the engine was not quiet when its counters were read"
    delta = counters_delta(before.counters, after.counters)
    if isinstance(delta, NotMeasured):
        return f"unavailable: {delta.reason.replace('_', ' ')}, {delta.message}"
    return delta


def _foreign_work(delta: CountersDelta, requests: Sequence[Request], max_tokens: int) -> str | None:
    """What the engine did beyond these requests. A failed one may have had all of its tokens."""
    tokens = _tokens_of(requests)
    if tokens is None:
        return None
    most = tokens + max_tokens * sum(request.status == "failed" for request in requests)
    counted = (delta.requests or 0, delta.generation_tokens or 0)
    if counted[0] <= len(requests) and counted[1] <= most:
        return None
    return f"contaminated by other traffic: {_told(delta)} counted, {_ours(requests, tokens)}"


def _missing_work(delta: CountersDelta, requests: Sequence[Request]) -> str | None:
    """What these requests got and the counters do not have: another server's, or one of several."""
    tokens = _tokens_of(requests)
    if tokens is None:
        return None
    num_ok = sum(request.status == "ok" for request in requests)
    has_requests = delta.requests is None or delta.requests >= num_ok
    has_tokens = delta.generation_tokens is None or delta.generation_tokens >= tokens
    if has_requests and has_tokens:
        return None
    return (
        f"unavailable: the counters lack work of ours, {_told(delta)} counted, "
        f"{_ours(requests, tokens)}; check `metrics_urls`"
    )


def _tokens_of(requests: Sequence[Request]) -> int | None:
    """Of those that succeeded; None where an engine does not say how many."""
    lengths = [request.output_tokens for request in requests if request.status == "ok"]
    known = [length for length in lengths if length is not None]
    return sum(known) if len(known) == len(lengths) else None


def _told(delta: CountersDelta) -> str:
    requests = "" if delta.requests is None else f" of {delta.requests} requests"
    return f"{delta.generation_tokens} tokens{requests}"


def _ours(requests: Sequence[Request], tokens: int) -> str:
    return f"{tokens} of {len(requests)} received"


def _takes_one_pass(request: Request) -> bool:
    return request.prompt_tokens is not None and request.prompt_tokens <= ONE_PASS_PROMPT_TOKENS


def _sum(entries: Sequence[LedgerEntry], shared: bool) -> LedgerEntry:
    if not entries:
        reason = "counters are shared" if shared else "unavailable: no counters were read"
        return LedgerEntry(where=None, delta=None, reason=reason)
    for entry in entries:
        if entry.delta is None:
            return LedgerEntry(where=None, delta=None, reason=entry.reason)
    deltas = [entry.delta for entry in entries if entry.delta is not None]
    return LedgerEntry(where=None, delta=pooled(deltas), reason=None)
