"""The bundled engine, `python -m engines.dflash2 serve`, met over HTTP like every other.

One event per round; token counts and ids come with every event when asked for; `timings` in the
final one. It says itself whether it is quiet.
"""

from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import Any

from harness.adapters import next_token, openai, prometheus
from harness.adapters.base import Ask
from harness.adapters.pages import json_object
from harness.errors import ConfigError
from harness.records import Drafter, Variant

# Facts that move while an engine runs, and a path: models are identified by their files.
_NO_BUILD = ("status", "running", "waiting", "quiet", "kv_used_tokens", "drafter_model")


def command(variant: Variant, settings: Mapping[str, Any], port: int) -> tuple[str, ...]:
    """The program, the models, then every setting as `--its-name value`."""
    return (
        *variant.engine.command,
        *("--model", variant.target.path),
        *_drafter(variant),
        *("--served-name", variant.target.name),
        *(word for name, value in settings.items() for word in _option(name, value)),
        *("--host", _host(variant), "--port", str(port)),
    )


def _host(variant: Variant) -> str:
    """A container's loopback is its own: outside, the port is published on the machine's."""
    return "0.0.0.0" if variant.engine.kind == "container" else "127.0.0.1"


def _drafter(variant: Variant) -> tuple[str, ...]:
    """One at most: a model of its own, or the target's MTP head, which has none."""
    drafter = variant.drafter
    if drafter is None:
        return ("--dflash2", "off")
    if drafter.method == "mtp" and drafter.model is None and drafter.k is not None:
        return ("--mtp", "on", "--mtp-k", str(drafter.k))
    if drafter.method != "dflash2" or drafter.model is None:
        raise ConfigError(
            f"variant {variant.name!r}: engine dflash2 drafts with a DFlash 2 model or with its "
            f"target's MTP head, not with `{_written(drafter)}`; write `drafter: {{method: "
            "dflash2, model: NAME}` or `drafter: {method: mtp, k: K}`"
        )
    return ("--dflash2", "on", "--dflash2-model", drafter.model.path)


def _written(drafter: Drafter) -> str:
    model = "" if drafter.model is None else f", model: {drafter.model.name}"
    depth = "" if drafter.k is None else f", k: {drafter.k}"
    return f"drafter: {{method: {drafter.method}{model}{depth}}}"


def _option(name: str, value: Any) -> tuple[str, ...]:
    flag = "--" + name.replace("_", "-")
    if isinstance(value, bool):
        return (flag,) if value else ()
    return (flag, str(value))


def request_body(ask: Ask) -> dict[str, Any]:
    body = openai.request_body(ask)
    body["stream_options"]["continuous_usage_stats"] = True
    body["return_token_ids"] = True
    return body


def quiet(health: str) -> bool | None:
    value = json_object(health).get("quiet")
    return value if isinstance(value, bool) else None


def read_facts(pages: Mapping[str, str], log: str) -> Mapping[str, Any]:
    """/health tells everything, the model among it."""
    del log
    health = json_object(pages.get("/health"))
    return {name: value for name, value in health.items() if name not in _NO_BUILD}


DFLASH2 = replace(
    openai.OPENAI,
    name="dflash2",
    quiet_path="/health",
    command=command,
    request_body=request_body,
    read_counters=partial(
        prometheus.read_counters,
        prefix="dflash2",
        # its request_success counts a request that was cancelled in the queue, which got no token
        names={"requests": "requests"},
        seconds={"draft_s": "draft_seconds", "verify_s": "verify_seconds"},
    ),
    quiet=quiet,
    fact_paths=("/health",),
    read_facts=read_facts,
    counts_before_idle=True,
    uncached=lambda name: {},  # it has no prefix cache
    render=next_token.CHAT_TOKENS,
    tokenize=next_token.TEXT_TOKENS,
    score=next_token.COMPLETION_ODDS,
)
