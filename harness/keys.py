"""Identities: which figures measure the same thing, of the same subject, made the same way.

A key is the hash of a canonical JSON text. It knows values only: no file, no clock, no engine.
Names that a user gives to a variant or a matrix, comments, goals and cool-downs do not enter, so
renaming a row keeps its history.

* `workload_key`   what was asked of the engine
* `subject_key`    which engine, target, drafter and declared settings answered
* `device_key`     on what kind of hardware
* `build_key`      by which build of the engine, as found: what a baseline lets differ
* `protocol_id`    how a number was made; figures of two protocol ids never share a table
"""

import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from harness.records import (
    Engine,
    LoadShape,
    MachineFacts,
    Model,
    Sampling,
    TransportName,
    Variant,
    Workload,
)

# Rises when a definition changes in a way that moves a figure (docs/terms.md).
PROTOCOL_VERSION = 1

# The client that holds the stop-watch. Its version is not part of a protocol: PROTOCOL_VERSION is.
TOOL = "dflashbench"

_GIB = 1024**3


def canonical_json(value: Any) -> bytes:
    """UTF-8 JSON, sorted keys, no spaces, floats by `repr`; NaN and infinity are refused."""
    _refuse_other_keys(value)
    text = json.dumps(
        value, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False
    )
    return text.encode()


def _refuse_other_keys(value: Any) -> None:
    # json would write the key 1 and the key "1" alike
    if isinstance(value, dict):
        for key, item in value.items():
            if not isinstance(key, str):
                raise TypeError(f"a key must be text to be hashed, got {key!r}")
            _refuse_other_keys(item)
    elif isinstance(value, list | tuple):
        for item in value:
            _refuse_other_keys(item)


def short_hash(value: Any, length: int = 12) -> str:
    """The first `length` hexadecimal digits of the SHA-256 of `value`'s canonical JSON."""
    return hashlib.sha256(canonical_json(value)).hexdigest()[:length]


def slug(name: str) -> str:
    """The readable part of an id: lower-case ASCII letters, digits, hyphens; may be empty."""
    return re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")


def workload_key(
    workload: Workload, sampling: Sampling, *, concurrency: int, num_requests: int
) -> str:
    """What one repetition asks of the engine: which prompts, how many at once, how long.

    `num_requests` is per repetition. The number of repetitions does not enter: it says how often
    the same thing is measured, not what is measured, and a baseline of three repetitions is
    comparable with a night of five. Nor does the warm-up set: it is there so that its choice makes
    no difference.
    """
    return short_hash(
        {
            "kind": workload.kind,
            "prompts": workload.prompts.sha256,
            "concurrency": concurrency,
            "load": workload.load,
            "assignment": workload.assignment,
            "num_requests": num_requests,
            "max_tokens": workload.max_tokens,
            "length": workload.length,
            "sampling": asdict(sampling),
            **_arrivals(workload),
            **_cache(workload),
        }
    )


def _cache(workload: Workload) -> dict[str, Any]:
    """Nothing for cold prompts, which are the rule."""
    return {} if workload.cache == "cold" else {"cache": workload.cache}


def _arrivals(workload: Workload) -> dict[str, Any]:
    """Nothing for a load without a rate."""
    if workload.rate_per_s is None:
        return {}
    return {"rate_per_s": workload.rate_per_s, "seed": workload.seed}


def subject_key(
    variant: Variant, held_constant: Mapping[str, Any], identities: Mapping[str, str]
) -> str:
    """Who answers: engine, target, drafter with its k, declared flags and environment.

    `identities`: model name -> hash of its files. A model that is not in it is known by its name
    alone. The engine's command does not enter: where the program lies is part of its build, and a
    setting belongs into `flags`. Of a container enter the image, what is laid over it and where
    folders are mounted: a patched engine is another one than the stock one of the same version.
    """

    def identity(model: Model | None) -> str | None:
        return None if model is None else identities.get(model.name, model.name)

    drafter = variant.drafter
    return short_hash(
        {
            "engine": {"name": variant.engine.name, "adapter": variant.engine.adapter},
            "environment": dict(variant.engine.environment),
            "target": identity(variant.target),
            "drafter": drafter
            and {"method": drafter.method, "model": identity(drafter.model), "k": drafter.k},
            "flags": {**held_constant, **variant.flags},
            **_container(variant.engine),
        }
    )


def _container(engine: Engine) -> dict[str, Any]:
    """Nothing for a process, which was all there was when the first keys were made."""
    if engine.kind != "container":
        return {}
    return {
        "image": engine.image,
        "overlaid": {each.target: each.sha256 for each in engine.overlaid},
        "mounts": sorted(engine.mounts.values()),
    }


def device_key(machine: MachineFacts) -> str:
    """The kind of hardware, shared by machines of one kind; GiB, as kernels keep some back."""
    memory = machine.memory_bytes
    return short_hash(
        {
            "cpu": machine.cpu,
            "num_cpus": machine.num_cpus,
            "memory_GiB": None if memory is None else round(memory / _GIB),
            "accelerators": sorted(machine.accelerators),
        }
    )


def build_key(version: str | None, facts: Mapping[str, Any] | None) -> str | None:
    """What was found to run; None when nothing was found.

    `facts` are those that stay equal over a boot's life: a count of running requests among them
    would make every boot a build of its own.
    """
    if version is None and not facts:
        return None
    return short_hash({"version": version, "facts": dict(facts or {})})


def protocol_id(
    workload: Workload, sampling: Sampling, transport: TransportName = "asyncio"
) -> str:
    """How a number is made. The request count is a rule, so that one table can show c = 1, 2, 4.

    Retries, another transport than our own and more than one client enter where a matrix asks for
    them.
    """
    unusual = {
        **({"retries": workload.retries} if workload.retries else {}),
        **({"transport": transport} if transport != "asyncio" else {}),
        **({"clients": workload.clients} if workload.clients > 1 else {}),
    }
    return short_hash(
        {
            "kind": workload.kind,
            "load": workload.load,
            "num_requests": request_rule(workload.load, workload.num_requests),
            "assignment": workload.assignment,
            "length": workload.length,
            "sampling": asdict(sampling),
            "version": PROTOCOL_VERSION,
            "tool": TOOL,
            **_arrivals(workload),
            **_cache(workload),
            **unusual,
        }
    )


def request_rule(load: LoadShape, num_requests: int | None) -> str:
    """How many requests a repetition has, in words that hold for every concurrency."""
    if load == "single":
        return "each prompt once"
    if load == "wave":
        return "c"
    if num_requests is None:
        return "max(4c, 4 x prompts), whole rounds"
    return str(num_requests)
