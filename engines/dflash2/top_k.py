"""The k best of many: which ones, when scores are equal, infinite or no numbers at all.

The order is total, so the answer never depends on a device, a kernel or the length of a row:
NaN first, so that it is seen by whoever refuses it; then scores from infinity down to minus
infinity; and of equals the smaller index. Knows nothing of what is scored.
"""

import torch
from torch import Tensor

from engines.dflash2 import kernels

CHUNK = 512  # scores that are searched at once, many chunks beside each other


def top_candidates(scores: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """The k best of each row in order. scores: [rows, n] -> scores [rows, k], indices [rows, k].

    On a GPU a row is cut into chunks, because one long search leaves most of the device idle; on
    a CPU one pass over float32 keeps the best so far, and other types take PyTorch's search.
    """
    if scores.is_cuda:
        return chunked_top_candidates(scores, k)
    if kernels.computes(scores):
        return kernels.top_candidates(scores, k)
    return library_top_candidates(scores, k)


def library_top_candidates(scores: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """By torch.topk, which puts NaN first but does not say which of equals it takes."""
    best, indices = scores.topk(k)
    num_behind = int((scores < best[:, -1:]).sum())
    if scores.numel() - num_behind > best.numel():
        # More scores than k reach the last place, or the last place is NaN.
        best, indices = scores.sort(descending=True, stable=True)
        return best[:, :k], indices[:, :k]
    indices = indices.sort().values
    best, order = scores.gather(1, indices).sort(descending=True, stable=True)
    return best, indices.gather(1, order)


def chunked_top_candidates(scores: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """By the k best of each chunk, and of those again, until one chunk is left.

    Every entry becomes one integer that orders as the policy says, index included: no two are
    equal, so no search can choose between them.
    """
    keys = _ordered_keys(scores)
    while keys.shape[-1] > max(CHUNK, k):
        keys = _best_of_each_chunk(keys, k)
    indices = _indices(keys.topk(k).values)
    return scores.gather(1, indices), indices


def _best_of_each_chunk(keys: Tensor, k: int) -> Tensor:
    """[rows, n] -> [rows, chunks * k], fewer than before because a chunk has more than k."""
    size = max(CHUNK, 2 * k)
    padding = -keys.shape[-1] % size
    lowest = torch.iinfo(keys.dtype).min
    chunks = torch.nn.functional.pad(keys, (0, padding), value=lowest).unflatten(-1, (-1, size))
    return chunks.topk(k).values.flatten(-2)


def _ordered_keys(scores: Tensor) -> Tensor:
    """int64, from float32 or narrower: the score's place in the order, then the index backwards."""
    if scores.dtype == torch.float64:
        raise TypeError("a float64 score and its index do not fit one integer; give float32")
    bits = (scores.float() + 0.0).view(torch.int32)  # adding zero makes -0 equal to 0
    # As integers, positive floats are in order; negative ones are in the reverse order.
    place = torch.where(bits < 0, bits ^ 0x7FFFFFFF, bits)
    place = place.masked_fill(scores.isnan(), torch.iinfo(torch.int32).max)
    backwards = 0xFFFFFFFF - torch.arange(scores.shape[-1], device=scores.device)
    return (place.long() << 32) | backwards


def _indices(keys: Tensor) -> Tensor:
    return 0xFFFFFFFF - (keys & 0xFFFFFFFF)
