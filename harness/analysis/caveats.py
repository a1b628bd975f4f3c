"""RULES: what a reader must know before a figure is quoted, found in the run and not remembered.

A rule names the cells it touches. Checks judge one cell and its reference; these look across the
cells of a table: rows of unequal depth, of another protocol, without a reference.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations

from harness.analysis.summary import Section, Summary
from harness.cell_view import CellView
from harness.checks.checkpoints import PLAIN_TYPES

OF_THE_CHECKS = (
    "drafter_differs",
    "confounded",
    "balanced_mix",
    "lm_head_plain",
    "build_known",
    "split_session",
    "within_one_boot",
)
"""Checks whose warnings are caveats of a comparison rather than faults of a measurement."""


@dataclass(frozen=True, kw_only=True)
class Caveat:
    rule: str
    text: str
    cell_ids: tuple[str, ...]


def caveats(summary: Summary) -> Iterator[Caveat]:
    for find in RULES.values():
        yield from find(summary)


def _of_the_checks(summary: Summary) -> Iterator[Caveat]:
    touched: dict[tuple[str, str], list[str]] = {}
    for verdict in summary.verdicts:
        if verdict.check in OF_THE_CHECKS and verdict.level != "ok" and verdict.cell_id:
            touched.setdefault((verdict.check, verdict.message), []).append(verdict.cell_id)
    for (rule, message), cell_ids in touched.items():
        yield Caveat(rule=rule, text=message, cell_ids=tuple(cell_ids))


def _unequal_depth(summary: Summary) -> Iterator[Caveat]:
    """Two drafters of one table that draft to different depths; told once of all tables that have
    the same drafters.
    """
    found: dict[str, list[Section]] = {}
    for section in summary.sections:
        deep = {view.cell.k for view in _deep(section)}
        methods = {view.cell.drafter for view in _deep(section)}
        if len(deep) > 1 and len(methods) > 1:
            named = dict.fromkeys(f"{v.cell.variant} k = {v.cell.k}" for v in _deep(section))
            found.setdefault(", ".join(named), []).append(section)
    for told, sections in found.items():
        yield Caveat(
            rule="unequal_depth",
            text=f"Drafters of {', '.join(section.word for section in sections)} draft to "
            f"different depths ({told}): a difference in acceptance length or speed between them "
            "is of depth, too. An acceptance length is capped at k + 1.",
            cell_ids=_ids([view for section in sections for view in _deep(section)]),
        )


def _deep(section: Section) -> list[CellView]:
    """Those that draft to a depth of their own."""
    return [view for view in section.views if view.cell.k is not None]


def _no_reference(summary: Summary) -> Iterator[Caveat]:
    """Absolute figures only: nobody measured these weights without a drafter."""
    for section in summary.sections:
        views = [
            view
            for view in section.views
            if view.cell.drafter is not None and view.reference is None
        ]
        if views:
            names = ", ".join(dict.fromkeys(view.cell.variant for view in views))
            yield Caveat(
                rule="no_reference",
                text=f"No plain decoding was measured for {names} in {section.word}: these rows "
                f"carry absolute figures alone ({views[0].cell.reference_reason}).",
                cell_ids=_ids(views),
            )


def _other_protocol(summary: Summary) -> Iterator[Caveat]:
    """What was measured in two ways agrees within a few percent at best."""
    for one, two in combinations(summary.sections, 2):
        if one.workload == two.workload and one.protocol_id != two.protocol_id:
            yield Caveat(
                rule="other_protocol",
                text=f"{one.word} (protocol {one.protocol_id}) and {two.word} (protocol "
                f"{two.protocol_id}) were made in different ways: compare rows within one table, "
                "not across the two; where they meet stands in a table of its own.",
                cell_ids=_ids((*one.views, *two.views)),
            )


def _prefill_at_another_depth(summary: Summary) -> Iterator[Caveat]:
    """Deeper speculation lowers the tokens that an engine schedules into one step."""
    for section in summary.sections:
        if section.workload != "prefill":
            continue
        deep = _deep(section)
        if len({view.cell.k for view in deep}) > 1:
            told = ", ".join(f"{view.cell.variant} k = {view.cell.k}" for view in deep)
            yield Caveat(
                rule="prefill_at_another_depth",
                text=f"Prefill was measured at different depths ({told}), and deeper speculation "
                "can lower the tokens of one step: a difference is valid for these depths and not "
                "the drafter's.",
                cell_ids=_ids(deep),
            )


def _quantised_head(summary: Summary) -> Iterator[Caveat]:
    """DFlash 2 reads its candidates off the target's LM head."""
    for target, views in _by_target(summary.data.views).items():
        heads = ((views[0].target_files.get("weights") or {}).get("head") or {}).values()
        quantised = sorted(set(heads) - set(PLAIN_TYPES))
        if quantised:
            yield Caveat(
                rule="quantised_head",
                text=f"The LM head of {target} is quantised ({', '.join(quantised)}): vLLM before "
                "0.32 refuses DFlash 2 on it, so a comparison on these weights may lack that row.",
                cell_ids=_ids(views),
            )


def _by_target(views: Sequence[CellView]) -> Mapping[str, list[CellView]]:
    found: dict[str, list[CellView]] = {}
    for view in views:
        found.setdefault(view.cell.target, []).append(view)
    return found


def _ids(views: Sequence[CellView]) -> tuple[str, ...]:
    return tuple(view.cell.cell_id for view in views)


RULES: Mapping[str, Callable[[Summary], Iterator[Caveat]]] = {
    "of_the_checks": _of_the_checks,
    "unequal_depth": _unequal_depth,
    "no_reference": _no_reference,
    "other_protocol": _other_protocol,
    "prefill_at_another_depth": _prefill_at_another_depth,
    "quantised_head": _quantised_head,
}


def protocols_meet(summary: Summary) -> Iterator[tuple[Section, Section]]:
    """Pairs of sections that measured one thing in two ways: two protocols of a workload, and one
    stream beside one request in flight.
    """
    for one, two in combinations(summary.sections, 2):
        is_pair = one.workload == two.workload and one.is_single and two.is_single
        is_alone = one.is_single and one.workload == "generate" and 1 in two.levels
        if is_pair or (is_alone and two.workload == "concurrency"):
            yield one, two
