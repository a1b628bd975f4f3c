"""The small parts both models are made of, in the checkpoints' own vocabulary.

Knows nothing of sequences, caches or windows. Activations are [batch, length, hidden].
"""

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from engines.dflash2 import kernels


class Linear(nn.Linear):
    """y = W x: a linear map without bias."""

    def __init__(self, in_features: int, out_features: int) -> None:
        super().__init__(in_features, out_features, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return linear(x, self.weight)


def linear(x: Tensor, weight: Tensor) -> Tensor:
    """[..., columns] by [rows, columns] -> [..., rows]."""
    if kernels.suits(x, weight):
        return kernels.product(x, (weight,))
    return F.linear(x, weight)


def linear_each(x: Tensor, maps: Sequence[nn.Module]) -> tuple[Tensor, ...]:
    """x by each of several maps, in one go where they are plain matrices."""
    weights = [each.weight for each in maps if isinstance(each, nn.Linear)]
    if len(weights) == len(maps) and kernels.suits(x, *weights):
        return kernels.product(x, weights).split([weight.shape[0] for weight in weights], -1)
    return tuple(each(x) for each in maps)


class RMSNorm(nn.Module):
    """w * x / rms(x): computed in at least float32, cast back, then multiplied by w (not 1 + w)."""

    offset = 0.0  # what is added to w

    def __init__(self, size: int, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(size))
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        if kernels.suits(x, self.weight):
            return kernels.rms_norm(x, self.weight, self.offset, self.eps)
        wide = x.to(torch.promote_types(x.dtype, torch.float32))
        return self.weight * F.rms_norm(wide, self.weight.shape, eps=self.eps).to(x.dtype)


class OffsetRMSNorm(nn.Module):
    """(1 + w) * x / rms(x), as qwen3_5 stores it: all in at least float32, then cast back."""

    offset = 1.0

    def __init__(self, size: int, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(size))
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        if kernels.suits(x, self.weight):
            return kernels.rms_norm(x, self.weight, self.offset, self.eps)
        wide = torch.promote_types(x.dtype, torch.float32)
        weight = 1 + self.weight.to(wide)
        return F.rms_norm(x.to(wide), self.weight.shape, weight, self.eps).to(x.dtype)


class GatedRMSNorm(RMSNorm):
    """w * x / rms(x) * silu(gate), the gate in at least float32."""

    def forward(self, x: Tensor, gate: Tensor) -> Tensor:  # type: ignore[override]
        wide = gate.to(torch.promote_types(gate.dtype, torch.float32))
        return (super().forward(x) * F.silu(wide)).to(x.dtype)


class NoNorm(nn.Module):
    """In the place of a norm, where a model has none."""

    weight, offset, eps = None, 0.0, 0.0

    def forward(self, x: Tensor) -> Tensor:
        return x


class Rotary(nn.Module):
    """Tables of the rotary embedding: channel i of a head turns together with i + head_dim / 2.

    The tables are float32 whatever the activations are, because angles reach the length of the
    context; so give models their dtype when they are loaded, not by `.to(torch.bfloat16)`.
    """

    cos: Tensor
    sin: Tensor

    def __init__(self, head_dim: int, theta: float, num_positions: int) -> None:
        super().__init__()
        # The explicit device keeps the tables real where a loader builds the model on "meta".
        exponent = torch.arange(0, head_dim, 2, device="cpu", dtype=torch.float32) / head_dim
        positions = torch.arange(num_positions, device="cpu", dtype=torch.float32)
        angle = positions[:, None] / theta**exponent
        self.register_buffer("cos", angle.cos().repeat(1, 2), persistent=False)
        # The second half of a head enters the first with a minus sign, kept in the table.
        self.register_buffer("sin", torch.cat((-angle.sin(), angle.sin()), -1), persistent=False)

    def forward(self, positions: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        """positions: [length] or [batch, length] -> cos, sin that broadcast over the heads."""
        cos, sin = (table[positions].unsqueeze(-3) for table in (self.cos, self.sin))
        return cos.to(dtype), sin.to(dtype)


def rotate(x: Tensor, rotation: tuple[Tensor, Tensor]) -> Tensor:
    """x: [batch, heads, length, head_dim], turned by the angles of its positions.

    Where the tables are narrower than a head, its first channels are turned and the rest is kept.
    """
    cos, sin = rotation
    num_turned = cos.shape[-1]
    if num_turned < x.shape[-1]:
        turned, kept = x[..., :num_turned], x[..., num_turned:]
        return torch.cat((rotate(turned, rotation), kept), -1)
    return torch.addcmul(x * cos, x.roll(x.shape[-1] // 2, dims=-1), sin)


def turned_heads(
    x: Tensor, norm: RMSNorm | OffsetRMSNorm | NoNorm, rotation: tuple[Tensor, Tensor]
) -> Tensor:
    """x: [batch, length, heads, head_dim], normalised by head and turned by position.

    -> [batch, heads, length, head_dim].
    """
    if kernels.suits(x, norm.weight, *rotation):
        return kernels.turn_heads(x, norm.weight, norm.offset, norm.eps, *rotation)
    return rotate(norm(x).transpose(1, 2), rotation)


class MLP(nn.Module):
    """SwiGLU: down(silu(gate(x)) * up(x))."""

    def __init__(self, hidden_size: int, intermediate_size: int) -> None:
        super().__init__()
        self.gate_proj = Linear(hidden_size, intermediate_size)
        self.up_proj = Linear(hidden_size, intermediate_size)
        self.down_proj = Linear(intermediate_size, hidden_size)

    def forward(self, x: Tensor) -> Tensor:
        return self.down_proj(swiglu(*linear_each(x, (self.gate_proj, self.up_proj))))

    def added(self, x: Tensor, norm: RMSNorm | OffsetRMSNorm) -> Tensor:
        """x + mlp(norm(x)): a layer's second half."""
        weights = (self.gate_proj.weight, self.up_proj.weight, self.down_proj.weight)
        if kernels.suits(x, norm.weight, *weights) and kernels.suits(weights[2]):
            return kernels.add_mlp(x.contiguous(), norm.weight, norm.offset, norm.eps, *weights)
        return x + self(norm(x))


def swiglu(gate: Tensor, up: Tensor) -> Tensor:
    """silu(gate) * up; both [..., size]."""
    if kernels.suits(gate) and kernels.are_neighbours(gate, up):
        return kernels.swiglu(gate, up)
    return F.silu(gate) * up


class GroupedDynamicConv(nn.Module):
    """Makes the kernels of two causal convolutions from one input: a sublayer's and its output's.

    Each kernel is a learned base per channel plus a correction per group of channels, which
    depends on the row it is for.
    """

    def __init__(self, hidden_size: int, kernel_size: int, group_size: int) -> None:
        super().__init__()
        self.shape = (2, kernel_size, hidden_size // group_size)  # side, tap, group
        self.base_kernel = nn.Parameter(torch.zeros(2, kernel_size, hidden_size))
        self.kernel_projection = Linear(hidden_size, 2 * kernel_size * hidden_size // group_size)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """x: [batch, block, hidden], normalised -> kernels before and after the sublayer.

        Each kernel: [batch, block, tap, hidden].
        """
        correction = self.kernel_projection(x)
        if kernels.suits(x, self.base_kernel):
            before, after = kernels.convolution_kernels(self.base_kernel, correction).unbind(-3)
            return before, after
        correction = correction.unflatten(-1, self.shape).unsqueeze(-1)
        base = self.base_kernel.unflatten(-1, (self.shape[-1], -1))
        before, after = (base + correction).flatten(-2).unbind(-3)
        return before, after


def convolve(x: Tensor, kernel: Tensor) -> Tensor:
    """y[t] = sum over taps of kernel[t, tap] * x[t - tap], with nothing before the block's start.

    x: [batch, block, hidden]; kernel: [batch, block, tap, hidden], indexed by the output's row.
    """
    if x.dim() == 3 and kernels.suits(x) and kernels.suits(kernel):
        return kernels.convolve(x, kernel)
    y = kernel[..., 0, :] * x
    for tap in range(1, kernel.shape[-2]):
        y[..., tap:, :] += kernel[..., tap:, tap, :] * x[..., :-tap, :]
    return y
