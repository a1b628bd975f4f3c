"""Settings as command-line options, in the spelling that llama-server and vLLM share."""

import json
from collections.abc import Mapping
from typing import Any


def options(settings: Mapping[str, Any]) -> tuple[str, ...]:
    """`--its-name value` each; a switch is `--its-name` or `--no-its-name`, a mapping JSON."""
    return tuple(word for name, value in settings.items() for word in _option(name, value))


def _option(name: str, value: Any) -> tuple[str, ...]:
    spelled = name.replace("_", "-")
    if isinstance(value, bool):
        return (f"--{spelled}" if value else f"--no-{spelled}",)
    if isinstance(value, Mapping):
        return (f"--{spelled}", json.dumps(value))
    return (f"--{spelled}", str(value))
