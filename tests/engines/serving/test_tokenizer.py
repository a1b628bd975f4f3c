"""Text and tokens: exact streaming, the chat template, the stop ids, and unreadable folders."""

from __future__ import annotations

import json
import shutil
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer as LibraryTokenizer

from engines.dflash2.config import ModelError
from engines.dflash2.tokenizer import (
    ChatTemplateError,
    StreamDecoder,
    Tokenizer,
    byte_of_character,
    load_stop_ids,
    load_tokenizer,
)

from .support import STOP_TOKEN, Pair, write_json

# B140: the tokens E4 | B8 AD | F0 9F | 9A 80 | F0 9F, the last of which never becomes a character
HALF_CHARACTERS = dict(enumerate([b"\xe4", b"\xb8\xad", b"\xf0\x9f", b"\x9a\x80", b"\xf0\x9f"]))


def test_the_byte_table_is_a_bijection_onto_all_bytes() -> None:
    table = byte_of_character()
    assert sorted(table.values()) == list(range(256))
    assert table["A"] == 0x41
    assert table["Ġ"] == 0x20  # how GPT-2's vocabulary writes a leading space
    assert table["Ċ"] == 0x0A  # and a line feed


def test_half_a_character_is_held_back_until_the_other_half_comes() -> None:
    decoder = StreamDecoder(HALF_CHARACTERS)
    assert [decoder.feed([id_]) for id_ in range(5)] == ["", "中", "", "🚀", ""]
    assert decoder.finish() == "\ufffd"


@given(cuts=st.sets(st.integers(min_value=1, max_value=4)))
def test_text_does_not_depend_on_how_the_tokens_were_cut_into_rounds(cuts: set[int]) -> None:
    decoder = StreamDecoder(HALF_CHARACTERS)
    edges = [0, *sorted(cuts), 5]
    rounds = [range(start, end) for start, end in pairwise(edges)]
    assert "".join(decoder.feed(round_) for round_ in rounds) + decoder.finish() == "中🚀\ufffd"


@given(ids=st.lists(st.integers(min_value=0, max_value=330), max_size=12))
def test_any_ids_decode_as_the_tokenizers_library_decodes_them(
    tokenizer: Tokenizer, library: LibraryTokenizer, ids: list[int]
) -> None:
    assert tokenizer.decode(ids) == library.decode(ids, skip_special_tokens=True)


@pytest.mark.parametrize("text", ["def f(x):\n    return x", "naïve 日本語 🚀", "a\tb  c", " lead"])
def test_a_text_survives_encoding_and_decoding(tokenizer: Tokenizer, text: str) -> None:
    assert tokenizer.decode(tokenizer.encode(text)) == text


def test_special_tokens_have_no_text(tokenizer: Tokenizer) -> None:
    ids = tokenizer.encode(f"ab{STOP_TOKEN}")
    assert len(ids) == 3
    assert tokenizer.decode(ids) == "ab"


def test_a_chat_ends_where_the_answer_begins(tokenizer: Tokenizer) -> None:
    messages = [{"role": "user", "content": "hi"}]
    assert (
        tokenizer.render_chat(messages, {})
        == "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n"
    )
    assert tokenizer.render_chat(messages, {"add_generation_prompt": False}).endswith(
        "hi<|im_end|>\n"
    )


def test_a_chat_template_runs_in_a_sandbox(copied_target: Path) -> None:
    (copied_target / "chat_template.jinja").write_text("{{ messages.__class__.__mro__ }}")
    tokenizer = load_tokenizer(copied_target)
    with pytest.raises(ChatTemplateError, match="refuses these messages"):
        tokenizer.render_chat([{"role": "user", "content": "hi"}], {})


def test_what_a_template_raises_reaches_the_user(copied_target: Path) -> None:
    (copied_target / "chat_template.jinja").write_text(
        "{{ raise_exception('the first message must be from the user') }}"
    )
    tokenizer = load_tokenizer(copied_target)
    with pytest.raises(ChatTemplateError, match="the first message must be from the user"):
        tokenizer.render_chat([{"role": "system", "content": "x"}], {})


NESTED: list = []
for _ in range(2000):
    NESTED = [NESTED]


@pytest.mark.parametrize(
    ("source", "variables"),
    [
        ("{{ 1 // number }}", {"number": 0}),
        ("{{ 2.0 ** number }}", {"number": 5000}),
        ("{{ nested | tojson }}", {"nested": NESTED}),
        ("{{ messages[0]['content'].nothing() }}", {}),
        ("{% for message in messages %}{% endfor %}{{ range(3) }}", {"range": 5}),
        ("{{ 'x'.split('') }}", {}),
    ],
)
def test_what_a_template_makes_of_a_clients_values_is_the_clients_mistake(
    copied_target: Path, source: str, variables: dict
) -> None:
    (copied_target / "chat_template.jinja").write_text(source)
    with pytest.raises(ChatTemplateError, match="refuses these messages"):
        load_tokenizer(copied_target).render_chat([{"role": "user", "content": "x"}], variables)


def test_a_template_file_goes_before_the_one_in_the_settings(copied_target: Path) -> None:
    (copied_target / "chat_template.jinja").write_text("{{ {'é': 1} | tojson }}")
    assert load_tokenizer(copied_target).render_chat([], {}) == '{"é": 1}'


def test_without_a_chat_template_the_error_names_the_other_endpoint(copied_target: Path) -> None:
    (copied_target / "tokenizer_config.json").unlink()
    tokenizer = load_tokenizer(copied_target)
    assert not tokenizer.has_chat_template
    with pytest.raises(ChatTemplateError, match="/v1/completions"):
        tokenizer.render_chat([{"role": "user", "content": "hi"}], {})


def test_stop_ids_come_from_the_generation_config_first(copied_target: Path) -> None:
    assert load_stop_ids(copied_target) == {2, 0}
    write_json(copied_target / "generation_config.json", {"eos_token_id": 7})
    assert load_stop_ids(copied_target) == {7}


def test_stop_ids_fall_back_to_the_model_config(copied_target: Path) -> None:
    (copied_target / "generation_config.json").unlink()
    assert load_stop_ids(copied_target) == {0}


def test_stop_ids_of_a_model_that_also_sees_stand_in_its_text_part(copied_target: Path) -> None:
    (copied_target / "generation_config.json").unlink()
    write_json(copied_target / "config.json", {"text_config": {"eos_token_id": 9}})
    assert load_stop_ids(copied_target) == {9}


def test_a_stop_id_that_is_no_id_is_refused(copied_target: Path) -> None:
    write_json(copied_target / "generation_config.json", {"eos_token_id": "<|im_end|>"})
    with pytest.raises(ModelError, match=r'eos_token_id in .* is "<\|im_end\|>"'):
        load_stop_ids(copied_target)


def test_a_folder_without_tokenizer_is_refused(copied_target: Path) -> None:
    (copied_target / "tokenizer.json").unlink()
    with pytest.raises(ModelError, match=r"tokenizer\.json does not exist"):
        load_tokenizer(copied_target)


def test_a_broken_tokenizer_is_refused(copied_target: Path) -> None:
    (copied_target / "tokenizer.json").write_text("{")
    with pytest.raises(ModelError, match="is not a tokenizer that can be read"):
        load_tokenizer(copied_target)


def test_a_tokenizer_that_is_not_byte_level_is_refused(copied_target: Path) -> None:
    path = copied_target / "tokenizer.json"
    settings = json.loads(path.read_text(encoding="utf-8"))
    settings["decoder"] = {"type": "WordPiece", "prefix": "##", "cleanup": True}
    write_json(path, settings)
    with pytest.raises(ModelError, match="decoder of type 'WordPiece'"):
        load_tokenizer(copied_target)


@pytest.fixture(scope="session")
def library(pair: Pair) -> LibraryTokenizer:
    return LibraryTokenizer.from_file(str(pair.target / "tokenizer.json"))


@pytest.fixture
def copied_target(pair: Pair, tmp_path: Path) -> Path:
    return Path(shutil.copytree(pair.target, tmp_path / "target"))
