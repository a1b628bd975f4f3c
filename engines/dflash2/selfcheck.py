"""The engine's three delicate computations on a device, each against a slow one in float64.

Runs them alone, on random numbers of the published sizes. That measures neither the engine nor a
model: it says that this device and this build of torch compute what the engine relies on.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from engines.dflash2.attention import additive_mask, attention, sees_window
from engines.dflash2.selector import edge_scores
from engines.dflash2.top_k import chunked_top_candidates, top_candidates

VOCAB_SIZE, NUM_ROWS, NUM_CANDIDATES, RANK = 248_320, 7, 16, 256
EDGE_WIDTH = 4097  # eight chunks of the search and one more score
BLOCK, WINDOW, HEADS, KEY_VALUE_HEADS, HEAD_DIM = 8, 2048, 32, 8, 128
CONTEXTS = (17, 2055)  # shorter than the window, and a little longer
MAX_ATTENTION_ERROR = 1e-6
UNIT_ROUNDOFF = 2.0**-24  # of float32
TRANSFERS = (torch.ops.aten._to_copy, torch.ops.aten.copy_)


@dataclass(frozen=True, kw_only=True)
class Finding:
    name: str
    ok: bool
    text: str


class HostFallbackError(RuntimeError):
    """Something that had to run on the device ran elsewhere."""


class DeviceOnly(TorchDispatchMode):
    """While it is active, an operation that has floats anywhere but on the device is an error.

    Single numbers may be anywhere, and numbers may be brought to the device and back.
    """

    def __init__(self, device: torch.device) -> None:
        super().__init__()
        self._device_type = device.type

    def __torch_dispatch__(
        self,
        func: Any,
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        result = func(*args, **(kwargs or {}))
        if func.overloadpacket not in TRANSFERS:
            for value in tree_leaves((args, kwargs, result)):
                if isinstance(value, Tensor) and self._is_elsewhere(value):
                    raise HostFallbackError(
                        f"{func} ran on {value.device}, but {self._device_type} was required; "
                        "run without requiring the device, or report this with the model's name"
                    )
        return result

    def _is_elsewhere(self, tensor: Tensor) -> bool:
        is_number = tensor.dim() == 0
        return (
            tensor.is_floating_point() and not is_number and tensor.device.type != self._device_type
        )


def check_device(device: torch.device) -> list[Finding]:
    """Run everything; HostFallbackError if some of it ran elsewhere than on the device."""
    noise = torch.Generator().manual_seed(0)
    return [
        _search(device, noise),
        _edge_rows(device, noise),
        _selector(device, noise),
        *(_attention(device, noise, num_context) for num_context in CONTEXTS),
    ]


def _on_device(device: torch.device, compute: Callable[..., Tensor], *inputs: Tensor) -> Tensor:
    moved = [tensor.to(device) for tensor in inputs]
    with DeviceOnly(device):
        result = compute(*moved)
    return result.cpu()


def _search(device: torch.device, noise: torch.Generator) -> Finding:
    """A whole vocabulary's scores, full of ties, by the search that this device uses."""
    scores = (20 * torch.randn(NUM_ROWS, VOCAB_SIZE, generator=noise)).round()
    indices = _on_device(device, lambda x: top_candidates(x, NUM_CANDIDATES)[1], scores)
    return Finding(
        name="selection",
        ok=torch.equal(indices, _best_by_sorting(scores)),
        text=f"{NUM_ROWS} x {VOCAB_SIZE}, k {NUM_CANDIDATES}: all indices against a stable sort",
    )


def _edge_rows(device: torch.device, noise: torch.Generator) -> Finding:
    """NaNs, infinities, ties across chunks and nothing but minus infinity, in chunks anywhere."""
    rows = torch.randn(4, EDGE_WIDTH, generator=noise)
    rows[0, [3, 511, 512, 4096]] = math.nan
    rows[1, [0, 1024, 4096]] = math.inf
    rows[1, 10:4000] = -math.inf
    rows[2, [7, 511, 512, 513, 1023, 1024, 4096]] = 9.0
    rows[3] = -math.inf
    indices = _on_device(device, lambda x: chunked_top_candidates(x, NUM_CANDIDATES)[1], rows)
    return Finding(
        name="selection",
        ok=torch.equal(indices, _best_by_sorting(rows)),
        text=f"4 edge rows of {EDGE_WIDTH}, in chunks: all indices against a stable sort",
    )


def _best_by_sorting(scores: Tensor) -> Tensor:
    return scores.double().sort(descending=True, stable=True).indices[:, :NUM_CANDIDATES]


def _selector(device: torch.device, noise: torch.Generator) -> Finding:
    """All scores of a block. The bound is what rounding to float32 can cost:

    gamma(rank + 2) * sum |A gate B| + 2u / (1 - u) * |score|, gamma(n) = n u / (1 - n u).
    """
    shape = (NUM_ROWS, NUM_CANDIDATES)
    before, after = (torch.randn(*shape, RANK, generator=noise) for _ in range(2))
    gate = torch.randn(NUM_ROWS, RANK, generator=noise)
    unary = torch.randn(shape, generator=noise)
    scores = _on_device(device, edge_scores, before, gate, after, unary).double()
    terms = torch.einsum("jmr,jr,jnr->jmnr", before.double(), gate.double(), after.double())
    reference = terms.sum(-1) + unary.double().unsqueeze(1)
    gamma = (RANK + 2) * UNIT_ROUNDOFF / (1 - (RANK + 2) * UNIT_ROUNDOFF)
    relative = 2 * UNIT_ROUNDOFF / (1 - UNIT_ROUNDOFF)
    error = (scores - reference).abs()
    share = float((error / (gamma * terms.abs().sum(-1) + relative * reference.abs())).max())
    return Finding(
        name="selector",
        ok=share <= 1,
        text=f"{scores.numel()} scores: largest error {float(error.max()):.2e}, "
        f"at most {share:.2%} of its bound",
    )


def _attention(device: torch.device, noise: torch.Generator, num_context: int) -> Finding:
    """A block's queries over a context and the block itself, behind the drafter's window."""
    num_keys = num_context + BLOCK
    queries, keys, values = (
        2 * torch.rand(1, num_heads, length, HEAD_DIM, generator=noise) - 1
        for num_heads, length in (
            (HEADS, BLOCK),
            (KEY_VALUE_HEADS, num_keys),
            (KEY_VALUE_HEADS, num_keys),
        )
    )
    visible = sees_window(torch.arange(num_context, num_keys), torch.arange(num_keys), WINDOW)
    mask = additive_mask(visible, torch.float32)
    ours = _on_device(device, attention, queries, keys, values, mask)
    error = float((ours.double() - _attention_by_hand(queries, keys, values, visible)).abs().max())
    return Finding(
        name="attention",
        ok=error < MAX_ATTENTION_ERROR,
        text=f"{BLOCK} queries, context {num_context}: largest error {error:.2e}, "
        f"limit {MAX_ATTENTION_ERROR:.0e}",
    )


def _attention_by_hand(queries: Tensor, keys: Tensor, values: Tensor, visible: Tensor) -> Tensor:
    """softmax(q k / sqrt(d)) v in float64, each key-value head for neighbouring query heads."""
    num_sharing = HEADS // KEY_VALUE_HEADS
    keys, values = (x.double().repeat_interleave(num_sharing, 1) for x in (keys, values))
    scores = queries.double() @ keys.transpose(-1, -2) / math.sqrt(HEAD_DIM)
    return scores.masked_fill(~visible, -math.inf).softmax(-1) @ values
