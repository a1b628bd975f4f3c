"""One question and its answer, and where the words come from.

Refuses to know how a document is tokenised or which split it belongs to.
"""

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Document:
    kind: str
    user: str
    answer: str
    source: str  # "generated", "debian:<package>" or "stdlib:<module>:<name>"


def fenced(language: str, text: str) -> str:
    return f"```{language}\n{text.rstrip()}\n```"
