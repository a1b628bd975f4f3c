"""The real llama-server, run by the harness: a known length is found, every token explained."""

import pytest

from harness import measures
from harness.analysis import dataset
from harness.cell_view import CellView
from harness.measures import CountersDelta

from .conftest import run_matrix

pytestmark = pytest.mark.external

LENGTHS = {"synthetic 2.0": 2.0, "synthetic 4.2": 4.2}


@pytest.fixture(scope="module")
def views(tmp_path_factory: pytest.TempPathFactory) -> dict[str, CellView]:
    needs = (".engines/llamacpp/bin/llama-server", ".engines/models")
    folder = run_matrix("llamacpp-synthetic", needs, tmp_path_factory.mktemp("results"))
    return {view.cell.variant: view for view in dataset.load(folder).views}


def standard_error(delta: CountersDelta) -> float:
    """Of the mean number of accepted drafts, from how many rounds accepted each position."""
    assert delta.drafts is not None
    assert delta.accepted_tokens is not None
    mean = delta.accepted_tokens / delta.drafts
    # E[x^2] = sum over positions i of (2i + 1) P(x > i)
    square = sum((2 * i + 1) * count for i, count in enumerate(delta.accepted_at or ()))
    return ((square / delta.drafts - mean**2) / delta.drafts) ** 0.5


@pytest.mark.parametrize("variant", LENGTHS)
def test_a_synthetic_length_is_found(views: dict[str, CellView], variant: str) -> None:
    delta = views[variant].total.delta
    assert delta is not None, views[variant].total.reason
    assert delta.drafts
    assert delta.accepted_tokens is not None
    found = 1 + delta.accepted_tokens / delta.drafts
    tolerance = max(3 * standard_error(delta), 0.03 * LENGTHS[variant])
    print(f"{variant}: {found:.3f} in {delta.drafts} rounds, tolerance {tolerance:.3f}")
    assert abs(found - LENGTHS[variant]) <= tolerance


@pytest.mark.parametrize("variant", LENGTHS)
def test_every_token_of_every_request_is_explained(
    views: dict[str, CellView], variant: str
) -> None:
    """tokens = requests + rounds + plain steps + accepted, request by request."""
    view = views[variant]
    assert len(view.ok) == len(view.requests) == 5
    for entry in view.ledger:
        assert entry.delta is not None, entry.reason
        assert entry.where is not None
        (request,) = (each for each in view.requests if each.where == entry.where)
        assert request.output_tokens == 256
        assert measures.token_identity_residual(entry.delta, 256, 1) == 0
        assert request.engine_timings is not None
        assert request.engine_timings["draft_n_accepted"] == entry.delta.accepted_tokens


@pytest.mark.parametrize("variant", LENGTHS)
def test_snapshots_are_quiet(views: dict[str, CellView], variant: str) -> None:
    assert {snapshot.quiet for snapshot in views[variant].snapshots} == {True}
