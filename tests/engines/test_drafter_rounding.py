"""The golden drafter in bfloat16, as a GPU serves it: off by rounding, not by an error's worth."""

import torch
from torch import Tensor

from engines.dflash2.drafter import DFlash2Drafter

from .test_drafter import (
    GOLDEN,
    ONE,
    golden_drafter,
    golden_features,
    new_context,
    take_in,
    window,
)

# Of a block's hidden rows, relative to float64's. A bfloat16 has 8 bits, and some forty roundings
# follow each other: a few percent.
MAX_ROUNDING_ERROR = 0.1


def hidden_rows(own: DFlash2Drafter, dtype: torch.dtype) -> list[Tensor]:
    """Of the three golden rounds, [8, hidden] each."""
    own.model.to(dtype)
    own.target.to(dtype)
    context = new_context(own)
    rows = []
    for number, expected in enumerate(GOLDEN):
        take_in(own, golden_features(number).to(dtype), context)
        rows.append(own.hidden([expected.anchor], context, ONE)[0].double())
    return rows


def error(rows: Tensor, exact: Tensor) -> float:
    return float((rows - exact).norm() / exact.norm())


def test_hidden_rows_in_bfloat16_are_off_by_its_rounding_and_by_no_more() -> None:
    exact = hidden_rows(golden_drafter(), torch.float64)
    rounded = hidden_rows(golden_drafter(), torch.bfloat16)
    # The mildest of the known errors that change these rows: a window that is one too short.
    wrong = hidden_rows(window(31)(), torch.float64)
    for number in range(len(GOLDEN)):
        assert 0 < error(rounded[number], exact[number]) < MAX_ROUNDING_ERROR
        assert error(wrong[number], exact[number]) > MAX_ROUNDING_ERROR
