"""docs/terms.md explains every word that a record, a row or a page may use."""

import re
from pathlib import Path
from typing import get_args, get_type_hints

import pytest

from harness.analysis import stats
from harness.analysis.metrics import COMPARISONS, METRICS, POSITION_METRICS
from harness.compare.difference import OVER_BOOTS, OVER_NIGHTS
from harness.records import Assignment, CachePolicy, LengthPolicy, LoadShape, Request, RequestError

TERMS = (Path(__file__).parents[2] / "docs" / "terms.md").read_text(encoding="utf-8")


def words_of(hint: object) -> set[str]:
    """The literal words that a field may hold, None left out."""
    if isinstance(hint, str):
        return {hint}
    return {word for part in get_args(hint) for word in words_of(part)}


@pytest.mark.parametrize("name", [*METRICS, *COMPARISONS, *POSITION_METRICS])
def test_every_metric_is_explained(name: str) -> None:
    assert f"`{name}`" in TERMS


def failure_kinds() -> list[str]:
    """As the record's own docstring lists them."""
    listed = re.search(r"kind: (.*)\.", str(RequestError.__doc__))
    assert listed is not None
    return listed[1].split(", ")


@pytest.mark.parametrize("kind", [*failure_kinds(), "boot"])
def test_every_kind_of_failure_is_explained(kind: str) -> None:
    assert f"`{kind}`" in TERMS


def test_the_list_of_failures_is_the_list_of_what_the_code_makes() -> None:
    package = Path(__file__).parents[2] / "harness"
    code = "".join(path.read_text(encoding="utf-8") for path in package.rglob("*.py"))
    made = set(re.findall(r'RequestError\(\s*kind="(\w+)"', code))

    assert made == set(failure_kinds())


@pytest.mark.parametrize(
    "field", ["output_tokens_source", "first_tokens_source", "event_tokens_source"]
)
def test_every_source_of_a_count_is_explained(field: str) -> None:
    words = words_of(get_type_hints(Request)[field])

    assert "usage" in words
    for word in words:
        assert f"`{word}`" in TERMS


@pytest.mark.parametrize("kind", [LoadShape, Assignment, LengthPolicy, CachePolicy])
def test_every_choice_of_a_workload_is_explained(kind: object) -> None:
    for word in words_of(kind):
        assert f"`{word}`" in TERMS or f"`cache: {word}`" in TERMS


def test_every_kind_of_interval_is_explained() -> None:
    boots = stats.ratio_interval([1.0, 1.1], [1.0, 1.2])
    within = stats.bootstrap_interval([[1.0, 1.1, 1.3]])
    assert boots is not None
    assert within is not None

    for method in (boots.method, within.method, OVER_BOOTS, OVER_NIGHTS):
        assert f'"{method}"' in TERMS


@pytest.mark.parametrize("reason", ["not_configured", "no_drafts", "not_reported", "unavailable"])
def test_every_reason_for_a_missing_figure_of_drafting_is_explained(reason: str) -> None:
    assert f"`{reason}`" in TERMS


def test_every_flag_of_a_request_is_explained() -> None:
    parse = Path(__file__).parents[2] / "harness" / "run" / "parse.py"
    marks = re.search(r"marks = \{(.*?)\n    \}", parse.read_text(encoding="utf-8"), re.DOTALL)
    assert marks is not None
    names = re.findall(r'"(\w+)":', marks[1])

    assert len(names) == 6
    for name in names:
        assert f"`{name}`" in TERMS
