"""A tiny phrase grammar: "{symbol}" stands for one of a symbol's phrases, drawn without repeats.

Knows nothing about what the phrases say. A phrase that was used is not used again in the same
text until all of its symbol's phrases were, so texts do not repeat themselves.
"""

import re
from collections.abc import Mapping, Sequence
from random import Random

SYMBOL = re.compile(r"\{(\w+)\}")
Rules = Mapping[str, Sequence[str]]


class Writer:
    """Expands phrases; `bound` holds the details the prompt names."""

    def __init__(self, random: Random, rules: Rules, bound: Mapping[str, str]) -> None:
        self.random = random
        self.rules = rules
        self.bound = bound
        self.left: dict[str, list[str]] = {}

    def phrase(self, symbol: str) -> str:
        """One fresh phrase of the symbol, expanded."""
        if symbol in self.bound:
            return self.bound[symbol]
        if not self.left.get(symbol):
            self.left[symbol] = list(self.rules[symbol])
            self.random.shuffle(self.left[symbol])
        return self.expand(self.left[symbol].pop())

    def expand(self, text: str) -> str:
        return SYMBOL.sub(lambda match: self.phrase(match.group(1)), text)

    def sentence(self, symbol: str) -> str:
        text = self.phrase(symbol)
        first = next(at for at, letter in enumerate(text) if letter.isalpha())
        return text[:first] + text[first].upper() + text[first + 1 :]

    def paragraph(self, symbols: Sequence[str]) -> str:
        return " ".join(self.sentence(symbol) for symbol in symbols)
