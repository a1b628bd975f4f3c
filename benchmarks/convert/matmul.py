"""A product with a Q8 matrix, computed in different ways side by side.

    python benchmarks/convert/matmul.py [--runs 7] [--threads 2]

The widest matrix of the published drafter, random, times 1, 8 and 128 rows (a token of context, a
block, sixteen blocks): made float32 in blocks of different sizes, made float32 whole, kept float32
(no product with Q8 can be faster), and torch's int8 product, one call for each group of 64 columns
because it knows one scale for a row. Ways alternate; each is given its best time, in milliseconds.
"""

import argparse
import json
import time
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

from engines.dflash2 import quantized
from engines.dflash2.quantized import GROUP_SIZE, QuantizedMatrix

SHAPE = (17408, 5120)
NUM_ROWS = (1, 8, 128)
SEED = 2026

Way = Callable[[Tensor], Tensor]


def main() -> None:
    options = _parser().parse_args()
    torch.set_num_threads(options.threads)
    matrix = random_matrix()
    ways = all_ways(matrix)
    for num_rows in NUM_ROWS:
        x = torch.randn(num_rows, SHAPE[1])
        check(ways, x)
        best_ms = {name: round(1000 * s, 1) for name, s in best_s(ways, x, options.runs).items()}
        print(json.dumps({"rows": num_rows, "best_ms": best_ms}), flush=True)


def random_matrix() -> QuantizedMatrix:
    torch.manual_seed(SEED)
    matrix = QuantizedMatrix(*SHAPE)
    matrix.weight.random_(0, 256)
    matrix.scales.uniform_(1e-4, 1e-3)
    matrix.biases.uniform_(-0.1, 0)
    return matrix


def all_ways(matrix: QuantizedMatrix) -> dict[str, Way]:
    wide = matrix[:]
    blocks = {f"blocks of {1 << (n - 10)}Ki": in_blocks(matrix, 1 << n) for n in (16, 18, 20, 22)}
    return {
        **blocks,
        "whole": lambda x: F.linear(x, matrix[:]),
        "int8 by group": int8_by_group(matrix),
        "kept float32": lambda x: F.linear(x, wide),
    }


def in_blocks(matrix: QuantizedMatrix, block_weights: int) -> Way:
    def product(x: Tensor) -> Tensor:
        quantized.BLOCK_WEIGHTS = block_weights
        return matrix(x)

    return product


def int8_by_group(matrix: QuantizedMatrix) -> Way:
    """x @ (scale * code + bias), with code - 128 in int8 and the bias times the sum of a group."""
    codes = (matrix.weight.short() - 128).to(torch.int8).unflatten(1, (-1, GROUP_SIZE))
    codes = codes.transpose(0, 1).contiguous()  # [groups, rows, 64]
    scales = matrix.scales.float().t().contiguous()
    biases = (matrix.biases.float() + 128 * matrix.scales.float()).t().contiguous()

    def product(x: Tensor) -> Tensor:
        groups = x.unflatten(-1, (-1, GROUP_SIZE))
        y = groups.sum(-1) @ biases
        for number in range(len(codes)):
            part = groups[:, number].contiguous()
            y += torch._weight_int8pack_mm(part, codes[number], scales[number])
        return y

    return product


def check(ways: dict[str, Way], x: Tensor) -> None:
    wanted = ways["kept float32"](x)
    for name, way in ways.items():
        torch.testing.assert_close(way(x), wanted, rtol=1e-4, atol=1e-3, msg=name)


def best_s(ways: dict[str, Way], x: Tensor, runs: int) -> dict[str, float]:
    best = dict.fromkeys(ways, float("inf"))
    for _ in range(runs):
        for name, way in ways.items():
            started_at_s = time.perf_counter()
            way(x)
            best[name] = min(best[name], time.perf_counter() - started_at_s)
    return best


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--runs", type=int, default=7)
    parser.add_argument("--threads", type=int, default=2)
    return parser


if __name__ == "__main__":
    main()
