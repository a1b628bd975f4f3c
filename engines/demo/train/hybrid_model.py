"""The hybrid target's training forward: a qwen3_5 decoder over whole packed sequences.

Three layers of Gated DeltaNet, then one of gated attention, in float32 masters. Knows nothing
about caches, generation or files; parameter names are the published checkpoint's.
"""

import math
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from engines.demo.train.model import MLP, causal_attention, rotary_table, rotate

CHUNK_ROWS = 32  # rows of the recurrence that are solved together; divides every window's length
DECAY_TIMES = 0.001, 0.1  # softplus(dt_bias) begins between these, as in Mamba 2
DECAY_RATES = 1.0, 16.0  # and exp(A_log) between these


@dataclass(frozen=True, kw_only=True)
class HybridShape:
    """The hybrid demo target's dimensions; the defaults are the published pair's."""

    vocab_size: int = 2048
    hidden_size: int = 256
    num_hidden_layers: int = 8
    full_attention_interval: int = 4
    num_attention_heads: int = 4
    num_key_value_heads: int = 2
    head_dim: int = 64
    linear_num_key_heads: int = 2
    linear_num_value_heads: int = 4
    linear_key_head_dim: int = 64
    linear_value_head_dim: int = 64
    linear_conv_kernel_dim: int = 4
    intermediate_size: int = 416
    partial_rotary_factor: float = 0.25
    rope_theta: float = 10_000.0
    max_position_embeddings: int = 4096
    rms_norm_eps: float = 1e-6

    @property
    def layer_types(self) -> tuple[str, ...]:
        return tuple(
            "linear_attention" if number % self.full_attention_interval else "full_attention"
            for number in range(1, self.num_hidden_layers + 1)
        )

    @property
    def rotary_dim(self) -> int:
        return int(self.head_dim * self.partial_rotary_factor)


class OffsetRMSNorm(nn.Module):
    """(1 + w) * x / sqrt(mean(x^2) + eps), the mean in float32."""

    def __init__(self, size: int, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(size))
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        wide = x.float()
        scale = torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + self.eps)
        return (wide * scale * (1 + self.weight)).to(x.dtype)


class GatedRMSNorm(nn.Module):
    """w * x / sqrt(mean(x^2) + eps) * silu(gate)."""

    def __init__(self, size: int, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(size))
        self.eps = eps

    def forward(self, x: Tensor, gate: Tensor) -> Tensor:
        scale = torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self.eps)
        return (x * scale * self.weight * F.silu(gate.float())).to(gate.dtype)


class GatedAttention(nn.Module):
    def __init__(self, shape: HybridShape) -> None:
        super().__init__()
        self.shape = shape
        width, head = shape.hidden_size, shape.head_dim
        self.q_proj = nn.Linear(width, 2 * shape.num_attention_heads * head, bias=False)
        self.k_proj = nn.Linear(width, shape.num_key_value_heads * head, bias=False)
        self.v_proj = nn.Linear(width, shape.num_key_value_heads * head, bias=False)
        self.o_proj = nn.Linear(shape.num_attention_heads * head, width, bias=False)
        self.q_norm = OffsetRMSNorm(head, shape.rms_norm_eps)
        self.k_norm = OffsetRMSNorm(head, shape.rms_norm_eps)

    def forward(self, x: Tensor, cosine: Tensor, sine: Tensor) -> Tensor:
        head = self.shape.head_dim
        q, gate = self.q_proj(x).unflatten(-1, (-1, 2 * head)).chunk(2, -1)
        k = self.k_norm(self.k_proj(x).unflatten(-1, (-1, head)))
        v = self.v_proj(x).unflatten(-1, (-1, head)).transpose(1, 2)
        q = rotate_some(self.q_norm(q).transpose(1, 2), cosine, sine)
        k = rotate_some(k.transpose(1, 2), cosine, sine)
        group = self.shape.num_attention_heads // self.shape.num_key_value_heads
        mixed = causal_attention(
            q, k.repeat_interleave(group, dim=1), v.repeat_interleave(group, dim=1)
        )
        return self.o_proj(mixed.transpose(1, 2).flatten(-2) * gate.flatten(-2).sigmoid())


def rotate_some(x: Tensor, cosine: Tensor, sine: Tensor) -> Tensor:
    """x: [batch, heads, length, head_dim]; only as many channels as the tables have turn."""
    turned, kept = x.split((cosine.shape[-1], x.shape[-1] - cosine.shape[-1]), -1)
    return torch.cat((rotate(turned, cosine, sine), kept), -1)


class GatedDeltaNet(nn.Module):
    def __init__(self, shape: HybridShape) -> None:
        super().__init__()
        self.shape = shape
        width, heads = shape.hidden_size, shape.linear_num_value_heads
        self.key_size = shape.linear_num_key_heads * shape.linear_key_head_dim
        self.value_size = heads * shape.linear_value_head_dim
        channels = 2 * self.key_size + self.value_size
        self.in_proj_qkv = nn.Linear(width, channels, bias=False)
        self.in_proj_z = nn.Linear(width, self.value_size, bias=False)
        self.in_proj_b = nn.Linear(width, heads, bias=False)
        self.in_proj_a = nn.Linear(width, heads, bias=False)
        self.conv1d = nn.Conv1d(
            channels, channels, shape.linear_conv_kernel_dim, groups=channels, bias=False
        )
        low, high = (math.log(time) for time in DECAY_TIMES)
        times = torch.empty(heads).uniform_(low, high).exp()
        self.dt_bias = nn.Parameter(times + torch.log(-torch.expm1(-times)))  # softplus inverted
        self.A_log = nn.Parameter(torch.empty(heads).uniform_(*DECAY_RATES).log())
        self.norm = GatedRMSNorm(shape.linear_value_head_dim, shape.rms_norm_eps)
        self.out_proj = nn.Linear(self.value_size, width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        rows = F.silu(causal_convolution(self.in_proj_qkv(x), self.conv1d.weight))
        q, k, v = rows.split((self.key_size, self.key_size, self.value_size), -1)
        sharing = self.shape.linear_num_value_heads // self.shape.linear_num_key_heads
        q, k = (
            unit(each.unflatten(-1, (self.shape.linear_num_key_heads, -1)).float())
            .repeat_interleave(sharing, 2)
            .transpose(1, 2)
            for each in (q, k)
        )
        v = v.unflatten(-1, (self.shape.linear_num_value_heads, -1)).float().transpose(1, 2)
        beta = self.in_proj_b(x).float().sigmoid().transpose(1, 2)
        rate = F.softplus(self.in_proj_a(x).float() + self.dt_bias)
        g = (-self.A_log.exp() * rate).transpose(1, 2)
        with torch.autocast("cpu", enabled=False):
            out = delta_rule(q * self.shape.linear_key_head_dim**-0.5, k, v, beta, g)
        z = self.in_proj_z(x).unflatten(-1, (self.shape.linear_num_value_heads, -1))
        return self.out_proj(self.norm(out.transpose(1, 2), z).flatten(-2))


def unit(x: Tensor) -> Tensor:
    return x * torch.rsqrt(x.pow(2).sum(-1, keepdim=True) + 1e-6)


def causal_convolution(x: Tensor, weight: Tensor) -> Tensor:
    """x: [batch, length, channels]; weight: [channels, 1, taps], the last for the row itself."""
    taps, length = weight.shape[-1], x.shape[1]
    before = F.pad(x, (0, 0, taps - 1, 0))
    kernel = weight.to(x.dtype)
    return torch.stack(
        [kernel[:, 0, tap] * before[:, tap : tap + length] for tap in range(taps)]
    ).sum(0)


def delta_rule(q: Tensor, k: Tensor, v: Tensor, beta: Tensor, g: Tensor) -> Tensor:
    """The gated delta rule from an empty state, with a gradient; see `engines.dflash2.deltanet`.

    q, k, v: [batch, heads, length, size]; beta, g: [batch, heads, length]; length a multiple of
    CHUNK_ROWS. All that a chunk does to itself is done for all chunks at once; only the states
    go from chunk to chunk.
    """
    q, k, v, beta, g = (x.unflatten(2, (-1, CHUNK_ROWS)) for x in (q, k, v, beta, g))
    total = g.cumsum(-1)
    between = (total.unsqueeze(-1) - total.unsqueeze(-2)).tril().exp().tril()
    decay, beta = total.exp().unsqueeze(-1), beta.unsqueeze(-1)
    inner = beta * (k @ k.transpose(-1, -2)) * between
    values, readers = torch.linalg.solve_triangular(
        inner, torch.cat((beta * v, beta * decay * k), -1), upper=False, unitriangular=True
    ).split((v.shape[-1], k.shape[-1]), -1)
    last = total[..., -1:]
    kept = (k * (last - total).exp().unsqueeze(-1)).transpose(-1, -2)
    whole = last.exp().unsqueeze(-1)
    states, news = carry(values, readers, kept, whole)
    mixed = (q @ k.transpose(-1, -2) * between) @ news
    return ((decay * q) @ states + mixed).flatten(2, 3)


@torch.compiler.disable  # a loop of small products, which compiling would only unroll
def carry(values: Tensor, readers: Tensor, kept: Tensor, whole: Tensor) -> tuple[Tensor, Tensor]:
    """The states before each chunk and each chunk's new values, one chunk after the other."""
    S = values.new_zeros(*values.shape[:2], readers.shape[-1], values.shape[-1])
    states, news = [], []
    for value, reader, key, factor in zip(
        *(x.unbind(2) for x in (values, readers, kept, whole)), strict=True
    ):
        new = value - reader @ S
        states.append(S)
        news.append(new)
        S = factor * S + key @ new
    return torch.stack(states, 2), torch.stack(news, 2)


class HybridLayer(nn.Module):
    def __init__(self, shape: HybridShape, kind: str) -> None:
        super().__init__()
        self.input_layernorm = OffsetRMSNorm(shape.hidden_size, shape.rms_norm_eps)
        if kind == "full_attention":
            self.self_attn = GatedAttention(shape)
        else:
            self.linear_attn = GatedDeltaNet(shape)
        self.post_attention_layernorm = OffsetRMSNorm(shape.hidden_size, shape.rms_norm_eps)
        self.mlp = MLP(shape)
        self.kind = kind

    def forward(self, x: Tensor, cosine: Tensor, sine: Tensor) -> Tensor:
        h = self.input_layernorm(x)
        if self.kind == "full_attention":
            x = x + self.self_attn(h, cosine, sine)
        else:
            x = x + self.linear_attn(h)
        return x + self.mlp(self.post_attention_layernorm(x))


class HybridDecoder(nn.Module):
    def __init__(self, shape: HybridShape) -> None:
        super().__init__()
        self.embed_tokens = nn.Embedding(shape.vocab_size, shape.hidden_size)
        self.layers = nn.ModuleList(HybridLayer(shape, kind) for kind in shape.layer_types)
        self.norm = OffsetRMSNorm(shape.hidden_size, shape.rms_norm_eps)


class TrainedHybridTarget(nn.Module):
    """Qwen3_5ForCausalLM with tied embeddings, without its MTP head."""

    def __init__(self, shape: HybridShape) -> None:
        super().__init__()
        self.shape = shape
        self.model = HybridDecoder(shape)
        for name, parameter in self.named_parameters():
            if parameter.dim() == 2:
                deep = name.endswith(("o_proj.weight", "out_proj.weight", "down_proj.weight"))
                scale = 0.02 / (2 * shape.num_hidden_layers) ** 0.5 if deep else 0.02
                nn.init.normal_(parameter, std=scale)

    def forward(self, ids: Tensor) -> Tensor:
        """ids: [batch, length] -> logits: [batch, length, vocab_size]; autocast where it is on."""
        rotary_dim, theta = self.shape.rotary_dim, self.shape.rope_theta
        x = self.model.embed_tokens(ids)
        if torch.is_autocast_enabled("cpu"):
            x = x.to(torch.get_autocast_dtype("cpu"))
        cosine, sine = (t.to(x.dtype) for t in rotary_table(ids.shape[1], rotary_dim, theta))
        for layer in self.model.layers:
            x = layer(x, cosine, sine)
        return F.linear(self.model.norm(x), self.model.embed_tokens.weight)
