"""The real vLLM with its n-gram drafter, run by the harness: counters explain every token."""

import pytest

from harness import measures
from harness.analysis import dataset
from harness.cell_view import CellView

from .conftest import run_matrix

pytestmark = pytest.mark.external

K, MAX_TOKENS = 5, 128


@pytest.fixture(scope="module")
def view(tmp_path_factory: pytest.TempPathFactory) -> CellView:
    needs = (".engines/vllm/bin/python",)
    folder = run_matrix("vllm-ngram", needs, tmp_path_factory.mktemp("results"))
    (found,) = dataset.load(folder).views
    return found


def test_the_engine_says_what_it_runs(view: CellView) -> None:
    (boot,) = view.boots
    assert boot.health is not None
    assert (boot.version, boot.health["drafter"], boot.health["k"]) == ("0.32.0", "ngram", K)
    assert boot.health["runner"] == "V1"


def test_the_n_gram_drafter_moves_the_counters(view: CellView) -> None:
    assert view.total.delta is not None, view.total.reason
    assert view.total.delta.drafts
    assert view.total.delta.accepted_tokens


def test_every_token_of_every_request_is_explained(view: CellView) -> None:
    """tokens = requests + rounds + plain steps + accepted - trimmed.

    vLLM counts what a round accepted before the length limit cuts it, and trimmed tokens nowhere.
    They are at most what the last round could emit and the last event of the stream lacks.
    """
    assert len(view.ok) == len(view.requests) == 5
    for entry in view.ledger:
        assert entry.delta is not None, entry.reason
        assert entry.where is not None
        (request,) = view.requests_in(entry.where)
        assert request.output_tokens == MAX_TOKENS
        residual = measures.token_identity_residual(entry.delta, MAX_TOKENS, 1)
        last = view.events[str(request.where.request_id)].tokens[-1]
        assert residual is not None
        assert last is not None
        print(f"{request.prompt_id}: {-residual} trimmed, {last} tokens in the last event")
        assert 0 <= -residual <= K + 1 - last
