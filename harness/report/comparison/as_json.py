"""A comparison for programs: every row with its reasons, parts and prompts; keys are a promise."""

import json

import msgspec

from harness.compare.compare import Comparison
from harness.records import SCHEMA
from harness.report.comparison import sentences


def comparison_json(comparison: Comparison) -> str:
    told = {
        "schema": SCHEMA,
        "run_id": comparison.run.run_id,
        "baseline": comparison.baseline,
        "nights": [night.run_id for night in comparison.nights],
        "word": comparison.word,
        "exit_code": comparison.exit_code,
        "headline": sentences.headline(comparison),
        "rules": msgspec.to_builtins(comparison.rules),
        "findings": list(sentences.findings(comparison)),
        "not_compared": list(sentences.not_compared(comparison)),
        "rows": [{**msgspec.to_builtins(row), "unit": row.unit} for row in comparison.rows],
        "notes": list(comparison.notes),
    }
    return json.dumps(told, ensure_ascii=False, indent=1, allow_nan=False) + "\n"
