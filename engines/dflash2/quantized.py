"""Affine Q8 matrices: codes stay one byte each in memory and become float32 where they are used.

A weight is scale * code + bias, with one scale and one bias for 64 neighbours of a row. Code times
scale is exact in float32, so there is one rounding and one result, however it is computed. Knows
neither files nor the models whose matrices these are.
"""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

GROUP_SIZE = 64
BLOCK_WEIGHTS = 1 << 20  # made float32 at once: four megabytes, see benchmarks/convert


class QuantizedMatrix(nn.Module):
    """Stands for a linear map without bias, and for a table of rows. Computes in float32.

    weight: uint8 codes [rows, columns]; scales, biases: bfloat16 [rows, columns / 64].
    """

    weight: Tensor
    scales: Tensor
    biases: Tensor

    def __init__(self, num_rows: int, num_columns: int) -> None:
        super().__init__()
        groups = (num_rows, num_columns // GROUP_SIZE)
        self.register_buffer("weight", torch.zeros(num_rows, num_columns, dtype=torch.uint8))
        self.register_buffer("scales", torch.zeros(groups, dtype=torch.bfloat16))
        self.register_buffer("biases", torch.zeros(groups, dtype=torch.bfloat16))

    def forward(self, x: Tensor) -> Tensor:
        """x: float32 [..., columns] -> [..., rows], a block of rows at a time."""
        num_rows, num_columns = self.weight.shape
        block_rows = max(1, BLOCK_WEIGHTS // num_columns)
        starts = range(0, num_rows, block_rows)
        return torch.cat([F.linear(x, self[first : first + block_rows]) for first in starts], -1)

    def __getitem__(self, rows: slice | Tensor) -> Tensor:
        """Those rows in float32: [..., columns]."""
        return dequantize(self.weight[rows], self.scales[rows], self.biases[rows])


def dequantize(codes: Tensor, scales: Tensor, biases: Tensor) -> Tensor:
    """codes: [..., columns]; scales, biases: [..., columns / 64] -> float32 [..., columns]."""
    groups = codes.unflatten(-1, (-1, GROUP_SIZE)).float()
    wide_scales, wide_biases = scales.float().unsqueeze(-1), biases.float().unsqueeze(-1)
    return torch.addcmul(wide_biases, groups, wide_scales).flatten(-2)


def quantize_matrices(model: nn.Module) -> None:
    """Put an empty QuantizedMatrix in the place of every matrix that a converted file holds.

    Those are the linear maps and what is a matrix without being one of them: the codebooks.
    """
    for module in list(model.modules()):
        for name, child in list(module.named_children()):
            if isinstance(child, nn.Linear):
                setattr(module, name, QuantizedMatrix(child.out_features, child.in_features))
        for name, parameter in list(module.named_parameters(recurse=False)):
            if parameter.dim() == 2 and not isinstance(module, nn.Linear):
                delattr(module, name)
                setattr(module, name, QuantizedMatrix(*parameter.shape))


def as_computed(name: str, tensor: Tensor) -> Tensor:
    """A converted file's tensor as the model holds it: words of four codes taken apart."""
    if tensor.dtype == torch.uint32:
        return tensor.view(torch.uint8)  # the lowest byte comes first, in the file and here
    is_of_a_group = name.endswith((".scales", ".biases"))
    return tensor if is_of_a_group else tensor.float()
