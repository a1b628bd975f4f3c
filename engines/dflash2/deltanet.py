"""Gated DeltaNet (Yang et al. 2024): a layer whose past is one matrix per head, and its rollback.

The matrix S maps a key to the value last stored under it. A row decays S, then corrects what S
answers to its key. A row cannot be taken out of S again; so S stays at the state before the rows
that were run last, and beside it lies what any prefix of them adds (`Chunk`). Knows nothing of
tokens, positions or drafts.

Names are the paper's: q, k, v; beta: how strongly a row corrects; g: logarithm of a row's decay.
All are in at least float32: q, k: [batch, heads, rows, key_dim], v: [batch, heads, rows,
value_dim], beta, g: [batch, heads, rows]; S: [batch, heads, key_dim, value_dim].
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

CHUNK_ROWS = 64  # rows that are solved together; the cost inside a chunk grows with its square
L2_EPS = 1e-6


@dataclass(frozen=True, kw_only=True)
class Chunk:
    """Rows that were run and are not in S yet: all that S after any prefix of them needs."""

    k: Tensor
    new_values: Tensor  # what each row adds under its key, [batch, heads, rows, value_dim]
    log_decay: Tensor  # g summed up to and with each row, [batch, heads, rows]

    @property
    def num_rows(self) -> int:
        return self.k.shape[-2]


def run_step(q: Tensor, k: Tensor, v: Tensor, beta: Tensor, g: Tensor, S: Tensor) -> Tensor:
    """One row by the recurrence, which is the layer's definition. Moves S on in place.

    -> [batch, heads, 1, value_dim].
    """
    S *= g.exp().unsqueeze(-1)
    error = v - k @ S  # the value to store, less what the decayed S already answers
    S += k.transpose(-1, -2) @ (beta.unsqueeze(-1) * error)
    return q @ S


def run_chunk(
    q: Tensor, k: Tensor, v: Tensor, beta: Tensor, g: Tensor, S: Tensor
) -> tuple[Tensor, Chunk]:
    """Rows in parallel: their outputs, and what they add to S, which is left as it was.

    Row t's new value needs those of the rows before it. Written for all rows at once, that is a
    triangular system: (I + A) new = beta (v - decayed k S), A[t, s] = beta[t] k[t]k[s] decay(s, t).
    """
    log_decay = g.cumsum(-1)
    # Decay from row s to row t. Above the diagonal it would grow without bound: cut before exp.
    between = (log_decay.unsqueeze(-1) - log_decay.unsqueeze(-2)).tril().exp().tril()
    decay = log_decay.exp().unsqueeze(-1)
    beta = beta.unsqueeze(-1)
    A = beta * (k @ k.transpose(-1, -2)) * between  # only what is below the diagonal is read
    new_values = torch.linalg.solve_triangular(
        A, beta * (v - (decay * k) @ S), upper=False, unitriangular=True
    )
    outputs = (decay * q) @ S + ((q @ k.transpose(-1, -2)) * between) @ new_values
    return outputs, Chunk(k=k, new_values=new_values, log_decay=log_decay)


def fold(chunk: Chunk, S: Tensor, num_rows: Tensor) -> None:
    """Move S on over the first rows of a chunk, in place; num_rows: [batch], from 0 to all.

    S after a rows = decay(a) S + sum over i <= a of decay(i, a) k[i] (x) new[i], for any a: the
    identity that makes rollback cheap and exact.
    """
    count = num_rows.view(-1, 1, 1)
    total = F.pad(chunk.log_decay, (1, 0)).gather(-1, count.expand(-1, S.shape[1], 1))
    row = torch.arange(chunk.num_rows, device=S.device)
    weight = (total - chunk.log_decay).masked_fill_(row >= count, -torch.inf).exp()
    S *= total.exp().unsqueeze(-1)
    S += (chunk.k * weight.unsqueeze(-1)).transpose(-1, -2) @ chunk.new_values


def run_rows(
    q: Tensor, k: Tensor, v: Tensor, beta: Tensor, g: Tensor, S: Tensor
) -> tuple[Tensor, Chunk | None]:
    """Any number of rows: their outputs, and the chunk that S does not contain yet.

    Of more rows than fit one chunk, and of a single row, nothing is left over: S contains them.
    """
    if q.shape[-2] == 1:
        return run_step(q, k, v, beta, g, S), None
    if q.shape[-2] <= CHUNK_ROWS:
        return run_chunk(q, k, v, beta, g, S)
    outputs = []
    pieces = (x.split(CHUNK_ROWS, dim=2) for x in (q, k, v, beta, g))
    for piece in zip(*pieces, strict=True):
        output, chunk = run_chunk(*piece, S)
        fold(chunk, S, torch.full((len(S),), chunk.num_rows, device=S.device))
        outputs.append(output)
    return torch.cat(outputs, -2), None


def unit(x: Tensor) -> Tensor:
    """x over its length, per row."""
    return x * torch.rsqrt((x * x).sum(-1, keepdim=True) + L2_EPS)


def causal_convolution(rows: Tensor, weight: Tensor) -> Tensor:
    """y[t] = sum over taps j of weight[:, j] * rows[t + j]: the last tap is the row itself.

    rows: [batch, taps - 1 + length, channels], the rows before the first one included; weight:
    [channels, taps] -> [batch, length, channels].
    """
    num_taps = weight.shape[-1]
    length = rows.shape[1] - num_taps + 1
    y = weight[:, 0] * rows[:, :length]
    for tap in range(1, num_taps):
        y += weight[:, tap] * rows[:, tap : tap + length]
    return y


@dataclass(frozen=True, kw_only=True)
class _Pending:
    """The rows of the last pass, as long as some of them may be taken back."""

    chunk: Chunk
    convolved: Tensor  # [batch, taps - 1 + rows, channels]: what the convolution saw


class DeltaState:
    """What one layer remembers of sequences: S, and the last rows its convolution looks back at.

    `pending` rows, those of the last pass, are on probation. They enter S when somebody says how
    many of them stay.
    """

    def __init__(self, S: Tensor, convolved: Tensor) -> None:
        """S: [batch, heads, key_dim, value_dim]; convolved: [batch, taps - 1, channels]."""
        self.S = S
        self.convolved = convolved
        self._pending: _Pending | None = None

    @property
    def num_pending(self) -> int:
        return 0 if self._pending is None else self._pending.chunk.num_rows

    @property
    def num_bytes(self) -> int:
        return self.S.nbytes + self.convolved.nbytes

    def view(self, slots: range) -> "DeltaState":
        """The state of neighbouring sequences, in the same memory."""
        part = slice(slots.start, slots.stop)
        return DeltaState(self.S[part], self.convolved[part])

    def extend(self, rows: Tensor) -> Tensor:
        """Begin a pass: rows [batch, length, channels], with those before them in front."""
        assert self._pending is None, "nobody said how many rows of the last pass stay"
        return torch.cat((self.convolved, rows), 1)

    def finish(self, convolved: Tensor, chunk: Chunk | None) -> None:
        """End a pass: what `extend` gave, and the rows that S does not contain yet."""
        if chunk is None:
            self.convolved.copy_(convolved[:, -self.convolved.shape[1] :])
        else:
            self._pending = _Pending(chunk=chunk, convolved=convolved)

    def keep(self, num_rows: Sequence[int]) -> None:
        """Of each sequence's pending rows, the first so many happened; the others never did."""
        if self._pending is None:
            return
        chunk, convolved = self._pending.chunk, self._pending.convolved
        count = torch.tensor(num_rows, device=self.S.device)
        fold(chunk, self.S, count)
        last = count.unsqueeze(1) + torch.arange(self.convolved.shape[1], device=count.device)
        self.convolved.copy_(convolved[torch.arange(len(count)).unsqueeze(1), last])
        self._pending = None

    def reset(self, slot: int) -> None:
        self.S[slot] = 0
        self.convolved[slot] = 0

    def move(self, source: int, destination: int) -> None:
        self.S[destination] = self.S[source]
        self.convolved[destination] = self.convolved[source]
