"""Whether a cell and its reference may be held against each other."""

import re
from collections.abc import Mapping

import numpy as np

from harness.cell_view import CellView
from harness.checks.answers import median_lengths
from harness.checks.finding import OK, Finding, alternatives, invalid, warning
from harness.requests import Requests

LENGTH_TOLERANCE = 0.10


def lengths_equal(view: CellView) -> Finding:
    """Outputs as long as the reference's, prompt by prompt: else two different pieces of work are
    compared.
    """
    if view.reference is None:
        return OK
    if view.cell.sampling.temperature > 0 and view.cell.length != "forced":
        return warning(
            f"At temperature {view.cell.sampling.temperature:g} with length natural every output "
            "has its own length, so this is no controlled comparison. Set `length: forced`."
        )
    ours, theirs = median_lengths(view.ok), median_lengths(view.reference.ok)
    differing = {
        prompt: (ours[prompt], theirs[prompt])
        for prompt in ours.keys() & theirs.keys()
        if ours[prompt] != theirs[prompt]
    }
    if not differing:
        return OK
    prompt, (own, other) = max(
        sorted(differing.items()), key=lambda item: _relative_difference(*item[1])
    )
    message = (
        f"Outputs differ in length from the reference's for {len(differing)} of {len(ours)} "
        f"prompts, most for {prompt!r}: {own:g} against {other:g} tokens. No controlled "
        "comparison: look at the first differing token under Losslessness, or set `length: "
        "forced`."
    )
    if _relative_difference(own, other) <= LENGTH_TOLERANCE:
        return warning(message)
    return invalid(message)


def _relative_difference(own: float, other: float) -> float:
    return abs(own - other) / max(other, 1.0)


def prompt_rendered_equal(view: CellView) -> Finding:
    if view.reference is None:
        return OK
    ours, theirs = _prompt_lengths(view.ok), _prompt_lengths(view.reference.ok)
    for prompt in sorted(ours.keys() & theirs.keys()):
        if ours[prompt] != theirs[prompt]:
            return invalid(
                f"{prompt!r} was rendered to {alternatives(ours[prompt])} prompt tokens, to "
                f"{alternatives(theirs[prompt])} for the reference. Compare the two engines' chat "
                "templates and thinking flags."
            )
    return OK


def _prompt_lengths(requests: Requests) -> Mapping[str, frozenset[int]]:
    lengths = requests.grouped("prompt_tokens")
    return {str(prompt): frozenset(np.unique(each).tolist()) for prompt, each in lengths.items()}


def confounded(view: CellView) -> Finding:
    if view.reference is None:
        return OK
    ours, theirs = _settings(view), _settings(view.reference)
    moved = sorted(
        name for name in ours.keys() | theirs.keys() if ours.get(name) != theirs.get(name)
    )
    if not moved:
        return OK
    return warning(
        f"Beside the drafter, the reference differs in {', '.join(moved)}, so the speed-up is not "
        "the drafter's alone. Set it alike in both, or read the ratio as that of two set-ups."
    )


_OF_THE_MODELS = ("target", "drafter", "drafter_model", "k")
# the drafter's own settings: speculative_config, spec_ngram_simple_size_n, ctx_size_draft, ...
_OF_A_DRAFTER = re.compile(r"(^|_)(spec|speculative|draft)(_|$)")


def _settings(view: CellView) -> Mapping[str, object]:
    """What the boots were asked for, the models and what only a drafter reads left out; environment
    variables among it.
    """
    asked: dict[str, object] = {}
    for boot in view.boots:
        asked |= {name: value for name, value in boot.wanted.items() if not _of_a_model(name)}
        asked |= boot.environment
    return asked


def _of_a_model(setting: str) -> bool:
    return setting in _OF_THE_MODELS or _OF_A_DRAFTER.search(setting) is not None


def unequal_depth(view: CellView) -> Finding:
    other = view.reference.cell.k if view.reference else None
    if other is None or view.cell.k is None or other == view.cell.k:
        return OK
    return warning(
        f"k = {view.cell.k} is held against k = {other}: the ratio is of two drafters and of two "
        "depths. Measure both at each depth."
    )
