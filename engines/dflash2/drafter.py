"""The drafter: a few layers that fill a block of masks in one pass, looking at target features.

Knows nothing of verification. It has neither embedding nor head; both are the target's. Its
context is the accepted tokens' features, projected to keys and values once and never changed.
"""

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from engines.dflash2 import kernels
from engines.dflash2.attention import Attention, additive_mask, sees_window
from engines.dflash2.cache import ContextRings
from engines.dflash2.config import MAX_BLOCK_SIZE, DrafterConfig
from engines.dflash2.drafting import Committed, Draft
from engines.dflash2.layers import MLP, GroupedDynamicConv, Linear, RMSNorm, Rotary, convolve
from engines.dflash2.selector import CandidateSelector
from engines.dflash2.target import Target


class BlockAttention(Attention):
    """Attention of a block to a context and to all of itself, later rows included."""

    def forward(
        self,
        x: Tensor,
        rotation: tuple[Tensor, Tensor],
        mask: Tensor,
        context_keys: Tensor,
        context_values: Tensor,
    ) -> Tensor:
        """context_*: [batch, key-value heads, context, head_dim], before the block in the mask."""
        own = self.queries_keys_values(x, rotation)
        return self.attend(*own, mask, context=(context_keys, context_values))


class DFlash2DecoderLayer(nn.Module):
    """A qwen3 layer with a convolution before and after each of its two sublayers."""

    def __init__(self, config: DrafterConfig) -> None:
        super().__init__()
        conv_shape = (config.hidden_size, config.conv_kernel_size, config.conv_group_size)
        self.input_layernorm = RMSNorm(config.hidden_size, config.rms_norm_eps)
        self.attention_conv = GroupedDynamicConv(*conv_shape)
        self.self_attn = BlockAttention(config)
        self.post_attention_layernorm = RMSNorm(config.hidden_size, config.rms_norm_eps)
        self.mlp_conv = GroupedDynamicConv(*conv_shape)
        self.mlp = MLP(config.hidden_size, config.intermediate_size)

    def forward(
        self,
        x: Tensor,
        rotation: tuple[Tensor, Tensor],
        mask: Tensor,
        context_keys: Tensor,
        context_values: Tensor,
    ) -> Tensor:
        if self._suits_kernels(x, mask, context_keys, context_values):
            return kernels.add_block(
                x.contiguous(),
                self.self_attn.weights(self.input_layernorm),
                self._other_weights(),
                rotation,
                mask,
                context_keys,
                context_values,
                eps=self.input_layernorm.eps,
            )
        h = self.input_layernorm(x)
        before, after = self.attention_conv(h)
        h = self.self_attn(convolve(h, before), rotation, mask, context_keys, context_values)
        x = x + convolve(h, after)
        h = self.post_attention_layernorm(x)
        before, after = self.mlp_conv(h)
        return x + convolve(self.mlp(convolve(h, before)), after)

    def _suits_kernels(self, x: Tensor, mask: Tensor, *context: Tensor) -> bool:
        attention = self.self_attn.weights(self.input_layernorm)
        return (
            kernels.suits(x, *attention, *self._other_weights())
            and kernels.suits(self.mlp.down_proj.weight)
            and kernels.can_attend(mask, *context)
        )

    def _other_weights(self) -> tuple[Tensor, ...]:
        """Those that are not the attention's, as the kernels want them."""
        around_attention, around_mlp, mlp = self.attention_conv, self.mlp_conv, self.mlp
        return (
            around_attention.base_kernel,
            around_attention.kernel_projection.weight,
            self.post_attention_layernorm.weight,
            around_mlp.base_kernel,
            around_mlp.kernel_projection.weight,
            mlp.gate_proj.weight,
            mlp.up_proj.weight,
            mlp.down_proj.weight,
        )


class DFlash2DraftModel(nn.Module):
    """The checkpoint's modules, by the checkpoint's names. Keeps no state between calls."""

    def __init__(self, config: DrafterConfig) -> None:
        super().__init__()
        self.config = config
        feature_size = len(config.target_layer_ids) * config.hidden_size
        self.fc = Linear(feature_size, config.hidden_size)
        self.hidden_norm = RMSNorm(config.hidden_size, config.rms_norm_eps)
        self.layers = nn.ModuleList(
            DFlash2DecoderLayer(config) for _ in range(config.num_hidden_layers)
        )
        self.norm = RMSNorm(config.hidden_size, config.rms_norm_eps)
        self.candidate_selector = CandidateSelector(
            config.vocab_size, config.hidden_size, config.selector_rank, config.selector_top_k
        )
        self.rotary = Rotary(
            config.head_dim, config.rope_theta, config.max_position_embeddings + MAX_BLOCK_SIZE
        )

    def context(self, features: Tensor, positions: Tensor) -> tuple[Tensor, Tensor]:
        """Project target features to the keys and values that blocks will look at.

        features: [batch, tokens, taps * hidden]; positions: [tokens], absolute -> keys, values:
        [layers, batch, key-value heads, tokens, head_dim]. One projection is shared by all layers;
        it passes no layer norm, convolution or MLP.
        """
        x = self.hidden_norm(self.fc(features))
        rotation = self.rotary(positions, x.dtype)
        pairs = [layer.self_attn.keys_and_values(x, rotation) for layer in self.layers]
        return torch.stack([k for k, _ in pairs]), torch.stack([v for _, v in pairs])

    def forward(
        self,
        x: Tensor,
        positions: Tensor,
        mask: Tensor,
        context_keys: Tensor,
        context_values: Tensor,
    ) -> Tensor:
        """Run blocks of embedded [anchor, mask, mask, ...] and return their final-normed rows.

        x: [batch, block, hidden]; positions: [block] or [batch, block]; mask: additive,
        [block, context + block] or [batch, 1, block, context + block]; context_*: [layers, batch,
        key-value heads, context, head_dim]. No block sees another.
        """
        rotation = self.rotary(positions, x.dtype)
        for layer, keys, values in zip(self.layers, context_keys, context_values, strict=True):
            x = layer(x, rotation, mask, keys, values)
        return self.norm(x)


class DFlash2Drafter:
    """A draft model with the embedding and head of its target: see `drafting.Drafter`."""

    def __init__(
        self,
        model: DFlash2DraftModel,
        target: Target,
        *,
        num_proposals: int | None = None,
    ) -> None:
        """num_proposals: how many of the block's proposals to use; None: all of them."""
        depth = model.config.num_proposals if num_proposals is None else num_proposals
        if not 1 <= depth <= model.config.num_proposals:
            raise ValueError(
                f"num_proposals {depth} is not in 1..{model.config.num_proposals}: the drafter "
                f"was trained on blocks of {model.config.block_size}"
            )
        self.model = model
        self.config = model.config
        self.num_proposals = depth
        self.target_layer_ids = model.config.target_layer_ids
        self.target = target

    @property
    def block_size(self) -> int:
        """Rows of one pass, the anchor among them, however few proposals are used."""
        return self.config.block_size

    @property
    def dtype(self) -> torch.dtype:
        """What it computes in: a Q8 drafter in float32, whatever its target computes in."""
        return self.model.norm.weight.dtype

    def new_contexts(self, num_slots: int, num_rows: int) -> ContextRings:
        """Rings, which hold a window of any sequence, however many rows it has."""
        return ContextRings(self.config, num_slots, self.dtype, self.model.norm.weight.device)

    def append_context(self, committed: Committed, contexts: ContextRings, slots: range) -> None:
        """Project the features of all sequences' new tokens, one behind the other, in one pass."""
        assert committed.features is not None, "a target taps what the drafter asks for"
        places = contexts.extend(slots, committed.num_rows)
        features = committed.features[places.sequences, places.rows].to(self.dtype)
        keys, values = self.model.context(features.unsqueeze(0), places.positions)
        contexts.write(places, keys[:, 0], values[:, 0])

    def propose(
        self,
        anchors: Sequence[int],
        contexts: ContextRings,
        slots: range,
        *,
        temperatures: Sequence[float],
        generators: Sequence[torch.Generator | None],
    ) -> list[Draft]:
        """Propose the tokens after each anchor, which stands right after its sequence's context."""
        hidden = self.hidden(anchors, contexts, slots)[:, 1 : self.num_proposals + 1]
        return self.model.candidate_selector.select(
            self.logits(hidden),
            hidden,
            torch.tensor(anchors, device=hidden.device),
            temperatures=temperatures,
            generators=generators,
        )

    def hidden(self, anchors: Sequence[int], contexts: ContextRings, slots: range) -> Tensor:
        """The rows of one pass, [batch, block, hidden]: always the whole block that was trained.

        Rows look at each other in both directions, so a narrower block would give other rows.
        """
        device = self.target.embedding_weight.device
        masks = [self.config.mask_token_id] * (self.config.block_size - 1)
        ids = torch.tensor([[anchor, *masks] for anchor in anchors], device=device)
        # Bare rows of the table: a scale of the target's own would not belong to the drafter.
        x = self.target.embedding_weight[ids].to(self.dtype) * self.config.input_embedding_scale
        num_before = torch.tensor([contexts.num_tokens[slot] for slot in slots], device=device)
        positions = num_before.unsqueeze(1) + torch.arange(self.config.block_size, device=device)
        visible = sees_window(
            positions,
            torch.cat((contexts.positions(slots), positions), 1),
            self.config.sliding_window,
        )
        mask = additive_mask(visible, x.dtype).unsqueeze(1)
        return self.model(x, positions, mask, contexts.keys(slots), contexts.values(slots))

    def logits(self, hidden: Tensor) -> Tensor:
        """The target's head, scaled and capped as the drafter's config says."""
        hidden = hidden.to(self.target.head_weight.dtype)
        logits = self.target.logits(hidden) * self.config.output_multiplier
        cap = self.config.final_logit_softcapping
        return logits if cap is None else cap * torch.tanh(logits / cap)
