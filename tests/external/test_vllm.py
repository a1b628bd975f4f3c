"""The real vLLM with the drafters that it has on a CPU: counters explain every token."""

import pytest

from harness import measures
from harness.analysis import dataset
from harness.cell_view import CellView

from .conftest import run_matrix

pytestmark = pytest.mark.external

MAX_TOKENS = 128
DRAFTERS = {"n-gram": ("ngram", 5), "draft model": ("draft_model", 4)}


@pytest.fixture(scope="module")
def views(tmp_path_factory: pytest.TempPathFactory) -> dict[str, CellView]:
    needs = (".engines/vllm/bin/python",)
    folder = run_matrix("vllm-drafters", needs, tmp_path_factory.mktemp("results"))
    return {view.cell.variant: view for view in dataset.load(folder).views}


@pytest.mark.parametrize("variant", DRAFTERS)
def test_the_engine_says_what_it_runs(views: dict[str, CellView], variant: str) -> None:
    (boot,) = views[variant].boots
    assert boot.health is not None
    method, k = DRAFTERS[variant]
    assert (boot.version, boot.health["drafter"], boot.health["k"]) == ("0.32.0", method, k)
    assert boot.health["runner"] == "V1"
    assert (boot.health["dtype"], boot.health["enforce_eager"]) == ("float32", "True")
    assert boot.health["max_model_len"] == 2048


@pytest.mark.parametrize("variant", DRAFTERS)
def test_its_drafter_moves_the_counters(views: dict[str, CellView], variant: str) -> None:
    delta = views[variant].total.delta
    assert delta is not None, views[variant].total.reason
    assert delta.drafts
    assert delta.accepted_tokens


def test_a_target_that_drafts_for_itself_is_always_accepted(views: dict[str, CellView]) -> None:
    delta = views["draft model"].total.delta
    assert delta is not None
    assert delta.accepted_tokens == delta.draft_tokens


@pytest.mark.parametrize("variant", DRAFTERS)
def test_every_token_of_every_request_is_explained(
    views: dict[str, CellView], variant: str
) -> None:
    """tokens = requests + rounds + plain steps + accepted - trimmed.

    vLLM counts what a round accepted before the length limit cuts it, and trimmed tokens nowhere.
    They are at most what the last round could emit and the last event of the stream lacks.
    """
    view, (_, k) = views[variant], DRAFTERS[variant]
    assert len(view.ok) == len(view.requests) == 5
    for entry in view.ledger:
        assert entry.delta is not None, entry.reason
        assert entry.where is not None
        (request,) = (each for each in view.requests if each.where == entry.where)
        assert request.output_tokens == MAX_TOKENS
        residual = measures.token_identity_residual(entry.delta, MAX_TOKENS, 1)
        last = view.events[str(request.where.request_id)].tokens[-1]
        assert residual is not None
        assert last is not None
        print(f"{request.prompt_id}: {-residual} trimmed, {last} tokens in the last event")
        assert 0 <= -residual <= k + 1 - last
