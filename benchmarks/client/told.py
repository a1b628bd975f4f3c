"""What a client says of its own measurement, in one shape for all of them."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np


@dataclass(frozen=True, kw_only=True)
class Told:
    """None: the client does not say that.

    decode_rate_tok_per_s: per request, the client's own figure nearest to `decode_rate_strict`.
    details: figures of some clients only, by the names that they give them.
    """

    ttft_p50_s: float | None
    ttft_p99_s: float | None
    num_tokens: int | None = None
    decode_rate_tok_per_s: float | None = None
    details: Mapping[str, float] = field(default_factory=dict)


def percentile(values: Sequence[float], percent: float) -> float:
    return float(np.percentile(values, percent))
