"""What a matrix may hold, as a page and as a JSON schema, both made from `entries`."""

from typing import Any

from harness.config.entries import (
    ClientEntry,
    ConcurrencyEntry,
    DrafterEntry,
    EditEntry,
    EngineEntry,
    Entry,
    GenerateEntry,
    LosslessnessEntry,
    MatrixEntry,
    ModelEntry,
    PrefillEntry,
    SamplingEntry,
    ScheduleEntry,
    TimeoutsEntry,
    VariantEntry,
)

_SECTIONS: tuple[tuple[str, type[Entry]], ...] = (
    ("The file", MatrixEntry),
    ("`engines: {name: ...}`", EngineEntry),
    ("`variants: [...]`", VariantEntry),
    ("`drafter:`", DrafterEntry),
    ("`sampling:`", SamplingEntry),
    ("`workloads:`, kind generate", GenerateEntry),
    ("`workloads:`, kind edit", EditEntry),
    ("`workloads:`, kind prefill", PrefillEntry),
    ("`workloads:`, kind concurrency", ConcurrencyEntry),
    ("`timeouts:`", TimeoutsEntry),
    ("`schedule:`", ScheduleEntry),
    ("`losslessness:`", LosslessnessEntry),
    ("`client:`", ClientEntry),
    ("`configs/models/<name>.yaml`", ModelEntry),
)

_INTRODUCTION = """\
# The matrix file

Printed from `harness/config/entries.py` by `python -m harness.config > docs/matrix.md`; a test
keeps the two equal. Examples: `configs/matrices/`.

* A mistake is told as `file:line:column`, with the nearest key or name that exists.
* `use: FILE` in any section takes over that file's keys; keys written beside it go before. A path
  counts from the project's root (the folder with `pyproject.toml`), else from the file's own
  folder.
* `on`, `off`, `yes` and `no` are refused without quotes, since YAML makes booleans of them: write
  `true` or `false` for a switch, `"on"` for the word. A key written twice is refused, so is a key
  without a value. `1e-3` and `1e3` are numbers. Text keeps its letters: a revision 12345678 or 1.10
  stays as written, under `flags`, `held_constant` and `environment` too: the engine reads `0.80`
  and `1e-3` itself. Only in lists and mappings below them, which become JSON, a number is its
  value.
* A matrix cannot hold a secret: it is stored with every run. Name the environment variable instead.
"""


def matrix_schema() -> dict[str, Any]:
    """JSON schema of a matrix file, for editors."""
    return MatrixEntry.model_json_schema()


def matrix_page() -> str:
    """docs/matrix.md"""
    return "\n".join([_INTRODUCTION, *(_section(title, entry) for title, entry in _SECTIONS)])


def _section(title: str, entry: type[Entry]) -> str:
    schema = entry.model_json_schema()
    required = schema.get("required", [])
    rows = [
        f"| `{name}` | {_values(key)} | {_left_out(key, name in required)} | {key['description']} |"
        for name, key in schema["properties"].items()
    ]
    head = ["| key | value | left out | meaning |", "| --- | --- | --- | --- |"]
    return "\n".join([f"## {title}", "", schema["description"], "", *head, *rows, ""])


def _values(schema: dict[str, Any]) -> str:
    """What may stand there, from a property's JSON schema."""
    if "anyOf" in schema:
        return ", ".join(_values(one) for one in schema["anyOf"] if one != {"type": "null"})
    if "enum" in schema:
        return ", ".join(f"`{word}`" for word in schema["enum"])
    if "const" in schema:
        return f"`{schema['const']}`"
    if schema.get("type") == "array":
        return f"list of: {_values(schema['items'])}"
    word = _TYPES.get(schema.get("type", ""), "section, see below")
    bounds = [f" {sign} {schema[name]:g}" for name, sign in _SIGNS.items() if name in schema]
    return word + ",".join(bounds)


_TYPES = {
    "string": "text",
    "integer": "whole number",
    "number": "number",
    "boolean": "`true`, `false`",
    "object": "keys and values",
}
_SIGNS = {"minimum": "≥", "exclusiveMinimum": ">", "maximum": "≤"}


def _left_out(schema: dict[str, Any], required: bool) -> str:
    if required:
        return "an error"
    default = schema.get("default")
    if default in (None, [], {}):
        return ""
    return "its defaults" if isinstance(default, dict) else f"`{default}`"
