"""The same weights in the bundled engine, llama.cpp and vLLM: the same texts, the same acceptance.

The strongest evidence that the drafter is computed rightly here: an engine that shares no line with
ours accepts as much of what it drafts.
"""

from collections.abc import Mapping
from itertools import zip_longest

import pytest

from harness import measures
from harness.analysis import dataset
from harness.cell_view import CellView
from harness.measures import CountersDelta

from .conftest import run_matrix

pytestmark = pytest.mark.external

NEEDS = (
    ".engines/llamacpp/bin/llama-server",
    ".engines/models/demo-dense.f32.gguf",
    ".engines/models/demo-dense-dflash2.f32.gguf",
    ".engines/vllm/bin/python",
)
VARIANTS = (
    "bundled",
    "bundled + DFlash 2",
    "llama.cpp",
    "llama.cpp + DFlash 2",
    "llama.cpp + n-gram",
    "llama.cpp + itself",
    "vLLM",
    "vLLM + n-gram",
)


@pytest.fixture(scope="module")
def views(tmp_path_factory: pytest.TempPathFactory) -> dict[str, CellView]:
    folder = run_matrix("three-engines", NEEDS, tmp_path_factory.mktemp("results"))
    return {view.cell.variant: view for view in dataset.load(folder).views}


def texts(view: CellView) -> Mapping[str, str | None]:
    """Of each prompt, the first output."""
    found: dict[str, str | None] = {}
    for request in view.ok:
        found.setdefault(request.prompt_id, view.events[str(request.where.request_id)].text)
    return found


def first_difference(ours: str, theirs: str) -> str:
    """Where two texts part: of equal weights in float32, where two tokens were equally likely."""
    pairs = enumerate(zip_longest(ours, theirs))
    at = next(index for index, (mine, other) in pairs if mine != other)
    shown = slice(max(0, at - 30), at + 30)
    return f"from character {at} on: {ours[shown]!r}, but {theirs[shown]!r}"


def drafting(view: CellView) -> CountersDelta:
    assert view.total.delta is not None, view.total.reason
    return view.total.delta


def facts(view: CellView) -> Mapping[str, object]:
    (boot,) = view.boots
    assert boot.health is not None
    return boot.health


def test_every_variant_is_measured(views: dict[str, CellView]) -> None:
    assert tuple(views) == VARIANTS
    assert {view.cell.variant: len(view.ok) for view in views.values()} == dict.fromkeys(
        VARIANTS, 30
    )


@pytest.mark.parametrize("variant", VARIANTS[1:])
def test_greedy_texts_are_the_bundled_engines(views: dict[str, CellView], variant: str) -> None:
    """Nine of ten at least: between engines a near-tie may fall to either side."""
    ours, theirs = texts(views["bundled"]), texts(views[variant])
    differing = [prompt for prompt in ours if ours[prompt] != theirs[prompt]]
    print(f"{variant}: {len(ours) - len(differing)} of {len(ours)} texts equal")
    for prompt in differing:
        print(f"  {prompt}: {first_difference(ours[prompt] or '', theirs[prompt] or '')}")
    assert len(differing) <= len(ours) / 10


@pytest.mark.parametrize("variant", VARIANTS[1:])
def test_prompts_are_rendered_to_the_same_tokens(views: dict[str, CellView], variant: str) -> None:
    """By their hashes when the engine was ready, and by their number in every answer."""

    def lengths(view: CellView) -> Mapping[str, int | None]:
        return {request.prompt_id: request.prompt_tokens for request in view.ok}

    def hashes(view: CellView) -> Mapping[str, Mapping[str, str]]:
        (boot,) = view.boots
        assert boot.rendered is not None
        return boot.rendered

    assert hashes(views[variant]) == hashes(views["bundled"])
    assert lengths(views[variant]) == lengths(views["bundled"])


def test_llama_cpp_accepts_as_much_of_this_drafter_as_we_do(views: dict[str, CellView]) -> None:
    lengths = {
        name: measures.acceptance_length(drafting(views[name]))
        for name in ("bundled + DFlash 2", "llama.cpp + DFlash 2")
    }
    print(lengths)
    ours, theirs = lengths.values()
    assert ours is not None
    assert theirs is not None
    assert abs(theirs - ours) <= 0.02 * ours


def test_what_was_asked_for_really_ran(views: dict[str, CellView]) -> None:
    told = {
        name: (facts(view).get("drafter"), facts(view).get("k")) for name, view in views.items()
    }
    assert told["bundled"][0] == "none"
    assert told["bundled + DFlash 2"][0] == "dflash2"
    assert told["llama.cpp + DFlash 2"] == ("draft-dflash", 7)
    assert told["vLLM"] == ("none", None)
    assert told["vLLM + n-gram"] == ("ngram", 5)
    on = {name for name, view in views.items() if facts(view).get("speculation") == "on"}
    assert on == {"llama.cpp + DFlash 2", "llama.cpp + n-gram", "llama.cpp + itself"}
    assert facts(views["llama.cpp"])["speculation"] == "off"


def test_drafters_draft_and_plain_engines_do_not(views: dict[str, CellView]) -> None:
    for name, view in views.items():
        drafts = drafting(view).drafts
        assert bool(drafts) is (view.cell.drafter is not None), name


def test_a_target_that_drafts_for_itself_is_accepted_to_the_end(
    views: dict[str, CellView],
) -> None:
    """All but what a stop or the length limit cuts off, once per request."""
    found = drafting(views["llama.cpp + itself"])
    assert found.draft_tokens is not None
    assert found.accepted_tokens is not None
    assert 0 <= found.draft_tokens - found.accepted_tokens <= 4 * 30
