"""What stands below every picture: how many observations are in it, and what its intervals are."""

from collections.abc import Iterable, Sequence

from harness.analysis.summary import ALL, Summary
from harness.cell_view import CellView
from harness.report import format as fmt
from harness.report.plots.style import estimate_of


def requests_in_boots(views: Sequence[CellView]) -> str:
    """n = 40 requests in 2 boots: of each variant."""
    measured = [view for view in views if view.requests]
    if not measured:
        return "n = 0: nothing was measured"
    requests = between(len(view.ok) for view in measured)
    boots = between(len(view.boots) for view in measured)
    return f"n = {requests} requests in {boots} boot{'' if boots == '1' else 's'}"


def counted_by(
    summary: Summary, views: Sequence[CellView], metric: str, noun: str, per: str = ""
) -> str:
    """n = 80 to 120 rounds a variant: what the figures over all kinds count."""
    counts = between(_counts(summary, views, metric))
    return f"n = {counts} {noun}{'' if counts == '1' else 's'}{f' {per}' if per else ''}"


def _counts(summary: Summary, views: Sequence[CellView], metric: str) -> list[int]:
    found = [estimate_of(summary, view, metric, ALL) for view in views]
    return [estimate.n for estimate in found if estimate.value is not None]


def between(counts: Iterable[int]) -> str:
    """40; of several 20 to 40."""
    known = list(counts)
    if not known:
        return "0"
    least, most = min(known), max(known)
    return str(least) if least == most else f"{least} to {most}"


def interval(summary: Summary, views: Sequence[CellView], metric: str, drawn: str) -> str:
    """`drawn` is what shows them: Whiskers, Bands."""
    methods = {
        estimate.method
        for view in views
        if (estimate := estimate_of(summary, view, metric, ALL)).method is not None
    }
    if not methods:
        return "no intervals: too few boots"
    how = fmt.listed(sorted(methods))
    deciding = "" if "bootstrap within one boot" not in methods else ", which decides nothing"
    return f"{drawn}: 95 % intervals ({how}{deciding})"
