"""Judges one answer: does it end, loop, parse, and say what it should?

Knows texts and token ids, nothing of models. What parses is judged by the language's own parser.
"""

import ast
import configparser
import json
import re
from collections.abc import Callable, Sequence

LOOP_BELOW = 0.5  # share of distinct 4-grams
FENCE = re.compile(r"\A```(\w+)\n(.*)\n```\s*\Z", re.S)


def distinct_share(tokens: Sequence[int], size: int = 4) -> float | None:
    """Distinct n-grams / n-grams; None for an answer shorter than one."""
    grams = [tuple(tokens[at : at + size]) for at in range(len(tokens) - size + 1)]
    return len(set(grams)) / len(grams) if grams else None


def loops(tokens: Sequence[int]) -> bool:
    share = distinct_share(tokens)
    return share is not None and share < LOOP_BELOW


def parse_ini(text: str) -> None:
    configparser.ConfigParser(interpolation=None).read_string(text)


def parse_table(text: str) -> None:
    """A Markdown table with one number of cells in every row."""
    widths = {line.count("|") for line in text.splitlines()}
    if len(widths) != 1 or not all(line.startswith("| ") for line in text.splitlines()):
        raise ValueError("not a table")


def parse_list(text: str) -> None:
    """A title and at least one item."""
    _title, *items = text.splitlines()
    if not items or not all(item.startswith("- ") for item in items):
        raise ValueError("not a list")


PARSERS: dict[str, Callable[[str], object]] = {
    "python": ast.parse,
    "json": json.loads,
    "ini": parse_ini,
    "markdown": parse_table,
    "text": parse_list,
}


def parses(answer: str) -> bool:
    """Whether the answer is one fenced block that its language's parser accepts."""
    found = FENCE.match(answer)
    if found is None or found[1] not in PARSERS:
        return False
    try:
        PARSERS[found[1]](found[2])
    except (SyntaxError, ValueError, configparser.Error):
        return False
    return True


def final_number(answer: str) -> str | None:
    found = re.search(r"^Answer: (-?\d+)\s*\Z", answer, re.M)
    return found[1] if found else None


def agrees(kind: str, answer: str, reference: str) -> bool | None:
    """Right number for arithmetic, the same file for refactor and edit; None where taste rules."""
    if kind == "arithmetic":
        return final_number(answer) == final_number(reference)
    if kind in ("refactor", "edit"):
        return answer.strip() == reference.strip()
    return None
