"""What a check finds stands under the table it touches, and a void cell wins nothing."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from harness.analysis.summary import Summary, summarise
from harness.records import Request
from harness.report import format as fmt
from harness.report.page import results_page

from . import synthetic
from .cases.from_records import without_links


def summary_of(
    path: Path,
    *,
    edit: Callable[[Request], Request] = lambda request: request,
    acceptance: float | None = None,
) -> Summary:
    """A run of one request at a time; acceptance: of every position, whatever the kind."""
    behaviours = None
    if acceptance is not None:
        chances = dict.fromkeys(synthetic.KINDS, acceptance)
        behaviours = {"DFlash2": replace(synthetic.DFLASH2, acceptance=chances)}
    asked = synthetic.matrix(levels=(), boots=2)
    return summarise(synthetic.write_run(path, asked, behaviours=behaviours, edit=edit))


def page_of(summary: Summary) -> str:
    return without_links(results_page(summary, ())).replace("\\", "")


def row_of(page: str, variant: str) -> str:
    """Of the table of decode rates."""
    table = page.split("**Decode rate, tok/s**")[1]
    return next(line for line in table.splitlines() if line.startswith(f"| {variant} |"))


# --- B135: speculation is on but everything is rejected -------------------------------------------


@pytest.fixture(scope="module")
def rejected(tmp_path_factory: pytest.TempPathFactory) -> Summary:
    """A round of a draft and its verification for every token: slower than plain decoding."""
    return summary_of(tmp_path_factory.mktemp("rejected"), acceptance=0.0)


def test_b135_a_drafter_of_which_everything_is_rejected_makes_the_run_invalid(
    rejected: Summary,
) -> None:
    """`dflashbench run` ends with 3 on that level. Wrong: exit 0."""
    guilty = [verdict.check for verdict in rejected.verdicts if verdict.level == "invalid"]

    assert rejected.level == "invalid"
    assert guilty == ["all_rejected"]


def test_b135_its_row_is_void_and_says_the_length_and_the_depth(rejected: Summary) -> None:
    """Wrong: a row `DFlash2: 54.1 tok/s` like any other."""
    page = page_of(rejected)

    assert fmt.INVALID_MARK in row_of(page, "DFlash2")
    assert fmt.INVALID_MARK not in row_of(page, "plain")
    assert "Acceptance length 1.00 with k = 7" in page
    assert "no working dflash2" in page


def test_b135_nothing_is_derived_from_it(rejected: Summary) -> None:
    drafted = next(view for view in rejected.data.views if view.cell.variant == "DFlash2")
    speedup = rejected.row(drafted, "speedup")

    assert speedup is not None
    assert speedup.estimate.value is None
    assert "DFlash2 decodes" not in page_of(rejected)


def test_b135_a_drafter_that_is_seldom_right_is_slow_and_not_void(tmp_path: Path) -> None:
    """One draft in ten accepted: a poor result, but one."""
    summary = summary_of(tmp_path, acceptance=0.1)

    assert "all_rejected" not in {v.check for v in summary.verdicts if v.level != "ok"}
    assert fmt.INVALID_MARK not in row_of(page_of(summary), "DFlash2")


# --- B133, B139: what a limit did to an output ----------------------------------------------------


def of_drafted(**changes: object) -> Callable[[Request], Request]:
    def edit(request: Request) -> Request:
        if not str(request.where.cell_id).startswith("dflash2"):
            return request
        return replace(request, **changes)

    return edit


def test_b133_an_output_that_a_full_context_cut_is_told(tmp_path: Path) -> None:
    """Wrong: an answer of 100 tokens beside one of 192, both called finished."""
    summary = summary_of(tmp_path, edit=of_drafted(finish_reason="length", output_tokens=100))

    assert "context_fits" in {v.check for v in summary.verdicts if v.level == "warning"}
    assert "(100 of 192 tokens" in page_of(summary)


def test_b139_more_tokens_than_were_allowed_are_told(tmp_path: Path) -> None:
    """The flag is the parser's (test_parse): completion_tokens above max_tokens."""
    summary = summary_of(tmp_path, edit=of_drafted(flags=("over_cap",)))

    assert "over_cap" in {v.check for v in summary.verdicts if v.level == "warning"}
    assert "more than `max_tokens` tokens came" in page_of(summary)
