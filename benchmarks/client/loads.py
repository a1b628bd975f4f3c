"""LOADS: what every client is given to do, and what the scripted server answers.

All requests of a load are answered by the same timetable, so streams that begin together stay in
lockstep: their events come as bursts, and their next requests as one burst too. That is the hard
case for a client, and the usual one with an engine that decodes in batches.
"""

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Load:
    """`concurrency` requests in flight until `num_requests` are done.

    An answer: `prefill_ms` after the request its first event, each further one `round_ms` later.
    """

    concurrency: int
    num_requests: int
    num_events: int
    tokens_per_event: int = 1
    prefill_ms: float = 50.0
    round_ms: float = 20.0
    num_rounds: int = 5

    @property
    def num_tokens(self) -> int:
        return self.num_events * self.tokens_per_event

    @property
    def answer_s(self) -> float:
        """From a request to its last event, by the timetable."""
        return (self.prefill_ms + self.round_ms * (self.num_events - 1)) / 1e3

    @property
    def ideal_s(self) -> float:
        """What the whole load takes with a client that adds nothing."""
        return self.answer_s * self.num_requests / self.concurrency


LOADS: Mapping[str, Load] = {
    "c1": Load(concurrency=1, num_requests=20, num_events=16, round_ms=10.0),
    "c16": Load(concurrency=16, num_requests=48, num_events=64),
    "c64": Load(concurrency=64, num_requests=192, num_events=64),
    "c256": Load(concurrency=256, num_requests=512, num_events=128),
    "unthrottled": Load(
        concurrency=16, num_requests=320, num_events=512, prefill_ms=0.0, round_ms=0.0
    ),
    "four_tokens": Load(
        concurrency=4, num_requests=8, num_events=128, tokens_per_event=4, round_ms=10.0
    ),
    "c1024": Load(
        concurrency=1024, num_requests=1024, num_events=600, round_ms=100.0, num_rounds=1
    ),
}
