"""Which are the k best: both searches against a slow one that follows the policy's words."""

import math
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from engines.dflash2.top_k import (
    chunked_top_candidates,
    library_top_candidates,
    top_candidates,
)

Search = Callable[[Tensor, int], tuple[Tensor, Tensor]]
NAN, INF = math.nan, math.inf
WIDTH, K = 4097, 16  # eight chunks and one more score

search = pytest.mark.parametrize("search", [library_top_candidates, chunked_top_candidates])


def by_the_policy(scores: Tensor, k: int) -> list[list[int]]:
    """NaN first, then from the highest score down, of equals the smaller index: in float64."""
    return [
        sorted(range(len(row)), key=lambda i: (not math.isnan(row[i]), _down(row[i]), i))[:k]
        for row in scores.double().tolist()
    ]


def _down(score: float) -> float:
    return 0.0 if math.isnan(score) else -score


def assert_follows_the_policy(search: Search, scores: Tensor, k: int) -> None:
    best, indices = search(scores, k)
    assert indices.tolist() == by_the_policy(scores, k)
    torch.testing.assert_close(best, scores.gather(1, indices), equal_nan=True, rtol=0, atol=0)


def edge_rows() -> dict[str, Tensor]:
    noise = torch.Generator().manual_seed(0)
    rows = {
        name: torch.randn(WIDTH, generator=noise)
        for name in ("NaNs", "infinities", "ties across chunks", "all minus infinity")
    }
    rows["NaNs"][[4096, 3, 511, 512, 1700]] = NAN
    rows["NaNs"][2000:2005] = INF
    rows["infinities"][[4096, 0, 1024]] = INF
    rows["infinities"][10:4000] = -INF
    rows["ties across chunks"][[4096, 511, 512, 513, 1023, 1024, 7, 2048]] = 9.0
    rows["ties across chunks"][100:600:7] = 8.0
    rows["all minus infinity"][:] = -INF
    return rows


@search
@pytest.mark.parametrize("name", edge_rows())
def test_edge_rows_follow_the_policy(search: Search, name: str) -> None:
    assert_follows_the_policy(search, edge_rows()[name].unsqueeze(0), K)


@search
def test_edge_rows_do_not_disturb_each_other(search: Search) -> None:
    assert_follows_the_policy(search, torch.stack(list(edge_rows().values())), K)


@search
@pytest.mark.parametrize("num_nans", [15, 16, 17, 600, WIDTH])
def test_of_many_nans_the_first_are_taken(search: Search, num_nans: int) -> None:
    scores = torch.randn(1, WIDTH, generator=torch.Generator().manual_seed(1))
    scores[0, WIDTH - num_nans :] = NAN
    assert_follows_the_policy(search, scores, K)


@search
def test_minus_zero_and_zero_are_equal(search: Search) -> None:
    scores = torch.full((1, 600), -1.0)
    scores[0, [30, 20]], scores[0, [10, 550]] = -0.0, 0.0
    assert search(scores, 4)[1].tolist() == [[10, 20, 30, 550]]


@search
@pytest.mark.parametrize("width", [1, 16, 511, 512, 513, 1024, 248_320])
def test_rows_of_any_width_follow_the_policy(search: Search, width: int) -> None:
    noise = torch.Generator().manual_seed(width)
    scores = torch.randn(2, width, generator=noise).mul(50).round()  # integers: full of ties
    assert_follows_the_policy(search, scores, min(K, width))


@search
def test_subnormal_and_huge_scores_keep_their_order(search: Search) -> None:
    scores = torch.tensor([[1e-45, -1e-45, 0.0, 3.4e38, -3.4e38, INF, -INF, 1.0]])
    assert search(scores, 8)[1].tolist() == [[5, 3, 7, 0, 2, 1, 4, 6]]


@search
def test_bfloat16_scores_keep_their_dtype(search: Search) -> None:
    scores = torch.randn(2, 3000, generator=torch.Generator().manual_seed(2)).bfloat16()
    assert_follows_the_policy(search, scores, K)
    assert search(scores, K)[0].dtype == torch.bfloat16


@search
@pytest.mark.parametrize("k", [1, 300, 700])
def test_more_are_taken_than_a_chunk_is_long(search: Search, k: int) -> None:
    scores = torch.randn(2, 5000, generator=torch.Generator().manual_seed(3)).mul(30).round()
    assert_follows_the_policy(search, scores, k)


def test_chunks_of_float64_are_refused_rather_than_rounded() -> None:
    with pytest.raises(TypeError, match="do not fit one integer"):
        chunked_top_candidates(torch.zeros(1, 600, dtype=torch.float64), 2)


def test_on_a_cpu_the_librarys_search_is_used() -> None:
    scores = torch.randn(2, 3000, dtype=torch.float64, generator=torch.Generator().manual_seed(4))
    assert_follows_the_policy(top_candidates, scores, K)
