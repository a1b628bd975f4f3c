"""Text to token ids and back: tokenizer.json, chat template, stop ids, streaming decoder.

Knows nothing about models, sampling or HTTP. Only byte-level tokenizers are read (Qwen's
and GPT-2's kind): there a token is a fixed string of bytes, so a stream can be decoded exactly.
"""

from __future__ import annotations

import codecs
import json
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

import jinja2
from jinja2.ext import loopcontrols
from jinja2.sandbox import ImmutableSandboxedEnvironment
from tokenizers import Tokenizer as LibraryTokenizer

from engines.dflash2.config import ModelError

# A template computes with whatever the client put into its messages and variables.
_TEMPLATE_FAILURES = (
    jinja2.TemplateError,
    ArithmeticError,
    AttributeError,
    LookupError,
    RecursionError,
    TypeError,
    ValueError,
)


class ChatTemplateError(ValueError):
    """The messages do not fit the model's chat template, or it has none."""


def byte_of_character() -> dict[str, int]:
    """The byte behind each character of a byte-level vocabulary.

    GPT-2's convention: printable Latin-1 characters stand for themselves, the other bytes, in
    ascending order, for the characters from U+0100 on.
    """
    printable = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    others = (byte for byte in range(256) if byte not in printable)
    table = {chr(byte): byte for byte in printable}
    table.update({chr(0x100 + index): byte for index, byte in enumerate(others)})
    return table


def token_bytes(token: str, byte_of: Mapping[str, int]) -> bytes:
    """A vocabulary entry as the bytes it stands for; an added token may be plain text instead."""
    if all(character in byte_of for character in token):
        return bytes(byte_of[character] for character in token)
    return token.encode()


class StreamDecoder:
    """Turns a growing list of token ids into text, holding back half a UTF-8 character.

    The concatenation of everything `feed` and `finish` return is the text of all ids at once,
    however the ids were cut into rounds. Bytes that cannot become a character are U+FFFD.
    """

    def __init__(self, bytes_of_id: Mapping[int, bytes]) -> None:
        self._bytes_of_id = bytes_of_id
        self._utf8 = codecs.getincrementaldecoder("utf-8")("replace")

    def feed(self, token_ids: Iterable[int]) -> str:
        # An id outside the tokenizer (a model's vocabulary is often padded) has no text.
        return self._utf8.decode(b"".join(self._bytes_of_id.get(id_, b"") for id_ in token_ids))

    def finish(self) -> str:
        """What is still held: one U+FFFD for an unfinished character, else nothing."""
        return self._utf8.decode(b"", final=True)


class Tokenizer:
    """A model folder's tokenizer, its chat template if there is one, and its stop ids."""

    def __init__(
        self, library: LibraryTokenizer, settings: Mapping[str, Any], chat_template: str | None
    ) -> None:
        self._library = library
        self._settings = settings
        self._chat_template = _compile(chat_template) if chat_template is not None else None
        self._bytes_of_id = _bytes_of_id(library)

    @property
    def has_chat_template(self) -> bool:
        return self._chat_template is not None

    @property
    def num_tokens(self) -> int:
        return int(self._library.get_vocab_size(with_added_tokens=True))

    @property
    def highest_id(self) -> int:
        ids: dict[str, int] = self._library.get_vocab(with_added_tokens=True)
        return max(ids.values())

    def encode(self, text: str, *, add_special_tokens: bool = True) -> list[int]:
        return list(self._library.encode(text, add_special_tokens=add_special_tokens).ids)

    def decode(self, token_ids: Sequence[int]) -> str:
        decoder = self.stream_decoder()
        return decoder.feed(token_ids) + decoder.finish()

    def stream_decoder(self) -> StreamDecoder:
        return StreamDecoder(self._bytes_of_id)

    def render_chat(
        self, messages: Sequence[Mapping[str, Any]], template_variables: Mapping[str, Any]
    ) -> str:
        """The prompt text of a conversation, ending where the assistant's answer begins."""
        if self._chat_template is None:
            raise ChatTemplateError(
                "this model has no chat template (neither chat_template.jinja nor chat_template in "
                "tokenizer_config.json); send the finished prompt to /v1/completions"
            )
        variables = {
            "add_generation_prompt": True,
            "bos_token": _token_text(self._settings.get("bos_token")),
            "eos_token": _token_text(self._settings.get("eos_token")),
            **template_variables,
            "messages": messages,
        }
        try:
            return self._chat_template.render(variables)
        except _TEMPLATE_FAILURES as error:
            raise ChatTemplateError(f"the chat template refuses these messages: {error}") from error

    def encode_chat(
        self, messages: Sequence[Mapping[str, Any]], template_variables: Mapping[str, Any]
    ) -> list[int]:
        # The template writes the special tokens itself; adding them again would double them.
        return self.encode(self.render_chat(messages, template_variables), add_special_tokens=False)


def load_tokenizer(model_dir: Path) -> Tokenizer:
    path = model_dir / "tokenizer.json"
    if not path.is_file():
        raise ModelError(f"{path} does not exist; the target's folder must hold its tokenizer.json")
    try:
        library = LibraryTokenizer.from_file(str(path))
    except Exception as error:  # the library raises nothing narrower for a file it cannot read
        raise ModelError(f"{path} is not a tokenizer that can be read: {error}") from error
    _require_byte_level(path)
    settings = _read_object(model_dir / "tokenizer_config.json") or {}
    return Tokenizer(library, settings, _read_chat_template(model_dir, settings))


def load_stop_ids(model_dir: Path) -> frozenset[int]:
    """The ids that end an answer: generation_config.json's eos_token_id, else config.json's.

    generation_config.json goes first because chat models list the end of a turn only there. A
    model that also sees has its own in config.json's text_config.
    """
    generation = _read_object(model_dir / "generation_config.json") or {}
    config = _read_object(model_dir / "config.json") or {}
    for settings in (generation, config, config.get("text_config") or {}):
        value = settings.get("eos_token_id")
        if value is not None:
            return _ids(value, model_dir)
    return frozenset()


def _ids(value: Any, model_dir: Path) -> frozenset[int]:
    ids = value if isinstance(value, list) else [value]
    if not all(type(id_) is int for id_ in ids):
        raise ModelError(
            f"eos_token_id in {model_dir} is {json.dumps(value)}; it must be an id or a list of ids"
        )
    return frozenset(ids)


def _bytes_of_id(library: LibraryTokenizer) -> dict[int, bytes]:
    byte_of = byte_of_character()
    special = {id_ for id_, token in library.get_added_tokens_decoder().items() if token.special}
    return {
        id_: token_bytes(token, byte_of)
        for token, id_ in library.get_vocab(with_added_tokens=True).items()
        if id_ not in special
    }


def _require_byte_level(path: Path) -> None:
    decoder = json.loads(path.read_text(encoding="utf-8")).get("decoder") or {}
    if decoder.get("type") != "ByteLevel":
        raise ModelError(
            f"{path} has a decoder of type {decoder.get('type')!r}; "
            "only byte-level tokenizers (decoder type 'ByteLevel') can be streamed exactly"
        )


def _read_chat_template(model_dir: Path, settings: Mapping[str, Any]) -> str | None:
    """chat_template.jinja (how transformers writes it since 4.50), else tokenizer_config.json's."""
    path = model_dir / "chat_template.jinja"
    if path.is_file():
        return path.read_text(encoding="utf-8")
    template = settings.get("chat_template")
    if isinstance(template, list):
        return next((item["template"] for item in template if item["name"] == "default"), None)
    return template


def _read_object(path: Path) -> dict[str, Any] | None:
    if not path.is_file():
        return None
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ModelError(f"{path} is not JSON: {error}") from error
    if not isinstance(value, dict):
        raise ModelError(f"{path} must hold a JSON object, not {type(value).__name__}")
    return value


def _token_text(token: Any) -> str:
    """A special token as tokenizer_config.json writes it: a string, an object, or null."""
    if isinstance(token, Mapping):
        return str(token["content"])
    return token or ""


def _compile(source: str) -> jinja2.Template:
    """The template in a sandbox: it comes with the checkpoint, so it is data from a stranger."""
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols]
    )
    environment.filters["tojson"] = _to_json
    environment.globals["raise_exception"] = _raise_exception
    environment.globals["strftime_now"] = lambda pattern: datetime.now().strftime(pattern)
    try:
        return environment.from_string(source)
    except jinja2.TemplateSyntaxError as error:
        raise ModelError(
            f"the chat template does not parse (line {error.lineno}): {error}"
        ) from error


def _to_json(value: Any, indent: int | None = None) -> str:
    # Jinja's own filter escapes for HTML, which a prompt must not have.
    return json.dumps(value, ensure_ascii=False, indent=indent)


def _raise_exception(message: str) -> None:
    raise jinja2.TemplateError(message)
