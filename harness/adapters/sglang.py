"""SGLang, by the names that 0.5.23 exports with `--enable-metrics`; none of its pages was recorded.

It counts rounds (`spec_verify_calls`, added when a request ends) but no accepted tokens, so it has
tokens per round, SGLang's own acceptance length, and not ours. `spec_accept_length` and
`spec_accept_rate` are gauges of the server's life so far: no difference of them means anything, and
they are not read, nor is `avg_spec_accept_length` of /server_info, for the same reason. The gauges
of running and waiting requests are set when the scheduler logs, not when a request ends, so nothing
here tells quiet.
"""

from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import Any

from harness.adapters import openai, prometheus
from harness.adapters.pages import json_object, told


def read_facts(pages: Mapping[str, str], log: str) -> Mapping[str, Any]:
    """/server_info holds the arguments that it was started with, and what it made of them.

    Its algorithms have names of their own (EAGLE is also what MTP runs as), which prove no drafter;
    but none at all means none.
    """
    server = json_object(pages.get("/server_info"))
    return {
        **openai.read_facts(pages, log),
        **told(
            version=server.get("version"),
            max_concurrent_requests=openai.count(server.get("max_running_requests")),
            kv_tokens=openai.count(server.get("max_total_num_tokens")),
            speculation=_speculation(server),
        ),
    }


def _speculation(server: Mapping[str, Any]) -> str | None:
    if "speculative_algorithm" not in server:
        return None
    return "off" if server["speculative_algorithm"] is None else "on"


SGLANG = replace(
    openai.OPENAI,
    name="sglang",
    read_counters=partial(
        prometheus.read_counters,
        prefix="sglang",
        names={
            "drafts": "spec_verify_calls",
            "requests": "num_requests",
            "cached_prompt_tokens": "cached_tokens",
        },
    ),
    quiet=lambda page: None,
    fact_paths=("/health", "/v1/models", "/server_info"),
    read_facts=read_facts,
    uncached=lambda name: {"cache_salt": name},
)
