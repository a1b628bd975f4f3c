"""Whether prompts are written out alike, by the chat templates that lie beside the models."""

from harness.cell_view import CellView
from harness.checks.finding import OK, Finding, warning


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
