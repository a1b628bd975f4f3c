"""Prompt sets: JSON lines of `id`, `kind`, `messages`, `source`, `licence`; `publish` may be false.

This module reads and checks them. It knows no tokenizer, no chat template and no engine: what a
model makes of a prompt is for the engine to say.
"""

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Literal

import msgspec

from harness import keys
from harness.errors import ConfigError, Place
from harness.records import Prompt, PromptSet


class _Message(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    role: Literal["system", "user", "assistant"]
    content: str


class _Line(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    id: str
    kind: str
    messages: tuple[_Message, ...]
    source: str
    licence: str
    publish: bool = True


def load_prompt_set(path: Path) -> PromptSet:
    """The prompts of a file, in its order."""
    return prompt_set(path, _read(path))


def prompt_set(path: Path, data: bytes) -> PromptSet:
    """`data` as the content of `path`. A repeated id or text would count double: refused."""
    prompts: list[Prompt] = []
    lines: dict[object, int] = {}
    for number, line in enumerate(data.split(b"\n"), start=1):
        if not line.strip():
            continue
        place = Place(path=str(path), line=number, column=1)
        prompt = _prompt(line, place)
        for what, value in (("id", prompt.prompt_id), ("text", _text(prompt))):
            first = lines.setdefault((what, value), number)
            if first != number:
                raise ConfigError(
                    f"prompt `{prompt.prompt_id}` has the same {what} as the one in line {first}; "
                    "remove one of them",
                    place=place,
                )
        prompts.append(prompt)
    if not prompts:
        raise ConfigError(f"{path} holds no prompt; write one JSON object per line")
    return PromptSet(name=path.stem, prompts=tuple(prompts), sha256=content_sha256(prompts))


def content_sha256(prompts: list[Prompt]) -> str:
    """Hash of ids, kinds and messages in order. Source, licence and line ends do not enter."""
    content = [[p.prompt_id, p.kind, [dict(message) for message in p.messages]] for p in prompts]
    return hashlib.sha256(keys.canonical_json(content)).hexdigest()


def salted(messages: Sequence[Mapping[str, str]], salt: str) -> tuple[Mapping[str, str], ...]:
    """The same conversation behind a word of its own, which no prefix cache has seen."""
    first, *others = messages
    return ({**first, "content": f"[{salt}] {first['content']}"}, *others)


def prompt_set_names(prompts_dir: Path) -> list[str]:
    """The sets that can be named in a matrix."""
    return sorted(path.stem for path in prompts_dir.glob("*.jsonl"))


def prompt_set_path(name: str, prompts_dir: Path) -> Path:
    return prompts_dir / f"{name}.jsonl"


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {error.strerror}") from error


def _prompt(line: bytes, place: Place) -> Prompt:
    try:
        read = msgspec.json.decode(line, type=_Line)
    except msgspec.DecodeError as error:
        raise ConfigError(
            f"{error}; a prompt is one line of JSON with id, kind, messages, source and licence",
            place=place,
        ) from error
    empty = [name for name in ("id", "kind") if not getattr(read, name).strip()]
    if not read.messages or not all(message.content.strip() for message in read.messages):
        empty.append("messages")
    if empty:
        raise ConfigError(f"`{empty[0]}` of prompt `{read.id}` is empty; write it", place=place)
    return Prompt(
        prompt_id=read.id,
        kind=read.kind,
        messages=tuple({"role": m.role, "content": m.content} for m in read.messages),
        source=read.source,
        licence=read.licence,
        publish=read.publish,
    )


def prompt_lines(prompts: Iterable[Prompt]) -> bytes:
    """The file that `load_prompt_set` reads."""
    return b"".join(msgspec.json.encode(_line(prompt)) + b"\n" for prompt in prompts)


def _line(prompt: Prompt) -> dict[str, object]:
    line: dict[str, object] = {
        "id": prompt.prompt_id,
        "kind": prompt.kind,
        "messages": [dict(message) for message in prompt.messages],
        "source": prompt.source,
        "licence": prompt.licence,
    }
    return line if prompt.publish else {**line, "publish": False}


def _text(prompt: Prompt) -> tuple[tuple[str, str], ...]:
    return tuple((message["role"], message["content"]) for message in prompt.messages)
