"""Tensors that can be made anywhere without a file: element i of tensor t is a hash of both."""

import numpy as np
import torch
from torch import Tensor


def uniform(number: int, shape: tuple[int, ...]) -> Tensor:
    """The vectors' hash: element i of tensor `number`, in [-1, 1), in uint32 arithmetic."""
    x = np.arange(int(np.prod(shape)), dtype=np.uint32) * np.uint32(2654435761)
    x += np.uint32((number + 1) * 2246822519 % 2**32)
    x ^= x >> np.uint32(15)
    x *= np.uint32(2246822519)
    x ^= x >> np.uint32(13)
    x *= np.uint32(3266489917)
    x ^= x >> np.uint32(16)
    return torch.from_numpy((2 * x.astype(np.float64) / 2**32 - 1).reshape(shape))
