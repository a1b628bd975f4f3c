"""What a candidate did with a load, once: the one form in which all of them are told.

Knows no engine. Times of a request run from its first token to its last, so that prompts are in
the wall time and in nothing else.
"""

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """Sums over all requests of the load. None: the candidate does not tell."""

    wall_s: float  # from the first prompt handed over to the last answer received
    answers: list[list[int]]
    decode_s: float
    num_steps: int  # of the target behind each first token: rounds where it drafts
    draft_s: float | None  # a pass that several requests share counts for each of them
    verify_s: float | None

    @property
    def num_tokens(self) -> int:
        return sum(map(len, self.answers))

    @property
    def tok_per_s(self) -> float:
        return self.num_tokens / self.wall_s

    @property
    def tokens_per_step(self) -> float:
        return (self.num_tokens - len(self.answers)) / self.num_steps

    @property
    def step_ms(self) -> float:
        """As a request sees it, whoever shares the pass."""
        return 1e3 * self.decode_s / self.num_steps

    @property
    def draft_ms(self) -> float | None:
        return None if self.draft_s is None else 1e3 * self.draft_s / self.num_steps

    @property
    def verify_ms(self) -> float | None:
        return None if self.verify_s is None else 1e3 * self.verify_s / self.num_steps

    @property
    def rest_ms(self) -> float | None:
        if self.draft_ms is None or self.verify_ms is None:
            return None
        return self.step_ms - self.draft_ms - self.verify_ms
