"""YAML as plain values that remember where they stand. Knows the traps of YAML, no key of ours.

A scalar without quotes stays text (`Plain`) until somebody who knows the key's type reads it:
`1.10`, `12345678` and `2026-11-29` can be labels, and `1e-3` is a number although PyYAML says it is
not. What YAML 1.1 would change behind the user's back is refused: `on` and `no` as booleans, a key
written twice, nothing after a colon.
"""

import difflib
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import yaml

from harness.errors import ConfigError, Place

_BOOLEANS = {"true": True, "false": False}
_BOOLEANS_IN_DISGUISE = {"on", "off", "yes", "no"}
_NULLS = {"", "~", "null"}
_KNOWN_TAGS = "tag:yaml.org,2002:"


class Plain(str):
    """A scalar that was written without quotes."""

    __slots__ = ()


class Section(dict[str, Any]):
    """A mapping that knows where it, its keys and its values stand."""

    def __init__(self, place: Place) -> None:
        super().__init__()
        self.place = place
        self.key_places: dict[str, Place] = {}
        self.value_places: dict[str, Place] = {}

    def put(self, key: str, value: Any, key_place: Place, value_place: Place) -> None:
        self[key] = value
        self.key_places[key] = key_place
        self.value_places[key] = value_place


class Items(list[Any]):
    """A list that knows where it and its items stand."""

    def __init__(self, place: Place) -> None:
        super().__init__()
        self.place = place
        self.value_places: list[Place] = []


def read_yaml(path: Path, project: Path) -> Section:
    """The mapping that a file holds, with every `use: FILE` in it replaced by that file's keys."""
    return _Reader(path, project).read()


def place_at(root: Section, location: Iterable[str | int], *, key: bool = False) -> Place:
    """Where the value (or the key) at `location` stands; a missing one is where its section is."""
    place = root.place
    for section, step in _walk(root, location):
        if key and isinstance(section, Section):
            place = section.key_places[step]
        else:
            place = section.value_places[step]
    return place


def written_at(root: Section, location: Iterable[str | int]) -> Any:
    """What was written there, before anything made a number of it."""
    value: Any = root
    for section, step in _walk(root, location):
        value = section[step]
    return value


def _walk(root: Section, location: Iterable[str | int]) -> Iterator[tuple[Any, Any]]:
    """Each section or list on the way, with the step that is taken in it."""
    here: Any = root
    for step in location:
        found = step in here if isinstance(here, Section) else _is_index(step, here)
        if found:  # else a word of pydantic's own, such as the tag of a union
            yield here, step
            here = here[step]


def _is_index(step: str | int, here: Any) -> bool:
    return isinstance(here, Items) and isinstance(step, int) and step < len(here)


def nearest(word: str, known: Iterable[str]) -> str:
    """`; did you mean x?` with the closest known word, and nothing when none is close."""
    close = difflib.get_close_matches(word, list(known), n=1, cutoff=0.6)
    return f"; did you mean `{close[0]}`?" if close else ""


class _Reader:
    """One file's nodes to values. `use:` opens another reader."""

    def __init__(self, path: Path, project: Path, *, used: bool = False) -> None:
        self._path = path
        self._project = project
        self._used = used
        self._inside: list[int] = []  # the nodes we are in, to notice an alias to one of them

    def read(self) -> Section:
        try:
            text = self._path.read_text(encoding="utf-8")
        except FileNotFoundError:
            raise ConfigError(f"no file {self.shown}; write the path of a matrix file") from None
        except (OSError, UnicodeDecodeError) as error:
            raise ConfigError(f"{self.shown} cannot be read as UTF-8 text: {error}") from error
        try:
            node = yaml.compose(text, Loader=yaml.SafeLoader)
        except yaml.MarkedYAMLError as error:
            place = self._place(error.problem_mark) if error.problem_mark else None
            said = ", ".join(word for word in (error.context, error.problem) if word)
            raise ConfigError(f"this is no YAML: {said}", place=place) from error
        except yaml.YAMLError as error:
            raise ConfigError(f"{self.shown} is no YAML: {error}") from error
        if not isinstance(node, yaml.MappingNode):
            raise ConfigError(f"{self.shown} must hold keys and values (`name: ...`) and does not")
        return self._section(node)

    @property
    def shown(self) -> str:
        return shown(self._path)

    def _place(self, mark: yaml.Mark) -> Place:
        return Place(path=self.shown, line=mark.line + 1, column=mark.column + 1)

    def _value(self, node: yaml.Node) -> Any:
        place = self._place(node.start_mark)
        if not node.tag.startswith(_KNOWN_TAGS) or "python" in node.tag:
            raise ConfigError(f"the tag `{node.tag}` means nothing here; remove it", place=place)
        if isinstance(node, yaml.ScalarNode):
            return _scalar(node, place)
        if id(node) in self._inside:
            raise ConfigError("this alias stands inside what it repeats; write it out", place=place)
        self._inside.append(id(node))
        value = self._section(node) if isinstance(node, yaml.MappingNode) else self._items(node)
        self._inside.pop()
        return value

    def _items(self, node: yaml.Node) -> Items:
        items = Items(self._place(node.start_mark))
        for child in node.value:
            items.append(self._value(child))
            items.value_places.append(self._place(child.start_mark))
        return items

    def _section(self, node: yaml.MappingNode) -> Section:
        section = Section(self._place(node.start_mark))
        merged: list[Section] = []
        for key_node, value_node in node.value:
            if key_node.tag == f"{_KNOWN_TAGS}merge":
                merged += self._merged(value_node)
                continue
            key = self._key(key_node)
            key_place = self._place(key_node.start_mark)
            if key in section:
                raise ConfigError(
                    f"`{key}` stands here and in line {section.key_places[key].line}; keep one",
                    place=key_place,
                )
            value = self._value(value_node)
            section.put(key, value, key_place, self._place(value_node.start_mark))
        if "use" in section:
            merged.insert(0, self._use(section))
        for other in merged:
            _fill(section, other)
        return section

    def _key(self, node: yaml.Node) -> str:
        place = self._place(node.start_mark)
        if not isinstance(node, yaml.ScalarNode):
            raise ConfigError("a key must be a word", place=place)
        key = _scalar(node, place)
        if isinstance(key, bool):
            raise ConfigError(
                f"`{node.value}` is no key; quote it if you mean the word", place=place
            )
        return str(key)

    def _merged(self, node: yaml.Node) -> list[Section]:
        nodes = node.value if isinstance(node, yaml.SequenceNode) else [node]
        values = [self._value(child) for child in nodes]
        if not all(isinstance(value, Section) for value in values):
            place = self._place(node.start_mark)
            raise ConfigError("`<<` merges mappings only", place=place)
        return values

    def _use(self, section: Section) -> Section:
        place = section.value_places["use"]
        written = section.pop("use")
        if not isinstance(written, str):
            raise ConfigError(f"`use: {written}` must name one file", place=place)
        if self._used:
            raise ConfigError(
                f"`use: {written}` stands in a file that is itself used; write its keys out",
                place=place,
            )
        path = resolve(written, beside=self._path, project=self._project)
        if not path.is_file():
            raise ConfigError(f"`use: {written}`: there is no file {shown(path)}", place=place)
        return _Reader(path, self._project, used=True).read()


def _fill(section: Section, other: Section) -> None:
    """What stands in the section itself goes before what it repeats."""
    for key, value in other.items():
        if key not in section:
            section.put(key, value, other.key_places[key], other.value_places[key])


def _scalar(node: yaml.ScalarNode, place: Place) -> bool | str:
    text: str = node.value
    if node.style is not None:
        return text
    word = text.lower()
    if word in _BOOLEANS:
        return _BOOLEANS[word]
    if word in _BOOLEANS_IN_DISGUISE:
        raise ConfigError(
            f'`{text}` is a boolean to YAML; write "{text}" for the word, true/false for a switch',
            place=place,
        )
    if word in _NULLS:
        raise ConfigError("nothing stands here; write a value or leave the key out", place=place)
    return Plain(text)


# --- paths ----------------------------------------------------------------------------------------


def project_of(path: Path) -> Path:
    """The nearest folder above `path` that has a pyproject.toml; else the file's own folder."""
    folder = path.resolve().parent
    return next((f for f in (folder, *folder.parents) if (f / "pyproject.toml").is_file()), folder)


def resolve(written: str, *, beside: Path, project: Path) -> Path:
    """A path as written in a file: from the project's root, else from the file's own folder."""
    from_project = project / written
    from_file = beside.resolve().parent / written
    return from_file if from_file.exists() and not from_project.exists() else from_project


def shown(path: Path) -> str:
    """As short as it can be: from the working directory when it lies below it."""
    whole = path.resolve()
    return str(whole.relative_to(Path.cwd())) if whole.is_relative_to(Path.cwd()) else str(whole)
