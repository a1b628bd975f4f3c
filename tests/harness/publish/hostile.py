"""A stored run in which every text that a model, a user or an engine wrote tries to be a page."""

import json
from dataclasses import replace
from typing import Any

from harness.store import RunFolder

PAYLOAD = (
    "'\"></td></pre></title></script><script>window.ran = 1</script>"
    '<img src="https://evil.invalid/x.png" onerror="window.ran = 1"><svg onload="window.ran = 1">'
    '<a href="javascript:window.ran = 1">{{ 7 * 7 }}</a><!-- `'
)

NO_ROOM_FOR_NAMES = "ignore:constrained_layout not applied:UserWarning"
"""Of matplotlib, which cannot place names of 200 characters: the pictures are no subject here."""

WRITTEN_BY_OTHERS = frozenset(
    (
        *("variant", "prompt_set", "engine", "target", "drafter_model", "prompt_id", "kind"),
        *("message", "finish_reason", "flags", "tool", "name", "matrix_yaml", "matrix_path"),
        *("cpu", "system", "python", "packages", "commit", "version", "argv", "error", "log_path"),
        *("url", "health", "remarks", "labels", "build", "environment", "wanted", "accelerators"),
        *("prompt_kinds", "prompt_sets", "models", "held_constant", "goals", "device", "purpose"),
    )
)
"""Fields of records whose text is not ours; below them every text and every key is changed."""


def poison(folder: RunFolder) -> None:
    """In place; equal texts stay equal, so the run stays whole."""
    _poison_events(folder)
    for path in (folder.path / "manifest.json", *folder.path.glob("*.jsonl")):
        lines = path.read_text(encoding="utf-8").split("\n")
        path.write_text(
            "\n".join(json.dumps(_poisoned(json.loads(line))) if line else "" for line in lines),
            encoding="utf-8",
        )


def _poison_events(folder: RunFolder) -> None:
    for path in (folder.path / "events").glob("*.parquet"):
        cell_id, boot_id, repetition, _ = path.name.rsplit(".", 3)
        rows = folder.read_events(cell_id, boot_id, int(repetition))
        bad = [replace(row, text=f"{row.text}{PAYLOAD}") for row in rows]
        folder.write_events(cell_id, boot_id, int(repetition), bad)


def _poisoned(value: Any, below: bool = False) -> Any:
    if isinstance(value, str):
        return value + PAYLOAD if below else value
    if isinstance(value, list):
        return [_poisoned(item, below) for item in value]
    if isinstance(value, dict):
        return {
            (key + PAYLOAD if below else key): _poisoned(item, below or key in WRITTEN_BY_OTHERS)
            for key, item in value.items()
        }
    return value
