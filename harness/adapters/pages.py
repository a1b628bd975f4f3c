"""An engine's pages as JSON: what is there and of the expected kind, else nothing."""

import json
from collections.abc import Mapping, Sequence
from typing import Any


def json_object(text: str | None) -> Mapping[str, Any]:
    """The object; empty where the page is missing or another thing."""
    value = _json(text)
    return value if isinstance(value, dict) else {}


def json_objects(text: str | None) -> Sequence[Mapping[str, Any]]:
    """The objects of a list; none where the page is missing or another thing."""
    value = _json(text)
    return [item for item in value if isinstance(item, dict)] if isinstance(value, list) else []


def told(**facts: Any) -> Mapping[str, Any]:
    """Those that the engine tells: what is None is left out."""
    return {name: value for name, value in facts.items() if value is not None}


def _json(text: str | None) -> Any:
    try:
        return json.loads(text or "")
    except ValueError:
        return None
