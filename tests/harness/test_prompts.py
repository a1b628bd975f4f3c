"""Prompt files: what is read, what is hashed, what is refused."""

import json
from pathlib import Path

import pytest

from harness.errors import ConfigError
from harness.prompts import load_prompt_set, prompt_set_names


def line(prompt_id: str = "p1", text: str = "Say hello", **changes: object) -> str:
    prompt: dict[str, object] = {
        "id": prompt_id,
        "kind": "code",
        "messages": [{"role": "user", "content": text}],
        "source": "written for this project",
        "licence": "Apache-2.0",
    }
    return json.dumps({**prompt, **changes}, ensure_ascii=False)


def written(tmp_path: Path, *lines: str, end: str = "\n", name: str = "demo") -> Path:
    path = tmp_path / f"{name}.jsonl"
    path.write_bytes((end.join(lines) + end).encode())
    return path


def test_prompts_keep_the_order_of_the_file(tmp_path: Path) -> None:
    prompt_set = load_prompt_set(written(tmp_path, line("b", "one"), "", line("a", "two")))
    assert prompt_set.name == "demo"
    assert [prompt.prompt_id for prompt in prompt_set.prompts] == ["b", "a"]
    assert prompt_set.prompts[0].messages == ({"role": "user", "content": "one"},)
    assert prompt_set.prompts[0].licence == "Apache-2.0"


def test_the_hash_is_that_of_ids_kinds_and_messages(tmp_path: Path) -> None:
    # printf '%s' '[["p1","code",[{"content":"Erkläre “Käse”","role":"user"}]]]' | sha256sum
    expected = "88f7fc7e48f45b8657f7ab459cd51069259bfc89b8cc593d1197c339e13551e8"
    assert load_prompt_set(written(tmp_path, line(text="Erkläre “Käse”"))).sha256 == expected


def test_source_and_licence_do_not_change_the_hash(tmp_path: Path) -> None:
    one = load_prompt_set(written(tmp_path, line(), name="one"))
    two = load_prompt_set(written(tmp_path, line(source="a book", licence="MIT"), name="two"))
    assert one.sha256 == two.sha256


def test_windows_line_ends_of_the_file_change_neither_prompts_nor_hash(tmp_path: Path) -> None:
    lines = [line("a", "def f():\n    return 1\n"), line("b")]
    unix = load_prompt_set(written(tmp_path, *lines, name="unix"))
    windows = load_prompt_set(written(tmp_path, *lines, end="\r\n", name="windows"))
    assert windows.prompts == unix.prompts
    assert windows.sha256 == unix.sha256


def test_line_ends_inside_a_prompt_change_the_hash(tmp_path: Path) -> None:
    unix = load_prompt_set(written(tmp_path, line(text="a\nb"), name="unix"))
    windows = load_prompt_set(written(tmp_path, line(text="a\r\nb"), name="windows"))
    assert windows.sha256 != unix.sha256


def test_order_changes_the_hash(tmp_path: Path) -> None:
    forth = load_prompt_set(written(tmp_path, line("a", "x"), line("b", "y"), name="forth"))
    back = load_prompt_set(written(tmp_path, line("b", "y"), line("a", "x"), name="back"))
    assert forth.sha256 != back.sha256


def test_a_line_separator_inside_a_prompt_does_not_end_the_line(tmp_path: Path) -> None:
    prompt_set = load_prompt_set(written(tmp_path, line(text="x\u2028y\x85z"), line("p2", "b")))
    assert prompt_set.prompts[0].messages[0]["content"] == "x\u2028y\x85z"
    assert len(prompt_set.prompts) == 2


def test_an_id_used_twice_is_refused_with_both_lines(tmp_path: Path) -> None:
    path = written(tmp_path, line("p1", "one"), line("p2", "two"), line("p1", "three"))
    with pytest.raises(ConfigError) as caught:
        load_prompt_set(path)
    assert str(caught.value) == (
        f"{path}:3:1: prompt `p1` has the same id as the one in line 1; remove one of them"
    )


def test_a_text_used_twice_is_refused(tmp_path: Path) -> None:
    path = written(tmp_path, line("p1"), line("p2"))
    with pytest.raises(ConfigError, match="prompt `p2` has the same text as the one in line 1"):
        load_prompt_set(path)


@pytest.mark.parametrize(
    ("bad", "said"),
    [
        ('{"id": "p1"}', "missing required field `kind`"),
        (line(tags=[]), "unknown field `tags`"),
        (line(messages=[{"role": "robot", "content": "x"}]), "Invalid enum value 'robot'"),
        (line(messages=[]), "`messages` of prompt `p1` is empty"),
        (line(text=" "), "`messages` of prompt `p1` is empty"),
        (line(kind=""), "`kind` of prompt `p1` is empty"),
        ("not json", "malformed"),
        ('{"id": "p1", "kind"', "truncated"),
    ],
)
def test_a_line_that_is_no_prompt_is_told_with_its_place(
    tmp_path: Path, bad: str, said: str
) -> None:
    path = written(tmp_path, line("p0", "fine"), bad)
    with pytest.raises(ConfigError) as caught:
        load_prompt_set(path)
    assert str(caught.value).startswith(f"{path}:2:1: ")
    assert said in str(caught.value)


def test_a_file_that_is_not_utf8_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "latin.jsonl"
    path.write_bytes(line(text="Käse").encode("latin-1"))
    with pytest.raises(ConfigError, match=r"latin\.jsonl:1:1: Invalid UTF-8"):
        load_prompt_set(path)


def test_an_empty_set_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="holds no prompt"):
        load_prompt_set(written(tmp_path, ""))


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"nothing\.jsonl cannot be read: No such file"):
        load_prompt_set(tmp_path / "nothing.jsonl")


def test_the_sets_of_a_folder_are_listed_by_name(tmp_path: Path) -> None:
    written(tmp_path, line(), name="study4")
    written(tmp_path, line(), name="demo5")
    (tmp_path / "README.md").write_text("about")
    assert prompt_set_names(tmp_path) == ["demo5", "study4"]
