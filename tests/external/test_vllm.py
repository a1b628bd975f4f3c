"""The real vLLM with its n-gram drafter, run by the harness: counters explain every token."""

import pytest

from harness import measures
from harness.analysis import dataset
from harness.cell_view import CellView

from .conftest import run_matrix

pytestmark = pytest.mark.external


@pytest.fixture(scope="module")
def view(tmp_path_factory: pytest.TempPathFactory) -> CellView:
    needs = (".engines/vllm/bin/python",)
    folder = run_matrix("vllm-ngram", needs, tmp_path_factory.mktemp("results"))
    (found,) = dataset.load(folder).views
    return found


def test_the_n_gram_drafter_moves_the_counters(view: CellView) -> None:
    assert view.total.delta is not None, view.total.reason
    assert view.total.delta.drafts
    assert view.total.delta.accepted_tokens


def test_every_token_of_every_request_is_explained(view: CellView) -> None:
    """tokens = requests + rounds + plain steps + accepted: no stop cuts a forced length short."""
    assert len(view.ok) == len(view.requests) == 5
    for entry in view.ledger:
        assert entry.delta is not None, entry.reason
        assert entry.where is not None
        (request,) = view.requests_in(entry.where)
        assert request.output_tokens == 128
        assert measures.token_identity_residual(entry.delta, 128, 1) == 0
