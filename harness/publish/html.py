"""The one environment that HTML is made with: everything is escaped, and only our script may run.

A template that names what it was not given fails (`StrictUndefined`). The style and the script of a
page stand inside it; the content security policy names them by their hashes and allows nothing
else: no other script, no inline handler, no request.
"""

import base64
import hashlib
import string
from collections.abc import Iterator, Mapping
from functools import cache
from importlib import resources
from typing import Any, get_args
from urllib.parse import quote

import jinja2
from markupsafe import Markup, escape

from harness.compare.rules import Word
from harness.differences import first_unequal
from harness.records import Level
from harness.report.tables import Entry, Table


def render(template: str, content: Mapping[str, Any]) -> bytes:
    return _environment().get_template(template).render(content).encode()


@cache
def _environment() -> jinja2.Environment:
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("harness.publish"),
        undefined=jinja2.StrictUndefined,
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    style, script = _own("site.css"), _own("site.js")
    policy = (
        f"default-src 'none'; script-src '{_hash(script)}'; style-src '{_hash(style)}'; "
        "img-src data:; base-uri 'none'; form-action 'none'"
    )
    environment.globals.update(
        style=style,
        script=script,
        policy=policy,
        reasons=reasons,
        figures_in=figures_in,
        words=WORDS,
    )
    environment.filters.update(prose=prose, href=href, value=value)
    return environment


def _own(name: str) -> Markup:
    """A file of this package: the only text that no template escapes."""
    return Markup(resources.files("harness.publish").joinpath("templates", name).read_text("utf-8"))


def _hash(text: str) -> str:
    return f"sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}"


WORDS = frozenset((*get_args(Level), *get_args(Word)))
"""Words that a table shows with their sign."""

# --- filters --------------------------------------------------------------------------------------


def prose(text: str) -> Markup:
    """A sentence of ours, which may put code between backticks; all else is escaped."""
    parts = text.split("`")
    if len(parts) % 2 == 0:  # an odd backtick came with a name: none of them means code
        return escape(text)
    return Markup("").join(
        Markup("<code>{}</code>").format(part) if number % 2 else escape(part)
        for number, part in enumerate(parts)
    )


def href(path: str) -> str:
    """A relative link; no name in it can leave the folder or become another address."""
    return quote(path, safe="/.-_#")


def value(entry: Entry) -> str | None:
    """What a column is sorted by, where the text would sort otherwise."""
    return f"{entry.value!r}" if isinstance(entry.value, int | float) else None


def figures_in(table: Table, column: int) -> bool:
    """Columns of figures stand right; names, and what holds no number, left."""
    if column < table.num_labels:
        return False
    entries = [row[column] for row in table.rows]
    return any(isinstance(entry.value, int | float) for entry in entries) or all(
        entry.reason for entry in entries
    )


def reasons(table: Table) -> Mapping[str, str]:
    """Why a figure is n/a: reason -> letter, in order of appearance."""
    missing = [entry.reason for row in table.rows for entry in row if entry.reason is not None]
    return dict(zip(dict.fromkeys(missing), _letters(), strict=False))


def _letters() -> Iterator[str]:
    yield from string.ascii_lowercase
    yield from (str(number) for number in range(1, 10_000))


# --- texts that differ ----------------------------------------------------------------------------


def from_first_difference(text: str, other: str) -> tuple[str, str]:
    """What both begin with, and what is left of `text`."""
    at = first_unequal(text, other)
    return text[:at], text[at:]
