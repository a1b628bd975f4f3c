"""The target's training forward: a Qwen3 decoder over whole packed sequences, in float32 masters.

Knows nothing about caches, generation or files; parameter names are the published checkpoint's,
so the saved state loads in transformers and in the bundled engine without renaming.
"""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn


@dataclass(frozen=True, kw_only=True)
class TargetShape:
    """The demo target's dimensions; the defaults are the published pair's."""

    vocab_size: int = 2048
    hidden_size: int = 320
    num_hidden_layers: int = 10
    num_attention_heads: int = 6
    num_key_value_heads: int = 2
    head_dim: int = 64
    intermediate_size: int = 896
    rope_theta: float = 10_000.0
    max_position_embeddings: int = 4096
    rms_norm_eps: float = 1e-6


class RMSNorm(nn.Module):
    """w * x / sqrt(mean(x^2) + eps), the mean in float32."""

    def __init__(self, size: int, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(size))
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        wide = x.float()
        scale = torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + self.eps)
        return (wide * scale).to(x.dtype) * self.weight.to(x.dtype)


def rotary_table(length: int, head_dim: int, theta: float) -> tuple[Tensor, Tensor]:
    """Cosine and sine of the half-split rotary embedding, each [length, head_dim]."""
    frequency = theta ** (-torch.arange(0, head_dim, 2, dtype=torch.float32) / head_dim)
    angle = torch.outer(torch.arange(length, dtype=torch.float32), frequency)
    angle = torch.cat((angle, angle), dim=-1)
    return angle.cos(), angle.sin()


def rotate(x: Tensor, cosine: Tensor, sine: Tensor) -> Tensor:
    """x: [batch, heads, length, head_dim]; the first half of a head pairs with the second."""
    first, second = x.chunk(2, dim=-1)
    return x * cosine + torch.cat((-second, first), dim=-1) * sine


def causal_attention(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Softmax attention to the past; q, k, v: [batch, heads, length, head_dim].

    The same as `scaled_dot_product_attention(..., is_causal=True)`, in four chunks of rows that
    each read only the keys before their end. Written out it takes half of that time here:
    oneDNN's bfloat16 products are quicker than the CPU's flash kernel.
    """
    length, size = q.shape[-2], -(-q.shape[-2] // 4)
    scale = q.shape[-1] ** -0.5
    mixed = []
    for start in range(0, length, size):
        end = min(start + size, length)
        scores = (q[:, :, start:end] @ k[:, :, :end].transpose(-1, -2)).float() * scale
        future = torch.ones(end - start, end, dtype=torch.bool).triu(start + 1)
        weights = torch.softmax(scores.masked_fill(future, float("-inf")), dim=-1)
        mixed.append(weights.to(q.dtype) @ v[:, :, :end])
    return torch.cat(mixed, dim=2)


class Attention(nn.Module):
    def __init__(self, shape: TargetShape) -> None:
        super().__init__()
        self.shape = shape
        width, head = shape.hidden_size, shape.head_dim
        self.q_proj = nn.Linear(width, shape.num_attention_heads * head, bias=False)
        self.k_proj = nn.Linear(width, shape.num_key_value_heads * head, bias=False)
        self.v_proj = nn.Linear(width, shape.num_key_value_heads * head, bias=False)
        self.o_proj = nn.Linear(shape.num_attention_heads * head, width, bias=False)
        self.q_norm = RMSNorm(head, shape.rms_norm_eps)
        self.k_norm = RMSNorm(head, shape.rms_norm_eps)

    def forward(self, x: Tensor, cosine: Tensor, sine: Tensor) -> Tensor:
        batch, length, _ = x.shape
        split = (batch, length, -1, self.shape.head_dim)
        q = rotate(self.q_norm(self.q_proj(x).view(split)).transpose(1, 2), cosine, sine)
        k = rotate(self.k_norm(self.k_proj(x).view(split)).transpose(1, 2), cosine, sine)
        v = self.v_proj(x).view(split).transpose(1, 2)
        group = self.shape.num_attention_heads // self.shape.num_key_value_heads
        k, v = k.repeat_interleave(group, dim=1), v.repeat_interleave(group, dim=1)
        mixed = causal_attention(q, k, v)
        return self.o_proj(mixed.transpose(1, 2).reshape(batch, length, -1))


class MLP(nn.Module):
    def __init__(self, shape: TargetShape) -> None:
        super().__init__()
        self.gate_proj = nn.Linear(shape.hidden_size, shape.intermediate_size, bias=False)
        self.up_proj = nn.Linear(shape.hidden_size, shape.intermediate_size, bias=False)
        self.down_proj = nn.Linear(shape.intermediate_size, shape.hidden_size, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))


class Layer(nn.Module):
    def __init__(self, shape: TargetShape) -> None:
        super().__init__()
        self.input_layernorm = RMSNorm(shape.hidden_size, shape.rms_norm_eps)
        self.self_attn = Attention(shape)
        self.post_attention_layernorm = RMSNorm(shape.hidden_size, shape.rms_norm_eps)
        self.mlp = MLP(shape)

    def forward(self, x: Tensor, cosine: Tensor, sine: Tensor) -> Tensor:
        x = x + self.self_attn(self.input_layernorm(x), cosine, sine)
        return x + self.mlp(self.post_attention_layernorm(x))


class Decoder(nn.Module):
    def __init__(self, shape: TargetShape) -> None:
        super().__init__()
        self.embed_tokens = nn.Embedding(shape.vocab_size, shape.hidden_size)
        self.layers = nn.ModuleList(Layer(shape) for _ in range(shape.num_hidden_layers))
        self.norm = RMSNorm(shape.hidden_size, shape.rms_norm_eps)


class TrainedTarget(nn.Module):
    """Qwen3ForCausalLM with tied embeddings."""

    def __init__(self, shape: TargetShape) -> None:
        super().__init__()
        self.shape = shape
        self.model = Decoder(shape)
        for name, parameter in self.named_parameters():
            if parameter.dim() == 2:
                deep = name.endswith(("o_proj.weight", "down_proj.weight"))
                scale = 0.02 / (2 * shape.num_hidden_layers) ** 0.5 if deep else 0.02
                nn.init.normal_(parameter, std=scale)

    def forward(self, ids: Tensor) -> Tensor:
        """ids: [batch, length] -> logits: [batch, length, vocab_size]."""
        head_dim, theta = self.shape.head_dim, self.shape.rope_theta
        x = self.model.embed_tokens(ids).to(torch.bfloat16)
        cosine, sine = (t.to(x.dtype) for t in rotary_table(ids.shape[1], head_dim, theta))
        for layer in self.model.layers:
            x = layer(x, cosine, sine)
        return F.linear(self.model.norm(x), self.model.embed_tokens.weight)
