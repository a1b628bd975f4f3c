"""Asking a reference's engine, while it still runs, for the odds where outputs leave its own.

It comes behind everything that is measured of the outputs it is about, takes no time that counts,
and records what the engine said; whether a difference was a near-tie is judged from the files. An
answer serves every output that leaves the reference's at the same place by the same token.
"""

from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

import httpx
import msgspec

from harness.adapters.base import Adapter, Ask, Post
from harness.differences import Pair, compared_with, first_unequal, pairs
from harness.errors import EngineError
from harness.prompts import salted
from harness.records import (
    Cell,
    LikelyToken,
    Plan,
    Prompt,
    Request,
    Rescore,
    Where,
    Workload,
)
from harness.run.boot import RunningEngine
from harness.run.clock import utc_now
from harness.run.rendering import prompt_tokens
from harness.store import EventRow, RunFolder

T = TypeVar("T")


class UntoldError(Exception):
    """Why an engine's word on a difference cannot be had, as a clause. It is data."""


@dataclass(frozen=True, kw_only=True)
class Question:
    """An output that differs from its reference's. Events None: they were not stored."""

    pair: Pair
    cell: Cell
    reference_cell: Cell
    own: EventRow | None
    reference: EventRow | None


# --- what there is to ask -------------------------------------------------------------------------


def questions(folder: RunFolder, plan: Plan, variant: str) -> tuple[Question, ...]:
    """Of the engine of `variant`: where outputs differ from its own and nobody asked yet."""
    cells = {cell.cell_id: cell for cell in compared_with(plan, variant)}
    if not cells:
        return ()
    asked = {
        (rescore.where.request_id, rescore.reference_text_sha256)
        for rescore in folder.read(Rescore)
    }
    requests = _outputs_by_cell(folder.usable(Request), cells)
    events = _Events(folder=folder)
    return tuple(
        Question(
            pair=pair,
            cell=cell,
            reference_cell=reference,
            own=events.of(pair.own),
            reference=events.of(pair.reference),
        )
        for cell in cells.values()
        if (reference := cells.get(cell.reference_cell_id or cell.cell_id)) is not None
        for pair in pairs(requests[cell.cell_id], requests[reference.cell_id])
        if pair.differs and (pair.own.where.request_id, pair.reference.text_sha256) not in asked
    )


def cells_left(folder: RunFolder) -> frozenset[str]:
    """Of a stored run: the cells whose engine is to be asked about a difference."""
    rules, plan = folder.manifest.losslessness, folder.manifest.plan
    if rules is None or not rules.rescore:
        return frozenset()
    return frozenset(
        question.reference_cell.cell_id
        for variant in {cell.variant for cell in plan.cells}
        for question in questions(folder, plan, variant)
    )


def _outputs_by_cell(
    requests: Iterable[Request], cells: Mapping[str, Cell]
) -> Mapping[str, Sequence[Request]]:
    found: dict[str, list[Request]] = {cell_id: [] for cell_id in cells}
    for request in requests:
        is_measured = (request.where.repetition or 0) >= 0
        if request.where.cell_id in found and is_measured and request.status == "ok":
            found[request.where.cell_id].append(request)
    return found


@dataclass(kw_only=True)
class _Events:
    """What requests received; a repetition is read once."""

    folder: RunFolder
    _rows: dict[tuple[str, str, int], Mapping[str, EventRow]] = field(default_factory=dict)

    def of(self, request: Request) -> EventRow | None:
        where = request.where
        assert where.cell_id is not None
        assert where.boot_id is not None
        assert where.repetition is not None
        place = (where.cell_id, where.boot_id, where.repetition)
        if place not in self._rows:
            there = self.folder.events_path(*place).exists()
            rows = self.folder.read_events(*place) if there else []
            self._rows[place] = {row.request_id: row for row in rows}
        return self._rows[place].get(str(where.request_id))


# --- asking ---------------------------------------------------------------------------------------


async def ask(
    engine: RunningEngine,
    asked: Sequence[Question],
    folder: RunFolder,
    *,
    workload_of: Callable[[Cell], Workload],
    timeout_s: float,
    pause: Callable[[], Awaitable[None]],
    at: Callable[[str], None],
) -> None:
    """A record per question, each on the disk before the next is asked.

    pause: before each request, for a server that allows few.
    """
    asker = _Asker(engine=engine, workload_of=workload_of, timeout_s=timeout_s, pause=pause)
    for number, question in enumerate(asked, start=1):
        at(f"odds at the difference of output {number} of {len(asked)}")
        folder.append(await asker.answer(question))


def untold(question: Question, reason: str) -> Rescore:
    """Of an engine that need not be asked."""
    return _record(question, None, None, (), reason)


@dataclass(frozen=True, kw_only=True)
class _Place:
    """Where two outputs part: tokens of the prompt and of what both begin with, then of each."""

    before: tuple[int, ...]
    index: int
    own: int | None  # None: the output ended
    reference: int | None


@dataclass(kw_only=True)
class _Asker:
    """A boot of the reference's engine, which is asked nothing twice."""

    engine: RunningEngine
    workload_of: Callable[[Cell], Workload]
    timeout_s: float
    pause: Callable[[], Awaitable[None]]
    _answers: dict[bytes, Any] = field(default_factory=dict)
    _prompts: dict[tuple[str, str, str | None], tuple[int, ...]] = field(default_factory=dict)

    @property
    def _adapter(self) -> Adapter:
        return self.engine.adapter

    async def answer(self, question: Question) -> Rescore:
        place, likeliest, reason = None, tuple[LikelyToken, ...](), None
        try:
            place = await self._place(question)
            likeliest = await self._likeliest(question.reference_cell.target, place)
        except UntoldError as error:
            reason = str(error)
        return _record(question, self.engine.boot.where, place, likeliest, reason)

    async def _place(self, question: Question) -> _Place:
        own, reference = await self._outputs(question)
        index = first_unequal(own, reference)
        ours = _token_at(index, own, question.pair.own)
        theirs = _token_at(index, reference, question.pair.reference)
        if ours == theirs:
            raise UntoldError("the texts differ, but not the tokens that they are written with")
        prompt = await self._prompt(question)
        return _Place(before=(*prompt, *own[:index]), index=index, own=ours, reference=theirs)

    async def _outputs(self, question: Question) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """As the engines told the tokens; where one did not, as this one would write the texts."""
        own, reference = question.own, question.reference
        if own is None or reference is None or own.text is None or reference.text is None:
            raise UntoldError("the outputs themselves were not stored")
        of_one_kind = question.cell.adapter == question.reference_cell.adapter
        if of_one_kind and own.token_ids is not None and reference.token_ids is not None:
            return own.token_ids, reference.token_ids
        return await self._tokens(own.text), await self._tokens(reference.text)

    async def _prompt(self, question: Question) -> tuple[int, ...]:
        """The chat as the engine writes it out for its model."""
        if self._adapter.render is None:
            raise self._no_words("how a chat is written out")
        request = question.pair.own
        sent = (question.cell.prompt_set, request.prompt_id, request.salt)
        if sent not in self._prompts:
            prompts = self.workload_of(question.cell).prompts.prompts
            prompt = next(each for each in prompts if each.prompt_id == request.prompt_id)
            asked = _ask(prompt, request.salt, question.reference_cell)
            await self.pause()
            self._prompts[sent] = await prompt_tokens(self.engine.http, self._adapter, asked)
        return self._prompts[sent]

    async def _tokens(self, text: str) -> tuple[int, ...]:
        if self._adapter.tokenize is None:
            raise self._no_words("the tokens of a text")
        post = self._adapter.tokenize.request(text, False)
        return await self._told(post, self._adapter.tokenize.read)

    async def _likeliest(self, model: str, place: _Place) -> tuple[LikelyToken, ...]:
        if self._adapter.score is None:
            raise self._no_words("the odds of a token")
        post = self._adapter.score.request(model, place.before)
        return await self._told(post, self._adapter.score.read)

    def _no_words(self, what: str) -> UntoldError:
        return UntoldError(no_words(self._adapter, what))

    # --- HTTP -------------------------------------------------------------------------------------

    async def _told(self, post: Post, read: Callable[[Any], T | None]) -> T:
        key = msgspec.json.encode([post.path, post.body])
        if key not in self._answers:
            self._answers[key] = await self._posted(post)
        found = read(self._answers[key])
        if found is None:
            raise UntoldError(f"{post.path} does not answer as {self._adapter.name} is known to")
        return found

    async def _posted(self, post: Post) -> Any:
        await self.pause()
        try:
            response = await self.engine.http.post(
                post.path, json=post.body, timeout=self.timeout_s
            )
        except httpx.HTTPError as error:
            what = str(error) or type(error).__name__
            raise EngineError(
                f"{self.engine.boot.url}{post.path} does not answer ({what}); `dflashbench resume` "
                "asks again"
            ) from error
        if response.status_code != 200:
            raise UntoldError(
                f"{post.path} says HTTP {response.status_code}: {response.text[:200]}"
            )
        try:
            return response.json()
        except ValueError as error:
            raise UntoldError(f"{post.path} answers what is no JSON") from error


def no_words(adapter: Adapter, what: str = "the odds of a token") -> str:
    return f"adapter {adapter.name} has no words for {what}"


def _ask(prompt: Prompt, salt: str | None, cell: Cell) -> Ask:
    return Ask(
        model=cell.target,
        messages=salted(prompt.messages, salt) if salt else prompt.messages,
        max_tokens=1,
        sampling=cell.sampling,
        length=cell.length,
    )


def _token_at(index: int, tokens: Sequence[int], request: Request) -> int | None:
    """None: the model ended the output there."""
    if index < len(tokens):
        return tokens[index]
    if request.finish_reason != "stop":
        raise UntoldError("one output was cut off where the other goes on")
    return None


def _record(
    question: Question,
    asked: Where | None,
    place: _Place | None,
    likeliest: tuple[LikelyToken, ...],
    reason: str | None,
) -> Rescore:
    own, reference = question.pair.own, question.pair.reference
    return Rescore(
        where=own.where,
        at=utc_now(),
        asked_boot_id=asked.boot_id if asked else None,
        reference_request_id=str(reference.where.request_id),
        reference_text_sha256=str(reference.text_sha256),
        index=place.index if place else None,
        token_id=place.own if place else None,
        reference_token_id=place.reference if place else None,
        likeliest=likeliest,
        reason=reason,
    )
