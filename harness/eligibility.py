"""Which checkpoint can run which drafter on which engine, and why not: from configs and headers.

Every target of a plan is held against every drafter and every engine of it, measured or not. The
rules are those of `checks`; nothing here knows another. Pure: no file, no engine.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from harness.cell_view import CellView
from harness.checks import CHECKS
from harness.checks.checkpoints import is_dflash2
from harness.checks.methods import WORDS, kind_of, known_words
from harness.records import Boot, Cell

RULES = (
    "checkpoint_complete",
    "checkpoint_format",
    "drafter_known",
    "mtp_head",
    "speculator_kind",
    "drafter_geometry",
    "k_le_block",
    "lm_head_plain",
)


@dataclass(frozen=True, kw_only=True)
class Drafting:
    """A way to draft; `model` None: it needs none, `kind` None: plain decoding."""

    kind: str | None
    model: str | None
    k: int | None


@dataclass(frozen=True, kw_only=True)
class Answer:
    """`able` None: the files or the engine do not tell; `reason` says what is missing."""

    able: bool | None
    reason: str = ""


@dataclass(frozen=True, kw_only=True)
class Row:
    target: str
    drafting: Drafting
    name: str  # of the drafting, for a table
    answers: Mapping[str, Answer]  # by engine, in the plan's order


def eligible(
    cells: Sequence[Cell],
    models: Mapping[str, Mapping[str, Any]],
    boots: Mapping[str, Boot],
) -> tuple[Row, ...]:
    """boots: engine -> a boot of it, found or planned, for what its version can do."""
    targets = dict.fromkeys(cell.target for cell in cells)
    ways = dict.fromkeys(map(_drafting, cells))
    engines = {cell.engine: cell for cell in cells}
    rows = []
    for target in targets:
        for way in ways:
            views = {
                engine: _view(cell, target, way, models, boots.get(engine))
                for engine, cell in engines.items()
            }
            answers = {engine: _answer(view, way) for engine, view in views.items()}
            name = _name(way, next(iter(views.values())))
            rows.append(Row(target=target, drafting=way, name=name, answers=answers))
    return tuple(rows)


def _drafting(cell: Cell) -> Drafting:
    kind = None if cell.drafter is None else kind_of(cell.drafter) or cell.drafter
    return Drafting(kind=kind, model=cell.drafter_model, k=cell.k)


def _view(
    cell: Cell,
    target: str,
    way: Drafting,
    models: Mapping[str, Mapping[str, Any]],
    boot: Boot | None,
) -> CellView:
    words = WORDS.get(way.kind or "", {}).get(cell.adapter, (way.kind,))
    asked = replace(cell, target=target, drafter=words[0], drafter_model=way.model, k=way.k)
    if boot is None:
        return CellView(cell=asked, prompt_kinds={}, models=models)
    # what it said of itself belongs to the drafter that it had
    unheard = replace(boot, health=None, ready_s=None)
    known = known_of(models, boot)
    return CellView(cell=asked, prompt_kinds={}, models=known, boots=(unheard,))


def known_of(
    models: Mapping[str, Mapping[str, Any]], boot: Boot
) -> Mapping[str, Mapping[str, Any]]:
    """A server that we attach to has its own files, whatever lies here under their names."""
    return {} if boot.attached else models


def _answer(view: CellView, way: Drafting) -> Answer:
    words, cell = known_words(view.cell.adapter), view.cell
    if way.kind is not None and not words:
        return Answer(able=None, reason=f"which drafters {cell.engine} has is not known here")
    if way.kind is not None and cell.adapter not in WORDS.get(way.kind, {cell.adapter: ()}):
        return Answer(able=False, reason=f"{cell.engine} has no {way.kind}")
    found = [CHECKS[name].judge(view) for name in RULES]
    for level, able in (("invalid", False), ("warning", None)):
        said = next((each.message for each in found if each.level == level), None)
        if said is not None:
            return Answer(able=able, reason=said)
    unread = [name for name in (cell.target, cell.drafter_model) if name and _unread(name, view)]
    if unread:
        return Answer(able=None, reason=f"{' and '.join(unread)}: not on this machine")
    return Answer(able=True)


def _unread(name: str, view: CellView) -> bool:
    return view.models.get(name, {}).get("config") is None


def _name(way: Drafting, view: CellView) -> str:
    if way.kind is None:
        return "plain"
    kind = "DFlash 2" if way.kind == "DFlash" and is_dflash2(view) else way.kind
    model = "" if way.model is None else f" {way.model}"
    return f"{kind}{model}" + ("" if way.k is None else f", k = {way.k}")


def reasons(rows: Iterable[Row]) -> tuple[str, ...]:
    """Each reason once, in the order of the rows; a table shows its number."""
    answers = (answer for row in rows for answer in row.answers.values())
    return tuple(dict.fromkeys(answer.reason for answer in answers if answer.reason))


def shown(answer: Answer, known: Sequence[str]) -> str:
    """`yes`, `no [2]` or `? [3]`; the numbers are those of `reasons`, from 1."""
    word = {True: "yes", False: "no", None: "?"}[answer.able]
    return f"{word} [{known.index(answer.reason) + 1}]" if answer.reason else word
