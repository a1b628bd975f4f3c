"""The MTP head once more, slowly: float64, one sequence, no cache, no batch; from the equations.

Written from the specification's text (a full-attention layer of qwen3_5 over
fc([norm(embedding of the next token), norm(final hidden row)])), not from the engine.
"""

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]
EPS = 1e-6


def rms1(x: Array, w: Array) -> Array:
    return x / np.sqrt((x * x).mean(-1, keepdims=True) + EPS) * (1 + w)


def sigmoid(x: Array) -> Array:
    return 1 / (1 + np.exp(-x))


def rope(x: Array, turned: int, theta: float) -> Array:
    """x: [rows, heads, head_dim]; the first `turned` channels turn, i with i + turned / 2."""
    half = turned // 2
    angle = np.arange(len(x))[:, None] / theta ** (2 * np.arange(half) / turned)
    cos, sin = np.cos(angle)[:, None], np.sin(angle)[:, None]
    a, b = x[..., :half], x[..., half:turned]
    return np.concatenate((a * cos - b * sin, b * cos + a * sin, x[..., turned:]), -1)


class Head:
    """weights: by the names that stand behind "mtp." in a checkpoint."""

    def __init__(
        self,
        weights: Mapping[str, Array],
        *,
        num_heads: int,
        num_groups: int,
        head_dim: int,
        rotary_dim: int,
        theta: float,
    ) -> None:
        self.w = weights
        self.num_heads, self.num_groups, self.head_dim = num_heads, num_groups, head_dim
        self.rotary_dim, self.theta = rotary_dim, theta

    def rows(self, hidden: Array, embedded: Array) -> Array:
        """hidden, embedded: [rows, hidden] -> the rows that the output matrix reads."""
        w = self.w
        left = rms1(embedded, w["pre_fc_norm_embedding.weight"])
        right = rms1(hidden, w["pre_fc_norm_hidden.weight"])
        x = np.concatenate((left, right), -1) @ w["fc.weight"].T
        x = x + self.attention(rms1(x, w["layers.0.input_layernorm.weight"]))
        h = rms1(x, w["layers.0.post_attention_layernorm.weight"])
        gate = h @ w["layers.0.mlp.gate_proj.weight"].T
        up = h @ w["layers.0.mlp.up_proj.weight"].T
        x = x + (gate * sigmoid(gate) * up) @ w["layers.0.mlp.down_proj.weight"].T
        return rms1(x, w["norm.weight"])

    def attention(self, h: Array) -> Array:
        w, d = self.w, self.head_dim
        prefix = "layers.0.self_attn."
        both = (h @ w[f"{prefix}q_proj.weight"].T).reshape(len(h), self.num_heads, 2 * d)
        k = (h @ w[f"{prefix}k_proj.weight"].T).reshape(len(h), self.num_groups, d)
        v = (h @ w[f"{prefix}v_proj.weight"].T).reshape(len(h), self.num_groups, d)
        q = rope(rms1(both[..., :d], w[f"{prefix}q_norm.weight"]), self.rotary_dim, self.theta)
        k = rope(rms1(k, w[f"{prefix}k_norm.weight"]), self.rotary_dim, self.theta)
        out = np.zeros((len(h), self.num_heads, d))
        for t in range(len(h)):
            for head in range(self.num_heads):
                group = head * self.num_groups // self.num_heads
                scores = k[: t + 1, group] @ q[t, head] / np.sqrt(d)
                weights = np.exp(scores - scores.max())
                out[t, head] = weights @ v[: t + 1, group] / weights.sum()
        out = out * sigmoid(both[..., d:])
        return out.reshape(len(h), -1) @ w[f"{prefix}o_proj.weight"].T

    def drafts(
        self,
        hidden: Array,
        next_tokens: Sequence[int],
        embedding: Array,
        output_matrix: Array,
        num_proposals: int,
    ) -> tuple[list[int], list[Array]]:
        """Greedy drafts behind the last of next_tokens, and the logits that chose each of them.

        hidden: [rows, hidden] of the target; next_tokens: the token behind each row.
        """
        hidden, tokens = hidden.copy(), list(next_tokens)
        drafts, logits = [], []
        for _ in range(num_proposals):
            last = self.rows(hidden, embedding[tokens])[-1]
            logits.append(last @ output_matrix.T)
            drafts.append(int(logits[-1].argmax()))
            hidden, tokens = np.vstack((hidden, last)), [*tokens, drafts[-1]]
        return drafts, logits
