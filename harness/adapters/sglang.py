"""SGLang, by the names that 0.5.23 exports with `--enable-metrics`.

It counts rounds (`spec_verify_calls`, added when a request ends) but no accepted tokens, so it has
tokens per round, SGLang's own acceptance length, and not ours. `spec_accept_length` and
`spec_accept_rate` are gauges of the server's life so far: no difference of them means anything, and
they are not read. The gauges of running and waiting requests are set when the scheduler logs, not
when a request ends, so nothing here tells quiet.
"""

from dataclasses import replace
from functools import partial

from harness.adapters import openai, prometheus

SGLANG = replace(
    openai.OPENAI,
    name="sglang",
    read_counters=partial(
        prometheus.read_counters,
        prefix="sglang",
        names={"drafts": "spec_verify_calls", "requests": "num_requests"},
    ),
    quiet=lambda page: None,
    uncached=lambda name: {"cache_salt": name},
)
