"""The hybrid target qwen3_5 (Qwen3.8-27B): three Gated DeltaNet layers, then one of attention.

The text part only. Knows shapes and the file's names; the recurrence is `deltanet`'s, and what
survives a rejected draft is the cache's business.
"""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from engines.dflash2.cache import CacheView, HybridCache, HybridView, new_delta_state
from engines.dflash2.config import HybridTargetConfig
from engines.dflash2.deltanet import DeltaState, causal_convolution, run_rows, unit
from engines.dflash2.layers import GatedRMSNorm, Linear, OffsetRMSNorm, linear_each, turned_heads
from engines.dflash2.target import AttentionLayer, CausalAttention, Decoder, DecoderLayer, Target


class GatedAttention(CausalAttention):
    """Attention whose heads' outputs are scaled by a gate, which q_proj makes beside the queries.

    Only the first channels of a head carry its position. (Text positions make the three parts of
    the model's multi-axis rotary embedding equal, so it is the ordinary one.)
    """

    is_gated = True

    def __init__(self, config: HybridTargetConfig) -> None:
        super().__init__(config, OffsetRMSNorm)
        self.q_proj = Linear(config.hidden_size, 2 * config.num_attention_heads * config.head_dim)

    def projections(
        self, x: Tensor, rotation: tuple[Tensor, Tensor]
    ) -> tuple[Tensor, Tensor, Tensor, Tensor | None]:
        both, keys, values = linear_each(x, (self.q_proj, self.k_proj, self.v_proj))
        # Per head: its queries, then its gate.
        queries, gate = both.unflatten(-1, (-1, 2 * self.head_dim)).chunk(2, -1)
        queries = turned_heads(queries, self.q_norm, rotation)
        turned = self.turned_keys_and_values(keys, values, rotation)
        return queries, *turned, gate.flatten(-2).sigmoid()


class GatedDeltaNet(nn.Module):
    """A recurrence in place of attention: see `deltanet`. Several value heads share a key head."""

    def __init__(self, config: HybridTargetConfig) -> None:
        super().__init__()
        self.config = config
        hidden_size, num_value_heads = config.hidden_size, config.linear_num_value_heads
        self.in_proj_qkv = Linear(hidden_size, config.linear_channels)
        self.in_proj_z = Linear(hidden_size, config.linear_value_size)
        self.in_proj_b = Linear(hidden_size, num_value_heads)
        self.in_proj_a = Linear(hidden_size, num_value_heads)
        self.conv1d = nn.Conv1d(  # holds the weight under its name; `causal_convolution` runs it
            config.linear_channels,
            config.linear_channels,
            config.linear_conv_kernel_dim,
            groups=config.linear_channels,
            bias=False,
        )
        self.A_log = nn.Parameter(torch.zeros(num_value_heads))
        self.dt_bias = nn.Parameter(torch.zeros(num_value_heads))
        self.norm = GatedRMSNorm(config.linear_value_head_dim, config.rms_norm_eps)
        self.out_proj = Linear(config.linear_value_size, hidden_size)

    def forward(self, x: Tensor, state: DeltaState) -> Tensor:
        """x: [batch, length, hidden], which follow what the state remembers and enter it."""
        rows = state.extend(self.in_proj_qkv(x))
        convolved = F.silu(causal_convolution(rows, self.conv1d.weight.squeeze(1)))
        q, k, v = self._heads(convolved.to(state.S.dtype))
        outputs, chunk = run_rows(q, k, v, *self._gates(x, state.S.dtype), state.S)
        state.finish(rows, chunk)
        z = self.in_proj_z(x).unflatten(-1, (self.config.linear_num_value_heads, -1))
        return self.out_proj(self.norm(outputs.transpose(1, 2).to(x.dtype), z).flatten(-2))

    def _heads(self, rows: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """[batch, length, channels] -> q, k, v, each [batch, value heads, length, head size]."""
        config = self.config
        key_size = config.linear_num_key_heads * config.linear_key_head_dim
        q, k, v = rows.split((key_size, key_size, config.linear_value_size), -1)
        q, k = (x.unflatten(-1, (config.linear_num_key_heads, -1)) for x in (q, k))
        v = v.unflatten(-1, (config.linear_num_value_heads, -1))
        num_sharing = config.linear_num_value_heads // config.linear_num_key_heads
        q, k = (unit(x).repeat_interleave(num_sharing, 2) for x in (q, k))
        scale = config.linear_key_head_dim**-0.5
        return (scale * q).transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2)

    def _gates(self, x: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        """beta and g, each [batch, value heads, length]."""
        beta = self.in_proj_b(x).to(dtype).sigmoid()
        rate = F.softplus(self.in_proj_a(x).to(dtype) + self.dt_bias.to(dtype))
        return beta.transpose(1, 2), (-self.A_log.to(dtype).exp() * rate).transpose(1, 2)


class DeltaNetLayer(DecoderLayer):
    def __init__(self, config: HybridTargetConfig) -> None:
        super().__init__(config, OffsetRMSNorm)
        self.linear_attn = GatedDeltaNet(config)
        self.config = config

    def mix(
        self,
        x: Tensor,
        rotation: tuple[Tensor, Tensor],
        mask: Tensor | None,
        cache: CacheView | None,
        layer: int,
    ) -> Tensor:
        if cache is None:
            state = new_delta_state(self.config, len(x), x.dtype, x.device)
        else:
            assert isinstance(cache, HybridView)  # of what new_cache makes
            state = cache.delta_state(layer)
        return self.linear_attn(x, state)


class Qwen3_5ForCausalLM(Target):  # noqa: N801 - the checkpoint's name
    config: HybridTargetConfig

    def __init__(self, config: HybridTargetConfig) -> None:
        layers = [_layer(config, kind) for kind in config.layer_types]
        super().__init__(config, Decoder(config, layers, OffsetRMSNorm))

    def new_cache(self, num_slots: int, num_rows: int) -> HybridCache:
        weight = self.embedding_weight
        return HybridCache(self.config, num_slots, num_rows, weight.dtype, weight.device)


def _layer(config: HybridTargetConfig, kind: str) -> DecoderLayer:
    if kind == "linear_attention":
        return DeltaNetLayer(config)
    return AttentionLayer(config, GatedAttention(config), OffsetRMSNorm)
