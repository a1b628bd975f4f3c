"""MTP: the target's own drafter, one more layer that its checkpoint brings along.

Where the target's last hidden row says which token comes next, the head joins that row with this
token's embedding and says which token comes after it; for more than one token ahead it is run
again on its own output. So each token of a draft costs a pass, a small one, and each is surer
than the one after it. Knows nothing of verification; embedding and head are the target's.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from engines.dflash2.cache import CacheView, KVCache
from engines.dflash2.config import MAX_BLOCK_SIZE, HybridTargetConfig
from engines.dflash2.drafting import Committed, Draft
from engines.dflash2.layers import Linear, OffsetRMSNorm, Rotary
from engines.dflash2.qwen3_5 import GatedAttention
from engines.dflash2.selector import NonFiniteError
from engines.dflash2.target import AttentionLayer, Target, past_mask
from engines.dflash2.top_k import top_candidates

NUM_CANDIDATES = (
    16  # of a drawn proposal; what it is drawn from is recorded, so any number is exact
)


class MTPHead(nn.Module):
    """The checkpoint's modules, by the checkpoint's names. Keeps no state between calls."""

    def __init__(self, config: HybridTargetConfig) -> None:
        super().__init__()
        hidden_size, eps = config.hidden_size, config.rms_norm_eps
        self.pre_fc_norm_embedding = OffsetRMSNorm(hidden_size, eps)
        self.pre_fc_norm_hidden = OffsetRMSNorm(hidden_size, eps)
        self.fc = Linear(2 * hidden_size, hidden_size)
        layer = AttentionLayer(config, GatedAttention(config), OffsetRMSNorm)
        self.layers = nn.ModuleList([layer])
        self.norm = OffsetRMSNorm(hidden_size, eps)
        self.rotary = Rotary(
            config.rotary_dim, config.rope_theta, config.max_position_embeddings + MAX_BLOCK_SIZE
        )

    def forward(
        self,
        hidden: Tensor,
        embedded: Tensor,
        positions: Tensor,
        mask: Tensor | None,
        cache: CacheView | None,
    ) -> Tensor:
        """The rows that say the token after the next one, final-normed: [batch, length, hidden].

        hidden: [batch, length, hidden], final-normed rows of the target, or of this head;
        embedded: the same shape, of the token that follows each; positions: the rows' own,
        [length] or [batch, length]; without a cache they are whole sequences from position 0.
        """
        x = torch.cat((self.pre_fc_norm_embedding(embedded), self.pre_fc_norm_hidden(hidden)), -1)
        x = self.layers[0](self.fc(x), self.rotary(positions, x.dtype), mask, cache, 0)
        return self.norm(x)


@dataclass(kw_only=True)
class MTPContexts:
    """Of every slot: the head's keys and values, and its output at the newest token."""

    cache: KVCache
    newest: Tensor  # [slots, hidden]

    @property
    def num_bytes(self) -> int:
        return self.cache.num_bytes + self.newest.nbytes

    def reset(self, slot: int) -> None:
        self.cache.reset(slot)

    def move(self, source: int, destination: int) -> None:
        self.cache.move(source, destination)
        self.newest[destination] = self.newest[source]


class MTPDrafter:
    """A head with the embedding and the output matrix of its target.

    All that sequences need to be remembered is in the contexts that `new_contexts` makes.
    """

    target_layer_ids: tuple[int, ...] = ()  # it reads the target's last row, and taps no layer

    def __init__(self, model: MTPHead, target: Target, *, num_proposals: int) -> None:
        if num_proposals < 1:
            raise ValueError(f"num_proposals {num_proposals} is not 1 or more")
        self.model = model
        self.target = target
        self.num_proposals = num_proposals

    @property
    def block_size(self) -> int:
        """Rows that the target verifies in a round: the newest token and the proposals."""
        return 1 + self.num_proposals

    def new_contexts(self, num_slots: int, num_rows: int) -> MTPContexts:
        """num_rows: positions that a sequence can reach, drafts included."""
        assert isinstance(self.target.config, HybridTargetConfig)  # only these have a head
        config = replace(self.target.config, num_hidden_layers=1, layer_types=("full_attention",))
        weight = self.target.embedding_weight
        return MTPContexts(
            cache=KVCache(config, num_slots, num_rows, weight.dtype, weight.device),
            newest=weight.new_zeros(num_slots, config.hidden_size),
        )

    def append_context(self, committed: Committed, contexts: MTPContexts, slots: range) -> None:
        """Take in the target's rows for the next accepted tokens, each with its successor."""
        view = contexts.cache.view(slots)
        rows = self._rows(committed.hidden, committed.next_tokens, view)
        view.commit(committed.num_rows)
        for slot, row, num_rows in zip(slots, rows, committed.num_rows, strict=True):
            contexts.newest[slot] = row[num_rows - 1]

    def propose(
        self,
        anchors: Sequence[int],
        contexts: MTPContexts,
        slots: range,
        *,
        temperatures: Sequence[float],
        generators: Sequence[torch.Generator],
    ) -> list[Draft]:
        """Propose what follows the anchors, which the newest rows already know."""
        view = contexts.cache.view(slots)
        hidden = contexts.newest[slots.start : slots.stop]
        steps = [self._choose(hidden, temperatures, generators)]
        for _ in range(self.num_proposals - 1):
            hidden = self._rows(hidden.unsqueeze(1), steps[-1].tokens.unsqueeze(1), view)[:, 0]
            view.commit([1] * len(slots))
            steps.append(self._choose(hidden, temperatures, generators))
        # Nobody has accepted these tokens yet: if they stay, their rows come back as the target's.
        contexts.cache.take_back(slots, self.num_proposals - 1)
        return [_draft_of(steps, number) for number in range(len(slots))]

    def _rows(self, hidden: Tensor, next_tokens: Tensor, view: CacheView) -> Tensor:
        positions = view.begin(next_tokens.shape[1])
        embedded = self.target.embedding_weight[next_tokens]
        return self.model(
            hidden, embedded, positions, past_mask(view, positions, hidden.dtype), view
        )

    def _choose(
        self, hidden: Tensor, temperatures: Sequence[float], generators: Sequence[torch.Generator]
    ) -> "_Step":
        """One token for each sequence: its best, or one drawn from its best ones."""
        logits = self.target.logits(hidden)
        scores, candidates = top_candidates(logits, min(NUM_CANDIDATES, logits.shape[-1]))
        scores = scores.to(torch.promote_types(scores.dtype, torch.float32))
        if not scores.isfinite().all():
            raise NonFiniteError(
                "the MTP head's scores are not finite; compute in float32 or bfloat16 and check "
                "its weights (float16 overflows here)"
            )
        probabilities = torch.zeros_like(scores)
        choices = torch.zeros(len(scores), 1, dtype=torch.int64, device=scores.device)
        for row, (temperature, generator) in enumerate(zip(temperatures, generators, strict=True)):
            if temperature == 0:
                probabilities[row, 0] = 1.0  # candidates stand in falling order, ties by id
                continue
            probabilities[row] = torch.softmax(scores[row] / temperature, -1)
            choices[row] = probabilities[row].multinomial(1, generator=generator)
        return _Step(
            tokens=candidates.gather(1, choices).squeeze(1),
            candidates=candidates,
            probabilities=probabilities,
        )


@dataclass(frozen=True, kw_only=True)
class _Step:
    """One token further, for every sequence of a pass."""

    tokens: Tensor  # [batch]
    candidates: Tensor  # [batch, candidates]
    probabilities: Tensor


def _draft_of(steps: Sequence[_Step], number: int) -> Draft:
    """The draft of one sequence of the pass."""
    return Draft(
        tokens=tuple(int(step.tokens[number]) for step in steps),
        candidates=torch.stack([step.candidates[number] for step in steps]),
        probabilities=torch.stack([step.probabilities[number] for step in steps]),
    )
