"""Grouped-query attention and who may see whom.

One module serves both models: the target's rows attend to the past, the drafter's block to a
window around it. The difference is in the keys they are given and in the mask, nowhere else.
"""

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from engines.dflash2 import kernels
from engines.dflash2.config import TransformerConfig
from engines.dflash2.layers import Linear, OffsetRMSNorm, RMSNorm, linear_each, turned_heads

FEW_ROWS = 64  # of more, PyTorch's attention never holds all scores and is no slower


class Attention(nn.Module):
    """Queries, keys and values, their norms per head, rotary positions, and the way back."""

    def __init__(
        self, config: TransformerConfig, norm: Callable[[int, float], nn.Module] = RMSNorm
    ) -> None:
        """norm: makes the norm of a head's queries and of its keys; a model may have none."""
        super().__init__()
        self.head_dim = config.head_dim
        query_size = config.num_attention_heads * config.head_dim
        key_value_size = config.num_key_value_heads * config.head_dim
        self.q_proj = Linear(config.hidden_size, query_size)
        self.k_proj = Linear(config.hidden_size, key_value_size)
        self.v_proj = Linear(config.hidden_size, key_value_size)
        self.o_proj = Linear(query_size, config.hidden_size)
        self.q_norm = norm(config.head_dim, config.rms_norm_eps)
        self.k_norm = norm(config.head_dim, config.rms_norm_eps)

    def queries_keys_values(
        self, x: Tensor, rotation: tuple[Tensor, Tensor]
    ) -> tuple[Tensor, Tensor, Tensor]:
        """x: [batch, length, hidden] -> each [batch, its heads, length, head_dim]."""
        queries, keys, values = linear_each(x, (self.q_proj, self.k_proj, self.v_proj))
        turned = turned_heads(self._heads(queries), self.q_norm, rotation)
        return turned, *self.turned_keys_and_values(keys, values, rotation)

    def keys_and_values(self, x: Tensor, rotation: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
        """The same without queries."""
        return self.turned_keys_and_values(*linear_each(x, (self.k_proj, self.v_proj)), rotation)

    def turned_keys_and_values(
        self, keys: Tensor, values: Tensor, rotation: tuple[Tensor, Tensor]
    ) -> tuple[Tensor, Tensor]:
        turned = turned_heads(self._heads(keys), self.k_norm, rotation)
        return turned, self._heads(values).transpose(1, 2)

    def attend(
        self,
        queries: Tensor,
        keys: Tensor,
        values: Tensor,
        mask: Tensor | None,
        *,
        context: tuple[Tensor, Tensor] | None = None,
        gate: Tensor | None = None,
    ) -> Tensor:
        """`attention`, then the way back: -> [batch, length, hidden].

        gate: [batch, length, heads * head_dim], multiplies what the heads found; None: by 1.
        """
        attended = attention(queries, keys, values, mask, context).transpose(1, 2).flatten(-2)
        return self.o_proj(attended if gate is None else attended * gate)

    def weights(self, norm: RMSNorm | OffsetRMSNorm) -> tuple[Tensor | None, ...]:
        """All of them as the kernels want them; norm: the one before the attention."""
        maps = (self.q_proj, self.k_proj, self.v_proj, self.o_proj)
        return (
            norm.weight,
            *(each.weight for each in maps),
            self.q_norm.weight,
            self.k_norm.weight,
        )

    def _heads(self, x: Tensor) -> Tensor:
        return x.unflatten(-1, (-1, self.head_dim))


def attention(
    queries: Tensor,
    keys: Tensor,
    values: Tensor,
    mask: Tensor | None,
    context: tuple[Tensor, Tensor] | None = None,
) -> Tensor:
    """softmax(q k / sqrt(head_dim) + mask) v; each key-value head serves neighbouring query heads.

    All [batch, heads, length, head_dim]; context: more keys and values, which in the mask stand
    before the others. mask: see `additive_mask`; None: the plain causal rule.
    """
    tensors = (queries, keys, values, *(context or ()))
    if queries.shape[-2] <= FEW_ROWS and kernels.can_attend(mask, *tensors):
        return kernels.attend(queries, keys, values, mask, context)
    if context is not None:
        keys, values = torch.cat((context[0], keys), -2), torch.cat((context[1], values), -2)
    return F.scaled_dot_product_attention(
        queries,
        keys,
        values,
        attn_mask=mask,
        is_causal=mask is None and queries.shape[-2] > 1,
        enable_gqa=True,
    )


def sees_past(query_positions: Tensor, key_positions: Tensor) -> Tensor:
    """The target's rule, [..., queries, keys]: a row sees itself and what came before."""
    return key_positions.unsqueeze(-2) <= query_positions.unsqueeze(-1)


def sees_window(query_positions: Tensor, key_positions: Tensor, window: int) -> Tensor:
    """The drafter's rule, [..., queries, keys]: less than `window` positions away, before or after.

    So an anchor at P sees the context from P - window + 1 on, each later row one position less,
    and inside the block everyone sees everyone.
    """
    distance = query_positions.unsqueeze(-1) - key_positions.unsqueeze(-2)
    return distance.abs() < window


def additive_mask(visible: Tensor, dtype: torch.dtype) -> Tensor:
    """0 where visible, minus infinity elsewhere: made once a pass, not once a layer."""
    return torch.zeros(visible.shape, dtype=dtype, device=visible.device).masked_fill_(
        ~visible, -torch.inf
    )
