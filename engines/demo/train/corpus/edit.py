"""Edit: a small file and one change; the answer is the whole file with the change.

Mostly copying, on purpose: it is what teaches a small model to read its prompt.
"""

# Phrases and word lists read better unbroken; they are data rather than code.
# ruff: noqa: SIM905

import json
from collections.abc import Callable
from random import Random

from engines.demo.train.corpus.document import Document, fenced
from engines.demo.train.corpus.words import (
    FIELDS,
    PEOPLE,
    PLACES,
    THINGS,
    Field,
    class_name,
    fields,
    plural,
    some,
    spoken,
)

Rows = list[tuple[str, str]]
SECTIONS = (
    "server",
    "client",
    "storage",
    "report",
    "network",
    "display",
    "limits",
    "backup",
    "mail",
)
SETTINGS: tuple[tuple[str, tuple[str, ...]], ...] = (
    ("host", ("localhost", "example.org", "backend", "gateway")),
    ("port", ("80", "443", "8080", "5432", "9000")),
    ("timeout", ("5", "10", "30", "60")),
    ("retries", ("0", "1", "3", "5")),
    ("user", ("admin", "guest", "worker", "reader")),
    ("path", ("data", "logs", "cache", "export")),
    ("level", ("debug", "info", "warning", "error")),
    ("mode", ("fast", "safe", "strict", "auto")),
    ("format", ("json", "text", "csv", "table")),
    ("language", ("en", "de", "fr", "es")),
    ("enabled", ("true", "false")),
    ("compress", ("true", "false")),
    ("interval", ("15", "45", "90", "120")),
    ("size", ("64", "128", "512", "1024")),
    ("workers", ("1", "2", "4", "8")),
    ("theme", ("dark", "light", "plain", "blue")),
    ("encoding", ("utf-8", "ascii", "latin-1")),
    ("prefix", ("app", "test", "main", "old")),
)
NEW_NAMES = tuple(
    "first_value main_value kind amount_due place tag note target origin total limit state group "
    "reference description owner_name short_name start_date".split()
)


def document(random: Random, *, long: bool = False) -> Document:
    """long: a file of about twice the usual size."""
    language, before, request, after = random.choice(FILES)(random, long)
    order = random.random()
    if order < 0.5:
        user = f"{request}\n\n{fenced(language, before)}"
    elif order < 0.8:
        user = f"Here is a file:\n\n{fenced(language, before)}\n\n{request}"
    else:
        user = f"{request} Return the whole file.\n\n{fenced(language, before)}"
    return Document(kind="edit", user=user, answer=fenced(language, after), source="generated")


def other(random: Random, values: tuple[str, ...], value: str) -> str:
    return random.choice([item for item in values if item != value])


def draw_settings(random: Random, low: int, high: int) -> Rows:
    return [(name, random.choice(values)) for name, values in some(random, SETTINGS, low, high)]


def changed_rows(random: Random, rows: Rows, where: str) -> tuple[str, Rows]:
    """A request on key-value rows and the rows after it."""
    values_of = dict(SETTINGS)
    rows, at = list(rows), random.randrange(len(rows))
    name, value = rows[at]
    action = random.choice(("change", "change", "remove", "rename", "add"))
    if action == "change":
        new = other(random, values_of[name], value)
        rows[at] = (name, new)
        words = random.choice(("Change {} to {}{}.", "Set {} to {}{}.", "Please set {} to {}{}."))
        return words.format(name, new, where), rows
    if action == "remove":
        del rows[at]
        return random.choice(("Remove {}{}.", "Delete the line {}{}.")).format(name, where), rows
    if action == "rename":
        new = random.choice(NEW_NAMES)
        rows[at] = (new, value)
        return random.choice(("Rename {} to {}{}.", "Call {} {}{} from now on.")).format(
            name, new, where
        ), rows
    unused = [item for item in SETTINGS if item[0] not in dict(rows)]
    new_name, values = random.choice(unused)
    new = random.choice(values)
    rows.append((new_name, new))
    return f"Add {new_name} with the value {new} at the end{where}.", rows


def ini_file(random: Random, long: bool) -> tuple[str, str, str, str]:
    names = some(random, SECTIONS, *((4, 5) if long else (2, 3)))
    sections = {name: draw_settings(random, 3, 6) for name in names}
    name = random.choice(names)
    request, rows = changed_rows(random, sections[name], f" in the section {name}")
    return "ini", ini(sections), request, ini({**sections, name: rows})


def ini(sections: dict[str, Rows]) -> str:
    return "\n\n".join(
        "\n".join([f"[{name}]", *(f"{key} = {value}" for key, value in rows)])
        for name, rows in sections.items()
    )


def literal(value: str) -> object:
    if value in ("true", "false"):
        return value == "true"
    return int(value) if value.isdigit() else value


def json_file(random: Random, long: bool) -> tuple[str, str, str, str]:
    names = some(random, SECTIONS, *((4, 5) if long else (2, 3)))
    sections = {name: draw_settings(random, 3, 5) for name in names}
    name = random.choice(names)
    request, rows = changed_rows(random, sections[name], f" in {name}")
    return "json", as_json(sections), request, as_json({**sections, name: rows})


def as_json(sections: dict[str, Rows]) -> str:
    data = {name: {key: literal(v) for key, v in rows} for name, rows in sections.items()}
    return json.dumps(data, indent=2)


def python_settings(random: Random, long: bool) -> tuple[str, str, str, str]:
    """A module of constants."""
    rows = draw_settings(random, *((12, 15) if long else (6, 9)))
    name = random.choice(THINGS)
    head = f'"""Settings of the {spoken(name)} service."""\n\n'
    request, changed = changed_rows(random, rows, "")
    return (
        "python",
        head + constants(rows),
        upper(request, rows, changed),
        head + constants(changed),
    )


def constants(rows: Rows) -> str:
    return "\n".join(f"{key.upper()} = {literal(value)!r}" for key, value in rows)


def upper(request: str, before: Rows, after: Rows) -> str:
    names = {name for name, _ in before + after}
    return " ".join(
        word.replace(word.rstrip("."), word.rstrip(".").upper())
        if word.rstrip(".") in names
        else word
        for word in request.split(" ")
    )


def python_record(random: Random, long: bool) -> tuple[str, str, str, str]:
    """A dataclass with defaults and two methods."""
    thing, chosen = random.choice(THINGS), fields(random, *((9, 12) if long else (4, 6)))
    shown = some(random, chosen, *((4, 6) if long else (2, 3)))
    values = {field.name: random.choice(field.values) for field in chosen}
    before = record(thing, chosen, shown, values)
    action = random.choice(("default", "default", "add", "rename", "remove"))
    at = random.randrange(len(chosen))
    field = chosen[at]
    if action == "default":
        new = other(random, field.values, values[field.name])
        request = f"Change the default of {field.name} to {new}."
        return "python", before, request, record(thing, chosen, shown, {**values, field.name: new})
    if action == "add":
        more = random.choice([item for item in FIELDS if item not in chosen])
        new = random.choice(more.values)
        request = f"Add a field {more.name} of type {more.type_name} with the default {new}."
        return (
            "python",
            before,
            request,
            record(thing, [*chosen, more], shown, {**values, more.name: new}),
        )
    if action == "rename":
        new_field = Field(
            name=random.choice(NEW_NAMES), type_name=field.type_name, values=field.values
        )
        request = f"Rename the field {field.name} to {new_field.name} everywhere."
        swap = {field.name: new_field}
        renamed = [swap.get(item.name, item) for item in chosen]
        shown_after = [swap.get(item.name, item) for item in shown]
        values[new_field.name] = values[field.name]
        return "python", before, request, record(thing, renamed, shown_after, values)
    hidden = [item for item in chosen if item not in shown]
    gone = random.choice(hidden)
    request = f"Remove the field {gone.name}."
    return (
        "python",
        before,
        request,
        record(thing, [item for item in chosen if item is not gone], shown, values),
    )


def record(thing: str, chosen: list[Field], shown: list[Field], values: dict[str, str]) -> str:
    rows = "\n".join(
        f"    {field.name}: {field.type_name} = {values[field.name]}" for field in chosen
    )
    parts = ", ".join(f"{{self.{field.name}}}" for field in shown)
    row_dict = ", ".join(f'"{field.name}": self.{field.name}' for field in shown)
    return (
        "from dataclasses import dataclass\n\n\n@dataclass\n"
        f"class {class_name(thing)}:\n{rows}\n\n"
        f'    def label(self) -> str:\n        return f"{parts}"\n\n'
        f"    def summary(self) -> dict:\n        return {{{row_dict}}}\n"
    )


def table(random: Random, long: bool) -> tuple[str, str, str, str]:
    """A Markdown table of people or places."""
    keys = some(random, PEOPLE if random.random() < 0.5 else PLACES, *((9, 12) if long else (4, 6)))
    columns = fields(random, *((3, 4) if long else (2, 3)))
    rows = [[key, *(random.choice(c.values).strip('"') for c in columns)] for key in keys]
    head = ["who" if keys[0] in PEOPLE else "where", *(column.name for column in columns)]
    before = markdown(head, rows)
    at, column = random.randrange(len(rows)), random.randrange(len(columns))
    action = random.choice(("cell", "cell", "cell", "row", "name"))
    if action == "cell":
        values = tuple(value.strip('"') for value in columns[column].values)
        new = other(random, values, rows[at][column + 1])
        request = f"Change {columns[column].name} of {rows[at][0]} to {new}."
        rows[at][column + 1] = new
    elif action == "row":
        request = f"Remove the row of {rows[at][0]}."
        del rows[at]
    else:
        new = random.choice(NEW_NAMES)
        request = f"Rename the column {head[column + 1]} to {new}."
        head[column + 1] = new
    return "markdown", before, request, markdown(head, rows)


def markdown(head: list[str], rows: list[list[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


METHOD = (
    "    def {name}(self) -> {type}:\n        return self._{name}\n",
    "    def set_{name}(self, value: {type}) -> None:\n        self._{name} = value\n",
    "    def has_{name}(self) -> bool:\n        return self._{name} is not None\n",
)


def python_class(random: Random, long: bool) -> tuple[str, str, str, str]:
    """A class with accessors; a method is removed or the class or a method renamed."""
    thing, chosen = random.choice(THINGS), fields(random, *((5, 6) if long else (2, 4)))
    methods: list[tuple[str, str]] = []
    for field in chosen:
        for text in some(random, METHOD, 1, 2):
            source = text.format(name=field.name, type=field.type_name)
            methods.append((source.split("(")[0].split()[-1], source))
    before = accessors(class_name(thing), chosen, methods)
    at = random.randrange(len(methods))
    name, source = methods[at]
    action = random.choice(("remove", "remove", "method", "class"))
    if action == "remove":
        return (
            "python",
            before,
            f"Remove the method {name}.",
            accessors(class_name(thing), chosen, methods[:at] + methods[at + 1 :]),
        )
    if action == "method":
        new = f"{random.choice(('get', 'read', 'fetch', 'update', 'check'))}_{name}"
        methods[at] = (new, source.replace(f"def {name}(", f"def {new}("))
        return (
            "python",
            before,
            f"Rename the method {name} to {new}.",
            accessors(class_name(thing), chosen, methods),
        )
    new = class_name(random.choice([item for item in THINGS if item != thing]))
    request = f"Rename the class {class_name(thing)} to {new}."
    return "python", before, request, accessors(new, chosen, methods)


def accessors(name: str, chosen: list[Field], methods: list[tuple[str, str]]) -> str:
    arguments = ", ".join(f"{field.name}: {field.type_name}" for field in chosen)
    rows = "\n".join(f"        self._{field.name} = {field.name}" for field in chosen)
    head = f"class {name}:\n    def __init__(self, {arguments}) -> None:\n{rows}\n"
    return head + "".join("\n" + source for _, source in methods)


def listing(random: Random, long: bool) -> tuple[str, str, str, str]:
    """A plain text list of steps or things."""
    title = f"{plural(random.choice(THINGS)).replace('_', ' ').capitalize()} to check"
    items = [
        f"{spoken(random.choice(THINGS))} in {random.choice(PLACES)} ({random.choice(PEOPLE)})"
        for _ in range(random.randint(*((12, 15) if long else (6, 9))))
    ]
    before = "\n".join([title, *(f"- {item}" for item in items)])
    at = random.randrange(len(items))
    person = items[at].split("(")[1].rstrip(")")
    if random.random() < 0.5:
        new = other(random, PEOPLE, person)
        request = f"In the line about the {items[at].split(' (')[0]}, replace {person} by {new}."
        items[at] = items[at].replace(f"({person})", f"({new})")
    else:
        request = f"Remove the line about the {items[at].split(' (')[0]}."
        del items[at]
    return "text", before, request, "\n".join([title, *(f"- {item}" for item in items)])


FILES: tuple[Callable[[Random, bool], tuple[str, str, str, str]], ...] = (
    ini_file,
    json_file,
    python_settings,
    python_record,
    python_record,
    python_class,
    python_class,
    table,
    listing,
)
