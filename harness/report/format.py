"""How a number, a name and a gap look, everywhere: one module, so that two tables cannot differ.

No exponents and no thousands separators: a spreadsheet must read back what a table shows.
"""

import math
import re
from collections.abc import Sequence

DASH = "–"
MINUS = "−"
NOT_AVAILABLE = "n/a"
INVALID_MARK = "✗"
WARNING_MARK = "⚠"
OTHER_WEIGHTS_MARK = "†"
OTHER_SESSION_MARK = "‡"

# an underscore inside a word is no emphasis, so file and metric names stay readable
_PIPE = "\\|"  # ends no table cell, not even within code
_MARKDOWN_SIGNS = re.compile(r"([\\`*\[\]|$~#]|(?<![^\W_])_|_(?![^\W_]))")


def number(value: float, digits: int = 4) -> str:
    """`digits` significant ones, fewer than none after the point for large numbers: 1235, 243.6,
    0.0412.
    """
    if value == 0:
        return "0"
    magnitude = math.floor(math.log10(abs(value)))
    decimals = max(0, digits - 1 - magnitude)
    text = f"{value:.{decimals}f}"
    # rounding may carry into one more digit: 99.996 becomes 100.00, which says too much
    if math.floor(math.log10(abs(float(text)))) > magnitude and decimals > 0:
        text = f"{value:.{decimals - 1}f}"
    return text


def rate(value: float) -> str:
    return number(value, 4)


def times(value: float) -> str:
    """A ratio: 2.65x, 13.6x."""
    return f"{number(value, 3)}x"


def percent(value: float) -> str:
    """A share of 0 to 1; only none and all go without a decimal."""
    return f"{value * 100:.0f} %" if value in (0, 1) else f"{value * 100:.1f} %"


def change(value: float) -> str:
    """A relative change with its sign: +48.9 %, −6.9 %; what rounds to nothing has none."""
    text = f"{abs(value) * 100:.1f} %"
    if float(text.split()[0]) == 0:
        return text
    return f"{'+' if value > 0 else MINUS}{text}"


def milliseconds(value_s: float) -> str:
    return number(value_s * 1e3, 3)


def tokens(value: float) -> str:
    """A count, or a median of counts that lies between two."""
    return f"{value:.1f}".removesuffix(".0")


def length(value: float) -> str:
    """Tokens per round."""
    return f"{value:.2f}"


def span(low: float, high: float, digits: int = 3) -> str:
    """An interval: 2.40–2.88."""
    return f"{number(low, digits)}{DASH}{number(high, digits)}"


def duration(seconds: float) -> str:
    """For reading, not for computing: 45 s, 12 min, 3 h 20 min."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    if minutes < 90:
        return f"{minutes} min"
    return f"{minutes // 60} h {minutes % 60} min"


def mebibytes(value: int) -> str:
    return f"{value / 2**20:.0f}"


def escape(text: str) -> str:
    """A name as itself in a Markdown table, whatever it holds."""
    return _escape_inline(" ".join(text.split()))


def _escape_inline(text: str) -> str:
    safe = text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    return _MARKDOWN_SIGNS.sub(r"\\\1", safe)


def prose(text: str) -> str:
    """A sentence of ours, which may put code between backticks; all else is escaped."""
    parts = " ".join(text.split()).split("`")
    if len(parts) % 2 == 0:  # an odd backtick came with a name: none of them means code
        return escape(text)
    return "".join(
        f"`{part.replace('|', _PIPE)}`" if number % 2 else _escape_inline(part)
        for number, part in enumerate(parts)
    )


def code(text: str) -> str:
    """Text between backticks, of which it may itself hold some; a pipe would still end a table
    cell.
    """
    one_line = " ".join(text.split()).replace("|", _PIPE)
    fence = "`" * (max((len(run) for run in re.findall("`+", one_line)), default=0) + 1)
    pad = " " if "`" in one_line else ""
    return f"{fence}{pad}{one_line}{pad}{fence}"


def listed(words: Sequence[str]) -> str:
    """a, b and c."""
    if len(words) < 2:
        return "".join(words)
    return f"{', '.join(words[:-1])} and {words[-1]}"


def counted(count: int, noun: str) -> str:
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


def slug(text: str) -> str:
    """A name as part of a file name."""
    return "".join(sign if sign.isalnum() else "_" for sign in text.lower()).strip("_")
