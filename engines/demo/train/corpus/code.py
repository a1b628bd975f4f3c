"""Code: "write a class / function / module that ..." and a complete Python answer with docstrings.

Every answer parses; nothing here runs it.
"""

from collections.abc import Callable
from itertools import pairwise
from random import Random

from engines.demo.train.corpus.document import Document, fenced
from engines.demo.train.corpus.words import (
    THINGS,
    Field,
    article,
    class_name,
    fields,
    listed,
    plural,
    some,
    spoken,
)

ASK = ("Write", "Please write", "I need", "Create", "Implement", "Give me", "Can you write")
Body = Callable[[Random, str, list[Field]], tuple[str, str]]


def document(random: Random) -> Document:
    user, answer = random.choice(FAMILIES)(random)
    return Document(kind="code", user=user, answer=fenced("python", answer), source="generated")


def ask(random: Random, what: str) -> str:
    end = random.choice((".", ".", " in Python.", ". Add docstrings.", ". Use type hints."))
    return f"{random.choice(ASK)} {what}{end}"


def typed(chosen: list[Field]) -> str:
    return listed([f"{field.name} ({field.type_name})" for field in chosen])


# Methods of a record class: (words of the request, source lines at method level).


def method_to_dict(random: Random, thing: str, chosen: list[Field]) -> tuple[str, str]:
    rows = "\n".join(f'            "{field.name}": self.{field.name},' for field in chosen)
    return "to_dict", (
        "    def to_dict(self) -> dict:\n"
        f'        """Return the {spoken(thing)} as a dictionary."""\n'
        f"        return {{\n{rows}\n        }}\n"
    )


def method_from_dict(random: Random, thing: str, chosen: list[Field]) -> tuple[str, str]:
    rows = "\n".join(
        f'            {field.name}={field.type_name}(data["{field.name}"]),' for field in chosen
    )
    return "from_dict", (
        "    @classmethod\n"
        f'    def from_dict(cls, data: dict) -> "{class_name(thing)}":\n'
        f'        """Build {article(spoken(thing))} from a dictionary."""\n'
        f"        return cls(\n{rows}\n        )\n"
    )


def method_describe(random: Random, thing: str, chosen: list[Field]) -> tuple[str, str]:
    parts = ", ".join(f"{field.name}={{self.{field.name}}}" for field in chosen)
    return "describe", (
        "    def describe(self) -> str:\n"
        f'        """Return one line that describes the {spoken(thing)}."""\n'
        f'        return f"{class_name(thing)}({parts})"\n'
    )


def method_validate(random: Random, thing: str, chosen: list[Field]) -> tuple[str, str]:
    lines = ["    def validate(self) -> None:"]
    lines.append('        """Raise ValueError if a value is not allowed."""')
    for field in chosen:
        if field.type_name in ("int", "float"):
            lines.append(f"        if self.{field.name} < 0:")
            lines.append(f'            raise ValueError("{field.name} must not be negative")')
        elif field.type_name == "str":
            lines.append(f"        if not self.{field.name}:")
            lines.append(f'            raise ValueError("{field.name} must not be empty")')
    if len(lines) == 2:
        lines.append("        return None")
    return "validate", "\n".join(lines) + "\n"


def method_update(random: Random, thing: str, chosen: list[Field]) -> tuple[str, str]:
    field = random.choice(chosen)
    return f"set_{field.name}", (
        f"    def set_{field.name}(self, {field.name}: {field.type_name}) -> None:\n"
        f'        """Change the {spoken(field.name)} of the {spoken(thing)}."""\n'
        f"        self.{field.name} = {field.name}\n"
    )


def method_compare(random: Random, thing: str, chosen: list[Field]) -> tuple[str, str]:
    field = random.choice(chosen)
    return "__lt__", (
        f'    def __lt__(self, other: "{class_name(thing)}") -> bool:\n'
        f'        """Order {spoken(plural(thing))} by {spoken(field.name)}."""\n'
        f"        return self.{field.name} < other.{field.name}\n"
    )


def method_copy(random: Random, thing: str, chosen: list[Field]) -> tuple[str, str]:
    given = ", ".join(f"{field.name}=self.{field.name}" for field in chosen)
    return "copy", (
        f'    def copy(self) -> "{class_name(thing)}":\n'
        f'        """Return a new {spoken(thing)} with the same values."""\n'
        f"        return {class_name(thing)}({given})\n"
    )


METHODS: tuple[Body, ...] = (
    method_to_dict,
    method_from_dict,
    method_describe,
    method_validate,
    method_update,
    method_compare,
    method_copy,
)


def record_source(random: Random, thing: str, chosen: list[Field], bodies: list[str]) -> str:
    head = random.choice(("A single {}.", "One {} and its values.", "Values of one {}."))
    doc = head.format(spoken(thing))
    if random.random() < 0.55:
        rows = "\n".join(f"    {field.name}: {field.type_name}" for field in chosen)
        top = "from dataclasses import dataclass\n\n\n@dataclass\n"
        body = f'class {class_name(thing)}:\n    """{doc}"""\n\n{rows}\n'
        return top + body + "".join("\n" + text for text in bodies)
    arguments = ", ".join(f"{field.name}: {field.type_name}" for field in chosen)
    rows = "\n".join(f"        self.{field.name} = {field.name}" for field in chosen)
    return (
        f'class {class_name(thing)}:\n    """{doc}"""\n\n'
        f"    def __init__(self, {arguments}) -> None:\n{rows}\n"
        + "".join("\n" + text for text in bodies)
    )


def record_class(random: Random) -> tuple[str, str]:
    thing, chosen = random.choice(THINGS), fields(random, 2, 5)
    picked = some(random, METHODS, 2, 3)
    named = [make(random, thing, chosen) for make in picked]
    source = record_source(random, thing, chosen, [text for _, text in named])
    kind = "dataclass" if source.startswith("from dataclasses") else "class"
    what = (
        f"a {kind} {class_name(thing)} with {typed(chosen)} "
        f"and the methods {listed([name for name, _ in named])}"
    )
    return ask(random, what), source


# Methods of a collection class.

COLLECTION: dict[str, str] = {
    "add": (
        "    def add(self, {item}: {Class}) -> None:\n"
        '        """Add one {words} to the {holder}."""\n'
        "        self.{items}.append({item})\n"
    ),
    "remove": (
        "    def remove(self, {item}: {Class}) -> None:\n"
        '        """Remove one {words} from the {holder}."""\n'
        "        if {item} not in self.{items}:\n"
        '            raise KeyError("unknown {words}")\n'
        "        self.{items}.remove({item})\n"
    ),
    "find": (
        "    def find(self, {key}: {type}) -> {Class} | None:\n"
        '        """Return the first {words} with this {key}, or None."""\n'
        "        for {item} in self.{items}:\n"
        "            if {item}.{key} == {key}:\n"
        "                return {item}\n"
        "        return None\n"
    ),
    "count": (
        "    def count(self) -> int:\n"
        '        """Return how many {wordss} there are."""\n'
        "        return len(self.{items})\n"
    ),
    "clear": (
        "    def clear(self) -> None:\n"
        '        """Remove all {wordss}."""\n'
        "        self.{items}.clear()\n"
    ),
    "sort": (
        "    def sort(self) -> None:\n"
        '        """Sort the {wordss} by {key}."""\n'
        "        self.{items}.sort(key=lambda {item}: {item}.{key})\n"
    ),
    "latest": (
        "    def latest(self) -> {Class} | None:\n"
        '        """Return the {words} that was added last."""\n'
        "        if not self.{items}:\n"
        "            return None\n"
        "        return self.{items}[-1]\n"
    ),
    "filter": (
        "    def filter(self, {key}: {type}) -> list[{Class}]:\n"
        '        """Return all {wordss} with this {key}."""\n'
        "        return [{item} for {item} in self.{items} if {item}.{key} == {key}]\n"
    ),
    "group": (
        "    def group(self) -> dict[{type}, list[{Class}]]:\n"
        '        """Group the {wordss} by {key}."""\n'
        "        groups: dict[{type}, list[{Class}]] = {{}}\n"
        "        for {item} in self.{items}:\n"
        "            groups.setdefault({item}.{key}, []).append({item})\n"
        "        return groups\n"
    ),
    "is_empty": (
        "    def is_empty(self) -> bool:\n"
        '        """Tell whether there are no {wordss}."""\n'
        "        return not self.{items}\n"
    ),
    "names": (
        "    def names(self) -> list[str]:\n"
        '        """Return the {key} of every {words} as text."""\n'
        "        return [str({item}.{key}) for {item} in self.{items}]\n"
    ),
}


def collection_class(random: Random) -> tuple[str, str]:
    thing = random.choice(THINGS)
    field = fields(random, 1, 1)[0]
    holder = random.choice(("Registry", "Store", "Catalog", "List", "Archive", "Collection"))
    picked = some(random, tuple(COLLECTION), 3, 5)
    slots = {
        "item": thing,
        "items": plural(thing),
        "Class": class_name(thing),
        "words": spoken(thing),
        "wordss": spoken(plural(thing)),
        "key": field.name,
        "type": field.type_name,
        "holder": holder.lower(),
    }
    head = (
        "class {Class}{Holder}:\n"
        '    """Keeps {wordss} in the order they were added."""\n\n'
        "    def __init__(self) -> None:\n"
        "        self.{items}: list[{Class}] = []\n"
    ).format(Holder=holder, **slots)
    source = head + "".join("\n" + COLLECTION[name].format(**slots) for name in picked)
    what = (
        f"a class {class_name(thing)}{holder} that keeps {spoken(plural(thing))} "
        f"(with {article(spoken(field.name))} each) and has the methods {listed(picked)}"
    )
    return ask(random, what), source


# Modules of small functions over a list of records.

FUNCTIONS: dict[str, tuple[str, str]] = {
    "total": (
        "total_{number}",
        "def total_{number}({items}: list[dict]) -> float:\n"
        '    """Return the sum of {number} over all {wordss}."""\n'
        "    total = 0.0\n"
        "    for {item} in {items}:\n"
        '        total += {item}["{number}"]\n'
        "    return total\n",
    ),
    "mean": (
        "mean_{number}",
        "def mean_{number}({items}: list[dict]) -> float | None:\n"
        '    """Return the mean {number}, or None if there are no {wordss}."""\n'
        "    if not {items}:\n"
        "        return None\n"
        '    return sum({item}["{number}"] for {item} in {items}) / len({items})\n',
    ),
    "largest": (
        "largest_{number}",
        "def largest_{number}({items}: list[dict]) -> dict:\n"
        '    """Return the {words} with the largest {number}."""\n'
        '    return max({items}, key=lambda {item}: {item}["{number}"])\n',
    ),
    "smallest": (
        "smallest_{number}",
        "def smallest_{number}({items}: list[dict]) -> dict:\n"
        '    """Return the {words} with the smallest {number}."""\n'
        '    return min({items}, key=lambda {item}: {item}["{number}"])\n',
    ),
    "count_by": (
        "count_by_{text}",
        "def count_by_{text}({items}: list[dict]) -> dict[str, int]:\n"
        '    """Count the {wordss} for each {text}."""\n'
        "    counts: dict[str, int] = {{}}\n"
        "    for {item} in {items}:\n"
        '        key = {item}["{text}"]\n'
        "        counts[key] = counts.get(key, 0) + 1\n"
        "    return counts\n",
    ),
    "group_by": (
        "group_by_{text}",
        "def group_by_{text}({items}: list[dict]) -> dict[str, list[dict]]:\n"
        '    """Group the {wordss} by {text}."""\n'
        "    groups: dict[str, list[dict]] = {{}}\n"
        "    for {item} in {items}:\n"
        '        groups.setdefault({item}["{text}"], []).append({item})\n'
        "    return groups\n",
    ),
    "select": (
        "select_by_{text}",
        "def select_by_{text}({items}: list[dict], {text}: str) -> list[dict]:\n"
        '    """Return the {wordss} whose {text} is the given one."""\n'
        '    return [{item} for {item} in {items} if {item}["{text}"] == {text}]\n',
    ),
    "above": (
        "above_{number}",
        "def above_{number}({items}: list[dict], limit: float) -> list[dict]:\n"
        '    """Return the {wordss} whose {number} is above the limit."""\n'
        '    return [{item} for {item} in {items} if {item}["{number}"] > limit]\n',
    ),
    "sorted": (
        "sorted_by_{number}",
        "def sorted_by_{number}({items}: list[dict]) -> list[dict]:\n"
        '    """Return the {wordss} in order of {number}, largest first."""\n'
        '    return sorted({items}, key=lambda {item}: {item}["{number}"], reverse=True)\n',
    ),
    "format": (
        "format_{item}",
        "def format_{item}({item}: dict) -> str:\n"
        '    """Return one line of text for the {words}."""\n'
        """    return f"{{{item}['{text}']}}: {{{item}['{number}']}}"\n""",
    ),
    "parse": (
        "parse_{item}",
        "def parse_{item}(line: str) -> dict:\n"
        '    """Read {aword} from a line like \'{text}, {number}\'."""\n'
        '    {text}, {number} = line.split(",")\n'
        '    return {{"{text}": {text}.strip(), "{number}": float({number})}}\n',
    ),
    "check": (
        "check_{item}",
        "def check_{item}({item}: dict) -> list[str]:\n"
        '    """Return what is wrong with the {words}, in words."""\n'
        "    errors = []\n"
        '    if not {item}["{text}"]:\n'
        '        errors.append("{text} is missing")\n'
        '    if {item}["{number}"] < 0:\n'
        '        errors.append("{number} is negative")\n'
        "    return errors\n",
    ),
    "read": (
        "read_{items}",
        "def read_{items}(path: Path) -> list[dict]:\n"
        '    """Read {wordss} from a JSON file."""\n'
        '    with path.open(encoding="utf-8") as file:\n'
        "        return json.load(file)\n",
    ),
    "write": (
        "write_{items}",
        "def write_{items}(path: Path, {items}: list[dict]) -> None:\n"
        '    """Write {wordss} to a JSON file."""\n'
        '    with path.open("w", encoding="utf-8") as file:\n'
        "        json.dump({items}, file, indent=2)\n",
    ),
}


def function_module(random: Random) -> tuple[str, str]:
    thing = random.choice(THINGS)
    numbers = [field for field in fields(random, 12, 12) if field.type_name in ("int", "float")]
    texts = [field for field in fields(random, 12, 12) if field.type_name == "str"]
    if not numbers or not texts:
        return function_module(random)
    slots = {
        "item": thing,
        "items": plural(thing),
        "words": spoken(thing),
        "wordss": spoken(plural(thing)),
        "aword": article(spoken(thing)),
        "number": numbers[0].name,
        "text": texts[0].name,
    }
    picked = [FUNCTIONS[name] for name in some(random, tuple(FUNCTIONS), 2, 4)]
    names = [name.format(**slots) for name, _ in picked]
    parts = [text.format(**slots) for _, text in picked]
    if any("Path" in part for part in parts):
        parts.insert(0, "import json\nfrom pathlib import Path\n")
    source = "\n\n".join(parts)
    what = (
        f"a module for {spoken(plural(thing))} with the functions {listed(names)}. "
        f"Each {spoken(thing)} is a dict with {slots['text']} and {slots['number']}"
    )
    return ask(random, what), source


STRUCTURE: dict[str, tuple[str, str]] = {
    "Queue": ("push", "first in, first out"),
    "Stack": ("push", "last in, first out"),
    "Buffer": ("append", "oldest dropped when full"),
}


def bounded_structure(random: Random) -> tuple[str, str]:
    thing = random.choice(THINGS)
    shape = random.choice(tuple(STRUCTURE))
    add, rule = STRUCTURE[shape]
    limit = random.choice(("capacity", "limit", "max_size", "size"))
    name, items, words = class_name(thing) + shape, plural(thing), spoken(thing)
    full = (
        f"            self.{items}.pop(0)\n"
        if shape == "Buffer"
        else f'            raise OverflowError("the {shape.lower()} is full")\n'
    )
    take = "-1" if shape == "Stack" else "0"
    source = (
        f'class {name}:\n    """A {shape.lower()} of {spoken(items)}: {rule}."""\n\n'
        f"    def __init__(self, {limit}: int) -> None:\n"
        f"        if {limit} < 1:\n"
        f'            raise ValueError("{limit} must be positive")\n'
        f"        self.{limit} = {limit}\n"
        f"        self.{items}: list[str] = []\n\n"
        f"    def {add}(self, {thing}: str) -> None:\n"
        f'        """Add {article(words)}."""\n'
        f"        if len(self.{items}) >= self.{limit}:\n{full}"
        f"        self.{items}.append({thing})\n\n"
        f"    def pop(self) -> str:\n"
        f'        """Remove and return the next {words}."""\n'
        f"        if not self.{items}:\n"
        f'            raise IndexError("the {shape.lower()} is empty")\n'
        f"        return self.{items}.pop({take})\n\n"
        f"    def __len__(self) -> int:\n"
        f"        return len(self.{items})\n"
    )
    what = (
        f"a class {name}, {article(shape.lower())} of {spoken(items)} ({rule}) "
        f"with the argument {limit} and the methods {add}, pop and __len__"
    )
    return ask(random, what), source


STATES = (
    ("created", "started", "finished", "archived"),
    ("draft", "reviewed", "approved", "published"),
    ("idle", "running", "paused", "stopped"),
    ("ordered", "packed", "shipped", "delivered"),
    ("open", "assigned", "solved", "closed"),
    ("planned", "booked", "confirmed", "done"),
)
VERBS = {
    "started": "start", "finished": "finish", "archived": "archive", "reviewed": "review",
    "approved": "approve", "published": "publish", "running": "run", "paused": "pause",
    "stopped": "stop", "packed": "pack", "shipped": "ship", "delivered": "deliver",
    "assigned": "assign", "solved": "solve", "closed": "close", "booked": "book",
    "confirmed": "confirm", "done": "complete",
}  # fmt: skip


def state_machine(random: Random) -> tuple[str, str]:
    thing, states = random.choice(THINGS), random.choice(STATES)
    states = states[: random.randint(3, 4)]
    steps = "".join(
        f"\n    def {VERBS[after]}(self) -> None:\n"
        f'        """Move the {spoken(thing)} from {before} to {after}."""\n'
        f'        if self.state != "{before}":\n'
        f'            raise RuntimeError(f"cannot {VERBS[after]} when {{self.state}}")\n'
        f'        self.state = "{after}"\n'
        for before, after in pairwise(states)
    )
    source = (
        f'class {class_name(thing)}:\n    """{article(spoken(thing)).capitalize()} that goes '
        f'from {states[0]} to {states[-1]}."""\n\n'
        f'    def __init__(self) -> None:\n        self.state = "{states[0]}"\n{steps}'
    )
    what = (
        f"a class {class_name(thing)} with the states {listed(states)} and a method for each step"
    )
    return ask(random, what), source


def command_line(random: Random) -> tuple[str, str]:
    thing, chosen = random.choice(THINGS), fields(random, 2, 4)
    rows = []
    for field in chosen:
        option = field.name.replace("_", "-")
        if field.type_name == "bool":
            rows.append(f'    parser.add_argument("--{option}", action="store_true")')
        else:
            default = random.choice(field.values)
            rows.append(
                f'    parser.add_argument("--{option}", type={field.type_name}, default={default})'
            )
    shown = "\n".join(f'    print("{field.name}:", options.{field.name})' for field in chosen)
    listing = "\n".join(rows)
    source = (
        f'"""Show the values of {article(spoken(thing))}."""\n\nimport argparse\n\n\n'
        "def build_parser() -> argparse.ArgumentParser:\n"
        f'    """Return the parser of the command line."""\n'
        f'    parser = argparse.ArgumentParser(description="Show {article(spoken(thing))}")\n'
        f"{listing}\n    return parser\n\n\n"
        "def main() -> None:\n"
        '    """Read the options and print them."""\n'
        f"    options = build_parser().parse_args()\n{shown}\n\n\n"
        'if __name__ == "__main__":\n    main()\n'
    )
    what = f"a command line script for {article(spoken(thing))} with the options {typed(chosen)}"
    return ask(random, what), source


FAMILIES: tuple[Callable[[Random], tuple[str, str]], ...] = (
    record_class,
    record_class,
    record_class,
    collection_class,
    collection_class,
    function_module,
    function_module,
    function_module,
    bounded_structure,
    state_machine,
    command_line,
)
