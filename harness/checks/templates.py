"""Whether prompts are written out alike: by the chat templates that lie beside the models, and by
what the engines made of them.
"""

from collections.abc import Iterator, Mapping, Sequence

from harness.cell_view import CellView
from harness.checks.finding import OK, Finding, invalid, warning


def thinking_said(view: CellView) -> Finding:
    template = view.target_files.get("template") or {}
    if view.cell.sampling.thinking is not None or not template.get("can_think"):
        return OK
    return warning(
        f"{view.cell.target} can think aloud, and nothing says whether it is to: that is left to "
        "each engine's default. Write `sampling: {thinking: false}`, or `true`."
    )


def template_equal(view: CellView) -> Finding:
    """Prompts of two templates are two prompts; their lengths are compared when they were sent."""
    if view.reference is None:
        return OK
    ours = (view.target_files.get("template") or {}).get("sha256")
    theirs = (view.reference.target_files.get("template") or {}).get("sha256")
    if ours is None or theirs is None or ours == theirs:
        return OK
    return warning(
        f"{view.cell.target} and the reference's {view.reference.cell.target} have different chat "
        "templates, so one prompt may be rendered to two. Copy the reference's over."
    )


def rendered_alike(view: CellView) -> Finding:
    """By hashes of the tokens: prompts of equal length may still be two, as where one engine was
    told not to think and another did not hear it.
    """
    known = list(_rendered(view))
    if not known:
        return OK
    (first, ours), *others = known
    told = [(f"in boot {boot_id}", found) for boot_id, found in others]
    if view.reference is not None:
        where = f"for the reference, {view.reference.cell.variant}"
        told += [(where, found) for _, found in _rendered(view.reference)]
    for where, found in told:
        differing = [prompt for prompt in ours if found.get(prompt, ours[prompt]) != ours[prompt]]
        if differing:
            return invalid(
                f"{len(differing)} of {len(ours)} prompts ({_some(differing)}): rendered to other "
                f"tokens in boot {first} than {where}. Compare the two chat templates, and what "
                "each engine makes of `thinking`."
            )
    return OK


def _rendered(view: CellView) -> Iterator[tuple[str, Mapping[str, str]]]:
    """Boot and the hashes of the cell's prompts, where the engine told them."""
    for boot in view.boots:
        found = (boot.rendered or {}).get(view.cell.prompt_set)
        if found:
            yield str(boot.where.boot_id), found


def _some(prompts: Sequence[str]) -> str:
    more = f" and {len(prompts) - 3} more" if len(prompts) > 3 else ""
    return ", ".join(map(repr, prompts[:3])) + more
