"""A server whose timetable is known: what a client measures can be held against what was sent.

In a test, `serving(respond)` runs one in a thread: `respond` gets each request and returns a
`Script`, the moments and bytes of its answer and how it ends. As a process, `python -m
harness.scripted_server --port N` takes the bundled engine's command line and answers like it
(`FakeEngine`): rounds of a known law, counters that add up, the true moments of everything it sent
at `/log`.

Standard library only (and uvloop in the process, where it is installed). It knows nothing of the
client and measures nothing.
"""

from harness.scripted_server.engine import (
    ACCEPTED,
    DEPTH,
    FakeEngine,
    Law,
    natural_length,
    rounds_of,
)
from harness.scripted_server.faults import (
    compressed,
    in_band_error,
    in_turn,
    keep_alive_race,
    loading,
    oversized_event,
    refused,
)
from harness.scripted_server.script import (
    DONE,
    End,
    Received,
    Respond,
    Script,
    chunk,
    event,
    page,
    usage,
)
from harness.scripted_server.server import Answer, ScriptedServer, serving

__all__ = [
    "ACCEPTED",
    "DEPTH",
    "DONE",
    "Answer",
    "End",
    "FakeEngine",
    "Law",
    "Received",
    "Respond",
    "Script",
    "ScriptedServer",
    "chunk",
    "compressed",
    "event",
    "in_band_error",
    "in_turn",
    "keep_alive_race",
    "loading",
    "natural_length",
    "oversized_event",
    "page",
    "refused",
    "rounds_of",
    "serving",
    "usage",
]
