"""The target: what the engine asks of it, and the two kinds whose layers are all attention.

It decides every token; the drafter only borrows its embedding, its head and its features. Knows
nothing of drafting except that somebody may want to tap its layers. A target with another kind
of layer, qwen3_5, stands in a file of its own and changes nothing here.
"""

from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from engines.dflash2 import kernels
from engines.dflash2.attention import FEW_ROWS, Attention, additive_mask, sees_past
from engines.dflash2.cache import CacheView, KVCache
from engines.dflash2.config import MAX_BLOCK_SIZE, TargetConfig
from engines.dflash2.layers import MLP, Linear, NoNorm, RMSNorm, Rotary, linear

Norm = Callable[[int, float], nn.Module]  # makes a norm of a size with an epsilon


@dataclass(frozen=True, kw_only=True)
class TargetOutput:
    hidden: Tensor  # [batch, length, hidden], after the final norm: what the head reads
    features: Tensor | None  # [batch, length, taps * hidden], a copy; None where nothing is tapped


class CausalAttention(Attention):
    """Attention of new rows to themselves and to the rows a cache holds."""

    is_gated = False

    def forward(
        self,
        x: Tensor,
        rotation: tuple[Tensor, Tensor],
        mask: Tensor | None,
        cache: CacheView | None,
        layer: int,
    ) -> Tensor:
        queries, keys, values, gate = self.projections(x, rotation)
        if cache is not None:
            keys, values = cache.append(layer, keys, values)
        return self.attend(queries, keys, values, mask, gate=gate)

    def projections(
        self, x: Tensor, rotation: tuple[Tensor, Tensor]
    ) -> tuple[Tensor, Tensor, Tensor, Tensor | None]:
        """`queries_keys_values`, and the gate of `attend` where there is one."""
        return *self.queries_keys_values(x, rotation), None


class DecoderLayer(nn.Module):
    """Rows look at each other, then each goes through the MLP; both add to the residual stream.

    How they look at each other is a subclass's `mix`, under the name that the file gives it.
    """

    def __init__(self, config: TargetConfig, norm: Norm = RMSNorm) -> None:
        super().__init__()
        self.mlp = MLP(config.hidden_size, config.intermediate_size)
        self.input_layernorm = norm(config.hidden_size, config.rms_norm_eps)
        self.post_attention_layernorm = norm(config.hidden_size, config.rms_norm_eps)

    def forward(
        self,
        x: Tensor,
        rotation: tuple[Tensor, Tensor],
        mask: Tensor | None,
        cache: CacheView | None,
        layer: int,
    ) -> Tensor:
        x = self.mixed(x, rotation, mask, cache, layer)
        return self.mlp.added(x, self.post_attention_layernorm)

    def mixed(
        self,
        x: Tensor,
        rotation: tuple[Tensor, Tensor],
        mask: Tensor | None,
        cache: CacheView | None,
        layer: int,
    ) -> Tensor:
        """A layer's first half."""
        return x + self.mix(self.input_layernorm(x), rotation, mask, cache, layer)

    def mix(
        self,
        x: Tensor,
        rotation: tuple[Tensor, Tensor],
        mask: Tensor | None,
        cache: CacheView | None,
        layer: int,
    ) -> Tensor:
        raise NotImplementedError


class AttentionLayer(DecoderLayer):
    def __init__(
        self, config: TargetConfig, self_attn: CausalAttention, norm: Norm = RMSNorm
    ) -> None:
        super().__init__(config, norm)
        self.self_attn = self_attn

    def mixed(
        self,
        x: Tensor,
        rotation: tuple[Tensor, Tensor],
        mask: Tensor | None,
        cache: CacheView | None,
        layer: int,
    ) -> Tensor:
        norm, attn = self.input_layernorm, self.self_attn
        weights = attn.weights(norm)
        few = x.shape[1] <= FEW_ROWS and attn.head_dim % kernels.LANES == 0
        if few and isinstance(cache, CacheView) and kernels.suits(x, *weights):
            return kernels.add_attention(
                x.contiguous(),
                weights,
                rotation,
                mask,
                *cache.memory(layer),
                cache.positions,
                cache.num_keys,
                offset=norm.offset,
                eps=norm.eps,
                is_gated=attn.is_gated,
            )
        return super().mixed(x, rotation, mask, cache, layer)

    def mix(
        self,
        x: Tensor,
        rotation: tuple[Tensor, Tensor],
        mask: Tensor | None,
        cache: CacheView | None,
        layer: int,
    ) -> Tensor:
        return self.self_attn(x, rotation, mask, cache, layer)


class Decoder(nn.Module):
    """Embedding, layers and final norm; named so that parameters are called as in the file."""

    def __init__(
        self, config: TargetConfig, layers: Iterable[DecoderLayer], norm: Norm = RMSNorm
    ) -> None:
        super().__init__()
        self.embed_tokens = nn.Embedding(config.vocab_size, config.hidden_size)
        self.layers = nn.ModuleList(layers)
        self.norm = norm(config.hidden_size, config.rms_norm_eps)
        self.rotary = Rotary(
            config.rotary_dim, config.rope_theta, config.max_position_embeddings + MAX_BLOCK_SIZE
        )

    def forward(
        self, ids: Tensor, cache: CacheView | None, tap_layer_ids: Collection[int]
    ) -> TargetOutput:
        x = self.embed_tokens(ids)
        num_new = ids.shape[-1]
        if cache is None:
            positions = torch.arange(num_new, device=ids.device)
        else:
            positions = cache.begin(num_new)
        rotation = self.rotary(positions, x.dtype)
        mask = None if cache is None else past_mask(cache, positions, x.dtype)
        taps: list[Tensor] = []
        for number, layer in enumerate(self.layers):
            x = layer(x, rotation, mask, cache, number)
            if number in tap_layer_ids:
                taps.append(x)
        return TargetOutput(hidden=self.norm(x), features=torch.cat(taps, -1) if taps else None)


class Target(nn.Module):
    """A causal language model, run on top of a cache; what its layers do is its own business."""

    def __init__(self, config: TargetConfig, model: Decoder) -> None:
        super().__init__()
        self.config = config
        self.model = model
        if not config.tie_word_embeddings:
            self.lm_head = Linear(config.hidden_size, config.vocab_size)

    def forward(
        self,
        ids: Tensor,
        *,
        cache: CacheView | None = None,
        tap_layer_ids: Collection[int] = (),
    ) -> TargetOutput:
        """Run ids: [batch, length], each row of them behind what the cache holds of its sequence.

        The cache has them on probation, until its `commit`. Without a cache they are whole
        sequences from position 0. A feature is the residual stream after each of `tap_layer_ids`,
        in rising order, before the final norm (transformers' hidden_states[id + 1]).
        """
        return self.model(ids, cache, tap_layer_ids)

    def logits(self, hidden: Tensor) -> Tensor:
        """The head alone, for the rows somebody needs: [..., hidden] -> [..., vocabulary]."""
        return linear(hidden, self.head_weight)

    @property
    def head_weight(self) -> Tensor:
        """[vocabulary, hidden]."""
        if self.config.tie_word_embeddings:
            return self.embedding_weight
        return self.lm_head.weight

    @property
    def embedding_weight(self) -> Tensor:
        """[vocabulary, hidden]."""
        return self.model.embed_tokens.weight

    def new_cache(self, num_slots: int, num_rows: int) -> KVCache:
        weight = self.embedding_weight
        return KVCache(self.config, num_slots, num_rows, weight.dtype, weight.device)


class Qwen3ForCausalLM(Target):
    """Dense qwen3: grouped-query attention with a norm per head."""

    def __init__(self, config: TargetConfig) -> None:
        layers = [
            AttentionLayer(config, CausalAttention(config)) for _ in range(config.num_hidden_layers)
        ]
        super().__init__(config, Decoder(config, layers))


class LlamaForCausalLM(Target):
    """Llama: as qwen3, without a norm per head."""

    def __init__(self, config: TargetConfig) -> None:
        layers = [
            AttentionLayer(config, CausalAttention(config, norm=_no_norm))
            for _ in range(config.num_hidden_layers)
        ]
        super().__init__(config, Decoder(config, layers))


def _no_norm(size: int, eps: float) -> nn.Module:
    return NoNorm()


def past_mask(cache: CacheView, positions: Tensor, dtype: torch.dtype) -> Tensor | None:
    """Each row sees its own sequence up to itself: [batch, 1, rows, keys].

    None where attention needs no mask, or where its own causal rule is the right one.
    """
    num_keys, lengths = cache.num_keys, cache.lengths
    if min(lengths) == max(lengths) and num_keys in (cache.num_new, lengths[0] + 1):
        return None
    visible = sees_past(positions, torch.arange(num_keys, device=positions.device))
    return additive_mask(visible, dtype).unsqueeze(1)
