"""Refactor: Python code and how to reshape it; the answer is the whole changed code, same behaviour.

Before and after are written by the same functions with one switch each, so both parse and differ only
in what the request names.
"""

# Phrases and word lists read better unbroken; they are data rather than code.
# ruff: noqa: E501

from collections.abc import Callable
from dataclasses import dataclass, replace
from random import Random

from engines.demo.train.corpus.document import Document, fenced
from engines.demo.train.corpus.words import FIELDS, THINGS, class_name, fields, plural, some, spoken


@dataclass(frozen=True, kw_only=True)
class Style:
    """How a module is written; a refactoring changes one of these."""

    hints: bool = False
    docstrings: bool = False
    comprehension: bool = False
    logging: bool = False
    constant: bool = False
    guard: bool = False
    fstring: bool = True
    sum_call: bool = False
    enumerate_call: bool = False


@dataclass(frozen=True, kw_only=True)
class Names:
    """The words a module is built from."""

    item: str
    items: str
    number: str
    text: str
    flag: str
    limit: int
    functions: tuple[str, ...]


def document(random: Random, *, long: bool = False) -> Document:
    """long: code of about twice the usual size."""
    before, request, after = random.choice(CHANGES)(random, long)
    if random.random() < 0.6:
        user = f"{request}\n\n{fenced('python', before)}"
    else:
        user = f"Here is some code:\n\n{fenced('python', before)}\n\n{request}"
    return Document(kind="refactor", user=user, answer=fenced("python", after), source="generated")


def draw_names(random: Random, count: int) -> Names:
    item = random.choice(THINGS)
    typed = {kind: [f.name for f in FIELDS if f.type_name == kind] for kind in ("str", "bool")}
    numeric = [f.name for f in FIELDS if f.type_name in ("int", "float")]
    return Names(
        item=item,
        items=plural(item),
        number=random.choice(numeric),
        text=random.choice(typed["str"]),
        flag=random.choice(typed["bool"]),
        limit=random.choice((5, 10, 20, 50, 100, 250)),
        functions=tuple(some(random, tuple(FUNCTIONS), count, count)),
    )


def draw_style(random: Random) -> Style:
    return Style(
        hints=random.random() < 0.4,
        docstrings=random.random() < 0.3,
        comprehension=random.random() < 0.3,
        guard=random.random() < 0.5,
        fstring=random.random() < 0.6,
    )


def signature(style: Style, name: str, arguments: list[tuple[str, str]], result: str) -> str:
    if not style.hints:
        return f"def {name}({', '.join(argument for argument, _ in arguments)}):\n"
    typed = ", ".join(f"{argument}: {kind}" for argument, kind in arguments)
    return f"def {name}({typed}) -> {result}:\n"


def docstring(style: Style, text: str) -> str:
    return f'    """{text}"""\n' if style.docstrings else ""


def select(style: Style, n: Names, name: str) -> str:
    head = signature(style, name, [(n.items, "list[dict]")], "list[dict]")
    head += docstring(style, f"Return the {spoken(n.items)} that are {n.flag}.")
    if style.comprehension:
        return head + f'    return [{n.item} for {n.item} in {n.items} if {n.item}["{n.flag}"]]\n'
    return head + (
        f"    result = []\n    for {n.item} in {n.items}:\n"
        f'        if {n.item}["{n.flag}"]:\n            result.append({n.item})\n    return result\n'
    )


def collect(style: Style, n: Names, name: str) -> str:
    head = signature(style, name, [(n.items, "list[dict]")], "list[str]")
    head += docstring(style, f"Return the {n.text} of every {spoken(n.item)}.")
    if style.comprehension:
        return head + f'    return [{n.item}["{n.text}"] for {n.item} in {n.items}]\n'
    return head + (
        f"    values = []\n    for {n.item} in {n.items}:\n"
        f'        values.append({n.item}["{n.text}"])\n    return values\n'
    )


def total(style: Style, n: Names, name: str) -> str:
    head = signature(style, name, [(n.items, "list[dict]")], "float")
    head += docstring(style, f"Return the sum of {n.number} over the {spoken(n.items)}.")
    if style.sum_call:
        return head + f'    return sum({n.item}["{n.number}"] for {n.item} in {n.items})\n'
    return head + (
        f"    total = 0\n    for {n.item} in {n.items}:\n"
        f'        total += {n.item}["{n.number}"]\n    return total\n'
    )


def report(style: Style, n: Names, name: str) -> str:
    head = signature(style, name, [(n.items, "list[dict]")], "None")
    head += docstring(style, f"Show the {n.text} of every {spoken(n.item)}.")
    call = "logger.info" if style.logging else "print"
    if style.fstring:
        line = f"""{call}(f"{spoken(n.item)}: {{{n.item}['{n.text}']}}")"""
    else:
        line = f'{call}("{spoken(n.item)}: {{}}".format({n.item}["{n.text}"]))'
    return head + f"    for {n.item} in {n.items}:\n        {line}\n"


def within(style: Style, n: Names, name: str) -> str:
    head = signature(style, name, [(n.item, "dict")], "bool")
    head += docstring(style, f"Tell whether the {n.number} is small enough.")
    limit = f"MAX_{n.number.upper()}" if style.constant else str(n.limit)
    return head + f'    return {n.item}["{n.number}"] <= {limit}\n'


def save(style: Style, n: Names, name: str) -> str:
    head = signature(style, name, [(n.item, "dict | None"), ("store", "dict")], "bool")
    head += docstring(style, f"Put the {spoken(n.item)} into the store.")
    if style.guard:
        return head + (
            f"    if {n.item} is None:\n        return False\n"
            f'    if not {n.item}["{n.flag}"]:\n        return False\n'
            f'    store[{n.item}["{n.text}"]] = {n.item}\n    return True\n'
        )
    return head + (
        f"    if {n.item} is not None:\n"
        f'        if {n.item}["{n.flag}"]:\n'
        f'            store[{n.item}["{n.text}"]] = {n.item}\n            return True\n'
        "    return False\n"
    )


def number_lines(style: Style, n: Names, name: str) -> str:
    head = signature(style, name, [(n.items, "list[dict]")], "list[str]")
    head += docstring(style, f"Return one numbered line for each {spoken(n.item)}.")
    entry = f'{n.item}["{n.text}"]'
    if style.enumerate_call:
        return head + (
            f"    lines = []\n    for index, {n.item} in enumerate({n.items}):\n"
            f'        lines.append(str(index) + " " + {entry})\n    return lines\n'
        )
    return head + (
        f"    lines = []\n    index = 0\n    for {n.item} in {n.items}:\n"
        f'        lines.append(str(index) + " " + {entry})\n        index += 1\n    return lines\n'
    )


Function = Callable[[Style, Names, str], str]
FUNCTIONS: dict[str, tuple[str, Function]] = {
    "select": ("{flag}_{items}", select),
    "collect": ("{text}_values", collect),
    "total": ("total_{number}", total),
    "report": ("print_{items}", report),
    "within": ("check_{number}", within),
    "save": ("save_{item}", save),
    "number": ("number_{items}", number_lines),
}


def function_name(n: Names, key: str) -> str:
    return FUNCTIONS[key][0].format(
        item=n.item, items=n.items, number=n.number, text=n.text, flag=n.flag
    )


def module(style: Style, n: Names) -> str:
    head = []
    if style.logging:
        head.append("import logging\n\nlogger = logging.getLogger(__name__)\n")
    if style.constant:
        head.append(f"MAX_{n.number.upper()} = {n.limit}\n")
    body = [FUNCTIONS[key][1](style, n, function_name(n, key)) for key in n.functions]
    return "\n\n".join(["\n".join(head), *body] if head else body)


def including(random: Random, key: str, long: bool) -> Names:
    """Some functions, one of which the request is about."""
    names = draw_names(random, 5 if long else 3)
    if key in names.functions:
        return names
    order = [key, *names.functions[1:]]
    random.shuffle(order)
    return replace(names, functions=tuple(order))


Change = Callable[[Random, bool], tuple[str, str, str]]


def switch(key: str, switched: str, on: bool, requests: tuple[str, ...]) -> Change:
    """A change of one style switch that shows in the function `key`."""

    def change(random: Random, long: bool) -> tuple[str, str, str]:
        names, style = including(random, key, long), draw_style(random)
        before = replace(style, **{switched: not on})
        after = replace(style, **{switched: on})
        request = random.choice(requests).format(
            name=function_name(names, key), limit=names.limit, constant=names.number.upper()
        )
        return module(before, names), request, module(after, names)

    return change


def rename_function(random: Random, long: bool) -> tuple[str, str, str]:
    names, style = draw_names(random, 5 if long else 3), draw_style(random)
    old = function_name(names, random.choice(names.functions))
    verb = random.choice(("get", "find", "load", "make", "handle", "process", "update", "fetch"))
    new = f"{verb}_{random.choice(('all', 'some', 'new', 'valid', 'main', 'old'))}_{names.items}"
    before = module(style, names) + f"\n\ndef main(data):\n    return {old}(data)\n"
    after = before.replace(f"def {old}(", f"def {new}(").replace(f"return {old}(", f"return {new}(")
    return before, f"Rename the function {old} to {new}.", after


def rename_thing(random: Random, long: bool) -> tuple[str, str, str]:
    """The loop variable and its list get new names everywhere."""
    names, style = (
        draw_names(random, 4 if long else 2),
        replace(draw_style(random), docstrings=False),
    )
    new = random.choice([thing for thing in THINGS if thing != names.item])
    fixed = [function_name(names, key) for key in names.functions]
    after_names = replace(names, item=new, items=plural(new))

    def written(n: Names) -> str:
        body = [
            FUNCTIONS[key][1](style, n, name)
            for key, name in zip(names.functions, fixed, strict=True)
        ]
        return "\n\n".join(body)

    request = (
        f"Rename the variable {names.item} to {new} and {names.items} to {plural(new)}. "
        "Keep the names of the functions."
    )
    return written(names), request, written(after_names)


def extract_helper(random: Random, long: bool) -> tuple[str, str, str]:
    """Two methods repeat an expression; it becomes a helper method."""
    thing = random.choice(THINGS)
    chosen = fields(random, 2, 2)
    first, second = (field.name for field in chosen)
    helper = random.choice(("_label", "_key", "_line", "_title", "_text"))
    verbs = some(
        random, ("show", "send", "store", "check", "export"), *((4, 5) if long else (2, 3))
    )
    joined = f'str(self.{first}) + ": " + str(self.{second})'
    head = (
        f"class {class_name(thing)}:\n    def __init__(self, {first}, {second}):\n"
        f"        self.{first} = {first}\n        self.{second} = {second}\n"
    )

    def methods(expression: str) -> str:
        return "".join(
            f"\n    def {verb}(self, target):\n        target.{verb}({expression})\n"
            for verb in verbs
        )

    before = head + methods(joined)
    added = f"\n    def {helper}(self):\n        return {joined}\n"
    after = head + added + methods(f"self.{helper}()")
    return before, f"Extract the repeated expression into a method {helper}.", after


def to_dataclass(random: Random, long: bool) -> tuple[str, str, str]:
    thing, chosen = random.choice(THINGS), fields(random, *((8, 11) if long else (3, 6)))
    shown = random.choice(chosen).name
    arguments = ", ".join(f"{field.name}: {field.type_name}" for field in chosen)
    rows = "\n".join(f"        self.{field.name} = {field.name}" for field in chosen)
    typed = "\n".join(f"    {field.name}: {field.type_name}" for field in chosen)
    tail = f"\n    def label(self) -> str:\n        return str(self.{shown})\n"
    name = class_name(thing)
    before = f"class {name}:\n    def __init__(self, {arguments}) -> None:\n{rows}\n{tail}"
    after = f"from dataclasses import dataclass\n\n\n@dataclass\nclass {name}:\n{typed}\n{tail}"
    return before, f"Turn the class {name} into a dataclass.", after


CHANGES: tuple[Change, ...] = (
    rename_function,
    rename_function,
    rename_thing,
    extract_helper,
    to_dataclass,
    switch("select", "comprehension", True, ("Use a list comprehension wherever a loop only builds a list.", "Replace the loops that fill a list by list comprehensions.")),
    switch("collect", "comprehension", True, ("Turn the loops that build a list into list comprehensions.", "Use list comprehensions where possible.")),
    switch("total", "sum_call", True, ("Use sum() in {name}.", "Replace the loop in {name} by a call of sum().")),
    switch("total", "hints", True, ("Add type hints to all functions.", "Please add type hints.")),
    switch("save", "hints", True, ("Add type hints to all functions.", "Annotate every argument and result.")),
    switch("collect", "docstrings", True, ("Add a docstring to every function.", "Please add docstrings.")),
    switch("report", "logging", True, ("Replace print by logging.", "Use a logger instead of print in {name}.")),
    switch("report", "fstring", True, ("Use an f-string instead of format.", "Replace the call of format by an f-string.")),
    switch("within", "constant", True, ("Replace the number {limit} by a constant MAX_{constant}.", "Give the number {limit} a name: MAX_{constant}.")),
    switch("save", "guard", True, ("Use early returns in {name}.", "Replace the nested conditions in {name} by early returns.")),
    switch("number", "enumerate_call", True, ("Use enumerate in {name}.", "Replace the counter in {name} by enumerate.")),
)  # fmt: skip
