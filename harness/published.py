"""Figures that others published, as they printed them: results/published/<name>.json.

They have no raw values, so they are text and stand in tables of their own. This module reads them;
it computes nothing and can compare nothing.
"""

from pathlib import Path

import msgspec

from harness.errors import ResultsError
from harness.records import QuotedDocument


def load(path: Path) -> QuotedDocument:
    """`raw` is null in every figure: a number with its measurements is a run, and stands as one."""
    try:
        return msgspec.json.decode(path.read_bytes(), type=QuotedDocument, strict=True)
    except OSError as error:
        raise ResultsError(f"{path} cannot be read: {error.strerror}") from error
    except msgspec.DecodeError as error:
        raise ResultsError(
            f"{path}: {error}; a quoted figure has section, subject, what, printed and `raw: null`"
        ) from error


def documents(results_dir: Path) -> dict[str, QuotedDocument]:
    """By name, in alphabetical order."""
    return {path.stem: load(path) for path in sorted((results_dir / "published").glob("*.json"))}
